"""Ratios with intervals, and the verdict that follows from one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal, TypeAlias

import numpy as np

from wager.types import DraftCounts

Verdict: TypeAlias = Literal["use", "no difference", "do not use"]

RESAMPLES: Final = 2000
MARGIN: Final = 0.01
"""Half a verdict's dead zone: differences of at most 1 % are not worth a recommendation."""
MIN_PAIRS: Final = 5
"""Fewer pairs give no interval: resampling two or three values says nothing about the next one."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of sums with its 95 % interval; None where it could not be computed."""

    value: float | None
    low: float | None = None
    high: float | None = None


def paired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], seed: int = 0
) -> Ratio:
    """sum(numerators) / sum(denominators) over pairs, with an interval bootstrapped over pairs.

    The pairs (prompts) are drawn with replacement, 2,000 times with a fixed seed, and the middle
    of the ratios is the interval: as much of it as `tails` says. Fewer than MIN_PAIRS pairs give no
    interval.
    """
    return stratified_ratio([(numerators, denominators)], seed)


def stratified_ratio(
    strata: Sequence[tuple[Sequence[float], Sequence[float]]], seed: int = 0
) -> Ratio:
    """The same over several kinds of pairs, each drawn from its own, so that every draw has the
    mixture that was measured."""
    if any(len(above) != len(below) for above, below in strata):
        raise ValueError("numerators and denominators must be of one length")
    kinds = [
        (np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64))
        for above, below in strata
        if len(above)
    ]
    count, total = sum(len(above) for above, _ in kinds), sum(float(b.sum()) for _, b in kinds)
    if not count or not total > 0.0:
        return Ratio(None)
    value = sum(float(above.sum()) for above, _ in kinds) / total
    if count < MIN_PAIRS or count <= len(kinds):
        return Ratio(value)
    random = np.random.default_rng(seed)
    over, under = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for above, below in kinds:
        picks = random.integers(0, len(above), size=(RESAMPLES, len(above)))
        over += above[picks].sum(axis=1)
        under += below[picks].sum(axis=1)
    if not (under > 0.0).all():
        return Ratio(value)
    low, high = np.quantile(over / under, tails(count, len(kinds)))
    return Ratio(value, float(low), float(high))


def tails(count: int, kinds: int = 1) -> tuple[float, float]:
    """Which quantiles of bootstrapped values of ``count`` pairs make a 95 % interval.

    The plain percentiles, 2.5 % and 97.5 %, are too narrow for few pairs: of 5 they hold the truth
    in 85 of 100 cases, of 16 in 91. They are widened as Student's t is against the normal
    distribution, with the bootstrap's own sqrt((n - 1) / n) taken off (T. Hesterberg, What Teachers
    Should Know About the Bootstrap, 2015, section 5.3: expanded percentile interval). Pairs of
    several kinds have as many degrees of freedom fewer.
    """
    freedom = count - kinds
    edge = math.sqrt(count / freedom) * student(freedom)
    return NormalDist().cdf(-edge), NormalDist().cdf(edge)


_FEW_DEGREES: Final = (12.7062, 4.3027, 3.1824)


def student(freedom: int) -> float:
    """Student's t, of which 95 % of the distribution lie within plus and minus.

    From 4 degrees of freedom by its series in 1 / freedom (Abramowitz and Stegun 26.7.5), right to
    0.001 and closer; below them, where the series is no use, from the table.
    """
    if freedom <= len(_FEW_DEGREES):
        return _FEW_DEGREES[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def ceiling(prefill_share: float, requests: Sequence[tuple[int, int]]) -> float | None:
    """The highest speed-up of whole requests that their steps allow (Amdahl's law).

    From (tokens, steps) of the speculative replies: reading the prompt takes as long as before, and
    the rest at best as many plain step times as there are steps. The first step belongs to the
    prompt. None without a step after it.
    """
    tokens = sum(tokens - 1 for tokens, steps in requests if steps > 1)
    steps = sum(steps - 1 for _, steps in requests if steps > 1)
    if not steps:
        return None
    return 1.0 / (prefill_share + (1.0 - prefill_share) * steps / max(tokens, steps))


def disturbed(speedup: Ratio, highest: float | None) -> bool:
    """Whether the whole interval lies above what the steps allow: the machine's doing, not ours."""
    return speedup.low is not None and highest is not None and speedup.low > highest + MARGIN


def verdict(speedup: Ratio, highest: float | None = None) -> Verdict | None:
    """``use`` when the whole interval lies above 1.01, ``do not use`` when it lies below 0.99.

    Anything else is ``no difference``: none was shown. None without an interval. A gain beyond
    the ``highest`` possible one (see `ceiling`; None: not known) was not made by speculation and
    is no reason to use it.
    """
    if speedup.low is None or speedup.high is None:
        return None
    possible = highest is None or highest > 1.0 + MARGIN
    if speedup.low > 1.0 + MARGIN and possible and not disturbed(speedup, highest):
        return "use"
    if speedup.high < 1.0 - MARGIN:
        return "do not use"
    return "no difference"


@dataclass(frozen=True, slots=True)
class TokensPerStep:
    """Two averages that may differ much, so that each carries its name.

    ``pooled`` is all committed tokens / all steps; ``mean_of_requests`` the plain mean of every
    request's own tokens per step, in which a request of few steps weighs as much as a long one.
    """

    pooled: float | None
    mean_of_requests: float | None


def tokens_per_step(requests: Sequence[tuple[int, int]]) -> TokensPerStep:
    """Both averages of (committed tokens, steps) pairs; requests without a step are left out."""
    known = [(tokens, steps) for tokens, steps in requests if steps]
    if not known:
        return TokensPerStep(None, None)
    pooled = sum(tokens for tokens, _ in known) / sum(steps for _, steps in known)
    mean = math.fsum(tokens / steps for tokens, steps in known) / len(known)
    return TokensPerStep(pooled, mean)


def pool(requests: Sequence[DraftCounts]) -> DraftCounts:
    """The sum of the counts of several requests."""
    total = DraftCounts()
    for counts in requests:
        total.add(counts)
    return total


def median(values: Sequence[float]) -> float | None:
    """The middle value, or None of nothing."""
    return float(np.median(np.asarray(values, dtype=np.float64))) if len(values) else None


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean, or None of nothing."""
    return math.fsum(values) / len(values) if values else None
