"""Speculative and plain decoding over one scripted model: equal in everything a user can see."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.sampling.fakes import (
    EOS,
    PROMPT,
    VOCAB,
    assert_same,
    decode,
    logits_after,
    oracle,
    sequence,
    step,
    text_of,
)
from wager.config import SamplingParams
from wager.ops.base import OpSet
from wager.sampling.sampler import SequenceState
from wager.sampling.verify import Verdict, verify
from wager.types import Draft

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9, "seed": 5},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.01, "seed": -3},
]
LENGTH = 20


def check_steps(steps: list[tuple[int, Verdict]], state: SequenceState) -> None:
    """Counts stay within their bounds, and every step commits."""
    for drafted, verdict in steps:
        assert 0 <= verdict.accepted <= drafted
        assert 1 <= len(verdict.committed) <= verdict.accepted + 1
    assert [t for _, v in steps for t in v.committed] == state.output_ids


def known(ops: OpSet, options: dict[str, Any]) -> list[int]:
    """Plain decoding with nothing to end it but the length."""
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, **options)
    return decode(params, ops)[0].output_ids


def twin(ops: OpSet, params: SamplingParams, oracle_ids: Sequence[int], k: int) -> SequenceState:
    plain, _ = decode(params, ops)
    state, steps = decode(params, ops, oracle(oracle_ids, k))
    assert_same(state, plain)
    check_steps(steps, state)
    return state


@pytest.mark.parametrize("k", [4, 16])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_end_token_at_every_position(ops: OpSet, options: dict[str, Any], k: int) -> None:
    """Each position of a block, the bonus token's too."""
    ids = known(ops, options)
    for i in range(LENGTH):
        params = SamplingParams(max_tokens=LENGTH, logprobs=2, **options)
        plain, _ = decode(params, ops, eos_ids=(ids[i],))
        state, steps = decode(params, ops, oracle(ids, k), eos_ids=(ids[i],))
        assert_same(state, plain)
        check_steps(steps, state)
        first = ids.index(ids[i])
        assert (len(state.output_ids), state.finish_reason) == (first + 1, "stop")


@pytest.mark.parametrize("k", [4, 16])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_stop_id_at_every_position(ops: OpSet, options: dict[str, Any], k: int) -> None:
    ids = known(ops, options)
    for i in range(LENGTH):
        params = SamplingParams(
            max_tokens=LENGTH, ignore_eos=True, stop_token_ids=(ids[i],), **options
        )
        state = twin(ops, params, ids, k)
        assert (state.finish_reason, state.stop_reason) == ("stop", ids[i])
        assert state.output_ids == ids[: ids.index(ids[i]) + 1]


@pytest.mark.parametrize("k", [4, 16])
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("include", [False, True])
def test_stop_string_at_every_position(ops: OpSet, window: int, include: bool, k: int) -> None:
    """The text of every 1-, 2- and 3-token window, found wherever it lies."""
    options = SETTINGS[1]
    ids = known(ops, options)
    swept = 0
    for i in range(LENGTH - window + 1):
        stop = text_of(ids[i : i + window])
        if not stop or "\ufffd" in stop:
            continue
        params = SamplingParams(
            max_tokens=LENGTH, ignore_eos=True, stop=(stop,), include_stop_str_in_output=include,
            **options,
        )  # fmt: skip
        state = twin(ops, params, ids, k)
        swept += 1
        whole = text_of(ids)
        at = whole.index(stop)
        assert state.text == whole[: at + len(stop) if include else at]
        assert (state.finish_reason, state.stop_reason) == ("stop", stop)
    assert swept >= LENGTH // 3


@pytest.mark.parametrize("k", [4, 16])
def test_exactly_max_tokens(ops: OpSet, k: int) -> None:
    """A block that crosses the budget is cut, also when the draft was not."""
    ids = known(ops, SETTINGS[1])
    for budget in range(1, 17):
        params = SamplingParams(max_tokens=budget, ignore_eos=True, logprobs=0, **SETTINGS[1])
        state = twin(ops, params, ids, k)
        assert len(state.output_ids) == budget == len(state.logprobs or [])
        assert (state.finish_reason, state.room) == ("length", 0)


