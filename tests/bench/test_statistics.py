"""Ratios, intervals and verdicts against what is known to be true."""

from __future__ import annotations

from math import isclose
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.bench.statistics import (
    Ratio,
    ceiling,
    disturbed,
    mean,
    median,
    paired_ratio,
    pool,
    tails,
    tokens_per_step,
    verdict,
)
from wager.types import DraftCounts

seconds = st.floats(0.01, 100.0)
pairs = st.lists(st.tuples(seconds, seconds), min_size=5, max_size=24)


def test_the_ratio_is_one_of_sums_not_a_mean_of_ratios() -> None:
    assert paired_ratio([10.0, 1.0], [1.0, 1.0]).value == 5.5
    assert paired_ratio([1.0, 30.0], [1.0, 10.0]).value == 31 / 11


@given(pairs)
def test_the_interval_holds_the_ratio_and_stays_within_the_pairs(
    values: list[tuple[float, float]],
) -> None:
    above, below = zip(*values, strict=True)
    found = paired_ratio(above, below)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    ratios = [a / b for a, b in values]
    slack = 1e-9 * max(ratios)
    assert min(ratios) - slack <= found.low <= found.high <= max(ratios) + slack
    assert isclose(found.value, sum(above) / sum(below), rel_tol=1e-9)


@given(pairs, st.floats(0.1, 10.0))
def test_scaling_one_side_scales_everything(
    values: list[tuple[float, float]], factor: float
) -> None:
    above, below = zip(*values, strict=True)
    base, scaled = paired_ratio(above, below), paired_ratio([factor * a for a in above], below)
    for one, other in zip(
        (base.value, base.low, base.high), (scaled.value, scaled.low, scaled.high), strict=True
    ):
        assert one is not None
        assert other is not None
        assert isclose(one * factor, other, rel_tol=1e-9)


@given(st.lists(seconds, min_size=5, max_size=24))
def test_equal_arms_have_a_ratio_of_exactly_one(times: list[float]) -> None:
    assert paired_ratio(times, times) == Ratio(1.0, 1.0, 1.0)


@pytest.mark.parametrize("count", [5, 16])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(count: int) -> None:
    """The plain percentiles of 5 pairs hold it in no more than 85 of 100 cases."""
    rng = np.random.default_rng(7)
    truth = 1.5
    covered = 0
    for _ in range(600):
        below = rng.lognormal(0.0, 0.4, count)
        above = truth * below * rng.lognormal(-0.02, 0.2, count)
        found = paired_ratio(list(above), list(below))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert 0.90 <= covered / 600 <= 0.97


def test_few_pairs_widen_the_interval_and_many_do_not() -> None:
    # Student's t at 95 %: 2.776 with 4 degrees of freedom, 2.131 with 15.
    normal = NormalDist()
    assert normal.inv_cdf(tails(5)[1]) == pytest.approx((5 / 4) ** 0.5 * 2.776, abs=2e-3)
    assert normal.inv_cdf(tails(16)[1]) == pytest.approx((16 / 15) ** 0.5 * 2.131, abs=1e-3)
    assert tails(100_000) == pytest.approx((0.025, 0.975), abs=1e-5)


@pytest.mark.parametrize(("above", "below"), [([], []), ([0.0], [0.0]), ([1.0], [0.0])])
def test_nothing_measured_is_none(above: list[float], below: list[float]) -> None:
    assert paired_ratio(above, below) == Ratio(None)


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_a_few_pairs_have_no_interval(pairs: int) -> None:
    assert paired_ratio([3.0] * pairs, [2.0] * pairs) == Ratio(1.5)
    assert paired_ratio([3.0] * 5, [2.0] * 5) == Ratio(1.5, 1.5, 1.5)


def test_the_ceiling_is_amdahls() -> None:
    # A quarter of the time is the prompt; after the first step 30 tokens came in 10 steps.
    assert ceiling(0.25, [(21, 6), (11, 6)]) == pytest.approx(1 / (0.25 + 0.75 / 3))
    assert ceiling(1.0, [(21, 6)]) == 1.0
    assert ceiling(0.5, [(8, 8)]) == 1.0
    assert ceiling(0.5, [(1, 1)]) is None


@given(st.floats(0.0, 1.0), st.integers(1, 50), st.integers(0, 400))
def test_the_ceiling_is_at_least_1_and_at_most_the_tokens_per_step(
    share: float, steps: int, more: int
) -> None:
    highest = ceiling(share, [(1 + steps + more, 1 + steps)])
    assert highest is not None
    assert 1.0 - 1e-9 <= highest <= (steps + more) / steps + 1e-9


def test_a_gain_beyond_the_ceiling_is_no_reason_to_use_it() -> None:
    gain, loss = Ratio(1.3, 1.1, 1.5), Ratio(0.8, 0.7, 0.9)
    assert verdict(gain, None) == verdict(gain, 1.2) == "use"
    assert verdict(gain, 1.0) == "no difference"
    assert verdict(loss, 1.0) == "do not use"
    assert verdict(Ratio(1.03, 1.011, 1.05), 1.002) == "no difference"
    assert disturbed(gain, 1.05)
    assert not disturbed(gain, 1.1)
    assert not disturbed(Ratio(3.0), 1.0)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="length"):
        paired_ratio([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.02, 1.5, "use"),
        (1.01, 1.5, "no difference"),
        (0.97, 1.5, "no difference"),
        (0.995, 1.005, "no difference"),
        (0.8, 0.99, "no difference"),
        (0.8, 0.985, "do not use"),
        (None, None, None),
    ],
)
def test_verdict(low: float | None, high: float | None, expected: str | None) -> None:
    assert verdict(Ratio(1.0, low, high)) == expected


def test_pooled_and_mean_of_requests_are_named_apart() -> None:
    both = tokens_per_step([(10 * 5, 10), (100 * 2, 100)])
    assert both.pooled == 250 / 110
    assert both.mean_of_requests == 3.5


def test_requests_without_a_step_do_not_count() -> None:
    assert tokens_per_step([(0, 0), (6, 3)]).mean_of_requests == 2.0
    nothing = tokens_per_step([(0, 0)])
    assert nothing.pooled is None
    assert nothing.mean_of_requests is None


@given(st.lists(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12), max_size=4))
def test_pooled_rates_stay_in_their_ranges(requests: list[list[tuple[int, int]]]) -> None:
    each = []
    for steps in requests:
        counts = DraftCounts()
        for drafted, accepted in steps:
            counts.record(drafted, min(drafted, accepted), min(drafted, accepted) + 1)
        each.append(counts)
    total = pool(each)
    if total.acceptance_rate is not None:
        assert 0.0 <= total.acceptance_rate <= 1.0
        assert total.acceptance_length is not None
        assert 1.0 <= total.acceptance_length <= 9.0
        shares = total.acceptance_by_position_unconditional
        assert len(shares) == max(d for steps in requests for d, _ in steps)
        assert shares == sorted(shares, reverse=True)
        assert all(0.0 <= share <= 1.0 for share in shares)
        assert isclose(1.0 + sum(shares), total.acceptance_length)


def test_median() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([]) is None


def test_mean() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert mean([]) is None
