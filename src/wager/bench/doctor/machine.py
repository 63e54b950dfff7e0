"""What this machine gives the engine: cores, memory, its rate of reading, places for files."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wager.bench.doctor.asking import NotKnown

if TYPE_CHECKING:
    from wager.memory import Memory
    from wager.ops.native import NativeOps
    from wager.types import WeightKind

READ_BYTES: Final = 1 << 28
"""Read to measure the rate: beyond the caches of most processors."""
_READS: Final = 5
_READ_SECONDS: Final = 0.3
"""Nothing more is read once this long was taken."""
SIZES: Final = (500_000_000, 1_500_000_000, 3_000_000_000, 8_000_000_000)
"""Numbers of weights for which a limit is said."""
_KINDS: Final[tuple[WeightKind, ...]] = ("int8", "int4")
_SAMPLE: Final = (48, 1024)
"""The shape of a matrix whose packed size tells the bits per weight."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """``usable`` are the logical CPUs that this process may use, of ``logical``; ``quota`` is how
    many CPUs' time its control group grants, None without a limit. ``threads``: the default.
    ``load``: how many processes ran or waited in the last minute, None where that is not known."""

    name: str
    logical: int
    usable: tuple[int, ...]
    quota: float | None
    threads: int
    load: float | None


@dataclass(frozen=True, slots=True)
class Limit:
    """``tokens_per_second`` of plain decoding are what reading every weight once per token leaves
    at best. ``fits``: beside the room for keys and values; None where free memory is not known."""

    parameters: int
    weights: str
    nbytes: int
    tokens_per_second: float
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Cache:
    """Bytes by directory; ``problem`` is why nothing can be written, None where it can."""

    path: Path
    problem: str | None
    parts: dict[str, int]


def cpu() -> Cpu:
    from wager.bench.machine import machine
    from wager.external.program import cores
    from wager.ops.select import cgroup_quota, physical_cores

    name = str(machine(None)["cpu"])
    usable, threads = tuple(cores(None)), physical_cores()
    return Cpu(name, os.cpu_count() or 1, usable, cgroup_quota(), threads, _load())


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def memory() -> Memory:
    """Raises NotKnown where this machine does not tell."""
    from wager.memory import host_memory

    found = host_memory()
    if found is None:
        raise NotKnown("this system does not say how much there is")
    return found


def kv_bytes() -> int:
    """What keys and values take at most, where nobody says otherwise."""
    from wager.engine.memory import DEFAULT_KV_BYTES

    return DEFAULT_KV_BYTES


def read_rate(ops: NativeOps, free: int | None) -> float:
    """Bytes per second that the op set's threads read together. Raises NotKnown."""
    import numpy as np

    if free is not None and free < 2 * READ_BYTES:
        raise NotKnown(f"it takes {READ_BYTES >> 20} MiB, and {free >> 20} MiB are free")
    data = np.ones(READ_BYTES, np.uint8)
    best, end = 0.0, time.monotonic() + _READ_SECONDS
    for _ in range(_READS):
        best = max(best, ops.read_rate(data))
        if time.monotonic() > end:
            break
    return best


def limits(ops: NativeOps, rate: float, free: int | None) -> tuple[Limit, ...]:
    """For models of SIZES, by the type of their weights."""
    rows, width = _SAMPLE
    found = []
    for kind in _KINDS:
        per_weight = ops.packed_bytes(rows, width, kind) / (rows * width)
        for parameters in SIZES:
            nbytes = round(parameters * per_weight)
            fits = None if free is None else nbytes + kv_bytes() <= free
            found.append(Limit(parameters, kind, nbytes, rate / nbytes, fits))
    return tuple(found)


def cache() -> Cache:
    """The directory of models and packed weights, and what lies in it."""
    from wager.models.paths import cache_dir

    path = cache_dir()
    parts = {}
    if path.is_dir():
        for part in sorted(entry for entry in path.iterdir() if entry.is_dir()):
            parts[part.name] = _tree_bytes(part)
    return Cache(path, _write_problem(path), parts)


def _tree_bytes(root: Path) -> int:
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(directory) / name).lstat().st_size
            except OSError:
                continue  # removed meanwhile
    return total


def _write_problem(path: Path) -> str | None:
    """Tried with a file without a name, in the directory or where it would be made."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return f"{place}: {error.strerror or error}"
