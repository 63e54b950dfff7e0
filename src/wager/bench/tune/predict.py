"""From a look at each method to the speed-up that any draft length would give. All *estimated*.

Acceptance comes from the answers of plain decoding, replayed for every length where a method's
drafts follow from token ids, else from what the look itself counted. What a step costs comes from
the engine's own table, else from the look: a line through the cost of its steps at each load. The
arithmetic is that of `wager.bench.estimate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import numpy as np

from wager.bench.estimate import StepTable, speed_up, tokens_per_step
from wager.bench.replay.tally import Tally
from wager.bench.results import Cell
from wager.bench.tune.space import Candidate, Family

MOST_PER_METHOD: Final = 3
MOST_ARMS: Final = 8
"""Beside plain decoding."""
HOPELESS: Final = 0.9
"""A method whose best estimate stays below is not measured again."""
_APART: Final = 1.4
_FACTORS: Final = (0.25, 4.0)
_FAR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What drafts of one length do to a workload: tokens per decode step, and the shares of decode
    steps by the length of their draft (0: none)."""

    tokens: float
    lengths: Mapping[int, float]
    source: Literal["replayed", "counted", "logs"]


def of_replay(tally: Tally) -> Acceptance | None:
    """None where no answer has a second token."""
    tokens = tally.decode_tokens_per_step
    if tokens is None:
        return None
    return Acceptance(tokens, tally.draft_lengths, "replayed")


def of_cell(cell: Cell, k: int | None) -> Acceptance | None:
    """From the counts of a longer draft, of which one of ``k`` tokens is taken to be the beginning
    (None: the draft as it is). None where the engine did not tell enough."""
    coverage, at = cell.coverage, cell.acceptance_by_position_unconditional
    if coverage is None or at is None or cell.drafted is None:
        return Acceptance(1.0, {0: 1.0}, "counted") if cell.active is False else None
    mean = _mean_draft(cell)
    length = max(1, round(mean if k is None else min(k, mean)))
    # Shares of a chain never rise; a server's counters may, by a request that was still running.
    chain = [float(s) for s in np.minimum.accumulate(np.clip(at[:k], 0.0, 1.0))]
    tokens = tokens_per_step(chain, coverage)
    return Acceptance(tokens, {0: 1.0 - coverage, length: coverage}, "counted")


def _mean_draft(cell: Cell) -> float:
    """Tokens of the mean draft, from accepted tokens per draft and their share."""
    length, rate = cell.acceptance_length, cell.acceptance_rate
    if length is not None and rate:
        return (length - 1.0) / rate
    return float(len(cell.acceptance_by_position_unconditional or ()) or 1)


class StepCost(Protocol):
    """What steps cost at a load, in plain steps of that load."""

    @property
    def source(self) -> str:
        """Where it is from."""
        ...

    def cost(self, clients: int, lengths: Mapping[int, float]) -> float | None:
        """Of the mean step, by the shares of draft lengths; None where nothing is known."""
        ...


@dataclass(frozen=True, slots=True)
class TableCost:
    """The engine's own table of step times by rows. What a draft adds to a step is taken times a
    factor of the load, by which the table was off in the look."""

    table: StepTable
    factors: Mapping[int, float] = field(default_factory=dict)
    source: str = "the engine's table, corrected at each load by the steps of the look"

    def cost(self, clients: int, lengths: Mapping[int, float]) -> float | None:
        """See `StepCost`."""
        plain = self.table.ms(clients)
        return 1.0 + self.factors.get(clients, 1.0) * (
            self.table.mean_ms(clients, lengths) / plain - 1.0
        )


def table_cost(
    table: StepTable, cells: Sequence[Cell], accepted: Mapping[str, Acceptance]
) -> TableCost:
    """A table, corrected by the cells of one arm; ``accepted`` are its drafts by workload.

    A table of single requests knows nothing of the contexts of several, nor of a machine that does
    something else beside.
    """
    sums: dict[int, tuple[float, float]] = {}
    for cell in cells:
        found, mean = accepted.get(cell.workload), cell.verify_cost_estimated
        if cell.clients is None or found is None or mean is None:
            continue
        told = table.mean_ms(cell.clients, found.lengths) / table.ms(cell.clients) - 1.0
        before = sums.get(cell.clients, (0.0, 0.0))
        sums[cell.clients] = (before[0] + max(0.0, mean - 1.0), before[1] + max(0.0, told))
    low, high = _FACTORS
    factors = {c: min(high, max(low, m / t)) for c, (m, t) in sums.items() if t > 0.0}
    return TableCost(table, factors)


@dataclass(slots=True)
class LookedCost:
    """Straight lines through what the look measured, one for each load of a method: a step costs
    a + b * (draft tokens of the mean step) plain steps. ``a`` is what drafting costs even where
    nothing is drafted, as on an engine that schedules otherwise while it speculates."""

    lines: dict[int, tuple[float, float]] = field(default_factory=dict)
    source: str = "the time of the look's steps"

    def cost(self, clients: int, lengths: Mapping[int, float]) -> float | None:
        """See `StepCost`."""
        line = self.lines.get(clients)
        if line is None:
            return None
        a, b = line
        return a + b * math.fsum(p * n for n, p in lengths.items())


