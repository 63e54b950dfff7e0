"""Grammars over a scripted model: what may come, where it ends, and that drafts change nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling.fakes import (
    EOS,
    PIECES,
    TOKENIZER,
    VOCAB,
    FakeTokenizer,
    assert_same,
    decode,
    logits_after,
    oracle,
    sequence,
)
from wager.config import SamplingParams, StructuredOutput
from wager.ops.base import OpSet
from wager.sampling.grammar import GrammarMask, prepare
from wager.sampling.sampler import SequenceState

ROW = logits_after([])
# Never comes to a place that no piece fits.
WORDS = StructuredOutput("regex", r"(ab| a)+z{2,3}")
FREE = StructuredOutput("regex", r"(a[bc]+d)+")


def regex(pattern: str) -> StructuredOutput:
    return StructuredOutput("regex", pattern)


def masked(structured: StructuredOutput, end_ids: Sequence[int] = (EOS,)) -> GrammarMask:
    return GrammarMask(prepare(TOKENIZER, (EOS,), structured), end_ids)


class Past:
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()

    def __init__(self, ahead: Sequence[int] = ()) -> None:
        self.ahead = ahead


def possible(subject: GrammarMask, *ahead: int, row: Any = ROW) -> list[bytes]:
    """The pieces that may come next."""
    found = subject(row, Past(ahead))
    return [PIECES[i] for i in np.flatnonzero(~np.isneginf(found))]


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


# Masks


def test_a_mask_follows_what_was_committed() -> None:
    subject = masked(WORDS)
    assert possible(subject) == [b"a", b" a", b"ab"]
    assert not subject.advance(29)
    assert possible(subject) == [b"a", b"z", b" a", b"ab"]
    assert not subject.advance(26)
    assert possible(subject) == [b"z"]
    assert not subject.advance(26)
    # Satisfied, and it may go on: now, and only now, the end may come.
    assert possible(subject) == [b"", b"z"]
    assert subject.advance(26)


def test_the_row_itself_is_not_changed() -> None:
    before = ROW.copy()
    found = masked(WORDS)(ROW, Past())
    assert np.array_equal(ROW, before)
    kept = ~np.isneginf(found)
    assert np.array_equal(found[kept], ROW[kept])
    assert (found.dtype, found.flags.c_contiguous) == (np.float32, True)


def test_shorter_rows_are_masked_too() -> None:
    assert possible(masked(WORDS), row=ROW[:27]) == [b"a"]


def test_end_tokens_that_do_not_end_it_are_no_text() -> None:
    subject = masked(WORDS, end_ids=())
    for token in ids("abzz"):
        assert not subject.advance(token)
    assert possible(subject) == [b"z"]


def test_without_end_tokens() -> None:
    subject = GrammarMask(prepare(TOKENIZER, (), regex("a[bc]?")), ())
    assert not subject.advance(1)
    assert possible(subject) == [b"b", b"c"]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from([WORDS, FREE]))
def test_what_is_ahead_leaves_no_trace(seed: int, kind: StructuredOutput) -> None:
    """A mask behind a draft is that of a sequence that committed it."""
    rng = random.Random(seed)
    subject, committed = masked(kind), []
    for _ in range(6):
        ahead: list[int] = []
        for _ in range(rng.randrange(5)):
            allowed = [i for i in np.flatnonzero(~np.isneginf(subject(ROW, Past(ahead)))) if i]
            other = masked(kind)
            ended = [other.advance(token) for token in [*committed, *ahead]]
            if any(ended):
                break
            assert np.array_equal(subject(ROW, Past(ahead)), other(ROW, Past()))
            ahead.append(int(rng.choice(allowed)))
        before = subject(ROW, Past())
        subject(ROW, Past([*ahead, rng.randrange(VOCAB)]))
        assert np.array_equal(subject(ROW, Past()), before)
        token = int(rng.choice([i for i in np.flatnonzero(~np.isneginf(before)) if i]))
        committed.append(token)
        if subject.advance(token):
            return


def test_behind_the_end_the_row_stays_as_it_is() -> None:
    subject = masked(regex("ab"))
    assert subject(ROW, Past([29])) is ROW
    assert subject(ROW, Past([1, 2, 5])) is ROW
    assert subject(ROW, Past([EOS])) is ROW
    assert possible(subject) == [b"a", b"ab"]


def test_behind_what_is_forbidden_nothing_may_come(ops: OpSet) -> None:
    subject = masked(WORDS)
    assert possible(subject, 2) == []
    assert possible(subject, 29, 5) == []
    state = sequence(SamplingParams(temperature=0.0, structured=WORDS))
    with pytest.raises(ValueError, match="excluded"):
        state.pick(ROW, ops, (2,))
    assert PIECES[state.pick(ROW, ops)] in possible(subject)


def test_a_token_that_is_not_allowed_is_refused() -> None:
    subject = masked(WORDS)
    with pytest.raises(ValueError, match="does not allow"):
        subject.advance(2)


# Endings


@pytest.mark.parametrize("more", [{}, {"ignore_eos": True}, {"min_tokens": 9, "max_tokens": 20}])
def test_where_nothing_can_follow_it_ends(more: dict[str, Any], ops: OpSet) -> None:
    params = SamplingParams(structured=StructuredOutput("choice", ("abc", "dear a")), **more)
    for seed in range(8):
        state, _ = decode(params, ops, seed=seed)
        assert state.text in ("abc", "dear a")
        assert (state.finish_reason, state.stop_reason) == ("stop", None)
        assert EOS not in state.output_ids


def test_an_end_token_comes_only_where_the_grammar_is_satisfied(ops: OpSet) -> None:
    params = SamplingParams(structured=FREE, logit_bias={EOS: 100}, max_tokens=40)
    for seed in range(8):
        state, _ = decode(params, ops, seed=seed)
        assert state.output_ids[-1] == EOS
        # At the first chance, which is the first d.
        assert re.fullmatch("a[bc]+d", state.text)


def test_min_tokens_hold_the_end_back(ops: OpSet) -> None:
    params = SamplingParams(
        structured=FREE, logit_bias={EOS: 100, 4: 4}, min_tokens=9, max_tokens=60
    )
    for seed in range(8):
        state, _ = decode(params, ops, seed=seed)
        assert len(state.output_ids) > 9
        assert re.fullmatch("(a[bc]+d)+", state.text)


def test_the_other_endings_hold_too(ops: OpSet) -> None:
    short, _ = decode(SamplingParams(structured=FREE, max_tokens=3), ops, seed=1)
    assert (len(short.output_ids), short.finish_reason) == (3, "length")
    stopped, _ = decode(SamplingParams(structured=FREE, stop=("d",), max_tokens=99), ops, seed=1)
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "d")
    # The last token that there is room for ends the grammar as well.
    exact, _ = decode(SamplingParams(structured=regex("zzz"), max_tokens=3), ops)
    assert exact.finish_reason == "stop"


def test_contradictions_end_in_an_error_that_says_so(ops: OpSet) -> None:
    params = SamplingParams(structured=WORDS, allowed_token_ids=(5,))
    with pytest.raises(ValueError, match="every token is excluded"):
        decode(params, ops)


def test_a_place_that_no_piece_fits_ends_it_with_an_error(ops: OpSet) -> None:
    params = SamplingParams(structured=regex("[ab] x"))
    with pytest.raises(ValueError, match="the grammar lets nothing follow"):
        decode(params, ops)


def test_a_character_of_several_tokens(ops: OpSet) -> None:
    params = SamplingParams(structured=StructuredOutput("choice", ("\U0001f600é",)))
    state, _ = decode(params, ops)
    assert state.text == "\U0001f600é"
    assert state.output_ids == [30, 31, 32, 33, 34]


# Kinds


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        (regex("[a-c]{4}"), "[a-c]{4}"),
        (regex("the( a|b)+x"), "the( a|b)+x"),
        (StructuredOutput("choice", ("ab a", "aé", "z\n\n")), "ab a|aé|z\n\n"),
        (StructuredOutput("grammar", 'start: "ab" item+ "z"\nitem: "c" | " a"'), "ab(c| a)+z"),
        (StructuredOutput("grammar", 'root ::= "ab" item+ "z"\nitem ::= "c" | "d"'), "ab[cd]+z"),
    ],
)
@pytest.mark.parametrize("k", [3, 8])
def test_drafts_change_nothing(
    structured: StructuredOutput, pattern: str, k: int, ops: OpSet
) -> None:
    """Right, wrong and forbidden drafts, also behind the grammar's end."""
    rng = random.Random(k)
    for seed in range(6):
        params = SamplingParams(structured=structured, max_tokens=30, logprobs=2, seed=seed)
        plain, _ = decode(params, ops)
        if plain.finish_reason == "stop":
            assert re.fullmatch(pattern, plain.text)

        def half_right(state: SequenceState) -> Sequence[int]:
            at, right = len(state.output_ids), rng.randrange(4)
            known = plain.output_ids[at : at + right]  # noqa: B023
            return [*known, *rng.choices(range(VOCAB), k=rng.randrange(4))]

        draftings = [
            oracle(plain.output_ids, k),
            lambda s: [EOS] * 3,
            lambda s: [7] * k,
            half_right,
        ]
        for drafting in draftings:
            state, _ = decode(params, ops, drafting)
            assert_same(state, plain)


