"""The parts that a reply is given out in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["content", "reasoning", "tool_start", "tool_arguments"]

WHITE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some new text of one kind.

    ``tool_start`` has no text: it opens the call ``index`` (0, 1, ...) of the function ``name``,
    under a fresh ``id``. ``tool_arguments`` is the next part of the JSON text of its arguments.
    """

    kind: Kind
    text: str = ""
    index: int = 0
    name: str = ""
    id: str = ""


def find_mark(text: str, marks: tuple[str, ...], final: bool) -> tuple[str, str | None, str]:
    """Text before the first of the marks, that mark, and what follows it.

    Without a mark: the text that cannot be the beginning of one, None, and the end of the text
    that can, which is kept back unless the text is ``final``.
    """
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    if found:
        at, mark = min(found)
        return text[:at], mark, text[at + len(mark) :]
    if not final:
        longest = max(map(len, marks), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(mark.startswith(text[-size:]) for mark in marks):
                return text[:-size], None, text[-size:]
    return text, None, ""
