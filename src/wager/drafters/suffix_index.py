"""The index of suffix decoding in Python, for installs without the extension. Same interface, same
answers as ``native/suffix.cpp`` (``native/suffix.h`` explains the idea); slower, since it looks a
context up in a dictionary per length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_BYTES_PER_ENTRY: Final = 200
"""A rough size of a counted context in a dictionary; only `SuffixIndex.max_bytes` depends on it."""


@dataclass(slots=True)
class Count:
    """What followed one context: ``followed`` times a token, ``tokens[t]`` times token t."""

    followed: int = 0
    next: int = -1
    tokens: dict[int, int] = field(default_factory=dict)

    def add(self, token: int) -> None:
        seen = self.tokens[token] = self.tokens.get(token, 0) + 1
        self.followed += 1
        if self.next == -1 or seen >= self.tokens[self.next]:
            self.next = token


@dataclass(slots=True)
class Continuation:
    """A draft: the most frequent continuation of a context; ``score`` is the expected number of
    right tokens."""

    tokens: tuple[int, ...] = ()
    match: int = 0
    score: float = 0.0
    past: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """As ``native/suffix.h`` has them."""

    depth: int
    max_requests: int
    factor: float
    offset: float
    min_probability: float
    max_bytes: int


class CountedTexts:
    """Texts, with what followed each of their contexts of at most depth - 1 tokens."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.counts: dict[tuple[int, ...], Count] = {}
        self.recent: tuple[int, ...] = ()
        self.tokens = 0

    def begin_text(self) -> None:
        self.recent = ()

    def append(self, token: int) -> None:
        if token < 0:
            raise ValueError(f"token id {token} is negative")
        for start in range(len(self.recent)):
            self.counts.setdefault(self.recent[start:], Count()).add(token)
        self.recent = (*self.recent, token)[-(self.depth - 1) :] if self.depth > 1 else ()
        self.tokens += 1

    def propose(
        self, text: tuple[int, ...], limit: int, options: Options, best: Continuation
    ) -> Continuation:
        """The best continuation of the text's contexts if its score is higher than ``best``'s."""
        for length in range(min(len(text), self.depth - 1), 0, -1):
            context = text[len(text) - length :]
            if context not in self.counts:
                continue
            budget = min(limit, int(options.factor * length + options.offset))
            if budget <= best.score:
                break
            tokens, score = self._follow(context, budget, options.min_probability)
            if score > best.score:
                best = Continuation(tokens, length, score)
        return best

    def longest(self, text: tuple[int, ...], shortest: int, limit: int) -> Continuation:
        """What most often followed the longest context of at least ``shortest`` tokens."""
        for length in range(min(len(text), self.depth - 1), shortest - 1, -1):
            context = text[len(text) - length :]
            if context in self.counts:
                tokens, score = self._follow(context, limit, 0.0)
                return Continuation(tokens, length, score)
        return Continuation()

    def _follow(
        self, context: tuple[int, ...], budget: int, min_probability: float
    ) -> tuple[tuple[int, ...], float]:
        tokens: list[int] = []
        probability, score = 1.0, 0.0
        while len(tokens) < budget and (count := self.counts.get(context)) is not None:
            probability *= count.tokens[count.next] / count.followed
            if probability < min_probability:
                break
            tokens.append(count.next)
            score += probability
            context = (*context, count.next)[-(self.depth - 1) :]
        return tuple(tokens), score

    @property
    def bytes(self) -> int:
        return _BYTES_PER_ENTRY * len(self.counts)


