"""What is sampled follows the target's exact distribution, drafts or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sampling.chi_square import excess
from tests.sampling.fakes import sequence
from wager.config import SamplingParams
from wager.ops.base import OpSet
from wager.sampling.verify import verify
from wager.types import Draft

LOGITS = np.array([0.3, 1.9, -0.4, 1.1, 0.0, -2.0, 2.3, 0.9], np.float32)


def draws(ops: OpSet) -> int:
    """Where both op sets pick the same tokens, the slow one need not prove as much."""
    return 20_000 if ops.name == "native" else 4_000


def softmax(values: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = np.exp(values.astype(np.float64) - values.max())
    return exact / exact.sum()


def expected(options: dict[str, float]) -> NDArray[np.float64]:
    """The documented order: temperature, top-k, top-p, min-p."""
    p = softmax(LOGITS / np.float32(options.get("temperature", 1.0)))
    order = np.argsort(-p)
    keep = order[: int(options.get("top_k", 0)) or len(p)]
    kept = p[keep] / p[keep].sum()
    keep = keep[: int(np.searchsorted(np.cumsum(kept), options.get("top_p", 1.0) - 1e-9)) + 1]
    keep = [i for i in keep if p[i] >= options.get("min_p", 0.0) * p.max()]
    filtered = np.zeros_like(p)
    filtered[keep] = p[keep] / p[keep].sum()
    return filtered


def assert_follows(counts: Counter[int], p: NDArray[np.float64]) -> None:
    assert excess(counts, dict(enumerate(p.tolist()))) < 1.0


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.8},
     {"min_p": 0.2}, {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05}],
    ids=str,
)  # fmt: skip
def test_one_token(ops: OpSet, options: dict[str, float]) -> None:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    counts = Counter(sequence(params, seed=seed).pick(LOGITS, ops) for seed in range(draws(ops)))
    assert_follows(counts, expected(options))


def test_positions_of_one_seed(ops: OpSet) -> None:
    """Along one sequence the draws are as independent as across seeds."""
    state = sequence(SamplingParams(ignore_eos=True), max_total=100_000, eos_ids=())
    picks = []
    for _ in range(draws(ops)):
        token = state.pick(LOGITS, ops)
        state.commit(token, LOGITS, ops)
        picks.append(token)
    assert_follows(Counter(picks), softmax(LOGITS))
    p = softmax(LOGITS)
    repeats = sum(a == b for a, b in pairwise(picks))
    same, pairs = float((p**2).sum()), len(picks) - 1
    assert abs(repeats - pairs * same) < 5 * (pairs * same * (1 - same)) ** 0.5


TABLE = np.array(
    [[0.1, 1.0, -0.5, 0.4], [1.2, 0.0, 0.3, -1.0], [0.0, 0.5, 0.9, 0.2], [-0.3, 0.8, 0.1, 1.1],
     [0.6, -0.2, 0.7, 0.0]], np.float32
)  # fmt: skip


@pytest.mark.parametrize("drafted", [(), (1,), (3, 0), (0, 2)], ids=str)
def test_two_tokens_with_any_draft(ops: OpSet, drafted: Sequence[int]) -> None:
    """The joint distribution of two tokens, the token after a rejection included, for a
    drafter that is sure of itself. The model: row 4 first, then the row of the token before."""
    counts: Counter[int] = Counter()
    for seed in range(draws(ops)):
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        state = sequence(params, seed=seed)
        draft = Draft(tuple(drafted), "test")
        verify(TABLE[[4, *drafted]], draft, state, ops)
        while state.finish_reason is None:
            verify(TABLE[[state.output_ids[-1]]], Draft(), state, ops)
        counts[state.output_ids[0] * 4 + state.output_ids[1]] += 1
    joint = softmax(TABLE[4])[:, None] * np.stack([softmax(row) for row in TABLE[:4]])
    assert_follows(counts, joint.ravel())


def test_top_k_one_is_greedy(ops: OpSet) -> None:
    rng = np.random.default_rng(18)
    for seed in range(200):
        row = rng.standard_normal(64).astype(np.float32)
        state = sequence(SamplingParams(temperature=1.7, top_k=1), seed=seed)
        assert state.pick(row, ops) == int(np.argmax(row))


def test_nothing_outside_the_nucleus(ops: OpSet) -> None:
    """Temperature first, then the nucleus of what it leaves."""
    rng = np.random.default_rng(19)
    row = (2 * rng.standard_normal(64)).astype(np.float32)
    p = softmax(row / np.float32(0.8))
    order = np.argsort(-p)
    nucleus = set(order[: int(np.searchsorted(np.cumsum(p[order]), 0.5)) + 1].tolist())
    params = SamplingParams(temperature=0.8, top_p=0.5)
    picked = {sequence(params, seed=seed).pick(row, ops) for seed in range(3000)}
    assert picked == nucleus
