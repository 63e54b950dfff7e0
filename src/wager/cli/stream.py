"""Text on its way to standard output, with accepted draft tokens in another colour."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wager.config import SamplingParams
    from wager.engine.llm import LLM
    from wager.models.tokenizer import Detokenizer
    from wager.types import CompletionOutput, RequestOutput

_ACCEPTED: Final = "\x1b[36m"
_PLAIN: Final = "\x1b[39m"
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def wants_color(out: TextIO, no_color: bool) -> bool:
    """Colour only on a terminal that can show it and whose user did not decline (NO_COLOR)."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return out.isatty()


def printable(text: str) -> str:
    """Without the characters that could rewrite a terminal or turn text round.

    These are the control characters but for line feed and tab, and the overrides and isolates of
    writing direction; each becomes U+FFFD, so that the length stays.
    """
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


class Painter:
    """Colours the text of accepted draft tokens.

    The engine's text may lag behind its tokens (unfinished characters, text held back because a
    stop string may follow). So the tokens are spelt a second time here, which says which
    characters came from which token; what is printed is always the engine's text.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._accepted: deque[bool] = deque()
        self._on = False

    def paint(self, choice: CompletionOutput) -> str:
        """The new text with colour codes."""
        for token, accepted in zip(choice.token_ids, choice.accepted_flags, strict=False):
            self._accepted.extend([accepted] * len(self._detokenizer.push(token)))
        out = []
        for character in printable(choice.text):
            accepted = self._accepted.popleft() if self._accepted else False
            if accepted != self._on:
                out.append(_ACCEPTED if accepted else _PLAIN)
                self._on = accepted
            out.append(character)
        return "".join(out)

    def end(self) -> str:
        """Back to the terminal's own colour."""
        return _PLAIN if self._on else ""


def answer(
    llm: LLM,
    ids: Sequence[int],
    params: SamplingParams,
    out: TextIO,
    color: bool,
    said: list[str],
) -> RequestOutput | None:
    """Print one answer as it comes; its last piece. Its text is also appended to ``said``."""
    painter = Painter(llm.tokenizer.stream(ids)) if color else None
    terminal = out.isatty()
    last = None
    try:
        for last in llm.stream(ids, params):
            choice = last.outputs[0]
            said.append(choice.text)
            if painter:
                out.write(painter.paint(choice))
            else:
                out.write(printable(choice.text) if terminal else choice.text)
            out.flush()
    finally:
        if painter:
            out.write(painter.end())
    return last
