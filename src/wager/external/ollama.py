"""Ollama as a backend: ``ollama serve``, asked through its OpenAI route.

Written from its documentation and sources (fb30760, August 2026), not run: the project's machines
cannot install it.

What drafts is part of a model there, its Modelfile, and no option of the server or of a request.
So a model decodes either plainly or speculatively; the other arm is another model, named by the
option ``tag`` of an arm (``dflash:tag=qwen3:8b-dflash``). N-gram methods it does not have, though
the llama-server that it runs inside does: for those the command over the same file is given.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wager.arms import Arm, Speculation
from wager.backend import Prompt, Started
from wager.errors import ConfigError
from wager.external import openai, program
from wager.external.dialects import dialect
from wager.external.server import ServerBackend

TAG: Final = "tag"
_LAYER: Final = "application/vnd.ollama.image."
_REGISTRY: Final = "registry.ollama.ai"
_SPEC_TYPE: Final = re.compile(r"--spec-type[ =\"',]+([\w,-]+)")
_WARNINGS: Final = (
    "Ollama says nothing of drafts in its replies and has no metrics page: acceptance is not known",
    "Ollama keeps the prompt of a slot and reuses what a next one shares with it; this cannot be "
    "switched off",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """A model in Ollama's store. ``file`` is None where it is not one GGUF file; ``drafts`` says
    that its Modelfile switches drafting on."""

    file: Path | None
    drafts: bool


class OllamaBackend(ServerBackend):
    """Starts ``ollama serve`` for each arm and loads the arm's model before anything is asked."""

    name = "ollama"
    _port = 0

    def check(self, arm: Arm) -> str:
        if self.options.kv_memory is not None:
            raise ConfigError("kv-memory: Ollama has no such option; leave it out")
        if self.options.threads is not None:
            raise ConfigError(
                "threads: Ollama takes them from a model's Modelfile (PARAMETER num_thread); "
                "leave it out"
            )
        if self.options.arguments:
            raise ConfigError("engine arguments: ollama serve takes none; it reads OLLAMA_* only")
        if self.options.engine_command is None:
            self._program()
        model, stored = self._model(arm), self._stored(self._model(arm))
        if arm.speculation is None:
            if stored is not None and stored.drafts:
                raise ConfigError(
                    f"plain: Ollama's {model} drafts by its Modelfile, and no request switches "
                    "that off. Make a model without it ('FROM' and 'PARAMETER draft_num_predict "
                    f"0') and name that, or measure its file with --engine llamacpp"
                    f"{self._instead(stored, None)}"
                )
            return f"{model}, no speculation"
        try:
            lines = dialect(self.name).write(_without_tag(arm.speculation)).lines
        except ConfigError as error:
            raise ConfigError(f"{error}{self._instead(stored, arm.speculation)}") from error
        if stored is not None and not stored.drafts:
            raise ConfigError(
                f"{arm.speculation.method}: Ollama's {model} does not draft. Make a model whose "
                f"Modelfile says {' and '.join(map(repr, lines))}, and name it as "
                f"{arm.speculation.method}:{TAG}=NAME"
            )
        return f"{model}, drafting as its Modelfile says"

    def command(self, arm: Arm, port: int) -> list[str]:
        return [self._program(), *self.arguments(arm)]

    def arguments(self, arm: Arm) -> list[str]:
        return ["serve"]

    def full_command(self, arm: Arm, port: int) -> list[str]:
        self._port = port
        return super().full_command(arm, port)

    def environment(self, arm: Arm) -> dict[str, str]:
        """All of Ollama's settings; it takes no arguments."""
        options = self.options
        found = {
            "OLLAMA_HOST": f"{options.host}:{self._port}",
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_MAX_LOADED_MODELS": "1",
            "OLLAMA_NUM_PARALLEL": str(options.max_clients or 1),
            # A server that is started to measure must not tidy up the user's store.
            "OLLAMA_NOPRUNE": "1",
        }
        if options.max_model_len is not None:
            found["OLLAMA_CONTEXT_LENGTH"] = str(options.max_model_len)
        return found

    def ready_path(self) -> str:
        return "/api/version"

    def started(self, log: str) -> Started:
        assert self.arm is not None
        model = self._model(self.arm)
        # Without a prompt it only loads, with the settings of the environment.
        self.post("/api/generate", {"model": model, "stream": False, "keep_alive": -1})
        found = Started(warnings=list(_WARNINGS))
        status, text = self.get("/api/version")
        found.version = json.loads(text).get("version") if status == 200 else None
        found.effective = {"model": model, "environment": self.environment(self.arm)}
        if drafter := _SPEC_TYPE.findall(self.log_text()):
            found.effective["spec_type"] = drafter[-1]
        return found

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        if prompt.messages is None:
            raise ConfigError(
                f"{prompt.id}: Ollama's streams take chats only, a raw prompt would be put into a "
                "template; choose a workload of chats"
            )
        model = self._model(self.arm) if self.arm is not None else self.model
        return openai.request(prompt, model, extended=False)

    def _model(self, arm: Arm) -> str:
        tag = arm.speculation.options.get(TAG) if arm.speculation is not None else None
        return str(tag or self.model)

    def _program(self) -> str:
        return program.find(self.options.program, self.name)

    def _stored(self, model: str) -> Stored | None:
        given = {**os.environ, **self.options.environment}.get("OLLAMA_MODELS")
        return stored(model, Path(given) if given else Path.home() / ".ollama" / "models")

    def _instead(self, found: Stored | None, speculation: Speculation | None) -> str:
        """The llama-server command over the same file, as the end of a sentence."""
        if found is None or found.file is None:
            return ""
        try:
            wanted = dialect("llamacpp").write(speculation).arguments
        except ConfigError:
            return ""
        command = ["llama-server", "--model", str(found.file), *wanted]
        return f": {shlex.join(command)}"


def stored(model: str, folder: Path) -> Stored | None:
    """A model in the store at ``folder``; None where it is not there or cannot be read."""
    name, _, tag = model.partition(":")
    parts = name.split("/")
    # library/NAME of the registry unless a namespace, or a host too, is given.
    if len(parts) == 1:
        parts = ["library", *parts]
    if len(parts) == 2:
        parts = [_REGISTRY, *parts]
    if ".." in parts or ".." in tag:
        return None
    found = _json(folder.joinpath("manifests", *parts, tag or "latest"))
    layers = found.get("layers")
    if not isinstance(layers, list):
        return None
    by_kind: dict[str, list[Path]] = {}
    for layer in layers:
        kind = str(layer.get("mediaType", "")).removeprefix(_LAYER)
        digest = str(layer.get("digest", "")).replace(":", "-")
        by_kind.setdefault(kind, []).append(folder / "blobs" / digest)
    files = by_kind.get("model", [])
    drafts = "draft" in by_kind
    # What a model says of its drafts counts more than that it has a drafter: 0 is off, and layers
    # inside the model draft only where a number is given.
    for params in by_kind.get("params", []):
        length = _json(params).get("draft_num_predict")
        if isinstance(length, int):
            drafts = length > 0
    return Stored(files[0] if len(files) == 1 else None, drafts)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _without_tag(speculation: Speculation) -> Speculation:
    options = {key: value for key, value in speculation.options.items() if key != TAG}
    return Speculation(speculation.method, options)
