"""Sizes of memory: as people write them, and as the GPUs of this machine have them."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Final

from wager.errors import ConfigError
from wager.memory import Memory

UNITS: Final = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_SMI_SECONDS: Final = 10.0


def parse_size(text: str, option: str) -> int:
    """``8GB`` (10^9) or ``8GiB`` (2^30) in bytes. Raises ConfigError without a unit."""
    found = _SIZE.fullmatch(text.strip())
    unit = UNITS.get(found[2]) if found else None
    if found is None or unit is None:
        raise ConfigError(
            f"{option}: {text!r} is no size; write a number and a unit, e.g. 8GB (10^9 bytes) or "
            f"8GiB (2^30 bytes); units: {', '.join(UNITS)}"
        )
    size = int(float(found[1]) * unit)
    if not 1 <= size <= 1 << 50:
        raise ConfigError(f"{option}: {text} must be at least one byte and at most 1 PiB")
    return size


def gpu_memory() -> Memory | None:
    """The smallest GPU that ``nvidia-smi`` lists; None without one. Raises ConfigError when it is
    there and fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"memory: nvidia-smi could not be asked ({type(error).__name__}); give --memory"
        ) from error
    lines = [line for line in run.stdout.splitlines() if line.strip()]
    if run.returncode or not lines:
        # A driver without a device is a machine without a GPU.
        return None
    return parse_smi(lines)


def parse_smi(lines: list[str]) -> Memory:
    """``name, MiB, MiB`` lines of nvidia-smi: the smallest of the GPUs. Raises ConfigError."""
    found = []
    for line in lines:
        name, total, free = [*(part.strip() for part in line.rsplit(",", 2)), "", ""][:3]
        if not total.isdigit() or not free.isdigit():
            raise ConfigError(
                f"memory: nvidia-smi says {line.strip()[:80]!r}, which holds no size; give --memory"
            )
        found.append(Memory(int(total) << 20, int(free) << 20, name))
    smallest = min(found, key=lambda memory: memory.total)
    if len(found) == 1:
        return smallest
    what = f"{smallest.what}, the smallest of {len(found)} GPUs"
    return Memory(smallest.total, smallest.free, what, len(found))
