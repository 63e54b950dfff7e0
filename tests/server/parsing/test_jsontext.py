"""JSON read by the character, against the json library."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.server.parsing.jsontext import JsonText, is_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ALPHABET = ["{", "}", "[", "]", '"', ":", ",", "\\", "u", "0", "1", "-", ".", "e", "E", "+", "a",
            "f", " ", "\n", "true", "false", "null", "\\u00e9", '\\"', '"a":', "é"]  # fmt: skip


def read(text: str) -> tuple[str, int, str]:
    """How reading ended, after how many characters, and what came out."""
    out: list[str] = []
    value = JsonText(out)
    for at, char in enumerate(text, 1):
        fed = value.feed(char)
        if fed != "part":
            return fed, at, "".join(out)
    return "part", len(text), "".join(out)


@given(value=VALUES, indent=st.none() | st.integers(0, 2), plain=st.booleans())
@settings(deadline=None)
def test_any_value_is_read_to_its_end(value: Any, indent: int | None, plain: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=plain)
    fed, at, out = read(text + "\n}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    assert (fed, at) == (("past", len(text) + 1) if number else ("last", len(text)))
    assert out == text


def refuse(name: str) -> NoReturn:
    raise ValueError(name)


def loads(text: str) -> Any:
    """Strict JSON, or the exception."""
    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return error


@given(text=st.lists(st.sampled_from(ALPHABET), max_size=16).map("".join))
@settings(deadline=None, max_examples=400)
def test_nothing_else_is_taken_for_an_object(text: str) -> None:
    text = "{" + text
    if "\n" in text.strip():
        return
    assert is_object(text) == isinstance(loads(text), dict)


def test_control_characters_in_strings_are_escaped() -> None:
    fed, _, out = read('{"a\n": "x\ty\x00"}')
    assert fed == "last"
    assert json.loads(out) == {"a\n": "x\ty\x00"}


@pytest.mark.parametrize(
    "text",
    ["{a", '{"a" 1', '{"a": 01', '{"a": -}', '{"a": 1.}', '{"a": 1e}', "[1,]", '{"a": 1,}', "[tru]",
     '["\\x', '["\\u12g', "+", ".", "[1 2", "[}", '{"a": 1]'],
)  # fmt: skip
def test_bad_from_the_first_wrong_character(text: str) -> None:
    assert read(text)[:2] == ("bad", len(text))


def test_depth_is_no_matter() -> None:
    depth = 100_000
    assert is_object('{"a": ' + "[" * depth + "]" * depth + "}")
