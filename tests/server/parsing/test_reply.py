"""Reasoning, content and calls, whatever the text is cut into."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.templates import HERMES, LLAMA3
from tests.server.parsing.scripted import (
    CUTS,
    REPLIES,
    TOOLS,
    of_kind,
    parser,
    random_cuts,
    run,
)
from wager.errors import RequestError
from wager.server.parsing import Piece

Tools = list[dict[str, Any]] | None
FIND = '{"name": "find", "arguments": {"q": "a b", "n": [1, 2.5]}}'
ADD = '{"name": "add", "arguments": {}}'


def content(text: str) -> Piece:
    return Piece("content", text)


def thought(text: str) -> Piece:
    return Piece("reasoning", text)


def called(index: int, name: str, arguments: str) -> list[Piece]:
    start = Piece("tool_start", "", index, name, f"call_{index}")
    return [start, Piece("tool_arguments", arguments, index)]


def tagged(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


BOTH = [*called(0, "find", '{"q": "a b", "n": [1, 2.5]}'), *called(1, "add", "{}")]

CASES: dict[str, tuple[str, dict[str, Any], list[Piece]]] = {
    "text": ("Hello \n", {}, [content("Hello \n")]),
    "empty": ("", {}, []),
    "white space": (" \n", {}, [content(" \n")]),
    "reasoning": ("<think>\nhm, \n</think>\n\nHi.", {}, [thought("hm,"), content("Hi.")]),
    "reasoning after white space": ("\n <think>a</think>b", {}, [thought("a"), content("b")]),
    "no reasoning in it": ("<think>\n\n</think>\n\nHi.", {}, [content("Hi.")]),
    "cut inside the reasoning": ("<think>a b \n", {}, [thought("a b \n")]),
    "cut inside its mark": ("<think>a</thi", {}, [thought("a</thi")]),
    "half a mark": (" <thi", {}, [content(" <thi")]),
    "reasoning opened by the prompt": ("a</think>\nb", {"opened": True},
                                       [thought("a"), content("b")]),
    "opened twice": ("<think>\na</think>b", {"opened": True}, [thought("a"), content("b")]),
    "no call for what it thinks": ("a <tool_call> b</think>c", {"opened": True},
                                   [thought("a <tool_call> b"), content("c")]),
    "a call instead of reasoning": (tagged(ADD), {"opened": True}, called(0, "add", "{}")),
    "reasoning later in the text": ("a <think>b</think>", {}, [content("a <think>b</think>")]),
    "reasoning not asked for": ("<think>a</think>b", {"reasoning": False},
                                [content("<think>a</think>b")]),
    "two calls": (f"Well.\n{tagged(FIND)}\n{tagged(ADD)}\n", {}, [content("Well."), *BOTH]),
    "text between": (f"{tagged(FIND)} and {tagged(ADD)}", {},
                     [*BOTH[:2], content(" and"), *BOTH[2:]]),
    "reasoning, then a call": (f"<think>a</think>\n\n{tagged(ADD)}", {},
                               [thought("a"), *called(0, "add", "{}")]),
    "arguments first": (tagged('{"arguments": {"a": 1}, "id": 3, "name": "add"}'), {},
                        called(0, "add", '{"a": 1}')),
    "arguments as text": (tagged('{"name": "add", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}'), {},
                          called(0, "add", '{"a": "é"}')),
    "no arguments": (tagged('{"name": "add"}'), {}, called(0, "add", "{}")),
    "null as arguments": (tagged('{"name": "add", "arguments": null}'), {},
                          called(0, "add", "{}")),
    "marks inside strings": (tagged('{"name": "add", "arguments": {"a": "</tool_call>\\""}}'), {},
                             called(0, "add", '{"a": "</tool_call>\\""}')),
    "a line break inside a string": (tagged('{"name": "add", "arguments": {"a": "x\ny"}}'), {},
                                     called(0, "add", '{"a": "x\\ny"}')),
    "an end mark too few": (f"<tool_call>{FIND}<tool_call>{ADD}", {}, BOTH),
    "a brace too few": ('<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>Ok', {},
                        [*called(0, "add", '{"a": 1}'), content("Ok")]),
    "a brace too many": (tagged(f"{ADD}}}"), {}, [*called(0, "add", "{}"), content("}")]),
    "a function that is not offered": (tagged('{"name": "rm", "arguments": {}}'), {},
                                       [content(tagged('{"name": "rm", "arguments": {}}'))]),
    "no JSON": (tagged("find(1)"), {}, [content(tagged("find(1)"))]),
    "arguments that are no object": (tagged('{"name": "add", "arguments": [1]}'), {},
                                     [content(tagged('{"name": "add", "arguments": [1]}'))]),
    "arguments with half a character": (
        tagged('{"name": "add", "arguments": "{\\"a\\": \\"\\ud800\\"}"}'), {},
        [content(tagged('{"name": "add", "arguments": "{\\"a\\": \\"\\ud800\\"}"}'))]),
    "a call behind a broken one": (f"<tool_call>oops {tagged(ADD)}", {},
                                   [content("<tool_call>oops"), *called(0, "add", "{}")]),
    "broken when it was under way": (tagged('{"name": "add", "arguments": {"a": oops}}'), {},
                                     [*called(0, "add", '{"a": '),
                                      content("oops}}\n</tool_call>")]),
    "cut before it is known": ('a <tool_call>{"name": "add", "argu', {},
                               [content('a <tool_call>{"name": "add", "argu')]),
    "cut inside the arguments": ('<tool_call>{"name": "add", "arguments": {"a": "b', {},
                                 called(0, "add", '{"a": "b')),
    "tools switched off": (tagged(ADD), {"tool_choice": "none"}, [content(tagged(ADD))]),
    "no tools": (tagged(ADD), {"tools": None}, [content(tagged(ADD))]),
    "one function only": (tagged(ADD), {"tool_choice": {"type": "function",
                                                        "function": {"name": "find"}}},
                          [content(tagged(ADD))]),
}  # fmt: skip

PARAMETERS = FIND.replace("arguments", "parameters"), ADD.replace("arguments", "parameters")
LLAMA_CASES: dict[str, tuple[str, list[Piece]]] = {
    "bare": (f"\n{PARAMETERS[0]}", BOTH[:2]),
    "two": ("; ".join(PARAMETERS), BOTH),
    "two lines": ("\n".join(PARAMETERS) + "\n", BOTH),
    "tagged": (f"<|python_tag|>{PARAMETERS[0]}", BOTH[:2]),
    "tagged twice": ("".join(f"<|python_tag|>{call}" for call in PARAMETERS), BOTH),
    "behind text": (f"Well. <|python_tag|>{PARAMETERS[0]}", [content("Well."), *BOTH[:2]]),
    "a type before it": ('{"type": "function", "name": "add", "parameters": {"a": 1}}',
                         called(0, "add", '{"a": 1}')),
    "other JSON": ('{"name": "find", "age": 3}', [content('{"name": "find", "age": 3}')]),
    "JSON behind text": (f"So: {PARAMETERS[0]}", [content(f"So: {PARAMETERS[0]}")]),
    "text behind it": (f"{PARAMETERS[1]}; done", [*called(0, "add", "{}"), content("; done")]),
    "code": ("<|python_tag|>find.call(1)", [content("<|python_tag|>find.call(1)")]),
    "reasoning": (f"<think>a</think>{PARAMETERS[1]}", [thought("a"), *called(0, "add", "{}")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_hermes(name: str) -> None:
    text, options, expected = CASES[name]
    assert run(text, **options) == expected
    for seed in range(24):
        assert run(text, random_cuts(text, seed, 1 + seed % 8), **options) == expected


@pytest.mark.parametrize("name", LLAMA_CASES)
def test_llama(name: str) -> None:
    text, expected = LLAMA_CASES[name]
    assert run(text, template=LLAMA3) == expected
    for seed in range(24):
        assert run(text, random_cuts(text, seed, 1 + seed % 8), template=LLAMA3) == expected


OFFERED = st.sampled_from([TOOLS, None])
TEMPLATES = st.sampled_from([HERMES, LLAMA3])


@given(text=REPLIES, cuts=CUTS, template=TEMPLATES, tools=OFFERED, opened=st.booleans())
@settings(deadline=None, max_examples=500)
def test_cuts_change_nothing(
    text: str, cuts: list[int], template: str, tools: Tools, opened: bool
) -> None:
    options = {"template": template, "tools": tools, "opened": opened}
    assert run(text, cuts, **options) == run(text, **options)


@given(text=REPLIES, template=TEMPLATES, tools=OFFERED, opened=st.booleans())
@settings(deadline=None, max_examples=300)
def test_a_prefix_never_says_more(text: str, template: str, tools: Tools, opened: bool) -> None:
    """What was given out stays, and is the beginning of what is given out in the end."""
    whole = run(text, template=template, tools=tools, opened=opened)
    one = parser(template=template, tools=tools, opened=opened)
    said: dict[tuple[str, int], str] = {}
    for char in text:
        for piece in one.push(char):
            key = (piece.kind, piece.index)
            said[key] = said.get(key, "") + piece.text
    for (kind, index), part in said.items():
        assert of_kind(whole, kind, index).startswith(part)


@given(text=REPLIES, cuts=CUTS, template=TEMPLATES, opened=st.booleans())
@settings(deadline=None, max_examples=300)
def test_without_tools_nothing_is_called(
    text: str, cuts: list[int], template: str, opened: bool
) -> None:
    """Also where the reasoning is cut off in front of what looks like a call."""
    pieces = run(text, cuts, template=template, tools=None, opened=opened)
    assert {piece.kind for piece in pieces} <= {"reasoning", "content"}


@given(text=REPLIES, cuts=CUTS)
@settings(deadline=None)
def test_without_tools_and_reasoning_the_text_is_the_content(text: str, cuts: list[int]) -> None:
    one = run(text, cuts, tools=None, reasoning=False)
    assert of_kind(one, "content") == text
    assert len(one) == bool(text)


@given(text=REPLIES, cuts=CUTS, template=TEMPLATES)
@settings(deadline=None, max_examples=300)
def test_a_reply_without_calls_is_all_there(text: str, cuts: list[int], template: str) -> None:
    pieces = run(text, cuts, template=template, reasoning=False)
    if all(piece.kind == "content" for piece in pieces):
        assert of_kind(pieces, "content") == text


ARGUMENTS = st.dictionaries(
    st.text(max_size=8), st.integers() | st.text() | st.lists(st.booleans(), max_size=3), max_size=4
)
WORDS = st.text("ab é🙂.\n", max_size=12).map(str.strip)


@given(
    think=WORDS,
    parts=st.lists(st.tuples(WORDS, st.sampled_from(["find", "add"]), ARGUMENTS), max_size=4),
    last=WORDS,
    indent=st.none() | st.just(2),
    plain=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@settings(deadline=None)
def test_sound_replies_come_apart_exactly(
    think: str, parts: list[tuple[str, str, dict[str, Any]]], last: str, indent: int | None,
    plain: bool, seed: int,
) -> None:  # fmt: skip
    text = f"<think>\n{think}\n</think>\n\n"
    for words, name, arguments in parts:
        call = json.dumps({"name": name, "arguments": arguments}, indent=indent,
                          ensure_ascii=plain)  # fmt: skip
        text += f"{words}\n{tagged(call)}"
    pieces = run(text + last, random_cuts(text, seed))
    assert of_kind(pieces, "reasoning") == think
    said = of_kind(pieces, "content")
    assert "".join(said.split()) == "".join("".join([*(p[0] for p in parts), last]).split())
    assert [p.name for p in pieces if p.kind == "tool_start"] == [name for _, name, _ in parts]
    for index, (_, _, arguments) in enumerate(parts):
        assert json.loads(of_kind(pieces, "tool_arguments", index)) == arguments


def test_arguments_come_as_they_are_written() -> None:
    one = parser()
    got = [one.push(char) for char in '<tool_call>{"name": "add", "arguments": {"a": "bcd"']
    late = [piece.text for pieces in got[-5:] for piece in pieces]
    assert late == ['"', "b", "c", "d", '"']


def test_ids_are_new_each_time() -> None:
    from wager.server.parsing.reply import call_id

    ids = {call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(one.startswith("call_") and len(one) == 29 for one in ids)


def test_a_model_that_calls_in_another_way() -> None:
    with pytest.raises(RequestError, match=r"tools: .*no way of calling tools that is known"):
        parser(template="{{ tools }}")
    parser(template=None, tools=None)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"' * 20_000,
        '<tool_call>{"name": [' * 10_000,
        '<tool_call>{"' + "<tool_call>" * 20_000,
        "<tool_call>" + " " * 200_000,
    ],
    ids=["keys", "values", "inside a string", "white space"],
)
def test_what_fails_often_is_all_there(text: str) -> None:
    """Each mark fails and what followed it is read again: never from far behind, or this hangs."""
    assert of_kind(run(text), "content") == text
    assert of_kind(run(text, random_cuts(text, 1, 4096)), "content") == text
