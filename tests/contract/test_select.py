"""Picking a token: the filters, the noise and their definition, native and reference alike."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.sets import NATIVE, make, usable_sets
from wager.ops.base import F32, OpSet, SelectParams
from wager.ops.sampling import gumbel_noise, philox, philox_word, survivors

SETS = ["reference", *(f"native-{isa}-1" for isa in usable_sets())]
# Salmon et al., known-answer vectors of Random123 for philox4x32-10: (counter, key, words).
KNOWN_ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def params(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 1,
    choice: int = 0,
) -> SelectParams:
    return SelectParams(temperature, top_k, top_p, min_p, seed, choice)


@pytest.fixture(params=SETS)
def ops(request: pytest.FixtureRequest) -> Iterator[OpSet]:
    made = make(request.param)
    yield made
    made.close()


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert tuple(philox(np.array([counter], np.uint32), key)[0].tolist()) == words
    assert philox_word(counter, key) == words[0]
    if NATIVE:
        import wager._native as _native

        for isa in usable_sets():
            assert _native.philox(_native.ops(isa, 1), counter, key) == words


def test_greedy_takes_the_lowest_of_equals(ops: OpSet) -> None:
    logits = np.full(200, -1.0, np.float32)
    logits[[150, 67, 68, 199]] = 3.5
    assert ops.select(logits, params(0.0), 0) == 67
    logits[3] = 3.5
    assert ops.select(logits, params(0.0, top_k=5, top_p=0.1), 9) == 3


def test_logits_that_are_not_finite(ops: OpSet) -> None:
    for temperature in (0.0, 1.0):
        for bad in (np.nan, np.inf):
            for at in (0, 70, 129):
                logits = np.zeros(130, np.float32)
                logits[at] = bad
                with pytest.raises(ValueError, match=r"NaN or \+inf"):
                    ops.select(logits, params(temperature), 0)
        only = np.full(130, -np.inf, np.float32)
        with pytest.raises(ValueError, match="excluded"):
            ops.select(only, params(temperature), 0)
        only[129] = -1e30
        assert ops.select(only, params(temperature), 0) == 129
    with pytest.raises(ValueError, match="NaN"):
        ops.log_softmax(np.array([np.nan], np.float32), [0])


def test_excluded_tokens_are_never_picked(ops: OpSet) -> None:
    logits = np.full(130, -np.inf, np.float32)
    logits[[5, 64, 128]] = 0.0
    picked = {ops.select(logits, params(100.0), p) for p in range(60)}
    assert picked == {5, 64, 128}


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-320, 5e-324])
def test_a_tiny_temperature_is_greedy(ops: OpSet, temperature: float) -> None:
    logits = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    for position in range(10):
        for filters in ({}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}):
            chosen = params(temperature, **filters)  # type: ignore[arg-type]
            assert ops.select(logits, chosen, position) == logits.argmax()


def test_a_huge_temperature_is_uniform(ops: OpSet) -> None:
    logits = np.random.default_rng(0).standard_normal(4).astype(np.float32)
    counts = np.bincount([ops.select(logits, params(1e300), p) for p in range(800)], minlength=4)
    assert chi_square(counts, np.full(4, 0.25)) < 16.3  # 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize("temperature", [1e38, 1e46, 1e50, 1e300, 1.7e308])
def test_a_huge_temperature_beside_excluded_tokens(ops: OpSet, temperature: float) -> None:
    """Whatever the lane that the only one allowed is in, and its block."""
    for allowed in (5, 6, 7, 8, 64, 129):
        logits = np.full(130, -np.inf, np.float32)
        logits[allowed] = 1.5
        for filters in ({}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}):
            chosen = params(temperature, **filters)  # type: ignore[arg-type]
            assert ops.select(logits, chosen, 3) == allowed
            scaled, kept = survivors(logits, chosen)
            assert kept.tolist() == [allowed]
            assert not np.isnan(scaled).any()


@pytest.mark.parametrize("temperature", [1e50, 1e308])
def test_a_huge_temperature_is_uniform_over_what_is_allowed(ops: OpSet, temperature: float) -> None:
    logits = np.full(300, -np.inf, np.float32)
    allowed = [4, 70, 130, 255, 289]
    logits[allowed] = [0.0, 3.0, -2.0, 1.0, 5.0]
    picked = [ops.select(logits, params(temperature), position) for position in range(1000)]
    counts = np.bincount(picked, minlength=300)
    assert counts.sum() == counts[allowed].sum()
    assert chi_square(counts[allowed], np.full(5, 0.2)) < 18.5  # 4 degrees of freedom, p = 0.001


def chi_square(counts: np.ndarray, share: np.ndarray) -> float:
    expected = counts.sum() * share
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_picks_follow_the_softmax(ops: OpSet, temperature: float) -> None:
    logits = np.array([1.0, 0.0, -1.0, 0.5, 0.5, -0.3, 2.0, 1.2, -0.7, 0.1], np.float32)
    share = np.exp(logits.astype(np.float64) / temperature)
    share /= share.sum()
    # Seeds, choices and positions are three independent ways to fresh noise.
    for vary in ("seed", "choice", "position"):
        counts = np.zeros(10, int)
        for i in range(3000):
            chosen = params(
                temperature, seed=i if vary == "seed" else 77, choice=i if vary == "choice" else 0
            )
            counts[ops.select(logits, chosen, i if vary == "position" else 5)] += 1
        assert chi_square(counts, share) < 27.9  # 9 degrees of freedom, p = 0.001


def test_noise_belongs_to_the_token(ops: OpSet) -> None:
    """A token's noise does not depend on the other ids: adding some that cannot win changes
    nothing."""
    logits = np.random.default_rng(5).standard_normal(100).astype(np.float32)
    wider = np.concatenate([logits, np.full(77, -1e9, np.float32)])
    for position in range(50):
        assert ops.select(logits, params(), position) == ops.select(wider, params(), position)


def test_seeds_of_every_kind(ops: OpSet) -> None:
    logits = np.zeros(1000, np.float32)
    seeds = [0, 1, -1, 1 << 32, (1 << 64) - 1, -(1 << 63), 1 << 63]
    picked = [ops.select(logits, params(seed=s), 0) for s in seeds]
    # Equal modulo 2^64 is the same seed; all the others differ.
    assert picked[2] == picked[4]
    assert picked[5] == picked[6]
    assert len(set(picked)) >= 4


def test_log_softmax(ops: OpSet) -> None:
    logits = (np.random.default_rng(6).standard_normal(1234) * 5).astype(np.float32)
    logits[17] = -np.inf
    exact = logits.astype(np.float64)
    exact -= exact.max()
    exact -= math.log(np.exp(exact).sum())
    found = ops.log_softmax(logits, [0, 5, 1233, 17])
    np.testing.assert_allclose(found, exact[[0, 5, 1233, 17]], rtol=1e-5, atol=1e-5)
    assert ops.log_softmax(logits, []) == []
    with pytest.raises(ValueError, match="token id"):
        ops.log_softmax(logits, [1234])


def kept_by_hand(logits: F32, chosen: SelectParams) -> set[int]:
    """The filters as the contract states them, over whole sorted lists."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if 0 < chosen.top_k < len(order):
        border = logits[order[chosen.top_k - 1]]
        order = [i for i in order if logits[i] >= border]
    top = float(logits[order[0]])
    weight = {i: math.exp((float(logits[i]) - top) / chosen.temperature) for i in order}
    if chosen.top_p < 1:
        wanted, mass = chosen.top_p * sum(weight.values()), 0.0
        for i in order:
            mass += weight[i]
            border = logits[i]
            if mass >= wanted:
                break
        order = [i for i in order if logits[i] >= border]
    return {i for i in order if weight[i] >= chosen.min_p}