def looked_cost(cells: Sequence[Cell]) -> LookedCost:
    """From the cells of one method: at each load a line (a, b) over the workloads.

    One workload, or several with about as many draft tokens per step, leave only the slope from 1
    at no draft. A step is never taken to cost less than a plain one.
    """
    points: dict[int, list[tuple[float, float]]] = {}
    for cell in cells:
        cost, share = cell.verify_cost_estimated, cell.coverage
        if cell.clients is not None and cost is not None and share:
            drafted = share * _mean_draft(cell)
            points.setdefault(cell.clients, []).append((drafted, max(1.0, cost)))
    return LookedCost({clients: _line(found) for clients, found in points.items()})


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(a, b) of cost = a + b * length by least squares; a >= 1, b >= 0."""
    x, y = (np.asarray(column, dtype=np.float64) for column in zip(*points, strict=True))
    from_one = (1.0, max(0.0, float((x * (y - 1.0)).sum() / (x * x).sum())))
    if x.min() > _FAR * x.max():
        return from_one
    b, a = (float(value) for value in np.polyfit(x, y, 1))
    if a < 1.0:
        return from_one
    return (max(1.0, float(y.mean())), 0.0) if b < 0.0 else (a, b)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Plain decoding of one workload at one load: seconds of the mean request, and the share of
    them until the first token."""

    seconds: float
    prefill_share: float


def baselines(cells: Sequence[Cell]) -> dict[tuple[str, int], Baseline]:
    """By workload and number of clients, from the cells of any arm."""
    out: dict[tuple[str, int], Baseline] = {}
    for cell in cells:
        if cell.clients is not None and cell.requests:
            seconds = sum(r.plain_s for r in cell.requests) / len(cell.requests)
            share = cell.prefill_share if cell.prefill_share is not None else 0.0
            out[cell.workload, cell.clients] = Baseline(seconds, min(1.0, share))
    return out


def counted(cells: Sequence[Cell], k: int | None) -> dict[str, Acceptance]:
    """By workload; of several loads the first, since acceptance does not depend on them."""
    out: dict[str, Acceptance] = {}
    for cell in cells:
        found = of_cell(cell, k)
        if found is not None:
            out.setdefault(cell.workload, found)
    return out


def basis(accepted: Mapping[str, Acceptance], cost: StepCost) -> str:
    """Where an estimate is from, in words."""
    how = {
        "replayed": "the plain answers, replayed for every length",
        "counted": "what a look at its longest drafts counted",
        "logs": "the recorded answers that were given",
    }
    sources = dict.fromkeys(how[a.source] for a in accepted.values())
    kind = "a line through " if isinstance(cost, LookedCost) else ""
    return f"acceptance from {' and '.join(sources)}; step times from {kind}{cost.source}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The estimated speed-up of whole requests of all workloads together, by number of clients."""

    candidate: Candidate
    by_load: Mapping[int, float]

    @property
    def score(self) -> float:
        """The geometric mean over the loads."""
        return math.exp(math.fsum(map(math.log, self.by_load.values())) / len(self.by_load))


def predict(
    candidate: Candidate,
    accepted: Mapping[str, Acceptance],
    cost: StepCost,
    plain: Mapping[tuple[str, int], Baseline],
) -> Prediction | None:
    """By workload and load; None where something that it takes is not known."""
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for (workload, clients), base in plain.items():
        found = accepted.get(workload)
        steps = None if found is None else cost.cost(clients, found.lengths)
        if found is None or steps is None:
            return None
        decode = speed_up(found.tokens, steps)
        share = base.prefill_share
        before[clients] = before.get(clients, 0.0) + base.seconds
        after[clients] = after.get(clients, 0.0) + base.seconds * (share + (1.0 - share) / decode)
    if not before:
        return None
    return Prediction(candidate, {load: before[load] / after[load] for load in before})


def shortlist(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The few that are worth a real run, at most MOST_PER_METHOD of a method and MOST_ARMS in all.

    Of each method the best at each load, then the next best whose length is clearly another one,
    for the case that the estimate of the costs is off. A method that is HOPELESS is left out.
    """
    picked: dict[str, list[Prediction]] = {}
    for method in dict.fromkeys(p.candidate.family.method for p in predictions):
        own = [p for p in predictions if p.candidate.family.method == method]
        picked[method] = _of_method(own)
    rows = [[found[i] for found in picked.values() if i < len(found)] for i in range(MOST_ARMS)]
    return [p for row in rows for p in row][:MOST_ARMS]


def _of_method(own: Sequence[Prediction]) -> list[Prediction]:
    hopeful = [p for p in own if max(p.by_load.values()) >= HOPELESS]
    ordered = sorted(hopeful, key=lambda p: -p.score)
    loads = sorted({load for p in ordered for load in p.by_load})
    best = [sorted(ordered, key=lambda p: -p.by_load[load])[0] for load in loads]
    out: list[Prediction] = []
    for one in [*best, *ordered]:
        if len(out) < MOST_PER_METHOD and all(_apart(one.candidate, o.candidate) for o in out):
            out.append(one)
    return out


def _apart(one: Candidate, other: Candidate) -> bool:
    if one.k is None or other.k is None:
        return one.family != other.family
    return max(one.k, other.k) >= _APART * min(one.k, other.k)


def blind(family: Family) -> list[Candidate]:
    """What is tried where nothing can be estimated: some lengths, evenly on a scale of ratios."""
    if not family.lengths:
        return [Candidate(family, None)]
    longest = family.lengths[-1]
    found = [max(n for n in family.lengths if n <= max(longest // part, family.lengths[0]))
             for part in (1, 2, 4)]  # fmt: skip
    return [Candidate(family, k) for k in dict.fromkeys(found)]
