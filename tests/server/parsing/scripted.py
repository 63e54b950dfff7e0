"""Replies cut at will, and what a parser makes of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.models.templates import HERMES, tool
from wager.server.parsing import Piece, ReplyParser, reply_parser

TOOLS = [tool("find", {"type": "object"}), tool("add")]


def parser(
    template: str | None = HERMES,
    tools: Sequence[dict[str, Any]] | None = TOOLS,
    tool_choice: object = "auto",
    reasoning: bool = True,
    opened: bool = False,
) -> ReplyParser:
    """With ids that count: call_0, call_1, ..."""
    numbers = itertools.count()
    return reply_parser(
        template=template,
        tools=tools,
        tool_choice=tool_choice,
        reasoning=reasoning,
        opened_reasoning=opened,
        new_id=lambda: f"call_{next(numbers)}",
    )


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """What a client has in the end: neighbours of one kind put together."""
    made: list[Piece] = []
    for piece in pieces:
        assert piece.text or piece.kind == "tool_start"
        last = made[-1] if made else None
        if last and (last.kind, last.index) == (piece.kind, piece.index):
            made[-1] = Piece(last.kind, last.text + piece.text, last.index)
        else:
            made.append(piece)
    return made


def run(text: str, cuts: Sequence[int] = (), **options: Any) -> list[Piece]:
    """All pieces of a reply that comes in parts of these sizes, the rest at once."""
    one = parser(**options)
    pieces: list[Piece] = []
    start = 0
    for size in cuts:
        pieces += one.push(text[start : start + size])
        start += size
    pieces += one.push(text[start:])
    pieces += one.finish()
    assert one.finish() == []
    result = merged(pieces)
    assert one.tool_calls == any(piece.kind == "tool_start" for piece in result)
    return result


def of_kind(pieces: Sequence[Piece], kind: str, index: int = 0) -> str:
    """All text of one kind."""
    return "".join(p.text for p in pieces if p.kind == kind and p.index == index)


def random_cuts(text: str, seed: int, largest: int = 8) -> list[int]:
    """Sizes of 1 to ``largest`` that cover a text."""
    rng = random.Random(seed)
    sizes: list[int] = []
    left = len(text)
    while left > 0:
        sizes.append(rng.randint(1, largest))
        left -= sizes[-1]
    return sizes


FRAGMENTS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<tool_", "</", "<",
    '{"name": "find", "arguments": {"a": 1}}', '{"name": "add"}', '"arguments": "{}"',
    '{"name": "find", "parameters": {"q": "x\\n<tool_call>"}}', '{"name": "find", ',
    '"parameters": ', "{", "}", "[", "]", '"', "\\", ":", ",", ";", " ", "\n", "1", "-2.5e+3",
    "true", "nul", "a", "é", "🙂", '{"name": "other", "arguments": {}}',
)  # fmt: skip
# Texts that are full of what a parser looks for, mostly in the wrong place.
REPLIES = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=24).map("".join)
CUTS = st.lists(st.integers(1, 8), max_size=80)
