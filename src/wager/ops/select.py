"""Which op set runs, and on how many threads."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from wager.errors import ConfigError
from wager.ops.base import OpSet

_HOW_TO_BUILD = "install a wheel of wager, or g++ or clang++ (C++20) and reinstall wager"


def extension_problem() -> str | None:
    """Why the native op set cannot be used, and what to do; None where its extension loads."""
    if find_spec("wager._native") is None:
        return f"the native op set was not built; {_HOW_TO_BUILD}"
    try:
        import_module("wager._native")
    except ImportError as error:
        # Built for another machine, or against libraries that are older here.
        return f"the native op set does not load ({error}); reinstall wager on this machine"
    return None


def choose_op_set(name: str, threads: int | None) -> OpSet:
    """The op set by name: ``native``, ``reference``, or ``auto`` (native where it was built).

    ``threads`` None means one per physical core. Raises ConfigError for an unknown name, and for
    ``native`` where the extension was not built or does not load. ``auto`` warns when it has to
    take the reference op set.
    """
    if name not in ("auto", "native", "reference"):
        raise ConfigError(f"ops: must be one of auto, native, reference; got {name!r}")
    if threads is not None and threads < 1:
        raise ConfigError(f"threads: must be at least 1, got {threads}")
    if name != "reference":
        problem = extension_problem()
        if problem is None:
            from wager.ops.native import NativeOps

            return NativeOps(threads or physical_cores())
        if name == "native":
            raise ConfigError(f"ops: {problem}")
        warnings.warn(
            f"running on the numpy reference op set, which is tens of times slower: {problem}",
            RuntimeWarning,
            stacklevel=3,
        )
    from wager.ops.reference import ReferenceOps

    return ReferenceOps()


def physical_cores() -> int:
    """Cores that this process may use: its CPU affinity, hyperthreads of a core counted once, and
    no more than the whole part of its cgroup's CPU quota (at least 1)."""
    if hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
    else:
        cpus = set(range(os.cpu_count() or 1))
    cores = {_core_of(cpu) for cpu in cpus}
    quota = cgroup_quota()
    count = len(cores) if quota is None else min(len(cores), int(quota))
    return max(1, count)


def _core_of(cpu: int) -> str:
    """A name for the physical core of a logical CPU; its own where the system does not tell."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return (topology / name).read_text().strip()
        except OSError:
            continue
    return str(cpu)


def cgroup_quota() -> float | None:
    """CPUs that the cgroup may use, None where there is no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        base = Path("/sys/fs/cgroup/cpu")
        limit = (base / "cpu.cfs_quota_us").read_text()
        period = (base / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError):
        return None