class PastAnswers:
    """Past answers of one tenant, in two generations: a full one takes the place of the older."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.young, self.old = CountedTexts(depth), CountedTexts(depth)
        self.in_young = self.in_old = 0
        self.stamp = 0

    def add(self, answer: Sequence[int], options: Options, stamp: int) -> None:
        self.stamp = stamp
        self.young.begin_text()
        for token in answer:
            self.young.append(token)
        self.in_young += 1
        half = (options.max_requests + 1) // 2
        if self.in_young >= half or self.young.bytes >= options.max_bytes // 2:
            self.old, self.young = self.young, CountedTexts(self.depth)
            self.in_old, self.in_young = self.in_young, 0

    def longest(self, text: tuple[int, ...], shortest: int, limit: int) -> Continuation:
        """As `CountedTexts.longest`; of equally long contexts that of the younger answers."""
        young, old = (texts.longest(text, shortest, limit) for texts in (self.young, self.old))
        return old if old.match > young.match else young

    def drop_older(self) -> None:
        self.old, self.in_old = CountedTexts(self.depth), 0

    @property
    def bytes(self) -> int:
        return self.young.bytes + self.old.bytes


@dataclass(slots=True)
class _Request:
    text: CountedTexts
    tenant: str
    tokens: list[int] = field(default_factory=list)
    prompt: int = 0


class SuffixIndex:
    """The texts of all requests, and the past answers of all tenants."""

    def __init__(
        self,
        depth: int,
        max_requests: int,
        factor: float,
        offset: float,
        min_probability: float,
        max_bytes: int,
    ) -> None:
        if depth < 1 or max_requests < 0 or factor < 0 or offset < 0:
            raise ValueError("depth must be at least 1, the other bounds at least 0")
        self._options = Options(depth, max_requests, factor, offset, min_probability, max_bytes)
        self._requests: dict[int, _Request] = {}
        self._past: dict[str, PastAnswers] = {}
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._requests)

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """Raises ValueError if the request is known already."""
        if request in self._requests:
            raise ValueError(f"request {request} was started already")
        made = _Request(CountedTexts(self._options.depth), tenant, prompt=len(prompt))
        self._requests[request] = made
        self.observe(request, prompt)

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Raises ValueError if the request is unknown."""
        if request not in self._requests:
            raise ValueError(f"request {request} was not started")
        one = self._requests[request]
        for token in tokens:
            one.text.append(token)
            one.tokens.append(token)

    def propose(
        self, requests: Sequence[int], lengths: Sequence[int], limits: Sequence[int]
    ) -> list[tuple[tuple[int, ...], int, bool, float]]:
        """(draft, length of its context, whether it comes from past answers, score) per request.

        Raises ValueError where the length is not the number of tokens observed.
        """
        found = [self._propose(*q) for q in zip(requests, lengths, limits, strict=True)]
        return [(f.tokens, f.match, f.past, f.score) for f in found]

    def _propose(self, request: int, length: int, limit: int) -> Continuation:
        one = self._requests.get(request)
        observed = len(one.tokens) if one else 0
        if observed != length:
            raise ValueError(
                f"request {request}: observed {observed} tokens, asked at {length}; "
                "release it and observe its tokens anew"
            )
        best = Continuation()
        if one is None:
            return best
        context = tuple(one.tokens[-self._options.depth :])
        best = one.text.propose(context, limit, self._options, best)
        past = self._past.get(one.tenant)
        if past is not None:
            before = best.score
            best = past.young.propose(context, limit, self._options, best)
            best = past.old.propose(context, limit, self._options, best)
            best.past = best.score > before
        return best

    def release(self, request: int) -> None:
        """Forget a request; its answer is kept for later ones of its tenant."""
        one = self._requests.pop(request, None)
        if one is not None:
            self.learn(one.tokens[one.prompt :], one.tenant)

    def learn(self, answer: Sequence[int], tenant: str) -> None:
        """Keep an answer that no request of this index gave."""
        if not self._options.max_requests or not answer:
            return
        self._stamp += 1
        past = self._past.setdefault(tenant, PastAnswers(self._options.depth))
        past.add(answer, self._options, self._stamp)
        while self._past and self.past_bytes > self._options.max_bytes:
            oldest = min(self._past, key=lambda name: self._past[name].stamp)
            if self._past[oldest].in_old:
                self._past[oldest].drop_older()
            else:
                del self._past[oldest]

    def look_up(
        self, end: Sequence[int], tenant: str, shortest: int, limit: int
    ) -> tuple[tuple[int, ...], int]:
        """(what most often followed among the tenant's past answers, length of the context): of the
        ends of a text with ``shortest`` tokens (at least 1) or more, the longest that occurs there.
        ((), 0) where there is none. Raises ValueError."""
        if shortest < 1 or limit < 0:
            raise ValueError("shortest must be at least 1, limit at least 0")
        past = self._past.get(tenant)
        found = Continuation() if past is None else past.longest(tuple(end), shortest, limit)
        return (found.tokens, found.match) if found.tokens else ((), 0)

    def clear(self) -> None:
        """Forget everything."""
        self._requests.clear()
        self._past.clear()

    @property
    def bytes(self) -> int:
        """Roughly, of the requests."""
        return sum(one.text.bytes for one in self._requests.values())

    @property
    def past_bytes(self) -> int:
        """Roughly, of the past answers."""
        return sum(past.bytes for past in self._past.values())

    @property
    def past_tokens(self) -> int:
        return sum(past.young.tokens + past.old.tokens for past in self._past.values())

    @property
    def past_answers(self) -> int:
        return sum(past.in_young + past.in_old for past in self._past.values())
