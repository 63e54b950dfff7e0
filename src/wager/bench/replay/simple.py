"""llama.cpp's ngram-simple, as far as a replay needs it: which tokens it would have drafted.

The last n tokens are looked up in what comes before the newest token; of several places the most
recent counts, but never the very first one of the text. The draft is what followed there, at most m
tokens and not the newest one. Nothing is drafted while the text is not longer than n + m + 2
tokens, nor where fewer than n tokens followed: a text that repeats with a period below n gets
none, and with m below n nothing is ever drafted. Checked against llama-server b11434.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.types import NO_DRAFT, Draft

SOURCE: Final = "ngram-simple"


@dataclass(slots=True)
class _Text:
    """Tokens, and where each n-gram among them began last (of the first ``indexed`` places)."""

    tokens: list[int] = field(default_factory=list)
    starts: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 1


class NgramSimple:
    """A drafter of that rule; ``n`` is its size-n, ``m`` its size-m."""

    needs = DrafterNeeds()

    def __init__(self, n: int, m: int) -> None:
        self._n, self._m = n, m
        self._texts: dict[int, _Text] = {}

    def describe(self) -> str:
        """The values in effect, in one line for people."""
        return f"ngram-simple, at most {self._m} draft tokens, lookup {self._n}"

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query; NO_DRAFT where there is none."""
        return [self._draft(self._texts[query.request]).cut(query.limit) for query in queries]

    def attach(self, host: DraftHost) -> None:
        """Token ids are all it needs."""

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """Append the prompt."""
        self.observe(request, prompt)

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Append a commit."""
        self._texts.setdefault(request, _Text()).tokens += tokens

    def release(self, request: int) -> None:
        """Forget a request."""
        self._texts.pop(request, None)

    def clear(self) -> None:
        """Forget all requests."""
        self._texts.clear()

    def close(self) -> None:
        """Nothing lasts."""

    def _draft(self, text: _Text) -> Draft:
        n, tokens = self._n, text.tokens
        history = len(tokens) - 1
        # At least one token of the history has to follow the place.
        for start in range(text.indexed, history - n):
            text.starts[tuple(tokens[start : start + n])] = start
        text.indexed = max(text.indexed, history - n)
        if history <= n + self._m + 1:
            return NO_DRAFT
        found = text.starts.get(tuple(tokens[-n:]))
        if found is None:
            return NO_DRAFT
        begin = found + n
        end = min(begin + self._m, history)
        return Draft(tuple(tokens[begin:end]), SOURCE, n) if end - begin >= n else NO_DRAFT
