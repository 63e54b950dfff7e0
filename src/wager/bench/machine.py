"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

import wager


def machine(instruction_set: str | None) -> dict[str, Any]:
    """CPU name, logical cores that this process may use, memory in bytes, instruction set."""
    return {
        "cpu": _cpu_name(),
        "cores": _cores(),
        "memory": _memory(),
        "isa": instruction_set,
    }


def versions() -> dict[str, str]:
    """Of what could change a figure."""
    return {
        "wager": wager.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None
