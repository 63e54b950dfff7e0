"""Whose process is kept, what is not blamed on a grammar, and what drafts may look at."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sampling.fakes import EOS, FakeTokenizer, sequence
from tests.sampling.test_grammar import ROW, WORDS, Past, possible, regex
from tests.sampling.test_grammar_processes import LATER, _later, forked_from, gone, wait_until
from wager.config import SamplingParams, StructuredOutput
from wager.errors import FormFault, FormLost, NoTokenLeft, RequestError, Unavailable
from wager.ops.base import OpSet
from wager.sampling import grammar as module
from wager.sampling import grammar_links, grammar_worker
from wager.sampling.grammar import Grammar, GrammarMask, known, prepare
from wager.sampling.grammar_links import Forked
from wager.sampling.grammar_messages import Limits
from wager.sampling.prepared import Prepared

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes to be forked")

# Behind "b" the mask takes seconds; c's alone never come there.
AHEAD = StructuredOutput("grammar", _later(1500).replace('start: "b" all', 'start: "c"+ | "b" all'))
B, C = 2, 3


@pytest.fixture
def tokenizer() -> Any:
    """With processes of its own."""
    return FakeTokenizer()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled, as it is."""
    found: list[Any] = []
    real = Forked.compiled

    def noted(self: Forked, structured: StructuredOutput, patience_s: float) -> None:
        found.append(structured.value)
        real(self, structured, patience_s)

    monkeypatch.setattr(Forked, "compiled", noted)
    return found


def worker(tokenizer: Any) -> int:
    """The process of the only grammar that has one."""
    (links,) = module._KEPT[tokenizer]._links.values()
    process = links._source._process
    assert process is not None
    (pid,) = forked_from(process.pid)
    return pid


# Who keeps a process


def prepared(tokenizer: Any, pattern: str) -> Prepared:
    return Prepared.of(SamplingParams(structured=regex(pattern)), tokenizer, (EOS,))


def test_what_is_held_is_not_compiled_again(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, compiled: list[Any]
) -> None:
    """Whatever others ask for meanwhile, and however long nobody asks it."""
    monkeypatch.setattr(grammar_links, "LIVE", 2)
    kept = prepared(tokenizer, "ab+")
    for pattern in ("a", "b", "c", "d"):
        prepare(tokenizer, (EOS,), regex(pattern))
    assert compiled == ["ab+", "a", "b", "c", "d"]
    assert kept.grammar is not None
    subject = GrammarMask(kept.grammar, (EOS,), kept.hold)
    del kept
    assert possible(subject) == [b"a", b"ab"]
    prepare(tokenizer, (EOS,), regex("d"))
    assert compiled[5:] == []
    subject.close()
    for pattern in ("a", "b"):
        prepare(tokenizer, (EOS,), regex(pattern))
    prepare(tokenizer, (EOS,), regex("ab+"))
    assert compiled[5:] == ["a", "b", "ab+"]


def test_so_many_are_held_at_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_links, "LIVE", 2)
    first, second, third = (known(tokenizer, (EOS,), regex(p)) for p in ("a", "b", "c"))
    one, two = first.hold(), second.hold()
    assert one is not None
    assert two is not None
    assert third.hold() is None
    again = first.hold()
    assert again is not None
    del one
    assert third.hold() is None
    del again
    kept = third.hold()
    assert kept is not None
    assert (first.held, second.held, third.held) == (False, True, True)


def test_what_is_held_is_not_forgotten(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 1)
    first = known(tokenizer, (EOS,), regex("a"))
    hold = first.hold()
    assert known(tokenizer, (EOS,), regex("b")) is not first
    assert known(tokenizer, (EOS,), regex("a")) is first
    del hold
    known(tokenizer, (EOS,), regex("c"))
    assert known(tokenizer, (EOS,), regex("a")) is not first


@pytest.mark.parametrize("how", ["stop", "length", "grammar", "abort"])
def test_a_sequence_that_ended_holds_nothing(tokenizer: Any, how: str, ops: OpSet) -> None:
    """Although it is still there."""
    params = SamplingParams(
        structured=regex("ab"), max_tokens=1 if how == "length" else 9,
        stop=("a",) if how == "stop" else (),
    )  # fmt: skip
    state = sequence(params, tokenizer=tokenizer)
    grammar = known(tokenizer, (EOS,), params.structured)  # type: ignore[arg-type]
    assert grammar.held
    state.commit(state.pick(ROW, ops), ROW, ops)
    if how == "grammar" and state.finish_reason is None:
        state.commit(state.pick(ROW, ops), ROW, ops)
    if how == "abort":
        state.finish("abort")
    assert state.finish_reason is not None
    assert not grammar.held


# What a draft looks at


