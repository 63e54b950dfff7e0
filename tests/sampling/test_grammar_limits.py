"""What cannot be a grammar, what is kept of those that can, and the limits of each."""

from __future__ import annotations

import gc
import os
import string
import threading
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.sampling.fakes import EOS, TOKENIZER, FakeTokenizer, assert_same, decode, oracle
from tests.sampling.test_grammar import ROW, WORDS, Past, masked, regex
from wager.config import SamplingParams, StructuredOutput
from wager.errors import NoTokenLeft, RequestError
from wager.ops.base import OpSet
from wager.sampling import grammar as module
from wager.sampling.grammar import GrammarMask, prepare
from wager.sampling.grammar_messages import Limits
from wager.sampling.grammar_worker import Walks

LETTERS: Final = string.ascii_lowercase

# Refusals


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("xml", "<a/>", "kind must be one of json_schema"),
        ("regex", "", "regex needs a value"),
        ("regex", 5, "regex needs a text"),
        ("regex", "[a", "unclosed character class"),
        ("regex", "a(?=b)", "look-around"),
        ("regex", "(" * 3000 + "a" + ")" * 3000, ""),
        ("regex", "\ud800", "is not valid Unicode"),
        ("regex", "a" * 300_000, "at most 262144 characters"),
        ("json_object", "{}", "json_object takes no value"),
        ("json_schema", "{", "the schema is not JSON"),
        ("json_schema", "[]", "the schema must be a JSON object"),
        ("json_schema", '{"a": NaN}', "the schema is not JSON"),
        ("json_schema", '{"a":' * 50_000, "the schema is (not JSON|nested too deeply)"),
        ("json_schema", '{"items":' * 200 + "{}" + "}" * 200, ""),
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        ("json_schema", '{"type": "string", "format": "foo"}', "Unknown format"),
        ("json_schema", '{"$ref": "#"}', "no answer satisfies it"),
        ("json_schema", '{"const": "\\ud800"}', ""),
        ("choice", (), "choice needs 1 to 4096 texts"),
        ("choice", "abc", "choice needs a list of texts"),
        ("choice", ("a", ""), "each choice must be a text"),
        ("choice", ("\ud800",), "is not valid Unicode"),
        ("grammar", "hello", "Failed to convert|Expected"),
        ("grammar", "start: foo", 'unknown name: "foo"'),
        ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, ""),
        ("grammar", 'start: ""', "nothing but the empty answer"),
        # There is no piece for this character.
        ("choice", ("0",), "no answer satisfies it"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kind: Any, value: Any, message: str) -> None:
    """Without a long wait, whatever the nesting."""
    with pytest.raises(RequestError, match=f"^structured: .*({message})") as caught:
        prepare(TOKENIZER, (EOS,), StructuredOutput(kind, value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("pattern", ["(a*)*b", "((a|b)*)*c", "(a?){40}a{40}"])
def test_patterns_that_hurt_other_matchers(pattern: str, ops: OpSet) -> None:
    params = SamplingParams(structured=regex(pattern), max_tokens=12)
    plain, _ = decode(params, ops)
    state, _ = decode(params, ops, oracle(plain.output_ids, 4))
    assert_same(state, plain)


def test_choices_may_be_a_list() -> None:
    made = StructuredOutput("choice", ["a", "b"])  # type: ignore[arg-type]
    assert made.value == ("a", "b")
    assert hash(made) == hash(StructuredOutput("choice", ("a", "b")))


def test_what_a_grammar_may_take_to_compile() -> None:
    """Whoever sends one that compiles for ever has a processor for so long, again and again."""
    assert 0 < module.LIMITS.compile_s <= 2
    told = f"in {module.LIMITS.compile_s:g} s of processor time"
    docs = Path(__file__).parents[2] / "docs" / "serve.md"
    assert told in docs.read_text(encoding="utf-8")


# What is kept


def test_a_grammar_is_compiled_once() -> None:
    assert prepare(TOKENIZER, (EOS,), WORDS) is prepare(TOKENIZER, [EOS], WORDS)
    assert prepare(TOKENIZER, (EOS,), WORDS) is not prepare(TOKENIZER, (EOS, 5), WORDS)
    other: Any = FakeTokenizer()
    assert prepare(other, (EOS,), WORDS) is not prepare(TOKENIZER, (EOS,), WORDS)


def test_the_one_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    tokenizer: Any = FakeTokenizer()
    first, second = (prepare(tokenizer, (EOS,), regex(p)) for p in ("a", "b"))
    assert prepare(tokenizer, (EOS,), regex("a")) is first
    prepare(tokenizer, (EOS,), regex("c"))
    assert prepare(tokenizer, (EOS,), regex("a")) is first
    assert prepare(tokenizer, (EOS,), regex("b")) is not second


def test_what_is_kept_does_not_keep_a_tokenizer_alive() -> None:
    tokenizer: Any = FakeTokenizer()
    prepare(tokenizer, (EOS,), WORDS)
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None


def test_many_threads_may_ask_at_once() -> None:
    tokenizer: Any = FakeTokenizer()
    found: list[Any] = []

    def ask(index: int) -> None:
        found.append(prepare(tokenizer, (EOS,), regex(f"a{{{1 + index % 3}}}")))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert prepare(tokenizer, (EOS,), regex("a{2}")) is prepare(tokenizer, (EOS,), regex("a{2}"))


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a lexer of its own had to be made, with room for few states: seen where there are
    no processes."""
    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(module, "LIMITS", Limits(lexer_states=100))
    made: list[int] = []
    restart = Walks._restart

    def counted(self: Walks, walk: Any) -> None:
        made.append(1)
        restart(self, walk)

    monkeypatch.setattr(Walks, "_restart", counted)
    return made


def test_what_others_looked_at_ends_nobody(renewals: list[int]) -> None:
    """Copies of a grammar share the lexer's states, of which there may be so many."""
    tokenizer: Any = FakeTokenizer()
    structured = regex("c{0,50}|d{0,50}|e{0,50}|f{0,50}")
    grammar = prepare(tokenizer, (EOS,), structured)
    for token in (3, 4, 5, 6):
        subject = GrammarMask(grammar, (EOS,))
        for place in range(50):
            assert token in np.flatnonzero(~np.isneginf(subject(ROW, Past())))
            assert subject.advance(token) == (place == 49)
    assert renewals


def test_a_grammar_that_is_too_complex_ends_its_own_request(renewals: list[int]) -> None:
    tokenizer: Any = FakeTokenizer()
    grammar = prepare(tokenizer, (EOS,), regex("c{0,500}"))

    def walk(subject: GrammarMask, places: int) -> None:
        for _ in range(places):
            subject(ROW, Past())
            subject.advance(3)

    with pytest.raises(NoTokenLeft, match=r"the grammar .*too many states"):
        walk(GrammarMask(grammar, (EOS,)), 500)
    # Another one, with the same grammar, has all the room again.
    walk(GrammarMask(grammar, (EOS,)), 20)
    assert renewals


def test_as_many_choices_as_there_may_be() -> None:
    texts = tuple(f"{a}{b}{c}" for a in LETTERS for b in LETTERS for c in LETTERS)[:4096]
    subject = masked(StructuredOutput("choice", texts))
    for token, ended in ((1, False), (26, False), (3, True)):
        assert token in np.flatnonzero(~np.isneginf(subject(ROW, Past())))
        assert subject.advance(token) == ended
