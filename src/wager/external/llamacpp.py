"""llama.cpp as a backend: ``llama-server`` over a GGUF file.

Read at build b11434: its log, its metrics page, its streams.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

from wager.arms import Arm
from wager.backend import Prompt, Started
from wager.errors import ConfigError
from wager.external import flags, llama_wire, program
from wager.external.dialects import dialect
from wager.external.dialects.options import is_gguf, is_hub_id
from wager.external.reply import Reply
from wager.external.server import ServerBackend

_STAMP: Final = re.compile(r"^\d+\.\d+\.\d+\.\d+ ([A-Z]) (.*)$")
_KV: Final = re.compile(
    r"llama_kv_cache: size = +[\d.]+ MiB \( *(\d+) cells, +\d+ layers, +\d+/(\d+) seqs\)"
    r", K \((\w+)\): .*V \((\w+)\):"
)
_SLOTS: Final = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+)")
_DRAFTER: Final = re.compile(r"adding speculative implementation '([\w-]+)'")
_DRAFTER_VALUES: Final = re.compile(r": - (\w+=.*)$")
_FAILED: Final = "failed to initialize speculative decoding context"
# Said at every start, and nothing to do with a measurement.
_IDLE_TALK: Final = re.compile(r"security:|--cache-idle-slots requires")
_NOT_ACTIVE: Final = (
    "NOT ACTIVE: llama-server runs on without speculation, though the arm asks for it"
)

# What would carry work from one request to the next, or change settings behind one's back. Each
# flag is given where the installed build knows it.
_SETTLED: Final = (
    ("--metrics",),
    ("--slots",),
    ("--no-cache-prompt",),
    ("--cache-ram", "0"),
    ("--no-kv-unified",),
    ("--no-context-shift",),
    # Level 4 says which drafter was made, with which values, and how much room keys and values
    # have; it adds a few lines for a request and none for a token.
    ("--log-verbosity", "4"),
)


class LlamaCppBackend(ServerBackend):
    """Starts ``llama-server`` for each arm; every client has a slot of its own."""

    name = "llamacpp"

    def check(self, arm: Arm) -> str:
        if self.options.kv_memory is not None:
            raise ConfigError(
                "kv-memory: llama-server has no such option, its room for keys and values follows "
                "from --max-model-len and the number of clients; leave it out"
            )
        written = dialect(self.name).write(arm.speculation)
        if self.options.engine_command is None:
            known = self._flags()
            known.require(self.command(arm, 0)[1:], "llama-server")
        said = shlex.join(written.arguments) or "no speculation"
        return "; ".join([said, *written.notes])

    def command(self, arm: Arm, port: int) -> list[str]:
        host = ["--host", self.options.host, "--port", str(port)]
        return [self._program(), *self._model(), *host, *self.arguments(arm)]

    def arguments(self, arm: Arm) -> list[str]:
        options = self.options
        found: list[str] = []
        if options.measuring or options.threads is not None:
            threads = str(len(program.cores(options.threads)))
            found += ["--threads", threads, "--threads-batch", threads]
        # Unless it is told, llama-server chooses the number of slots itself.
        slots = options.max_clients or (1 if options.measuring or options.max_model_len else None)
        if slots is not None:
            found += ["--parallel", str(slots)]
            if options.max_model_len is not None:
                # The context is shared out among the slots.
                found += ["--ctx-size", str(options.max_model_len * slots)]
        settled = list(_SETTLED) if options.measuring else []
        if options.measuring and options.max_model_len is not None:
            # Without a length it is left to llama-server to find one that fits into memory.
            settled.append(("--fit", "off"))
        for flag, *value in settled:
            if options.engine_command is not None or flag in self._flags():
                found += [flag, *value]
        return [*found, *dialect(self.name).write(arm.speculation).arguments, *options.arguments]

    def started(self, log: str) -> Started:
        found = read_log(log)
        status, text = self.get("/props")
        if status == 200:
            found.version = json.loads(text).get("build_info")
        asked = self.arm is not None and self.arm.speculation is not None
        status, text = self.get("/slots")
        if status == 200:
            drafting = all(slot.get("speculative") for slot in json.loads(text))
            found.effective["speculative"] = drafting
            if asked and not drafting:
                found.warnings.insert(0, _NOT_ACTIVE)
        return found

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        return llama_wire.COMPLETION, llama_wire.body(prompt, self._text(prompt))

    def read(self, event: dict[str, Any], reply: Reply) -> None:
        llama_wire.read(event, reply)

    def _text(self, prompt: Prompt) -> str | tuple[int, ...]:
        """What ``/completion`` is asked with; the server itself puts a chat into its template."""
        if prompt.token_ids is not None:
            return prompt.token_ids
        if prompt.text is not None:
            return prompt.text
        messages = [{"role": role, "content": text} for role, text in prompt.messages or ()]
        return str(self.post("/apply-template", {"messages": messages})["prompt"])

    def _model(self) -> list[str]:
        """The target's file, or the repository of GGUF files that llama-server is to fetch."""
        if is_gguf(self.model) and Path(self.model).exists():
            return ["--model", self.model]
        if is_hub_id(self.model) and not Path(self.model).exists():
            return ["--hf-repo", self.model]
        raise ConfigError(
            f"model: llama-server reads GGUF files, and {self.model!r} is not one; give a .gguf "
            "file, or a repository of GGUF files as ORG/NAME"
        )

    def _program(self) -> str:
        return program.find(self.options.program, self.name)

    def _flags(self) -> flags.Flags:
        return flags.ask([self._program(), "--help"])


def read_log(log: str) -> Started:
    """What llama-server's log tells of a start: KV tokens, drafters in effect, warnings.

    KV tokens are the target's; a drafter's cache, printed after it, has as many of its own.
    ``effective`` has ``drafters``, by name the values in effect.
    """
    started = Started()
    drafters: dict[str, str] = {}
    latest, slots = "", None
    for raw in log.splitlines():
        found = _STAMP.match(raw)
        if found is None:
            continue
        level, line = found.groups()
        if level in "WE" and not _IDLE_TALK.search(line):
            started.warnings.append(_said(line))
        if (kv := _KV.search(line)) and started.kv_tokens is None:
            started.kv_tokens = int(kv[1]) * int(kv[2])
            started.effective["cache_type_k"], started.effective["cache_type_v"] = kv[3], kv[4]
        elif slot := _SLOTS.search(line):
            slots = int(slot[1]) * int(slot[2])
            started.effective |= {"slots": int(slot[1]), "max_model_len": int(slot[2])}
        elif drafter := _DRAFTER.search(line):
            latest = drafter[1]
            drafters[latest] = ""
        elif latest and (values := _DRAFTER_VALUES.search(line)):
            drafters[latest] = ", ".join(filter(None, [drafters[latest], values[1]]))
        elif _FAILED in line:
            drafters.clear()
    started.kv_tokens = started.kv_tokens or slots
    started.effective["drafters"] = drafters
    return started


def _said(line: str) -> str:
    """A log line without the columns that name its place in the source."""
    return line.split(": ", 1)[-1].strip()