values = st.integers(-40, 40).map(lambda n: n / 8)


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(values, min_size=1, max_size=150),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    top_k=st.integers(-1, 20),
    top_p=st.sampled_from([0.1, 0.37, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.043, 0.21, 1.0]),
)
def test_filters_keep_what_they_say(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = np.array(logits, np.float32)
    chosen = params(temperature, top_k, top_p, min_p)
    expected = kept_by_hand(row, chosen)
    assert set(survivors(row, chosen)[1].tolist()) == expected
    # Only survivors are picked, by every op set, and they agree unless the best two nearly tie.
    for position in range(4):
        noisy = {
            i: (logits[i] - max(logits)) / temperature + float(n)
            for i, n in zip(
                sorted(expected),
                gumbel_noise(np.array(sorted(expected)), chosen.seed, position, 0),
                strict=True,
            )
        }
        best = max(noisy.values())
        for made in op_sets():
            pick = made.select(row, chosen, position)
            assert pick in expected
            assert noisy[pick] >= best - 1e-5


def op_sets() -> list[OpSet]:
    if not _MADE:
        _MADE.extend(make(name) for name in SETS)
    return _MADE


_MADE: list[OpSet] = []


@pytest.mark.skipif(not NATIVE, reason="the extension was not built")
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    size=st.sampled_from([63, 64, 65, 1000, 5000]),
    spread=st.sampled_from([0.1, 1.0, 4.0, 20.0]),
    temperature=st.sampled_from([0.2, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 60, 400]),
    top_p=st.sampled_from([0.2, 0.9, 0.999, 1.0]),
)
def test_pruning_changes_nothing_on_any_instruction_set(
    seed: int, size: int, spread: float, temperature: float, top_k: int, top_p: float
) -> None:
    import wager._native as _native

    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(size) * spread).astype(np.float32)
    picks = {
        _native.select(
            _native.ops(isa, 1), logits, temperature, top_k, top_p, 0.0, seed, 3, 9, prune
        )
        for isa in usable_sets()
        for prune in (True, False)
    }
    assert len(picks) == 1
    chosen = params(temperature, top_k, top_p, 0.0, seed, 3)
    scaled, kept = survivors(logits, chosen)
    noisy = scaled[kept] + gumbel_noise(kept, seed, 9, 3)
    by_id = dict(zip(kept.tolist(), noisy.tolist(), strict=True))
    # The border of top_p can fall between two sums that differ in the last bits.
    pick = picks.pop()
    assert pick in by_id or abs(noisy.min() - noisy.max()) < 1e-3
    assert by_id[pick] >= noisy.max() - 1e-5


@pytest.mark.skipif(not NATIVE, reason="the extension was not built")
def test_bad_parameters_are_refused() -> None:
    ops = make("native-scalar-1")
    logits = np.zeros(5, np.float32)
    for bad in (params(-1.0), params(math.nan), params(1.0, top_p=0.0), params(1.0, min_p=1.5)):
        with pytest.raises(ValueError, match="out of range"):
            ops.select(logits, bad, 0)
    with pytest.raises((TypeError, ValueError)):
        ops.select(np.zeros((1, 5), np.float32), params(), 0)
    with pytest.raises((TypeError, ValueError)):
        ops.select(logits, params(), -1)
