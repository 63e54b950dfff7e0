"""Stop strings, searched as text comes in, wherever token borders lie."""

from __future__ import annotations

from collections.abc import Sequence


class StopSearch:
    """Releases text up to the first stop string, and holds back what could still become one.

    Text comes in pieces of any size (one per token). A piece ends the text if a stop string is
    completed in it; it may begin in an earlier piece. If several are completed by one piece, the
    one that begins first counts, and of those that begin at the same place the first in the list.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """``include``: a stop string stays at the end of the text instead of being cut off."""
        self.stops = tuple(stops)
        self.include = include
        self.found: str | None = None
        # The end of the text: the longest tail that is the beginning of a stop string.
        self._held = ""

    def push(self, text: str, armed: bool = True) -> str:
        """Take the next piece; returns the text that is final now.

        Once ``found`` is set, the returned text is the last. Not ``armed``: a stop string that is
        completed in this piece is plain text, for good.
        """
        if not self.stops or not text:
            return text
        old, self._held = len(self._held), self._held + text
        if armed and (match := self._first_match(old)):
            start, stop = match
            self.found = stop
            return self._release(start + len(stop) if self.include else start, keep=False)
        return self._release(self._border())

    def flush(self) -> str:
        """At the end without a match: what was held back."""
        return self._release(len(self._held), keep=False)

    def _first_match(self, old: int) -> tuple[int, str] | None:
        """The first match that ends behind the first ``old`` held characters."""
        matches = (
            (at, stop)
            for stop in self.stops
            if (at := self._held.find(stop, max(0, old - len(stop) + 1))) >= 0
        )
        return min(matches, key=lambda match: match[0], default=None)

    def _border(self) -> int:
        """Where the longest tail begins that is a proper beginning of a stop string."""
        text, border = self._held, len(self._held)
        for stop in self.stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1), border)
            while at >= 0 and not stop.startswith(text[at:]):
                at = text.find(stop[0], at + 1, border)
            if at >= 0:
                border = at
        return border

    def _release(self, end: int, keep: bool = True) -> str:
        text, self._held = self._held[:end], self._held[end:] if keep else ""
        return text
