"""Everything that `wager doctor` says, as one record. Finding it never fails."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from wager import __version__
from wager.bench.doctor import machine, others, own
from wager.bench.doctor.asking import Unknown, ask

if TYPE_CHECKING:
    from wager.memory import Memory
    from wager.ops.native import InstructionSet, NativeOps

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Each part, or why it could not be found out. ``read_rate`` is in bytes per second."""

    wager: str
    python: str
    executable: str
    system: str
    engine: own.Engine
    extension: own.Extension | Unknown
    instruction_sets: tuple[InstructionSet, ...] | Unknown
    cpu: machine.Cpu | Unknown
    memory: Memory | Unknown
    kv_bytes: int | Unknown
    read_rate: float | Unknown
    limits: tuple[machine.Limit, ...] | Unknown
    cache: machine.Cache | Unknown
    gpus: tuple[others.Gpu, ...] | Unknown
    engines: tuple[others.OtherEngine, ...] | Unknown


def diagnose() -> Diagnosis:
    """Ask everything; takes about two seconds, most of it loading and reading memory."""
    engine = own.engine()
    memory = ask(machine.memory)
    free = None if isinstance(memory, Unknown) else memory.free
    rate, limits = _rates(engine, free)
    if engine.ops is not None:
        ask(engine.ops.close)
    return Diagnosis(
        wager=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        system=f"{platform.system()} {platform.machine()}",
        engine=engine,
        extension=ask(own.extension),
        instruction_sets=ask(own.instruction_sets),
        cpu=ask(machine.cpu),
        memory=memory,
        kv_bytes=ask(machine.kv_bytes),
        read_rate=rate,
        limits=limits,
        cache=ask(machine.cache),
        gpus=ask(others.gpus),
        engines=ask(others.other_engines),
    )


def _rates(
    engine: own.Engine, free: int | None
) -> tuple[float | Unknown, tuple[machine.Limit, ...] | Unknown]:
    """The rate of reading, and the limits that follow from it."""
    if engine.ops is None or engine.op_set != "native":
        missing = Unknown("the native op set measures it")
        return missing, missing
    ops = cast("NativeOps", engine.ops)
    rate = ask(lambda: machine.read_rate(ops, free))
    if isinstance(rate, Unknown):
        return rate, rate
    return rate, ask(lambda: machine.limits(ops, rate, free))
