"""From a run to its report: what is known of each arm, of the target and of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wager.arms import PLAIN, Arm
from wager.backend import Counters, Started
from wager.bench.counters import total
from wager.bench.identity import Identity, compare
from wager.bench.machine import machine, versions
from wager.bench.results import STEP_ROWS, ArmResult, Report, ServerCounts, StartUp
from wager.bench.run import Run
from wager.bench.statistics import median


@dataclass(frozen=True, slots=True)
class Target:
    """What the figures are about. None where another engine does not tell it.

    An empty ``model`` is whatever the server names.
    """

    model: str
    weights: str | None = None
    kv: str | None = None
    threads: int | None = None
    instruction_set: str | None = None
    step_ms: dict[str, float | None] = field(
        default_factory=lambda: {str(rows): None for rows in STEP_ROWS}
    )


def summarise(run: Run, target: Target) -> Report:
    """The whole report of a run, complete or not."""
    return Report(
        model=target.model or _served(run),
        engine=run.plan.engine,
        weights=target.weights,
        kv=target.kv,
        threads=target.threads,
        machine=machine(target.instruction_set),
        versions=versions(),
        complete=run.complete,
        step_ms=target.step_ms,
        arms=[arm_result(run, arm) for arm in run.plan.arms],
        cells=run.cells(),
        verdicts=run.verdicts(),
    )


def _served(run: Run) -> str:
    starts = [one for arm in run.plan.arms for one in run.started.get(arm.name, ())]
    return next((str(one.effective["model"]) for one in starts if "model" in one.effective), "n/a")


def arm_result(run: Run, arm: Arm) -> ArmResult:
    """What is known of one arm over the whole run."""
    starts = run.started.get(arm.name, [])
    counted = total([c for m in run.measurements for c in m.counted.get(arm.name, ())])
    first = starts[0] if starts else Started()
    room = _room(starts)
    plain_room = _room(run.started.get(PLAIN, []))
    return ArmResult(
        arm=arm.name,
        method=arm.speculation.method if arm.speculation else PLAIN,
        options=dict(arm.speculation.options) if arm.speculation else {},
        description=run.described.get(arm.name, ""),
        command=first.command,
        version=first.version,
        effective=first.effective,
        startup_s=_startup(starts),
        kv_tokens=room,
        kv_share_lost=1.0 - room / plain_room if room is not None and plain_room else None,
        draft_time_share=_draft_share(counted),
        active=_active(run, arm, counted),
        counters=_server_counts(counted),
        identity=_identity(run, arm),
        warnings=list(dict.fromkeys(line for one in starts for line in one.warnings)),
        error=run.failed.get(arm.name),
    )


def _room(starts: Sequence[Started]) -> int | None:
    """KV tokens; of several starts the middle one, since a server measures what is free."""
    known = sorted(one.kv_tokens for one in starts if one.kv_tokens is not None)
    return known[(len(known) - 1) // 2] if known else None


def _startup(starts: Sequence[Started]) -> StartUp:
    def of(wanted: Sequence[bool | None]) -> float | None:
        return median([s.startup_s for s in starts if s.startup_s is not None and s.cold in wanted])

    return StartUp(of([True]), of([False]), of([True, False, None]))


def _draft_share(counted: Counters) -> float | None:
    if not counted.total_ms or counted.draft_ms is None:
        return None
    return min(1.0, counted.draft_ms / counted.total_ms)


def _active(run: Run, arm: Arm, counted: Counters) -> bool | None:
    """By the server's counters, else by the cells' own counts."""
    if arm.speculation is None:
        return None
    if counted.drafted is not None and (counted.drafted or counted.generated != 0):
        return counted.drafted > 0
    told = [cell.active for cell in run.cells() if cell.arm == arm.name]
    known = [active for active in told if active is not None]
    return any(known) if known and (any(known) or len(known) == len(told)) else None


def _server_counts(counted: Counters) -> ServerCounts:
    return ServerCounts(
        steps=counted.steps,
        drafts=counted.drafts,
        drafted=counted.drafted,
        accepted=counted.accepted,
        accepted_at=None if counted.accepted_at is None else list(counted.accepted_at),
        preemptions=counted.preemptions,
        generated=counted.generated,
        resets=counted.resets,
    )


def _identity(run: Run, arm: Arm) -> Identity | None:
    """Of the identity pass, against its plain replies; None where there was none."""
    plain, spec = run.identity.get(PLAIN), run.identity.get(arm.name)
    if not plain or not spec or arm.name == PLAIN:
        return None

    def sound(side: dict[str, Any], name: str) -> list[Any]:
        return [answer for answer in side.get(name, ()) if answer.error is None]

    names = (prompt.id for prompt in run.plan.identity)
    return compare([(name, sound(plain, name), sound(spec, name)) for name in names])