@pytest.mark.parametrize("k", [1, 4, 16])
def test_context_end(ops: OpSet, k: int) -> None:
    """The same ending whether the block reaches past the context or not."""
    ids = known(ops, SETTINGS[0])
    for room in range(1, 12):
        params = SamplingParams(ignore_eos=True, **SETTINGS[0])
        total = len(PROMPT) + room
        plain, _ = decode(params, ops, max_total=total)
        state, _ = decode(params, ops, oracle(ids, k), max_total=total)
        assert_same(state, plain)
        assert len(state.output_ids) == room


@pytest.mark.parametrize("k", [5, 16])
@pytest.mark.parametrize("min_tokens", range(1, 9))
def test_min_tokens_inside_a_block(ops: OpSet, min_tokens: int, k: int) -> None:
    """An end token is first possible exactly at position min_tokens."""
    params = SamplingParams(max_tokens=LENGTH, min_tokens=min_tokens, temperature=0.0)
    # Every third token would end it, so that one is picked as soon as it may be.
    eos = tuple(range(0, VOCAB, 3))
    plain, _ = decode(params, ops, eos_ids=eos)
    state, _ = decode(params, ops, oracle(plain.output_ids, k), eos_ids=eos)
    assert_same(state, plain)
    assert len(state.output_ids) > min_tokens
    assert not set(state.output_ids[:min_tokens]) & set(eos)
    rows = [logits_after([*PROMPT, *plain.output_ids[:j]]) for j in range(len(plain.output_ids))]
    banned = [int(np.argmax(row)) in eos for row in rows[:min_tokens]]
    if any(banned):
        free, _ = decode(SamplingParams(max_tokens=LENGTH, temperature=0.0), ops, eos_ids=eos)
        assert len(free.output_ids) == banned.index(True) + 1


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_min_tokens_with_stop_string(ops: OpSet, options: dict[str, Any]) -> None:
    """The rule for text: completed among the first min_tokens, a stop string is text."""
    ids = known(ops, options)
    seen = set()
    for i in range(LENGTH):
        stop = text_of(ids[i : i + 1])
        if not stop or "\ufffd" in stop:
            continue
        for min_tokens in (1, i, i + 1, i + 2):
            params = SamplingParams(
                max_tokens=LENGTH, min_tokens=min(min_tokens, LENGTH), ignore_eos=True,
                stop=(stop,), **options,
            )  # fmt: skip
            state = twin(ops, params, ids, 5)
            if state.finish_reason == "stop":
                assert len(state.output_ids) > params.min_tokens
            seen.add(state.finish_reason)
    assert seen == {"stop", "length"}


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_garbage_drafts_cost_nothing_but_speed(ops: OpSet, options: dict[str, Any]) -> None:
    """Constant, random and half-right drafts of random lengths."""
    rng = random.Random(3)
    params = SamplingParams(max_tokens=LENGTH, logprobs=1, **options)
    plain, _ = decode(params, ops)
    ids = plain.output_ids

    def half_right(state: SequenceState) -> Sequence[int]:
        at, right = len(state.output_ids), rng.randrange(6)
        return [*ids[at : at + right], *rng.choices(range(VOCAB), k=rng.randrange(6))]

    draftings = [lambda s: [7] * 6, lambda s: rng.choices(range(VOCAB), k=rng.randrange(9))]
    for drafting in (*draftings, half_right):
        state, steps = decode(params, ops, drafting)
        assert_same(state, plain)
        check_steps(steps, state)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("k", [1, 4, 16])
