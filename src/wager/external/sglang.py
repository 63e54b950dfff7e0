"""SGLang as a backend: ``sglang serve``.

Written from its documentation and sources of mid to late 2026, not run: the project's machines
cannot install it. What is read of its log and pages is optional; what is missing is not known.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, Final

from wager.arms import Arm
from wager.backend import Prompt, Started
from wager.errors import ConfigError
from wager.external import flags, openai, program
from wager.external.dialects import dialect
from wager.external.server import ServerBackend

_CLIENTS: Final = 48
"""What SGLang lowers the number of running requests to, without a word, once it speculates."""
_LOG_VALUES: Final = re.compile(r"\b(max_total_num_tokens|max_running_requests|context_len)=(\d+)")
_STAMP: Final = re.compile(r"^\[[\d\- :]+(?: \w+)*\] (?:WARNING|ERROR)[ :]+(.*)$")
_PAGES: Final = ("/server_info", "/get_server_info")
_SETTINGS: Final = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "max_running_requests", "context_length", "dtype",
    "disable_radix_cache", "attention_backend",
)  # fmt: skip
_NOT_ACTIVE: Final = "NOT ACTIVE: SGLang started without speculation, though the arm asks for it"
_GREEDY: Final = (
    "without CUDA SGLang checks drafts greedily: with a temperature its speculating arm is decoded "
    "by argmax, so compare neither texts nor acceptance"
)


class SglangBackend(ServerBackend):
    """Starts ``sglang serve`` (or ``python -m sglang.launch_server``, if the program is a Python)
    for each arm, its prefix cache off."""

    name = "sglang"

    def check(self, arm: Arm) -> str:
        if self.options.kv_memory is not None:
            raise ConfigError(
                "kv-memory: SGLang has no such option; give --mem-fraction-static among the "
                "engine's own arguments"
            )
        if self.options.threads is not None:
            raise ConfigError("threads: SGLang has no such option; leave it out")
        written = dialect(self.name).write(arm.speculation)
        if self.options.engine_command is None:
            self._flags().require(self.command(arm, 0)[1:], self.name)
        said = shlex.join(written.arguments) or "no speculation"
        notes = [*written.notes]
        if arm.speculation is not None and not _has_cuda():
            notes.append(_GREEDY)
        return "; ".join([said, *notes])

    def command(self, arm: Arm, port: int) -> list[str]:
        place = ["--host", self.options.host, "--port", str(port)]
        return [*self._serve(), "--model-path", self.model, *place, *self.arguments(arm)]

    def arguments(self, arm: Arm) -> list[str]:
        options = self.options
        found = ["--enable-metrics", "--disable-radix-cache"] if options.measuring else []
        if options.max_model_len is not None:
            found += ["--context-length", str(options.max_model_len)]
        if options.measuring:
            # The same number in both arms, or the plain one would run more requests at once.
            found += ["--max-running-requests", str(options.max_clients or _CLIENTS)]
        return [*found, *dialect(self.name).write(arm.speculation).arguments, *options.arguments]

    def started(self, log: str) -> Started:
        found = read_log(log)
        for path in _PAGES:
            status, text = self.get(path)
            if status == 200:
                _read_info(text, found)
                break
        asked = self.arm is not None and self.arm.speculation is not None
        if asked and found.effective.get("speculative_algorithm", "") is None:
            found.warnings.insert(0, _NOT_ACTIVE)
        if asked and not _has_cuda():
            found.warnings.append(_GREEDY)
        return found

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        path, body = openai.request(prompt, self.model)
        # "All" is -1 here; 0 is refused.
        body["top_k"] = body["top_k"] or -1
        return path, body

    def _serve(self) -> list[str]:
        found = program.find(self.options.program, self.name)
        name = Path(found).name
        if name.startswith("python"):
            return [found, "-m", "sglang.launch_server"]
        return [found, "serve"] if name == "sglang" else [found]

    def _flags(self) -> flags.Flags:
        return flags.ask([*self._serve(), "--help"])


def read_log(log: str) -> Started:
    """What SGLang's log tells of a start: KV tokens, settings in effect, warnings and errors."""
    started = Started()
    for line in log.splitlines():
        for name, value in _LOG_VALUES.findall(line):
            if name == "max_total_num_tokens":
                started.kv_tokens = int(value)
            else:
                started.effective[name] = int(value)
        stamp = _STAMP.match(line)
        if stamp and stamp[1] not in started.warnings:
            started.warnings.append(stamp[1])
    return started


def _read_info(text: str, started: Started) -> None:
    """Take in the settings page: the server's arguments as it settled them."""
    try:
        info = json.loads(text)
    except ValueError:
        return
    if not isinstance(info, dict):
        return
    started.effective |= {name: info[name] for name in _SETTINGS if name in info}
    started.version = info.get("version") or started.version
    if isinstance(info.get("max_total_num_tokens"), int):
        started.kv_tokens = info["max_total_num_tokens"]


def _has_cuda() -> bool:
    return shutil.which("nvidia-smi") is not None
