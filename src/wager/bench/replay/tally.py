"""What drafts did to a group of recorded requests: sums, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from wager.bench.estimate import StepTable
from wager.bench.statistics import MIN_PAIRS, Ratio
from wager.types import DraftCounts

_Z95: Final = 1.959964


@dataclass(slots=True)
class Trace:
    """What drafting did to one request.

    ``tried_at[j]`` counts the drafts whose position j was compared with the target's token: those
    that reach it and whose positions before it were all accepted. ``by_source`` has the steps with
    a draft, by what proposed it.
    """

    counts: DraftCounts = field(default_factory=DraftCounts)
    tried_at: list[int] = field(default_factory=list)
    by_source: dict[str, DraftCounts] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """Counts of one arm over one group of requests; names are those of `Trace`."""

    requests: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    tried_at: list[int] = field(default_factory=list)
    by_source: dict[str, DraftCounts] = field(default_factory=dict)
    _means: float = 0.0
    _squares: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add(self, trace: Trace) -> None:
        """Take in one request."""
        self.requests += 1
        self._add_counts(trace)
        c, s = trace.counts.committed, trace.counts.steps
        self._means += c / s
        cc, cs, ss = self._squares
        self._squares = (cc + c * c, cs + c * s, ss + s * s)

    def merge(self, other: Tally) -> None:
        """Take in the requests of another group."""
        self.requests += other.requests
        self._add_counts(other)
        self._means += other._means
        (cc, cs, ss), (dd, dt, tt) = self._squares, other._squares
        self._squares = (cc + dd, cs + dt, ss + tt)

    def _add_counts(self, other: Trace | Tally) -> None:
        self.counts.add(other.counts)
        self.tried_at += [0] * (len(other.tried_at) - len(self.tried_at))
        for j, n in enumerate(other.tried_at):
            self.tried_at[j] += n
        for source, counts in other.by_source.items():
            self.by_source.setdefault(source, DraftCounts()).add(counts)

    @property
    def tokens_per_step(self) -> Ratio:
        """All committed tokens / all steps, with the 95 % interval of a ratio of sums.

        By the delta method over requests, from sums alone: a log may be too long to keep what a
        bootstrap draws from.
        """
        n, c, s = self.requests, self.counts.committed, self.counts.steps
        if not s:
            return Ratio(None)
        value = c / s
        if n < MIN_PAIRS:
            return Ratio(value)
        cc, cs, ss = self._squares
        spread = max(cc - 2.0 * value * cs + value * value * ss, 0.0)
        half = _Z95 * math.sqrt(spread * n / (n - 1)) / s
        # A step commits at least one token, so that no mean lies below 1.
        return Ratio(value, max(value - half, 1.0), value + half)

    @property
    def mean_of_requests(self) -> float | None:
        """The mean of every request's own tokens per step."""
        return self._means / self.requests if self.requests else None

    @property
    def conditional(self) -> list[float | None]:
        """Acceptance by position given that the one before was accepted; None if never tried."""
        accepted = self.counts.accepted_at
        accepted = accepted + [0] * (len(self.tried_at) - len(accepted))
        return [a / t if t else None for a, t in zip(accepted, self.tried_at, strict=True)]

    @property
    def decode_steps(self) -> int:
        """Steps that could carry a draft: all but the one in which a prompt is read."""
        return self.counts.steps - self.requests

    @property
    def decode_tokens_per_step(self) -> float | None:
        """Tokens per step of decoding, from the first token to the last."""
        steps = self.decode_steps
        return (self.counts.committed - self.requests) / steps if steps else None

    @property
    def draft_lengths(self) -> dict[int, float]:
        """The share of decode steps with a draft of each length (0: none)."""
        steps, reached = self.decode_steps, [*self.counts.drafted_at, 0]
        if not steps:
            return {}
        counts = {0: steps - self.counts.drafted_steps}
        counts |= {j + 1: reached[j] - reached[j + 1] for j in range(len(reached) - 1)}
        return {length: n / steps for length, n in counts.items() if n}

    def speed_up(self, steps: StepTable, clients: int) -> SpeedUp | None:
        """The expected speed-up of decode with ``clients`` requests in flight; None without steps.

        All clients are taken to decode requests of this kind, independently of each other.
        """
        tokens = self.decode_tokens_per_step
        if tokens is None:
            return None
        lengths = self.draft_lengths
        plain, drafting = steps.ms(clients), steps.mean_ms(clients, lengths)
        return SpeedUp(
            clients=clients,
            value=tokens * plain / drafting,
            plain_ms=plain,
            step_ms=drafting,
            break_even=drafting / plain,
            extrapolated=clients * (1 + max(lengths)) > steps.last,
        )


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """An estimate. ``break_even`` is the tokens per decode step that drafting has to reach;
    ``extrapolated``: some steps have more rows than were ever measured."""

    clients: int
    value: float
    plain_ms: float
    step_ms: float
    break_even: float
    extrapolated: bool
