"""The memory of the GPUs of this machine."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

from wager.errors import ConfigError
from wager.memory import Memory

_SMI_SECONDS: Final = 10.0


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
