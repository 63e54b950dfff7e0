"""Options that look at the history, inside accepted blocks: drafts change nothing that shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.sampling.fakes import (
    PROMPT,
    VOCAB,
    assert_same,
    decode,
    logits_after,
    oracle,
    sequence,
)
from wager.config import SamplingParams, StructuredOutput
from wager.ops.base import OpSet
from wager.sampling.sampler import SequenceState

LENGTH = 20
OPTIONS: list[dict[str, Any]] = [
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"presence_penalty": 1.5, "repetition_penalty": 1.2},
    {"repetition_penalty": 0.5},
    {"logit_bias": {4: 6.0, 9: -100.0, 28: 3.0}},
    {"allowed_token_ids": (1, 2, 3, 27, 28, 29)},
    {"bad_words": ("a", "the ", "bc", "xyz")},
    {"structured": StructuredOutput("regex", "([a-m]| a|ab)+")},
    {
        "structured": StructuredOutput("regex", "([a-m]| a|ab)+"), "min_tokens": 7,
        "presence_penalty": 2.0, "bad_words": ("b",), "logit_bias": {0: 4.0},
        "stop_token_ids": (7,),
    },
]  # fmt: skip
HOW: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.01, "seed": 5},
]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_drafts_change_nothing(options: dict[str, Any], how: dict[str, Any], ops: OpSet) -> None:
    """Right, wrong and half-right drafts."""
    rng = random.Random(4)
    params = SamplingParams(max_tokens=LENGTH, logprobs=2, **options, **how)
    plain, _ = decode(params, ops)
    ids = plain.output_ids

    def half_right(state: SequenceState) -> Sequence[int]:
        at, right = len(state.output_ids), rng.randrange(5)
        return [*ids[at : at + right], *rng.choices(range(VOCAB), k=rng.randrange(4))]

    draftings = [oracle(ids, 1), oracle(ids, 4), oracle(ids, 16), lambda s: [7] * 6, half_right]
    for drafting in draftings:
        state, steps = decode(params, ops, drafting)
        assert_same(state, plain)
        for drafted, verdict in steps:
            assert 0 <= verdict.accepted <= drafted


def test_history_is_that_of_each_place_in_a_block(ops: OpSet) -> None:
    """With the history frozen at a block's start, a repeat within it would go unpunished.
    The other sign gives another text."""
    outputs = {}
    for penalty in (2.0, -2.0):
        params = SamplingParams(
            max_tokens=LENGTH, frequency_penalty=penalty, temperature=0.0, ignore_eos=True
        )
        plain, _ = decode(params, ops)
        state, steps = decode(params, ops, oracle(plain.output_ids, 19))
        assert_same(state, plain)
        assert len(steps) == 1
        outputs[penalty] = tuple(plain.output_ids)
    assert len(set(outputs.values())) == 2
    assert len(set(outputs[2.0])) > len(set(outputs[-2.0]))


@pytest.mark.parametrize("place", range(0, LENGTH, 3))
def test_a_banned_draft_token_never_appears(place: int, ops: OpSet) -> None:
    """Wherever in a block it is drafted."""
    free, _ = decode(SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=0.0), ops)
    banned = free.output_ids[place]
    for options in (
        {"logit_bias": {banned: -100}},
        {"allowed_token_ids": tuple(i for i in range(VOCAB) if i != banned)},
    ):
        params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=0.0, **options)
        plain, _ = decode(params, ops)
        state, _ = decode(params, ops, oracle(free.output_ids, 8))
        assert_same(state, plain)
        assert banned not in state.output_ids


@pytest.mark.parametrize("k", [0, 5, 16])
def test_a_forced_token_stands_everywhere(k: int, ops: OpSet) -> None:
    """Also at the bonus token's place."""
    params = SamplingParams(max_tokens=LENGTH, temperature=1.0, seed=1, logit_bias={11: 100})
    state, _ = decode(params, ops, oracle([11] * LENGTH, k))
    assert state.output_ids == [11] * LENGTH


def test_logprobs_are_raw_whatever_the_options(ops: OpSet) -> None:
    """With penalties and a grammar too."""
    for options in OPTIONS:
        params = SamplingParams(max_tokens=10, temperature=0.0, logprobs=3, **options)
        plain, _ = decode(params, ops)
        state, _ = decode(params, ops, oracle(plain.output_ids, 4))
        assert state.logprobs is not None
        for place, entry in enumerate(state.logprobs):
            row = logits_after([*PROMPT, *state.output_ids[:place]]).astype(np.float64)
            exact = row - np.log(np.exp(row).sum())
            assert entry.logprob == pytest.approx(exact[entry.token_id], abs=1e-4)
            assert entry.top[0][1] == pytest.approx(exact.max(), abs=1e-4)


def test_a_drafter_that_picks_ahead_agrees_with_the_target(ops: OpSet) -> None:
    """With the target's own rows, every token that it picks behind its draft is the target's."""
    for options in OPTIONS:
        params = SamplingParams(max_tokens=LENGTH, temperature=1.0, seed=8, **options)
        plain, _ = decode(params, ops)

        def drafting(state: SequenceState) -> Sequence[int]:
            ahead: list[int] = []
            while len(ahead) < min(6, state.room):
                row = logits_after([*PROMPT, *state.output_ids, *ahead])
                ahead.append(state.pick(row, ops, ahead))
                if state.ends_with(ahead[-1]):
                    break
            return ahead

        state, steps = decode(params, ops, drafting)
        assert_same(state, plain)
        assert all(verdict.accepted == drafted for drafted, verdict in steps)


def test_choices_do_not_share_their_counts(ops: OpSet) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0, frequency_penalty=2.0, ignore_eos=True)
    first, second = (sequence(params, choice=choice) for choice in (0, 1))
    for state in (first, second):
        while state.finish_reason is None:
            row = logits_after([*PROMPT, *state.output_ids])
            state.commit(state.pick(row, ops), row, ops)
    assert first.output_ids == second.output_ids
