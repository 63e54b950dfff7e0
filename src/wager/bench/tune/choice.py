"""From real runs to a choice, and to what a new measurement of it is expected to show. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from wager.arms import PLAIN, Arm
from wager.bench.figures import request_seconds
from wager.bench.measure import Measurement
from wager.bench.results import Cell
from wager.bench.run import Run
from wager.bench.statistics import Ratio, Verdict, stratified_ratio, student, verdict

_AGAIN: Final = 2
ALL: Final = "all together"
"""In place of a workload's name: every prompt of every workload."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Seconds of the same prompts of one workload, plain and in an arm, for the same tokens."""

    workload: str
    plain: tuple[float, ...]
    spec: tuple[float, ...]


def pairs(measurement: Measurement, arm: Arm) -> Pairs:
    """By the rule of `wager.bench.figures`."""
    plain, spec = request_seconds(measurement, arm)
    return Pairs(measurement.workload, tuple(plain), tuple(spec))


def together(parts: Sequence[Pairs]) -> Ratio:
    """sum(plain) / sum(spec) over the prompts of all workloads, with a 95 % interval."""
    return stratified_ratio([(part.plain, part.spec) for part in parts])


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation of the logarithm of one run's total time, and how many differences between
    runs it was estimated from."""

    deviation: float
    freedom: int

    @property
    def reach(self) -> float:
        """Half of a 95 % interval for one run."""
        return self.deviation * student(self.freedom)


def visit_noise(run: Run) -> Noise | None:
    """What a fresh server changes.

    From arms that ran the same prompts several times; a steady drift over the measurement, which
    the order there and back cancels, is taken out by a straight line. None without a repetition,
    and for the project's own engine: there the arms alternate with every few prompts, so that the
    spread of the prompts holds it already.
    """
    if run.plan.engine == "own":
        return None
    squares, freedom = 0.0, 0
    for measurement in run.measurements:
        steps = list(_steps(measurement, [arm.name for arm in run.plan.arms]))
        if len(steps) > 1:
            drift = math.fsum(x * y for x, y in steps) / math.fsum(x * x for x, _ in steps)
            squares += math.fsum((y - drift * x) ** 2 / 2.0 for x, y in steps)
            freedom += len(steps) - 1
    return Noise(math.sqrt(squares / freedom), freedom) if freedom else None


def _steps(measurement: Measurement, arms: Sequence[str]) -> Iterator[tuple[int, float]]:
    """From each run of an arm to its next one: the places between them in the order there and
    back, and the change of the logarithm of its total time."""
    for at, arm in enumerate(arms):
        kept = measurement.answers.get(arm, {}).values()
        whole = [answers for answers in kept if all(a.error is None for a in answers)]
        least = min((len(answers) for answers in whole), default=0)
        totals = [math.fsum(answers[i].total_s for answers in whole) for i in range(least)]
        for number, (one, other) in enumerate(pairwise(totals)):
            places = 2 * (len(arms) - at) - 1 if number % 2 == 0 else 2 * at + 1
            yield places, math.log(other / one)


def with_noise(ratio: Ratio, noise: Noise | None, visits: int, times: int = 1) -> Ratio:
    """The same with the runs' noise in its interval: resampling prompts knows nothing of a server
    that happened to be slow. ``visits``: runs of each prompt in each of the two arms; ``times``:
    measurements that have runs of their own."""
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return ratio
    runs = 0.0 if noise is None else noise.reach * math.sqrt(2.0 * times / max(1, visits))
    below, above = (
        math.hypot(math.log(end / ratio.value), runs) for end in (ratio.low, ratio.high)
    )
    return Ratio(ratio.value, ratio.value * math.exp(-below), ratio.value * math.exp(above))


@dataclass(frozen=True, slots=True)
class Expected:
    """What a new measurement with as many fresh prompts will show in 19 of 20 cases.

    ``low`` and ``high`` are that prediction interval, the measured ones the 95 % interval of the
    speed-up itself. None where there were too few prompts.
    """

    workload: str
    clients: int
    speedup: float
    low: float | None
    high: float | None
    measured_low: float | None
    measured_high: float | None
    prompts: int


def expected(
    workload: str, clients: int, parts: Sequence[Pairs], noise: Noise | None, visits: int
) -> Expected | None:
    """The measured ratio, its interval widened for other prompts and for another run.

    On the scale of logarithms each half of the bootstrapped interval is taken times sqrt(2), since
    both measurements depend on their prompts; to its square comes that of the runs' noise, of both
    arms in both measurements. None if nothing was measured.
    """
    ratio = together(parts)
    count, value = sum(len(part.plain) for part in parts), ratio.value
    if value is None:
        return None
    wide = Ratio(value)
    if ratio.low is not None and ratio.high is not None:
        low, high = (value * (end / value) ** math.sqrt(2.0) for end in (ratio.low, ratio.high))
        wide = with_noise(Ratio(value, low, high), noise, visits, times=2)
    own = with_noise(ratio, noise, visits)
    return Expected(workload, clients, value, wide.low, wide.high, own.low, own.high, count)


@dataclass(frozen=True, slots=True)
class Score:
    """One arm at one load, over all workloads; ``doubt`` is why it cannot be chosen, if so.

    ``disturbed``: because the machine changed its pace; another measurement settles that.
    """

    speedup: Ratio
    verdict: Verdict | None
    doubt: str | None = None
    disturbed: bool = False

    @property
    def pays(self) -> bool:
        return self.verdict == "use" and self.doubt is None

    @property
    def loses(self) -> bool:
        return self.verdict == "do not use"


def score(
    parts: Sequence[Pairs], cells: Sequence[Cell], noise: Noise | None = None, visits: int = 2
) -> Score:
    """``cells`` are those of the same arm and load."""
    ratio = with_noise(together(parts), noise, visits)
    doubt, strange = None, None
    if cells and all(cell.status == "NOT ACTIVE" for cell in cells):
        doubt = "nothing was drafted"
    elif strange := next((c for c in cells if c.status == "DISTURBED"), None):
        doubt = f"on {strange.workload} the gain is larger than its steps allow: measure again"
    return Score(ratio, verdict(ratio), doubt, strange is not None)


Scores = Mapping[str, Mapping[int, Score]]
"""By arm and number of clients."""


def best_at(scores: Scores, clients: int) -> str:
    """The arm with the highest speed-up among those whose whole interval shows a gain; plain
    decoding if none does."""
    paying = [name for name, by_load in scores.items() if _pays(by_load.get(clients))]
    return max(paying, key=lambda name: _value(scores[name][clients]), default=PLAIN)


def disturbed(scores: Scores) -> list[str]:
    """If a gain was larger than its steps allow: the arms that are best or next to it at some load
    when that is left out of account, to be measured once more; else none."""
    if not any(s.disturbed and s.verdict == "use" for own in scores.values() for s in own.values()):
        return []
    found: list[str] = []
    for load in sorted({load for own in scores.values() for load in own}):
        at = {name: own[load].speedup.value or 0.0 for name, own in scores.items() if load in own}
        found += sorted(at, key=lambda name: -at[name])[:_AGAIN]
    return list(dict.fromkeys(found))


def best_overall(scores: Scores, loads: Sequence[int]) -> str:
    """One arm for all loads: it pays at one at least and loses at none; of several the one with the
    highest geometric mean. Plain decoding if there is none."""
    sound = [
        name
        for name, by_load in scores.items()
        if any(_pays(by_load.get(load)) for load in loads)
        and not any(load in by_load and by_load[load].loses for load in loads)
    ]
    return max(sound, key=lambda name: mean_over(scores[name], loads), default=PLAIN)


def mean_over(by_load: Mapping[int, Score], loads: Sequence[int]) -> float:
    """The geometric mean of the speed-ups; a load that was not measured, or is in doubt, counts as
    1."""
    values = [_value(by_load[load]) if load in by_load else 1.0 for load in loads]
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _value(found: Score) -> float:
    return 1.0 if found.doubt is not None else found.speedup.value or 1.0


def _pays(found: Score | None) -> bool:
    return found is not None and found.pays


def inside(one: Expected, measured: Ratio) -> bool | None:
    """Whether a new measurement lies within the prediction; None where one of them is missing."""
    if one.low is None or one.high is None or measured.value is None:
        return None
    return one.low <= measured.value <= one.high
