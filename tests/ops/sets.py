"""Op sets under test: the reference, and native on each instruction set of this machine."""

from __future__ import annotations

from importlib.util import find_spec

from wager.ops.base import OpSet
from wager.ops.reference import ReferenceOps

NATIVE = find_spec("wager._native") is not None


def usable_sets() -> list[str]:
    """Instruction sets that this machine can run, plain C++ last."""
    if not NATIVE:
        return []
    import wager._native as _native

    return [name for name, _ in _native.instruction_sets()]


def make(name: str) -> OpSet:
    """``reference``, or ``native-SET-THREADS``."""
    if name == "reference":
        return ReferenceOps()
    from wager.ops.native import NativeOps

    _, instruction_set, threads = name.split("-")
    return NativeOps(int(threads), instruction_set)