def test_full_acceptance_takes_the_fewest_steps(
    ops: OpSet, options: dict[str, Any], k: int
) -> None:
    """No plain step between drafted ones; ceil(tokens / (k + 1)) steps in all."""
    ids = known(ops, options)
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, **options)
    state, steps = decode(params, ops, oracle(ids, k))
    assert state.output_ids == ids
    assert len(steps) == -(-LENGTH // (k + 1))


def test_rows_after_the_mismatch_are_not_looked_at(ops: OpSet) -> None:
    """They may hold anything, even what no sampler takes."""
    state = sequence(SamplingParams(temperature=0.0))
    row = logits_after(PROMPT)
    best = int(np.argmax(row))
    wrong = (best + 1) % VOCAB
    rows = np.stack([row, np.full(VOCAB, np.nan, np.float32)])
    verdict = verify(rows, Draft((wrong,), "test"), state, ops)
    assert (verdict.committed, verdict.accepted) == ([best], 0)


def test_rows_and_draft_must_fit(ops: OpSet) -> None:
    state = sequence(SamplingParams())
    with pytest.raises(ValueError, match="2 rows for a draft of 3 tokens"):
        verify(np.stack([logits_after([])] * 2), Draft((1, 2, 3), "test"), state, ops)


def test_end_token_accepted_from_the_draft_is_counted(ops: OpSet) -> None:
    """Accepted and committed: the end token counts, what was drafted behind it does not."""
    best = int(np.argmax(logits_after(PROMPT)))
    state = sequence(SamplingParams(temperature=0.0), eos_ids=(best,))
    verdict = step(state, [best, 5, 6], ops)
    assert (verdict.committed, verdict.accepted) == ([best], 1)
    assert state.finish_reason == "stop"


def test_one_logprob_per_token(ops: OpSet) -> None:
    """The values are those of the rows, not of certainty."""
    for options in SETTINGS:
        ids = known(ops, options)
        params = SamplingParams(max_tokens=16, ignore_eos=True, logprobs=5, **options)
        state = twin(ops, params, ids, 5)
        assert state.logprobs is not None
        assert [e.token_id for e in state.logprobs] == state.output_ids
        for j, entry in enumerate(state.logprobs):
            row = logits_after([*PROMPT, *ids[:j]]).astype(np.float64)
            exact = row[entry.token_id] - np.log(np.exp(row).sum())
            assert entry.logprob == pytest.approx(exact, abs=1e-4)
        assert any(e.logprob < -0.01 for e in state.logprobs)


def test_seed_decides_with_and_without_drafts(ops: OpSet) -> None:
    """The same seed gives the same tokens five times over, other seeds others."""
    outputs = {}
    for seed in (1, 2, 42):
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=20, ignore_eos=True)
        plain, _ = decode(params, ops)
        for k in (0, 1, 4, 16):
            state, _ = decode(params, ops, oracle(plain.output_ids, k))
            assert state.output_ids == plain.output_ids
        outputs[seed] = tuple(plain.output_ids)
    assert len(set(outputs.values())) == 3


def test_choices_of_one_seed_differ(ops: OpSet) -> None:
    params = SamplingParams(temperature=1.5, seed=42, max_tokens=20, ignore_eos=True)
    outputs = {tuple(decode(params, ops, choice=c)[0].output_ids) for c in range(4)}
    assert len(outputs) == 4


def test_greedy_takes_no_notice_of_the_seed(ops: OpSet) -> None:
    outputs = set()
    for seed in (1, 2, None):
        params = SamplingParams(temperature=0.0, seed=seed, max_tokens=20, stop=("zz",))
        plain, _ = decode(params, ops)
        outputs.add(tuple(twin(ops, params, plain.output_ids, 4).output_ids))
    assert len(outputs) == 1


def test_end_token_in_the_vocabulary_of_the_draft(ops: OpSet) -> None:
    """A drafted end token that the target does not pick ends nothing."""
    best = int(np.argmax(logits_after(PROMPT)))
    assert best != EOS
    state = sequence(SamplingParams(temperature=0.0))
    verdict = step(state, [EOS, EOS], ops)
    assert (verdict.committed, verdict.accepted) == ([best], 0)
    assert state.finish_reason is None
