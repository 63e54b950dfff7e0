"""What `wager doctor` prints: one screen, or one JSON object (docs/doctor.schema.json)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wager.bench.doctor.asking import Unknown
from wager.bench.doctor.find import Diagnosis
from wager.bench.doctor.machine import READ_BYTES, Cache, Cpu, Limit
from wager.bench.doctor.others import Gpu, GpuKind, OtherEngine
from wager.bench.doctor.own import Engine, Extension
from wager.bench.spelling import count, size
from wager.external.dialects.options import TITLES
from wager.external.program import ranges
from wager.memory import Memory

if TYPE_CHECKING:
    from wager.ops.native import InstructionSet

T = TypeVar("T")

VERSION: Final = 1
"""Of the JSON object."""

_INSTEAD: Final[Mapping[GpuKind, str]] = {
    "cuda": "wager serve --engine vllm MODEL (or sglang, llamacpp)",
    "rocm": "wager serve --engine vllm MODEL (or llamacpp)",
    "metal": "wager serve --engine llamacpp MODEL.gguf",
}
_SPELT: Final = {"avx512": "AVX-512", "avx2": "AVX2", "neon": "NEON", "scalar": "plain C++"}


def to_json(found: Diagnosis) -> dict[str, Any]:
    """Sizes are bytes; what could not be found out is null, and ``unknown`` says why."""
    parts = {field.name: getattr(found, field.name) for field in fields(found)}
    unknown = {name: part.why for name, part in parts.items() if isinstance(part, Unknown)}
    return {
        "version": VERSION,
        "runs": found.engine.problem is None,
        **{name: None if name in unknown else _plain(part) for name, part in parts.items()},
        "unknown": unknown,
    }


def _plain(part: Any) -> Any:
    """Records as objects, tuples as lists, paths as text."""
    if isinstance(part, tuple):
        return [_plain(item) for item in part]
    if isinstance(part, Engine):
        names = ("problem", "op_set", "instruction_set", "threads", "forced")
        return {name: getattr(part, name) for name in names}
    if isinstance(part, Cache):
        return {**asdict(part), "path": str(part.path)}
    if isinstance(part, Cpu):
        return {**asdict(part), "usable": list(part.usable)}
    if isinstance(part, Memory):
        return {"total": part.total, "free": part.free, "what": part.what}
    return asdict(part) if hasattr(part, "__dataclass_fields__") else part


def text(found: Diagnosis, width: int | None) -> str:
    """Two columns: what was asked, and what was found, wrapped at ``width`` where there is one."""
    heading = f"wager {found.wager}, Python {found.python} ({found.executable}), {found.system}"
    lines = [heading]
    for name, said in _lines(found):
        room = max(width - _COLUMN, _NARROWEST) if width is not None else len(said) + 1
        # Options and paths are for copying.
        folded = textwrap.wrap(said, room, break_long_words=False, break_on_hyphens=False)
        for number, part in enumerate(folded):
            lines.append(f"{'' if number else name:<{_COLUMN}}{part}")
    return "\n".join(lines)


_COLUMN: Final = 14
_NARROWEST: Final = 20


def _lines(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "runs", _runs(found.engine)
    free = found.memory.free if isinstance(found.memory, Memory) else None
    yield "extension", _say(found.extension, _extension)
    yield "instructions", _say(found.instruction_sets, lambda sets: _sets(sets, found.engine))
    yield "cpu", _say(found.cpu, _cpu)
    yield "memory", _say(found.memory, _memory)
    yield "", _say(found.kv_bytes, lambda nbytes: _kv(nbytes, free))
    yield "reading", _say(found.read_rate, lambda rate: _rate(rate, found.engine))
    yield from _limits(found.limits)
    yield from _cache(found.cache)
    yield from _gpus(found.gpus)
    yield "engines", _say(found.engines, _engines)


def _say(part: T | Unknown, spell: Callable[[T], str]) -> str:
    return f"not known: {part.why}" if isinstance(part, Unknown) else spell(part)


def _runs(engine: Engine) -> str:
    if engine.problem is not None:
        return f"NO: {engine.problem}"
    slow = ": the same answers, tens of times slower" if engine.op_set == "reference" else ""
    return f"yes, on the {engine.op_set} op set{slow}"


def _extension(extension: Extension) -> str:
    if extension.problem is None:
        return "loaded"
    compiler = extension.compiler
    there = f"here is {compiler}" if compiler else "no C++ compiler was found here"
    return f"{extension.problem} ({there})"


def _sets(sets: tuple[InstructionSet, ...], engine: Engine) -> str:
    return "; ".join(f"{_SPELT[each.name]}: {_set(each, engine)}" for each in sets)


def _set(each: InstructionSet, engine: Engine) -> str:
    if not each.built:
        return "not in this build"
    if each.agrees is None:
        return "not of this machine"
    if not each.agrees:
        return "WRONG ANSWERS, not used"
    if each.name != engine.instruction_set:
        return "known answers agree"
    return f"known answers agree, used{' (WAGER_ISA)' if engine.forced else ''}"


def _cpu(cpu: Cpu) -> str:
    quota = "" if cpu.quota is None else f", its control group grants {cpu.quota:g} CPUs"
    threads = f"{cpu.threads} thread{'s' if cpu.threads > 1 else ''}"
    load = "" if cpu.load is None else f"; load {cpu.load:.1f}"
    return (
        f"{cpu.name}; {threads} by default, the physical cores of the logical CPUs "
        f"{ranges(cpu.usable)} ({len(cpu.usable)} of {cpu.logical} usable{quota}){load}"
    )


def _memory(memory: Memory) -> str:
    free = "not known" if memory.free is None else size(memory.free)
    return f"{size(memory.total)} ({memory.what}), free: {free}"


def _kv(nbytes: int, free: int | None) -> str:
    enough = "" if free is None or free >= nbytes else " MORE THAN IS FREE;"
    return (
        f"keys and values take at most {nbytes >> 20} MiB, or one longest context;{enough} "
        "--kv-memory of wager serve changes it"
    )


def _rate(rate: float, engine: Engine) -> str:
    return (
        f"{size(rate)}/s from memory, measured now with {engine.threads} threads on "
        f"{READ_BYTES >> 20} MiB; other load lowers it"
    )


def _limits(limits: tuple[Limit, ...] | Unknown) -> Iterator[tuple[str, str]]:
    if isinstance(limits, Unknown):
        yield "limit", f"not known: {limits.why}"
        return
    yield (
        "limit",
        "tokens/s of plain decoding, one client, at most: each token reads every weight at this "
        "rate (speculation makes several tokens of one reading)",
    )
    for kind in dict.fromkeys(limit.weights for limit in limits):
        of = [limit for limit in limits if limit.weights == kind]
        yield "", f"{kind}: " + ", ".join(_limit(limit) for limit in of)


def _limit(limit: Limit) -> str:
    said = f"{count(limit.parameters)} {limit.tokens_per_second:.3g}"
    return f"{said} (not enough memory free)" if limit.fits is False else said


def _cache(cache: Cache | Unknown) -> Iterator[tuple[str, str]]:
    if isinstance(cache, Unknown):
        yield "cache", f"not known: {cache.why}"
        return
    held = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in cache.parts.items())
    yield "cache", f"{cache.path}: {held or 'nothing yet'}"
    if cache.problem is not None:
        yield (
            "",
            f"CANNOT BE WRITTEN ({cache.problem}): no model can be pulled, and weights are packed "
            "anew at every start; WAGER_HOME names another directory",
        )


def _gpus(gpus: tuple[Gpu, ...] | Unknown) -> Iterator[tuple[str, str]]:
    if isinstance(gpus, Unknown) or not gpus:
        yield "gpu", _say(gpus, lambda _: "none found")
        return
    for gpu in gpus:
        memory = "" if gpu.nbytes is None else f" ({size(gpu.nbytes)})"
        instead = _INSTEAD[gpu.kind]
        yield "gpu", f"{gpu.name}{memory}: not used by wager's own engine; on it: {instead}"


def _engines(engines: tuple[OtherEngine, ...]) -> str:
    here = [
        f"{TITLES[each.name]} {each.version or '(version not known)'} at {each.program}"
        for each in engines
        if each.program is not None
    ]
    missing = [TITLES[each.name] for each in engines if each.program is None]
    if missing:
        here.append(f"not on PATH: {', '.join(missing)}")
    return "; ".join(here)
