"""An engine's program: where it is, and which cores it may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from wager.errors import ConfigError

PROGRAMS: Final = {
    "vllm": "vllm",
    "llamacpp": "llama-server",
    "sglang": "sglang",
    "ollama": "ollama",
}
"""What the engines' programs are called on PATH."""


def find(given: str | None, engine: str) -> str:
    """The path of ``given``, or of the engine's program on PATH. Raises ConfigError with what to
    do."""
    name = PROGRAMS[engine]
    found = shutil.which(given or name)
    if found is not None:
        return str(Path(found).absolute())
    if given is not None:
        raise ConfigError(f"engine-program: {given!r} is not a program that can be run")
    raise ConfigError(
        f"{engine}: no program {name!r} on PATH; give its path with --engine-program, or the "
        "whole command with --engine-command"
    )


def cores(threads: int | None) -> list[int]:
    """The cores that this process may use, at most ``threads`` of them."""
    if hasattr(os, "sched_getaffinity"):
        usable = sorted(os.sched_getaffinity(0))
    else:
        usable = list(range(os.cpu_count() or 1))
    return usable[:threads]


def ranges(numbers: Iterable[int]) -> str:
    """``0-3,8`` for 0, 1, 2, 3, 8."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
