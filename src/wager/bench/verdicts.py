"""From figures to advice: what limits a cell, and where an arm pays over the loads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from wager.bench.statistics import Verdict

Status: TypeAlias = Literal["measured", "NOT ACTIVE", "DISTURBED"]
"""NOT ACTIVE: nothing was drafted. DISTURBED: a gain beyond what the steps allow."""

FEW_PROMPTS: Final = "too few prompts were answered in both arms for an interval"
TOLERATED_FAILURES: Final = 0.05
"""Where more of an arm's replies failed, those that did not are no fair sample: no verdict."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one cell; None is not known.

    ``cost`` is the time of the arm's step in plain steps, ``drafted_per_draft`` and
    ``accepted_per_draft`` are tokens. ``failed_share`` is that of the arm with more failures;
    ``alone`` says that there was one client, ``own`` that it was the project's own engine.
    """

    verdict: Verdict | None
    status: Status = "measured"
    speedup: float | None = None
    prefill_share: float | None = None
    coverage: float | None = None
    drafted_per_draft: float | None = None
    accepted_per_draft: float | None = None
    tokens_per_step: float | None = None
    cost: float | None = None
    failed_share: float = 0.0
    alone: bool = True
    own: bool = False


def reason(facts: Facts) -> str:
    """Which figure binds, in one sentence without a full stop."""
    if facts.failed_share > TOLERATED_FAILURES:
        return (
            f"{_percent(facts.failed_share)} of an arm's replies failed: what is left is no fair "
            "sample"
        )
    if facts.status == "NOT ACTIVE":
        cause = "there was nothing to draft from"
        if not facts.own:
            cause = f"either {cause} or the method did not reach the engine"
        return f"not one token was drafted here, so both arms are plain decoding: {cause}"
    if facts.status == "DISTURBED":
        return "the gain is larger than the steps allow: something else used the machine"
    if facts.verdict is None:
        return FEW_PROMPTS
    if facts.verdict != "use" and facts.prefill_share is not None and facts.prefill_share > 0.5:
        share = _percent(facts.prefill_share)
        return f"{share} of the plain time goes into reading the prompt, which no draft shortens"
    if facts.verdict == "use":
        return _gain(facts)
    return _binding(facts)


def _gain(facts: Facts) -> str:
    if facts.tokens_per_step is None:
        return "the whole interval of the speed-up lies above 1.01"
    text = f"a step brings {facts.tokens_per_step:.2f} tokens"
    if facts.cost is not None:
        text += f" and costs {_steps(facts)}"
    return text


def _binding(facts: Facts) -> str:
    """The figure that would gain most if it were ideal, all others staying as they are."""
    f, k, a = facts.coverage, facts.drafted_per_draft, facts.accepted_per_draft
    if facts.cost is None or facts.tokens_per_step is None:
        return "what a step brings and costs is not known here, so neither is the cause"
    if f is None or k is None or a is None or f <= 0.0:
        return _cost(facts)
    # Of a step with a draft, in plain steps; a step without one is taken as a plain step.
    cost = max(1.0, (facts.cost - (1.0 - f)) / f)
    ideal = {
        "coverage": (1.0 + a) / cost,
        "acceptance": (1.0 + f * k) / (1.0 - f + f * cost),
        "cost": 1.0 + f * a,
    }
    binds = max(ideal, key=lambda name: ideal[name])
    if binds == "coverage":
        return f"{_percent(f)} of the steps had a draft (coverage binds)"
    if binds == "acceptance":
        return f"{_percent(a / k)} of the drafted tokens were right (acceptance binds)"
    return _cost(facts)


def _cost(facts: Facts) -> str:
    binds = "verify cost binds" if facts.alone else "step time binds"
    return f"a step costs {_steps(facts)} and brings {facts.tokens_per_step:.2f} tokens ({binds})"


def _steps(facts: Facts) -> str:
    """With several clients the prompts of others are read between a request's steps, of which
    drafts leave fewer to share that time."""
    how = "estimated" if facts.alone else "estimated, the prompts read meanwhile included"
    return f"{facts.cost:.2f} plain steps ({how})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


@dataclass(frozen=True, slots=True)
class AtLoad:
    """The verdict of one cell: ``load`` is its number of clients or its rate."""

    load: float
    verdict: Verdict | None
    speedup: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class OverLoads:
    """The advice for one workload and arm. ``below`` is N of ``use below N clients``, else None."""

    workload: str
    arm: str
    verdict: str | None
    below: float | None
    reason: str


def over_loads(
    workload: str, arm: str, cells: Sequence[AtLoad], unit: Literal["clients", "requests/s"]
) -> OverLoads:
    """``use`` | ``use below N clients`` | ``no difference`` | ``do not use`` | None (not known).

    ``use below N``: it pays at the smallest load and stops doing so at N, the first measured load
    without a gain. A gain that appears only at larger loads is not advice to use it below them:
    with a loss at a smaller load the verdict is ``do not use``, and the reason says where it pays.
    """
    found = _over_known(workload, arm, cells, unit)
    unknown = sorted(c.load for c in cells if c.verdict is None)
    if found.verdict is None or not unknown:
        return found
    loads = ", ".join(f"{load:g}" for load in unknown)
    return replace(found, reason=f"{found.reason}; no verdict at {loads} {unit}")


def _over_known(
    workload: str, arm: str, cells: Sequence[AtLoad], unit: Literal["clients", "requests/s"]
) -> OverLoads:
    known = sorted((c for c in cells if c.verdict is not None), key=lambda c: c.load)
    if not known:
        # Why there is none: of the first cell, for instance that nothing was drafted.
        return OverLoads(workload, arm, None, None, cells[0].reason if cells else FEW_PROMPTS)

    def at(cell: AtLoad) -> str:
        name = f"{cell.load:g} {unit}"
        return name.removesuffix("s") if cell.load == 1 and unit == "clients" else name

    def why(cell: AtLoad) -> str:
        speed = "n/a" if cell.speedup is None else f"{cell.speedup:.2f}x"
        return f"{speed} at {at(cell)}: {cell.reason}"

    pays = [c for c in known if c.verdict == "use"]
    loses = [c for c in known if c.verdict == "do not use"]
    if not pays:
        worst = loses[0] if loses else known[0]
        return OverLoads(workload, arm, worst.verdict, None, why(worst))
    if known[0].verdict == "use":
        end = next((c for c in known if c.verdict != "use"), None)
        if end is None:
            best = min(pays, key=lambda c: c.speedup or 0.0)
            return OverLoads(workload, arm, "use", None, why(best))
        return OverLoads(workload, arm, f"use below {at(end)}", end.load, why(end))
    if loses:
        text = f"{why(loses[0])}; it does pay at {', '.join(at(c) for c in pays)}"
        return OverLoads(workload, arm, "do not use", None, text)
    return OverLoads(workload, arm, "use", None, why(pays[0]))
