"""The engines that are started here, by name. One that runs already is `wager.external.url`."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from wager.errors import ConfigError
from wager.external.server import ServerBackend, ServerOptions

_BACKENDS: Final = {
    "vllm": ("wager.external.vllm", "VllmBackend"),
    "llamacpp": ("wager.external.llamacpp", "LlamaCppBackend"),
    "sglang": ("wager.external.sglang", "SglangBackend"),
    "ollama": ("wager.external.ollama", "OllamaBackend"),
}

ENGINES: Final[tuple[str, ...]] = tuple(_BACKENDS)


def open_backend(engine: str, model: str, options: ServerOptions) -> ServerBackend:
    """The backend of an engine of ENGINES, for a model that the engine itself can find; nothing
    is started. Raises ConfigError for any other name."""
    if engine not in _BACKENDS:
        raise ConfigError(f"engine: {engine!r} cannot be started; there are: {', '.join(ENGINES)}")
    module, name = _BACKENDS[engine]
    kind = getattr(import_module(module), name)
    return cast(ServerBackend, kind(model, options))
