"""Each option's effect on a row: against its definition, along growing histories, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling.fakes import EOS, PROMPT, TOKENIZER, VOCAB, logits_after, sequence
from wager.config import SamplingParams
from wager.errors import RequestError
from wager.ops.base import F32
from wager.sampling.penalties import Penalties
from wager.sampling.prepared import sequences_of
from wager.sampling.processors import (
    AllowedTokens,
    BadWords,
    LogitBias,
    MinTokens,
    processors_for,
)

A, B, C, D = 1, 2, 3, 4
ROW = logits_after([])


@dataclass
class Past:
    """A history."""

    prompt_ids: Sequence[int] = (9, 9, 8)
    output_ids: Sequence[int] = ()
    ahead: Sequence[int] = ()


def excluded(row: F32) -> list[int]:
    return [int(token) for token in np.flatnonzero(np.isneginf(row))]


# Penalties


def by_definition(row: F32, past: Past, params: SamplingParams) -> F32:
    """Counted anew for each row, one token at a time."""
    said = Counter([*past.output_ids, *past.ahead])
    found = row.copy()
    for token in {*past.prompt_ids, *said}:
        if token >= len(row):
            continue
        value = found[token]
        if params.repetition_penalty != 1.0:
            by = np.float32(params.repetition_penalty)
            value = value / by if value > 0 else value * by
        value -= np.float32(params.frequency_penalty) * np.float32(said[token])
        value -= np.float32(params.presence_penalty) * np.float32(said[token] > 0)
        found[token] = value
    return found


PENALTIES: list[dict[str, float]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.7},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.6, "presence_penalty": -2.0, "frequency_penalty": 2.0},
]
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=12)


@settings(max_examples=200, deadline=None)
@given(
    options=st.sampled_from(PENALTIES),
    prompt=IDS,
    growth=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=6),
    width=st.integers(1, VOCAB),
)
def test_penalties_follow_their_definition(
    options: dict[str, Any],
    prompt: list[int],
    growth: list[tuple[list[int], list[int]]],
    width: int,
) -> None:
    """Also for a row that is shorter, and what was only ever ahead leaves no trace."""
    params = SamplingParams(**options)
    subject = Penalties(params, prompt)
    output: list[int] = []
    for grown, ahead in growth:
        output += grown
        for past in (Past(prompt, output, ahead), Past(prompt, output)):
            for row in (ROW, ROW[:width]):
                before = row.copy()
                assert np.array_equal(subject(row, past), by_definition(row, past, params))
                assert np.array_equal(row, before)


class Watched(list[int]):
    """Notes how much of it is looked at."""

    looked_at = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.looked_at += len(found) if isinstance(key, slice) else 1
        return found


def test_penalties_look_at_each_token_once() -> None:
    subject = Penalties(SamplingParams(frequency_penalty=0.5), PROMPT)
    output = Watched()
    for token in range(500):
        output.append(token % VOCAB)
        subject(ROW, Past(PROMPT, output, (A, B)))
    assert output.looked_at == 500


def test_excluded_tokens_stay_excluded() -> None:
    row = ROW.copy()
    row[[A, B]] = -np.inf
    params = SamplingParams(repetition_penalty=0.5, frequency_penalty=-2.0, presence_penalty=-2.0)
    found = Penalties(params, [A])(row, Past([A], [A, B, B, C]))
    assert excluded(found) == [A, B]
    assert not np.isnan(found).any()


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_only_the_answer_counts_for_presence_and_frequency(name: str) -> None:
    subject = Penalties(SamplingParams(**{name: 1.0}), [A, B])
    assert subject(ROW, Past([A, B])) is ROW
    changed = subject(ROW, Past([A, B], [B]))
    assert list(np.flatnonzero(changed != ROW)) == [B]


# The others


def test_bias_is_added() -> None:
    before = ROW.copy()
    found = LogitBias([(A, 2.5), (C, -100.0), (VOCAB + 5, 1.0)])(ROW, Past())
    assert found[A] == before[A] + np.float32(2.5)
    assert found[C] == before[C] - np.float32(100)
    assert list(np.flatnonzero(found != before)) == [A, C]
    assert np.array_equal(ROW, before)
    assert len(LogitBias([(A, 1.0), (C, 1.0)])(ROW[:2], Past())) == 2


def test_only_allowed_tokens_are_left() -> None:
    found = AllowedTokens([B, D, VOCAB + 1])(ROW, Past())
    assert excluded(found) == [i for i in range(VOCAB) if i not in (B, D)]
    assert found[B] == ROW[B]
    assert excluded(AllowedTokens([B, D])(ROW[:3], Past())) == [0, 1]


@pytest.mark.parametrize(
    ("output", "ahead", "banned"),
    [
        ([], [], [D]),
        ([A], [], [B, D]),
        ([A, B], [], [C, D]),
        ([B, B], [], [D]),
        ([C, A], [B], [C, D]),
        ([], [C, A, B], [C, D]),
        ([A], [A], [B, D]),
        # The prompt is no part of the answer.
        ([B], [], [D]),
    ],
)
def test_bad_words_are_not_completed(
    output: list[int], ahead: list[int], banned: list[int]
) -> None:
    subject = BadWords([(A, B), (A, B, C), (D,)])
    assert excluded(subject(ROW, Past([A, A], output, ahead))) == banned


def test_no_bad_word_near_changes_nothing() -> None:
    subject = BadWords([(A, B)])
    assert subject(ROW, Past(output_ids=[C])) is ROW
    assert subject(ROW[:B], Past(output_ids=[A]))[A] == ROW[A]


def test_a_bad_word_is_meant_alone_and_within_a_text() -> None:
    """`ab` is one piece, and ` a` begins what stands behind a space."""
    assert sequences_of(["ab"], TOKENIZER) == ((29,), (28, 2))
    assert sequences_of([" ab", "ab"], TOKENIZER) == ((29,), (28, 2))
    assert sequences_of(["\n\n"], TOKENIZER) == ((35,),)
    with pytest.raises(RequestError, match=r"^bad_words: 'ZZ' has no tokens"):
        sequences_of(["ZZ"], TOKENIZER)


def test_min_tokens_count_what_is_ahead() -> None:
    subject = MinTokens(3, {EOS})
    assert excluded(subject(ROW, Past(output_ids=[A], ahead=[A]))) == [EOS]
    assert subject(ROW, Past(output_ids=[A], ahead=[A, A])) is ROW


# Together


def test_the_order() -> None:
    params = SamplingParams(
        allowed_token_ids=(A,), bad_words=("a",), logit_bias={A: 1}, min_tokens=1,
        presence_penalty=1,
    )  # fmt: skip

    def grammar(row: F32, history: Any) -> F32:
        return row

    made = processors_for(params, {EOS}, PROMPT, [(A,)], grammar)
    kinds = [AllowedTokens, BadWords, LogitBias, MinTokens, Penalties]
    assert made[0] is grammar
    assert [type(p) for p in made[1:]] == kinds
    assert processors_for(SamplingParams(), {EOS}, PROMPT) == ()
    # Nothing would end it, so that there is nothing to hold back.
    assert processors_for(SamplingParams(min_tokens=4), (), PROMPT) == ()


def test_no_bias_brings_an_excluded_token_back() -> None:
    state = sequence(SamplingParams(bad_words=("a",), logit_bias={A: 100, EOS: 100}, min_tokens=2))
    assert {A, EOS} <= set(excluded(state.process(ROW)))


def test_what_is_ahead_of_one_pick_is_not_part_of_the_next() -> None:
    params = SamplingParams(
        frequency_penalty=2.0, repetition_penalty=1.5, bad_words=("cd",), min_tokens=2
    )
    state = sequence(params)
    without = state.process(ROW)
    assert not np.array_equal(state.process(ROW, (A, C)), without)
    assert excluded(state.process(ROW, (A, C))) == [D]
    assert np.array_equal(state.process(ROW), without)


@dataclass
class _Ops:
    """Picks the likeliest; log-probabilities are the raw values."""

    rows: list[F32] = field(default_factory=list)

    def select(self, logits: F32, params: Any, position: int) -> int:
        return int(np.argmax(logits))

    def log_softmax(self, logits: F32, ids: Sequence[int]) -> list[float]:
        self.rows.append(logits)
        return [float(logits[i]) for i in ids]


def test_logprobs_are_of_the_row_as_the_model_gave_it() -> None:
    ops: Any = _Ops()
    params = SamplingParams(
        temperature=0.0, logprobs=2, presence_penalty=2.0, logit_bias={C: 100.0}, bad_words=("a",)
    )
    state = sequence(params)
    state.commit(state.pick(ROW, ops), ROW, ops)
    assert state.logprobs is not None
    assert state.logprobs[0].token_id == C
    assert state.logprobs[0].logprob == float(ROW[C])
    assert all(row is ROW for row in ops.rows)


# Refused on construction


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty: must be at least -2 and at most 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty: must be a finite number"),
        ({"repetition_penalty": 0}, "repetition_penalty: must be at least 0.01"),
        ({"repetition_penalty": 1e308}, "repetition_penalty: .* at most 100"),
        ({"logit_bias": {"AI": -100}}, "logit_bias: must be a whole number.*'AI'"),
        ({"logit_bias": {-1: 1}}, "logit_bias: must be a whole number.*-1"),
        ({"logit_bias": {1: 101}}, "logit_bias: must be at least -100 and at most 100"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias: must be a finite number"),
        ({"logit_bias": 7}, "logit_bias: must map token ids to numbers"),
        ({"logit_bias": [(1, 2), (1, 3)]}, "logit_bias: a token is given twice"),
        (
            {"logit_bias": dict.fromkeys(range(5000), 1)},
            "logit_bias: at most 4096 tokens, got 5000",
        ),
        ({"allowed_token_ids": []}, "allowed_token_ids: is empty"),
        ({"allowed_token_ids": [1.5]}, "allowed_token_ids: must be a whole number"),
        ({"allowed_token_ids": 3}, "allowed_token_ids: must be a list of token ids"),
        ({"stop_token_ids": "12"}, "stop_token_ids: must be a list of token ids"),
        ({"bad_words": [""]}, "bad_words: each entry must be a string that is not empty"),
        ({"bad_words": ["a"] * 129}, "bad_words: at most 128 strings, got 129"),
        ({"bad_words": ["a" * 257]}, "bad_words: at most 256 characters, got 257"),
        ({"bad_words": ["\ud800"]}, "bad_words: is not valid Unicode"),
        ({"bad_words": 5}, "bad_words: must be a string or a list of strings"),
        ({"prompt_logprobs": -1}, "prompt_logprobs: must be a whole number from 0 to 20"),
        ({"prompt_logprobs": True}, "prompt_logprobs: must be a whole number"),
        ({"structured": {"regex": "a"}}, "structured: must be a StructuredOutput"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens: must be true or false"),
        ({"ignore_eos": 1}, "ignore_eos: must be true or false"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}") as caught:
        SamplingParams(**options)
    assert "\n" not in str(caught.value)


def test_options_are_kept_in_one_form() -> None:
    mapping = SamplingParams(logit_bias={5: 1, 2: -3}, allowed_token_ids=[4, 2, 4], bad_words="x")  # type: ignore[arg-type]
    pairs = SamplingParams(
        logit_bias=((2, -3.0), (5, 1.0)), allowed_token_ids=(2, 4), bad_words=("x",)
    )
    assert mapping == pairs
    assert hash(mapping) == hash(pairs)
    assert mapping.biases == ((2, -3.0), (5, 1.0))
