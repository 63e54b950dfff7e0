"""What the engine did since the counters were reset: sums, and how long its steps took."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import Any, Final

from wager.types import DraftCounts

STEP_SECONDS: Final = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0,
    2.0, 5.0,
)  # fmt: skip
DRAFT_SECONDS: Final = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
    0.5,
)  # fmt: skip
MAX_SOURCES: Final = 32
"""Sources that are counted one by one; what further ones draft is counted together."""
OTHER_SOURCES: Final = "other"
UNNAMED: Final = "unnamed"
"""The source of drafts that name none."""


@dataclass(slots=True)
class Histogram:
    """How many values fell into each class, and their sum (``total``).

    ``counts[i]`` are the values up to ``bounds[i]``, itself included, and above the bound before;
    the last entry, one more than there are bounds, is what lies above all of them.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """Values in all."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """None where there was no value."""
        count = self.count
        return self.total / count if count else None

    def observe(self, value: float) -> None:
        """Count one value, which is not negative."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """A histogram that later values do not change."""
        return Histogram(self.bounds, self.counts[:], self.total)


def _steps() -> Histogram:
    return Histogram(STEP_SECONDS)


def _drafts() -> Histogram:
    return Histogram(DRAFT_SECONDS)


@dataclass(slots=True)
class EngineStats:
    """Steps are of three kinds: with prompt tokens to compute (prefill), with drafts and no prompt
    (verify), with neither (plain). ``*_ms`` of a kind is the whole time of its steps, ``*_times``
    the same step by step, in seconds.

    ``forward_ms`` (the model's pass), ``sample_ms`` (pick, commit, stop checks) and ``draft_ms``
    (all that drafters do) are parts of the same time; ``overhead_ms`` is the rest. ``looked_ms`` is
    the part of ``draft_ms`` that plain steps had, for nothing. ``by_source`` counts the steps with
    a draft, by what drafted. ``decoded`` and ``decoded_tokens`` are of plain and verify steps
    alone: how many times a request took part in one, and the tokens committed.
    """

    steps: int = 0
    plain_steps: int = 0
    verify_steps: int = 0
    prefill_steps: int = 0
    plain_ms: float = 0.0
    verify_ms: float = 0.0
    prefill_ms: float = 0.0
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    draft_ms: float = 0.0
    looked_ms: float = 0.0
    overhead_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    preemptions: int = 0
    drafter_failures: int = 0
    decoded: int = 0
    decoded_tokens: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    by_source: dict[str, DraftCounts] = field(default_factory=dict)
    plain_times: Histogram = field(default_factory=_steps)
    verify_times: Histogram = field(default_factory=_steps)
    prefill_times: Histogram = field(default_factory=_steps)
    draft_times: Histogram = field(default_factory=_drafts)
    # Of the step under way: (times a request took part, tokens committed).
    under_way: tuple[int, int] = (0, 0)

    def snapshot(self) -> EngineStats:
        """A copy that later steps do not change."""
        copy = EngineStats(**{f.name: getattr(self, f.name) for f in fields(self)})
        copy.counts = self.counts.copy()
        copy.by_source = {source: counts.copy() for source, counts in self.by_source.items()}
        copy.plain_times = self.plain_times.copy()
        copy.verify_times = self.verify_times.copy()
        copy.prefill_times = self.prefill_times.copy()
        copy.draft_times = self.draft_times.copy()
        return copy

    def reset(self) -> None:
        """Back to zero, in place."""
        fresh: dict[str, Any] = {f.name: getattr(EngineStats(), f.name) for f in fields(self)}
        for name, value in fresh.items():
            setattr(self, name, value)

    def record_draft(self, source: str, drafted: int, accepted: int, committed: int) -> None:
        """One step of one request; ``source`` is its draft's, looked at where it has tokens."""
        self.counts.record(drafted, accepted, committed)
        requests, tokens = self.under_way
        self.under_way = (requests + 1, tokens + committed)
        if drafted:
            self._source(source or UNNAMED).record(drafted, accepted, committed)

    def _source(self, source: str) -> DraftCounts:
        if source not in self.by_source and len(self.by_source) >= MAX_SOURCES:
            # A drafter that invents names must not make the books grow for ever.
            source = OTHER_SOURCES
        return self.by_source.setdefault(source, DraftCounts())

    def record_step(
        self,
        *,
        total: float,
        forward: float,
        sample: float,
        draft: float,
        prompt_rows: int,
        draft_rows: int,
    ) -> None:
        """Times in seconds."""
        self.steps += 1
        (requests, tokens), self.under_way = self.under_way, (0, 0)
        if prompt_rows:
            self.prefill_steps += 1
            self.prefill_ms += 1e3 * total
            self.prefill_times.observe(total)
            self.prompt_tokens += prompt_rows
        else:
            self.decoded += requests
            self.decoded_tokens += tokens
            if draft_rows:
                self.verify_steps += 1
                self.verify_ms += 1e3 * total
                self.verify_times.observe(total)
            else:
                self.plain_steps += 1
                self.plain_ms += 1e3 * total
                self.looked_ms += 1e3 * draft
                self.plain_times.observe(total)
        if draft:
            self.draft_times.observe(draft)
        self.forward_ms += 1e3 * forward
        self.sample_ms += 1e3 * sample
        self.draft_ms += 1e3 * draft
        self.overhead_ms += 1e3 * (total - forward - sample - draft)
