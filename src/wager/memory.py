"""Sizes as people write them, and the memory of this machine: all of it, and what is free."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wager.errors import ConfigError

UNITS: Final = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = (Path("/sys/fs/cgroup/memory.max"),
                  Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device; ``free`` is what nobody uses now, None where that is not known.

    ``what`` names the device for people; ``devices`` is how many there are, of this size or larger.
    """

    total: int
    free: int | None
    what: str
    devices: int = 1


def host_memory() -> Memory | None:
    """The machine's memory, or what its container may use; None where it cannot be read."""
    fields = _meminfo()
    total, free = fields.get("MemTotal", _physical()), fields.get("MemAvailable")
    if total is None:
        return None
    limit = _cgroup_limit()
    if limit is not None and limit < total:
        return Memory(limit, None if free is None else min(free, limit), "limit of the container")
    return Memory(total, free, "memory of the machine")


def _meminfo() -> dict[str, int]:
    fields: dict[str, int] = {}
    try:
        with _MEMINFO.open(encoding="ascii") as lines:
            for line in lines:
                name, _, rest = line.partition(":")
                words = rest.split()
                if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
                    fields[name] = int(words[0]) * 1024
    except OSError:
        return {}
    return fields


def _physical() -> int | None:
    """All of it, where there is no /proc."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _cgroup_limit() -> int | None:
    """What the container may use; None without a limit."""
    for path in _CGROUP:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None
