"""How likely the tokens of a draft are accepted, learnt from what happened to earlier ones.

Under exact verification the accepted part of a draft that was not drawn at random is the beginning
that it shares with what is committed, whoever committed it. So a proposal need not be verified to
be scored: the tokens that plain decoding commits score it as well, and that costs nothing
("shadow scoring").

What is learnt is the conditional acceptance of each position, by (source, length of the match, what
became of the request's last draft), as discounted counts that lean on those of the coarser keys,
and by request an offset of the log-odds. Of a whole draft one joint lower bound is given: bounds by
position, multiplied, would never let a bet begin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from wager.types import Draft

FIRST, NOTHING, PART, ALL = range(4)
"""What became of a request's last draft; FIRST: there was none."""

POSITIONS: Final = 16
"""Later positions count as the last of these."""
DISCOUNT: Final = 0.995
LEAN: Final = 4.0
"""Observations that a coarser key counts for at most."""
REQUEST_DISCOUNT: Final = 0.96
REQUEST_LEAN: Final = 1.0
SHADOWS: Final = 4

_MATCH_LIMITS: Final = (0, 1, 2, 3, 5, 8)
_FIRST_GUESS: Final = (0.6, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""By match: what prompt lookup showed on public sets; it counts for two observations."""
_GUESS_WEIGHT: Final = 2.0

_Key: TypeAlias = tuple[str, int, int]


class _Counts:
    """Discounted outcomes by position, and the estimates that follow from them."""

    __slots__ = ("_age", "_chances", "_guess", "_parent", "_right", "_weights", "_wrong")

    def __init__(self, parent: _Counts | None, guess: float) -> None:
        self._parent = parent
        self._guess = guess
        self._right = [0.0] * POSITIONS
        self._wrong = [0.0] * POSITIONS
        self._chances: list[float] = []
        self._weights: list[float] = []
        self._age = 0

    def add(self, position: int, right: bool) -> None:
        self._right[position] = DISCOUNT * self._right[position] + right
        self._wrong[position] = DISCOUNT * self._wrong[position] + (not right)
        self._age += 1
        if self._parent is not None:
            self._parent.add(position, right)

    @property
    def seen(self) -> float:
        """Drafts that were scored, discounted."""
        return self._right[0] + self._wrong[0]

    def estimates(self) -> tuple[list[float], list[float]]:
        """(chance, observations behind it) by position; may be a few observations old."""
        if not self._chances or self._age >= 4:
            self._age = 0
            self._estimate()
        return self._chances, self._weights

    def _estimate(self) -> None:
        if self._parent is None:
            means, seen = [self._guess] * POSITIONS, [_GUESS_WEIGHT] * POSITIONS
        else:
            means, seen = self._parent.estimates()
        chances, weights = [], []
        for right, wrong, mean, count in zip(self._right, self._wrong, means, seen, strict=True):
            lean = min(LEAN, count)
            total = right + wrong + lean
            chances.append(min(max((right + lean * mean) / total, 0.01), 0.995))
            weights.append(total)
        self._chances, self._weights = chances, weights


@dataclass(slots=True)
class _Own:
    """One request's drafts of one source: its offset, and what became of the last draft."""

    residual: float = 0.0
    information: float = 0.0
    last: int = FIRST

    @property
    def offset(self) -> float:
        """Of the log-odds: one step of Newton's method from 0, with a prior of variance 1."""
        return self.residual / (self.information + REQUEST_LEAN)

    def add(self, chance: float, right: bool) -> None:
        self.residual = REQUEST_DISCOUNT * self.residual + right - chance
        self.information = REQUEST_DISCOUNT * self.information + chance * (1.0 - chance)


@dataclass(slots=True)
class _Proposal:
    """A draft whose tokens are awaited."""

    tokens: tuple[int, ...]
    method: str
    own: _Own
    counts: _Counts
    chances: list[float]
    drawn: bool
    right: int = 0
    verified: int = 0
    """Its tokens that were verified in the step that is being committed."""


@dataclass(slots=True)
class _Request:
    sources: dict[str, _Own] = field(default_factory=dict)
    awaited: list[_Proposal] = field(default_factory=list)


class Acceptance:
    """What is known of drafts: scores them, and estimates the next."""

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._matches: dict[tuple[str, int], _Counts] = {}
        self._keys: dict[_Key, _Counts] = {}

    def observations(self, source: str) -> float:
        """Drafts of a source that were scored, discounted."""
        return sum(c.seen for (name, _), c in self._matches.items() if name == source)

    def survival(
        self, request: int, source: str, match: int, length: int, caution: float
    ) -> list[float]:
        """S_j for the first ``length`` positions: that all up to j are accepted.

        ``caution`` is how many standard errors the joint bound lies below the estimate.
        """
        one = self._requests.get(request)
        own = one.sources.get(source) if one else None
        chances, weights = self._counts(source, match, own).estimates()
        offset = own.offset if own else 0.0
        factor = math.exp(-offset)
        log, variance, least = 0.0, 0.0, 1.0
        found = []
        for j in range(length):
            at = min(j, POSITIONS - 1)
            chance = chances[at]
            if offset:
                chance = 1.0 / (1.0 + (1.0 - chance) / chance * factor)
            log += math.log(chance)
            variance += (1.0 - chance) / (chance * weights[at])
            least = min(least, math.exp(log - caution * math.sqrt(variance)))
            found.append(least)
        return found

    def awaits(self, request: int, method: str) -> int | None:
        """How many tokens of a method's open proposal came true; None where there is none."""
        one = self._requests.get(request)
        if one is None:
            return None
        rights = [p.right for p in one.awaited if p.method == method]
        return max(rights) if rights else None

    def propose(self, request: int, method: str, draft: Draft, verified: int) -> None:
        """Await a draft of which ``verified`` tokens are verified in this step; 0: a shadow."""
        one = self._requests.setdefault(request, _Request())
        own = one.sources.setdefault(draft.source, _Own())
        counts = self._counts(draft.source, draft.match_length, own)
        # A drawn token that is not verified is not told by what the sampler picks.
        tokens = draft.tokens if draft.distributions is None else draft.tokens[:verified]
        chances = counts.estimates()[0]
        drawn = draft.distributions is not None
        one.awaited.append(
            _Proposal(tokens, method, own, counts, chances, drawn, verified=verified)
        )
        if len(one.awaited) > SHADOWS:
            one.awaited.pop(0)

    def cut(self, request: int, verified: int) -> None:
        """Of the draft that was to be verified in this step only so many tokens were."""
        one = self._requests.get(request)
        for proposal in one.awaited if one else ():
            if proposal.verified > verified:
                proposal.verified = verified
                if proposal.drawn:
                    proposal.tokens = proposal.tokens[:verified]

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        """Score what is awaited against what was committed."""
        one = self._requests.get(request)
        if one is None or not one.awaited:
            return
        still = []
        for proposal in one.awaited:
            own, closed = proposal.own, _score(proposal, tokens)
            if proposal.verified:
                own.last = _outcome(min(proposal.right, proposal.verified), proposal.verified)
                proposal.verified = 0
            elif closed:
                own.last = _outcome(proposal.right, len(proposal.tokens))
            if not closed:
                still.append(proposal)
        one.awaited = still

    def release(self, request: int) -> None:
        """Forget a request."""
        self._requests.pop(request, None)

    def _counts(self, source: str, match: int, own: _Own | None) -> _Counts:
        last = own.last if own else FIRST
        bucket = next((i for i, most in enumerate(_MATCH_LIMITS) if match <= most), 6)
        key = (source, bucket, last)
        counts = self._keys.get(key)
        if counts is None:
            by_match = self._matches.get((source, bucket))
            if by_match is None:
                by_match = self._matches[source, bucket] = _Counts(None, _FIRST_GUESS[bucket])
            counts = self._keys[key] = _Counts(by_match, _FIRST_GUESS[bucket])
        return counts


def _score(proposal: _Proposal, tokens: Sequence[int]) -> bool:
    """Compare on from where the proposal stands; True once there is nothing left to compare."""
    for token in tokens:
        at = proposal.right
        if at == len(proposal.tokens):
            return True
        right = token == proposal.tokens[at]
        position = min(at, POSITIONS - 1)
        proposal.own.add(proposal.chances[position], right)
        proposal.counts.add(position, right)
        if not right:
            return True
        proposal.right += 1
    return proposal.right == len(proposal.tokens)


def _outcome(right: int, length: int) -> int:
    if right == 0:
        return NOTHING
    return ALL if right >= length else PART
