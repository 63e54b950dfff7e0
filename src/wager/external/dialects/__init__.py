"""What each engine calls things: one module per engine, reading and writing its options.

`dialect("vllm").write(arm.speculation).arguments` are the arguments of an arm.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from wager.errors import ConfigError
from wager.external.dialects.base import Dialect

ENGINES: Final = ("vllm", "llamacpp", "sglang", "ollama", "own")
"""In the order in which people are shown them."""


def dialect(engine: str) -> Dialect:
    """The dialect of an engine of `ENGINES`. Raises ConfigError for any other name."""
    if engine not in ENGINES:
        raise ConfigError(f"engine: {engine!r} has no dialect; there are: {', '.join(ENGINES)}")
    return cast(Dialect, import_module(f"wager.external.dialects.{engine}"))
