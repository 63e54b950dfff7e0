"""A request and its reply as every engine sees them, and the rates that follow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Ask:
    """One request, in terms that all engines share. ``prompt`` holds token ids."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False


@dataclass
class Reply:
    """What came back. Times are seconds of one clock, those of tokens when they arrived.

    ``tokens`` are the ids seen in the stream, ``count`` is how many there were.
    """

    started: float
    tokens: list[int] = field(default_factory=list)
    count: int = 0
    first_count: int = 0
    first: float = 0.0
    last: float = 0.0
    prompt_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    def take(self, tokens: Sequence[int], now: float) -> None:
        """Note tokens that arrived together."""
        if tokens and not self.tokens:
            self.first, self.first_count = now, len(tokens)
        self.tokens.extend(tokens)
        self.count = len(self.tokens)
        self.last = now

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second from the first arrival to the last; None for a single arrival."""
        rest = self.count - self.first_count
        return rest / (self.last - self.first) if rest and self.last > self.first else None


@dataclass(frozen=True)
class Rates:
    """One round of replies that ran together. Rates are tokens per second.

    ``decode`` is the median of the clients' own rates, first token to last; ``total`` counts the
    tokens of all clients from the first request to the last token, prompts included.
    """

    decode: float | None
    total: float
    tokens: int


def rates(replies: Sequence[Reply]) -> Rates:
    """Sum up replies that were asked for at the same time."""
    own = [rate for r in replies if (rate := r.decode_rate) is not None]
    tokens = sum(r.count for r in replies)
    wall = max(r.last for r in replies) - min(r.started for r in replies)
    return Rates(statistics.median(own) if own else None, tokens / wall, tokens)
