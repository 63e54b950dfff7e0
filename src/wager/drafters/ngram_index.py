"""The n-gram index in Python, for installs without the extension. Same interface, same answers as
``native/ngram.cpp``; the idea (a suffix automaton per request) is explained in ``native/ngram.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_ROOT: Final = 0
_NONE: Final = -1


class _Text:
    """One request's tokens, with the automaton of all their substrings.

    Per state: ``length`` of its longest substring, suffix ``link``, ``end`` (index of the last
    token of its first, or most recent, occurrence) and transitions ``moves``.
    """

    def __init__(self, shortest: int, longest: int, recent: bool) -> None:
        self.shortest, self.longest, self.recent = shortest, longest, recent
        self.tokens: list[int] = []
        self.length, self.link, self.end = [0], [_NONE], [_NONE]
        self.moves: list[dict[int, int]] = [{}]
        self.newest = self.window = _ROOT
        self.match_length = 0
        self.match_end = _NONE

    def append(self, token: int) -> None:
        if token < 0:
            raise ValueError(f"token id {token} is negative")
        self.tokens.append(token)
        self._look_up(self._extend(token), token)

    def _add(self, length: int, link: int, end: int, moves: dict[int, int]) -> int:
        self.length.append(length)
        self.link.append(link)
        self.end.append(end)
        self.moves.append(moves)
        return len(self.length) - 1

    def _extend(self, token: int) -> int:
        size = len(self.tokens)
        leaf = self._add(size, _ROOT, size - 1, {})
        state = self.newest
        while state != _NONE and token not in self.moves[state]:
            self.moves[state][token] = leaf
            state = self.link[state]
        if state != _NONE:
            old = self.moves[state][token]
            whole = self.length[old] == self.length[state] + 1
            self.link[leaf] = old if whole else self._split(state, token, old)
        self.newest = leaf
        return leaf

    def _split(self, state: int, token: int, old: int) -> int:
        upper = self._add(
            self.length[state] + 1, self.link[old], self.end[old], dict(self.moves[old])
        )
        self.link[old] = upper
        while state != _NONE and self.moves[state].get(token) == old:
            self.moves[state][token] = upper
            state = self.link[state]
        return upper

    def _look_up(self, leaf: int, token: int) -> None:
        length, link, end = self.length, self.link, self.end
        n = min(len(self.tokens), self.longest)
        state = self.moves[self.window][token]
        while length[link[state]] >= n:
            state = link[state]
        self.window = state
        if state == leaf:  # everything above the leaf ended somewhere before
            state = link[leaf]
            n = length[state]
        found = n >= self.shortest
        self.match_length, self.match_end = (n, end[state]) if found else (0, _NONE)
        if self.recent:
            while length[state] >= self.shortest:
                end[state] = len(self.tokens) - 1
                state = link[state]

    def draft(self, limit: int, cyclic: bool) -> tuple[int, ...]:
        if not self.match_length:
            return ()
        start = self.match_end + 1
        draft = self.tokens[start : start + limit]
        if cyclic:
            period = len(self.tokens) - start
            draft.extend(draft[i % period] for i in range(len(draft), limit))
        return tuple(draft)


class NgramIndex:
    """The texts of all requests. Token ids are >= 0; lookup lengths 1 <= shortest <= longest."""

    def __init__(self, shortest: int, longest: int, recent: bool, cyclic: bool) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError("lookup lengths must satisfy 1 <= min <= max")
        self._options = (shortest, longest, recent)
        self._cyclic = cyclic
        self._texts: dict[int, _Text] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Append to the text of a request, which is made if it is not there."""
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = _Text(*self._options)
        for token in tokens:
            text.append(token)

    def propose(
        self, requests: Sequence[int], lengths: Sequence[int], limits: Sequence[int]
    ) -> list[tuple[tuple[int, ...], int]]:
        """(draft, length of the n-gram that matched) per request; ((), 0) where nothing matched.

        Raises ValueError where the length is not the number of tokens observed.
        """
        return [self._draft(*q) for q in zip(requests, lengths, limits, strict=True)]

    def _draft(self, request: int, length: int, limit: int) -> tuple[tuple[int, ...], int]:
        text = self._texts.get(request)
        size = len(text.tokens) if text else 0
        if size != length:
            raise ValueError(
                f"request {request}: observed {size} tokens, asked at {length}; "
                "release it and observe its tokens anew"
            )
        return (text.draft(limit, self._cyclic), text.match_length) if text else ((), 0)

    def release(self, request: int) -> None:
        """Forget a text; an unknown one is ignored."""
        self._texts.pop(request, None)

    def clear(self) -> None:
        """Forget all texts."""
        self._texts.clear()
