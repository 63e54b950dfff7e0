"""What ends a sequence, its text and log-probabilities, and what a pick is a function of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling.fakes import EOS, FACE, PROMPT, VOCAB, logits_after, sequence, text_of
from wager.config import SamplingParams
from wager.ops.base import F32, OpSet, SelectParams
from wager.sampling.processors import MinTokens
from wager.sampling.sampler import SequenceState, token_logprob

A, B, C = 1, 2, 3


class RecordingOps:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[F32, SelectParams, int]] = []

    def select(self, logits: F32, params: SelectParams, position: int) -> int:
        self.asked.append((logits, params, position))
        return int(np.argmax(logits))

    def log_softmax(self, logits: F32, ids: list[int]) -> list[float]:
        row = logits.astype(np.float64)
        total = np.log(np.exp(row - row.max()).sum()) + row.max()
        return [float(row[i] - total) for i in ids]


OPS: Any = RecordingOps()
ROW = logits_after([])


def feed(ids: list[int], **options: Any) -> SequenceState:
    """Commit ids until the sequence ends."""
    state = sequence(SamplingParams(**options))
    for token in ids:
        if state.finish_reason is None:
            state.commit(token, ROW, OPS)
    return state


def ending(state: SequenceState) -> tuple[list[int], str, Any, Any]:
    return state.output_ids, state.text, state.finish_reason, state.stop_reason


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ([A, B, EOS], "ab", "stop", None)),
        ({"ignore_eos": True}, ([A, B, EOS, C, A], "abca", None, None)),
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, ([A, B, EOS], "ab", "stop", EOS)),
        ({"stop_token_ids": [B]}, ([A, B], "a", "stop", B)),
        ({"stop_token_ids": [B], "include_stop_str_in_output": True}, ([A, B], "ab", "stop", B)),
        ({"stop": ["b"]}, ([A, B], "a", "stop", "b")),
        ({"stop": ["b"], "include_stop_str_in_output": True}, ([A, B], "ab", "stop", "b")),
        ({"stop": ["ca", "ab"]}, ([A, B], "", "stop", "ab")),
        ({"stop": ["bc"], "ignore_eos": True}, ([A, B, EOS, C], "a", "stop", "bc")),
        ({"max_tokens": 2}, ([A, B], "ab", "length", None)),
        ({"max_tokens": 3}, ([A, B, EOS], "ab", "stop", None)),
        ({"max_tokens": 2, "stop": ["b"]}, ([A, B], "a", "stop", "b")),
        ({"max_tokens": 2, "stop_token_ids": [B], "stop": ["b"]}, ([A, B], "a", "stop", B)),
        ({"max_tokens": 2, "stop": ["bcc"]}, ([A, B], "ab", "length", None)),
        ({"min_tokens": 2, "stop": ["b"]}, ([A, B, EOS], "ab", "stop", None)),
        ({"min_tokens": 2, "stop": ["bc"], "ignore_eos": True},
         ([A, B, EOS, C], "a", "stop", "bc")),
        ({"min_tokens": 4, "stop": ["bc"], "ignore_eos": True},
         ([A, B, EOS, C, A], "abca", None, None)),
    ],
)  # fmt: skip
def test_endings(options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert ending(feed([A, B, EOS, C, A], **options)) == expected


def test_context_ends_the_sequence() -> None:
    state = sequence(SamplingParams(max_tokens=50), max_total=len(PROMPT) + 3)
    for room in (3, 2, 1):
        assert state.room == room
        state.commit(A, ROW, OPS)
    assert ending(state) == ([A, A, A], "aaa", "length", None)
    with pytest.raises(ValueError, match="no room"):
        sequence(SamplingParams(), max_total=len(PROMPT))


def test_nothing_after_the_end() -> None:
    state = feed([EOS])
    with pytest.raises(ValueError, match="ended already"):
        state.commit(A, ROW, OPS)
    state.finish("abort")
    assert state.finish_reason == "stop"


@pytest.mark.parametrize(("cut", "text"), [(1, "a�"), (2, "a�"), (3, "a\U0001f600")])
def test_character_that_the_end_cuts(cut: int, text: str) -> None:
    """U+FFFD once, however many of the character's tokens were there."""
    state = feed([A, *FACE], max_tokens=1 + cut)
    assert state.text == text


