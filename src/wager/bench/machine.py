"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

import wager
from wager.memory import host_memory


def machine(instruction_set: str | None) -> dict[str, Any]:
    """CPU name, logical cores and bytes of memory that this process may use, instruction set."""
    memory = host_memory()
    return {
        "cpu": _cpu_name(),
        "cores": _cores(),
        "memory": None if memory is None else memory.total,
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