def test_what_a_draft_looks_at_ends_nothing(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, compiled: list[Any]
) -> None:
    monkeypatch.setattr(module, "LIMITS", Limits(burst_s=0.2))
    subject = GrammarMask(prepare(tokenizer, (EOS,), AHEAD), (EOS,))
    assert possible(subject) == [b"b", b"c"]
    for _ in range(2):
        with pytest.raises(NoTokenLeft, match="ahead"):
            subject(ROW, Past([B]))
        assert not subject.advance(C)
        assert possible(subject) == [b"", b"c"]
    # Neither compiled again nor refused, for this one or for others.
    other = GrammarMask(prepare(tokenizer, (EOS,), AHEAD), (EOS,))
    assert possible(other) == [b"b", b"c"]
    assert len(compiled) == 1


# Time, for all answers with one grammar


def test_many_answers_have_no_more_time_than_one(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    class Limit:
        """Each question takes all that it may, to the end of what was saved up."""

        def __init__(self, seconds: float) -> None:
            told.append(seconds)

        def __enter__(self) -> Any:
            return lambda: 0.0

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(grammar_worker, "processor_limit", Limit)
    monkeypatch.setattr(module, "LIMITS", Limits(burst_s=0.5, steady_s=0.01, compile_s=7.0))
    grammar = prepare(tokenizer, (EOS,), WORDS)
    for _ in range(16):
        GrammarMask(grammar, (EOS,))(ROW, Past())
    asked = [seconds for seconds in told if seconds != 7.0]
    assert asked == pytest.approx([0.51] + [0.01] * 15)


# What is not the grammar's fault


def test_an_end_that_is_no_limit_blames_nobody(tokenizer: Any) -> None:
    """However long ago it was asked."""
    grammar = prepare(tokenizer, (EOS,), WORDS)
    subject = GrammarMask(grammar, (EOS,))
    expected = possible(subject)
    pid = worker(tokenizer)
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    timer.start()
    assert possible(subject) == expected
    timer.join()
    assert gone(pid)
    prepare(tokenizer, (EOS,), WORDS)


def test_one_that_ends_again_and_again_ends_its_answer_alone(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = prepare(tokenizer, (EOS,), WORDS)
    subject = GrammarMask(grammar, (EOS,))
    expected = possible(subject)
    real = Grammar.link

    def link(self: Grammar, *given: Any) -> Any:
        found = real(self, *given)
        pid = worker(tokenizer)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Grammar, "link", link)
        with pytest.raises(FormLost, match="was lost"):
            subject(ROW, Past())
    # The grammar itself is as good as ever.
    assert possible(GrammarMask(prepare(tokenizer, (EOS,), WORDS), (EOS,))) == expected


def test_one_that_does_not_answer_is_given_up(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_links, "ASK_S", 0.2)
    subject = GrammarMask(prepare(tokenizer, (EOS,), WORDS), (EOS,))
    expected = possible(subject)
    pid = worker(tokenizer)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(FormLost):
        subject(ROW, Past())
    os.kill(pid, signal.SIGCONT)
    assert possible(subject) == expected


def test_a_refusal_is_for_a_while(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMITS", Limits(burst_s=0.2))
    subject = GrammarMask(prepare(tokenizer, (EOS,), LATER), (EOS,))
    assert not subject.advance(B)
    with pytest.raises(FormFault, match="the grammar takes too long to follow"):
        subject(ROW, Past())
    with pytest.raises(RequestError, match="too long"):
        prepare(tokenizer, (EOS,), LATER)
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    assert possible(GrammarMask(prepare(tokenizer, (EOS,), LATER), (EOS,))) == [b"b"]


def test_what_cannot_be_understood_ends_its_answer_alone(tokenizer: Any) -> None:
    grammar = prepare(tokenizer, (EOS,), WORDS)
    other = GrammarMask(grammar, (EOS,))
    expected = possible(other)
    pid = worker(tokenizer)
    with pytest.raises(FormFault):
        GrammarMask(grammar, (EOS,)).advance(-1)
    assert possible(other) == expected
    assert worker(tokenizer) == pid


def test_an_opening_that_fails_leaves_nothing(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fork")
    grammar = prepare(tokenizer, (EOS,), WORDS)
    for _ in range(5):
        subject = GrammarMask(grammar, (EOS,))
        with pytest.raises(FormFault, match="refuses the answer"):
            subject.advance(C)
    del subject
    last = GrammarMask(grammar, (EOS,))
    last(ROW, Past())
    link: Any = grammar.link()
    assert len(link.walks._walks) == 1


# How the first one starts


def test_what_lies_in_the_working_directory_is_not_run(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("signal", "socket", "pickle", "json", "llguidance", "wager"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')\n")
    monkeypatch.chdir(tmp_path)
    subject = GrammarMask(prepare(tokenizer, (EOS,), WORDS), (EOS,))
    assert np.isfinite(subject(ROW, Past())).any()


def test_one_that_cannot_start_is_no_fault_of_the_grammar(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(grammar_links, "_START", "raise SystemExit(1)")
        with pytest.raises(Unavailable, match=r"^structured: "):
            prepare(tokenizer, (EOS,), WORDS)
        patch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(Unavailable):
            prepare(tokenizer, (EOS,), WORDS)
    prepare(tokenizer, (EOS,), WORDS)