def test_abort_releases_held_text() -> None:
    state = feed([A, B], stop=["bcc"])
    assert state.text == "a"
    state.finish("abort")
    assert (state.text, state.finish_reason) == ("ab", "abort")


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    stop=st.lists(st.text("abct é", min_size=1, max_size=3), max_size=3),
    look=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_fresh_parts_add_up(ids: list[int], stop: list[str], look: list[bool]) -> None:
    """A stream is the whole answer in pieces: ids, text and log-probabilities."""
    state = sequence(SamplingParams(stop=tuple(stop), logprobs=1))
    parts = []
    for token, take in zip(ids, look, strict=False):
        state.commit(token, ROW, OPS)
        if take:
            parts.append(state.take_fresh())
        if state.finish_reason is not None:
            break
    state.finish("abort")
    parts.append(state.take_fresh())
    assert [i for p in parts for i in p.token_ids] == state.output_ids
    assert "".join(p.text for p in parts) == state.text
    assert [e for p in parts for e in p.logprobs or []] == state.logprobs
    if state.finish_reason == "abort":
        assert state.text == text_of(state.output_ids)
    assert not any(s in state.text for s in stop)


def test_pick_depends_on_position_and_options_alone() -> None:
    ops = RecordingOps()
    params = SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    state = sequence(params, seed=2**64 - 1, choice=3)
    for _ in range(3):
        state.commit(state.pick(ROW, ops), ROW, ops)  # type: ignore[arg-type]
    expected = SelectParams(0.5, 7, 0.9, 0.1, 2**64 - 1, 3)
    assert [p for _, p, _ in ops.asked] == [expected] * 3
    assert [at for _, _, at in ops.asked] == [len(PROMPT), len(PROMPT) + 1, len(PROMPT) + 2]
    assert all(row is ROW for row, _, _ in ops.asked)


def test_min_tokens_bans_only_where_it_must() -> None:
    state = sequence(SamplingParams(min_tokens=2, stop_token_ids=(4,)))
    before = ROW.copy()
    process = MinTokens(2, {EOS, 4, VOCAB + 7})
    banned = process(ROW, state)
    assert list(np.flatnonzero(np.isneginf(banned))) == [EOS, 4]
    kept = [i for i in range(VOCAB) if i not in (EOS, 4)]
    assert np.array_equal(banned[kept], before[kept])
    assert np.array_equal(ROW, before)
    for _ in range(2):
        state.commit(A, ROW, OPS)
    assert process(ROW, state) is ROW


@pytest.mark.parametrize("picked", [-1, VOCAB])
def test_what_is_no_token_ends_the_sequence_alone(picked: int) -> None:
    """Fed back to the model it would end the engine."""

    class Broken(RecordingOps):
        def select(self, logits: F32, params: SelectParams, position: int) -> int:
            return picked

    ops: Any = Broken()
    with pytest.raises(ValueError, match=f"token {picked} was picked"):
        sequence(SamplingParams()).pick(ROW, ops)


def test_ignored_end_tokens_are_not_banned() -> None:
    ops = RecordingOps()
    row = np.zeros(VOCAB, np.float32)
    row[EOS] = 9
    state = sequence(SamplingParams(min_tokens=5, ignore_eos=True))
    assert state.pick(row, ops) == EOS  # type: ignore[arg-type]
    assert sequence(SamplingParams(min_tokens=5)).pick(row, ops) != EOS  # type: ignore[arg-type]


def test_logprobs_are_the_models_own(ops: OpSet) -> None:
    """The target's log-softmax, whatever the temperature and the filters are."""
    state = sequence(SamplingParams(temperature=0.3, top_k=2, logprobs=5, min_tokens=3))
    rows = [logits_after([i]) for i in range(4)]
    for row in rows:
        state.commit(state.pick(row, ops), row, ops)
    assert state.logprobs is not None
    assert len(state.logprobs) == 4
    for row, entry in zip(rows, state.logprobs, strict=True):
        exact = row.astype(np.float64)
        exact -= np.log(np.exp(exact).sum())
        assert entry.logprob == pytest.approx(exact[entry.token_id], abs=1e-5)
        order = sorted(range(VOCAB), key=lambda i: -exact[i])[:5]
        assert [i for i, _ in entry.top] == order
        assert [value for _, value in entry.top] == pytest.approx(exact[order], abs=1e-5)
        assert entry.logprob < 0


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 700), count=st.integers(0, 64), seed=st.integers(0, 999))
def test_alternatives_are_the_most_likely(size: int, count: int, seed: int) -> None:
    """Best first, the lower id first among equals, of which there are many here."""
    row = np.random.default_rng(seed).integers(-9, 9, size).astype(np.float32)
    row[row == -9] = -np.inf
    row[size // 2] = 0
    top = token_logprob(row, 0, count, OPS).top
    assert [i for i, _ in top] == sorted(range(size), key=lambda i: (-row[i], i))[:count]


def test_alternatives_among_equals_and_none(ops: OpSet) -> None:
    row = np.array([1, 3, 2, 3, 2, 2], np.float32)
    assert [i for i, _ in token_logprob(row, 0, 4, ops).top] == [1, 3, 2, 4]
    assert token_logprob(row, 0, 0, ops).top == ()
    assert len(token_logprob(row, 0, 64, ops).top) == 6
