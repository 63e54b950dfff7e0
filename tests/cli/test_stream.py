"""Colours of accepted tokens: never other text, and the right characters."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.cli.stream import Painter, printable, wants_color
from wager.types import CompletionOutput

CODES = re.compile(r"\x1b\[(\d+)m")


@dataclass
class Spelling:
    """Token i is spelt words[i]; a word that starts with + is held back until the next push."""

    words: list[str]
    held: str = field(default="")

    def push(self, token: int) -> str:
        word = self.words[token]
        if word.startswith("+"):
            self.held += word[1:]
            return ""
        out, self.held = self.held + word, ""
        return out


def choice(tokens: list[int], flags: list[bool], text: str) -> CompletionOutput:
    return CompletionOutput(0, tokens, text, None, accepted_flags=flags)


def painted(text: str) -> list[tuple[str, bool]]:
    """(character, in the colour of accepted tokens) of what was written."""
    out, on, end = [], False, 0
    for code in [*CODES.finditer(text), None]:
        out += [(c, on) for c in text[end : code.start() if code else None]]
        if code:
            on, end = code[1] == "36", code.end()
    return out


@given(st.lists(st.tuples(st.text("abc é日", min_size=0, max_size=4), st.booleans()), max_size=12),
       st.integers(1, 5))  # fmt: skip
def test_text_is_unchanged_and_each_character_has_its_tokens_colour(
    tokens: list[tuple[str, bool]], size: int
) -> None:
    painter = Painter(Spelling([word for word, _ in tokens]))  # type: ignore[arg-type]
    written = ""
    for start in range(0, len(tokens), size):
        part = tokens[start : start + size]
        ids = list(range(start, start + len(part)))
        text = "".join(word for word, _ in part)
        written += painter.paint(choice(ids, [flag for _, flag in part], text))
    written += painter.end()
    assert painted(written) == [(c, flag) for word, flag in tokens for c in word]


def test_text_that_lags_behind_its_tokens_keeps_their_colours() -> None:
    painter = Painter(Spelling(["ab", "cd", "ef"]))  # type: ignore[arg-type]
    written = painter.paint(choice([0, 1], [False, True], "a"))
    written += painter.paint(choice([2], [False], "bcde"))
    assert painted(written) == [("a", False), ("b", False), ("c", True), ("d", True), ("e", False)]
    assert written.endswith("\x1b[39me")


def test_an_unfinished_character_belongs_to_the_token_that_ends_it() -> None:
    painter = Painter(Spelling(["+x", "y"]))  # type: ignore[arg-type]
    assert painted(painter.paint(choice([0, 1], [False, True], "xy"))) == [("x", True), ("y", True)]


def test_colour_ends_with_the_answer() -> None:
    painter = Painter(Spelling(["a"]))  # type: ignore[arg-type]
    assert painter.end() == ""
    assert painter.paint(choice([0], [True], "a")) == "\x1b[36ma"
    assert painter.end() == "\x1b[39m"


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[2Jb\r\x07") == "a\ufffd[2Jb\ufffd\ufffd"
    assert printable("two\n\tlines é日") == "two\n\tlines é日"
    assert printable("\u202e\x9b") == "\ufffd\ufffd"
    family = "\U0001f468\u200d\U0001f469, \u3000 and\u00a0so"
    assert printable(family) == family


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_when_colours_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color(Terminal(), no_color=False)
    assert not wants_color(io.StringIO(), no_color=False)
    assert not wants_color(Terminal(), no_color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Terminal(), no_color=False)
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_color(Terminal(), no_color=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Terminal(), no_color=False)
