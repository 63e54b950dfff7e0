"""What the engine did since the counters were reset: sums only."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from wager.types import DraftCounts


@dataclass(slots=True)
class EngineStats:
    """Steps are of three kinds: with prompt tokens to compute (prefill), with drafts and no prompt
    (verify), with neither (plain). ``*_ms`` of a kind is the whole time of its steps.

    ``forward_ms`` (the model's pass), ``sample_ms`` (pick, commit, stop checks) and ``draft_ms``
    (all that drafters do) are parts of the same time; ``overhead_ms`` is the rest. ``by_source``
    counts the steps with a draft, by what drafted.
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
    overhead_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    preemptions: int = 0
    drafter_failures: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    by_source: dict[str, DraftCounts] = field(default_factory=dict)

    def snapshot(self) -> EngineStats:
        """A copy that later steps do not change."""
        copy = EngineStats(**{f.name: getattr(self, f.name) for f in fields(self)})
        copy.counts = self.counts.copy()
        copy.by_source = {source: counts.copy() for source, counts in self.by_source.items()}
        return copy

    def reset(self) -> None:
        """Back to zero, in place."""
        fresh: dict[str, Any] = {f.name: getattr(EngineStats(), f.name) for f in fields(self)}
        for name, value in fresh.items():
            setattr(self, name, value)

    def record_draft(self, source: str, drafted: int, accepted: int, committed: int) -> None:
        """One step of one request; ``source`` is its draft's, looked at where it has tokens."""
        self.counts.record(drafted, accepted, committed)
        if source and drafted:
            own = self.by_source.setdefault(source, DraftCounts())
            own.record(drafted, accepted, committed)

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
        if prompt_rows:
            self.prefill_steps += 1
            self.prefill_ms += 1e3 * total
            self.prompt_tokens += prompt_rows
        elif draft_rows:
            self.verify_steps += 1
            self.verify_ms += 1e3 * total
        else:
            self.plain_steps += 1
            self.plain_ms += 1e3 * total
        self.forward_ms += 1e3 * forward
        self.sample_ms += 1e3 * sample
        self.draft_ms += 1e3 * draft
        self.overhead_ms += 1e3 * (total - forward - sample - draft)
