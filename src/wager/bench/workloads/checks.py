"""What can be said about a reply without reading it: was the instruction followed, does it loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_BLOCK: Final = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)
_LONGEST_PERIOD: Final = 32
_SHORTEST_LOOP: Final = 64


def code_block(reply: str) -> str | None:
    """The inside of the first complete fenced block, or None."""
    found = _BLOCK.search(reply)
    return found.group(1) if found else None


def followed(reply: str, expected: str) -> bool:
    """Whether the first code block is the expected text, spaces at line ends aside."""
    block = code_block(reply)
    return block is not None and _lines(block) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").split("\n")]


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the reply ends in a loop.

    It does if for some period p of at most 32 tokens its last max(64, 3 p) tokens repeat with
    that period, that is, the same p tokens stand there at least three times in a row.
    """
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_SHORTEST_LOOP, 3 * period)
        if length > len(token_ids):
            continue
        tail = token_ids[len(token_ids) - length :]
        if list(tail[period:]) == list(tail[:-period]):
            return True
    return False