def test_full_acceptance_under_a_grammar(ops: OpSet) -> None:
    params = SamplingParams(structured=regex("(abc| a)+z"), max_tokens=40, seed=3)
    plain, _ = decode(params, ops)
    state, steps = decode(params, ops, oracle(plain.output_ids, 4))
    assert_same(state, plain)
    assert len(steps) == -(-len(plain.output_ids) // 5)


def test_any_json_object_and_bounded_blanks() -> None:
    """Over bytes: what a model could write for ever is bounded."""
    tokenizer: Any = Bytes()
    grammar = prepare(tokenizer, (0,), StructuredOutput("json_object"))
    subject = GrammarMask(grammar, (0,))
    row = np.zeros(257, np.float32)
    for byte in b"{" + b" " * 16:
        assert not subject.advance(1 + byte)
    found = np.flatnonzero(~np.isneginf(subject(row, Past())))
    assert {chr(i - 1) for i in found} == {'"', "}"}
    for byte in b'"k": [1, {"a": null}]':
        assert not subject.advance(1 + byte)
    assert subject.advance(1 + ord("}"))


def test_a_schema_is_kept_to() -> None:
    tokenizer: Any = Bytes()
    schema = '{"type": "object", "properties": {"s": {"enum": ["é", "n"]}}, "required": ["s"], '
    schema += '"additionalProperties": false}'
    subject = GrammarMask(prepare(tokenizer, (0,), StructuredOutput("json_schema", schema)), (0,))
    row = np.zeros(257, np.float32)
    for byte in b'{"s":"':
        subject.advance(1 + byte)
    assert list(np.flatnonzero(~np.isneginf(subject(row, Past())))) == [1 + ord("n"), 1 + 0xC3]
    for byte in '\u00e9"'.encode():
        assert not subject.advance(1 + byte)
    assert subject.advance(1 + ord("}"))


class Bytes(FakeTokenizer):
    """Token 0 ends, then one token per byte."""

    vocab_size = 257

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id - 1]) if token_id else b"<end>"
