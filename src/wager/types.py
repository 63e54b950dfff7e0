"""Plain records that cross the seams. No heavy imports, no behaviour beyond arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "abort"]
NO_TOKEN_LEFT: Final = "the options of the request leave no token"
"""How the stop reason begins of a sequence that was aborted for that; so with these:"""
FORM_FAULT: Final = "the form of the answer cannot be followed"
FORM_LOST: Final = "what follows the form of the answer was lost"
# Finest first.
WeightKind: TypeAlias = Literal["f32", "bf16", "int8", "int4"]
KvKind: TypeAlias = Literal["f32", "f16"]


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens of one request for one step: a chain (trees come with ``parents``).

    ``source`` names the drafter (or the part of one) that proposed it; ``match_length`` is the
    length of the n-gram that matched, 0 where the word means nothing. Acceptance statistics are
    keyed by both. ``distributions`` are what the tokens were drawn from, one array of probabilities
    [V] per token; None where they were not drawn.
    """

    tokens: tuple[int, ...] = ()
    source: str = ""
    match_length: int = 0
    distributions: tuple[Any, ...] | None = field(default=None, compare=False, repr=False)

    def cut(self, length: int) -> Draft:
        """The same draft, at most ``length`` (>= 0) tokens of it."""
        if length >= len(self.tokens):
            return self
        drawn = self.distributions
        kept = None if drawn is None else drawn[:length]
        return Draft(self.tokens[:length], self.source, self.match_length, kept)


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the target's own (untempered) distribution.

    ``top`` holds the most likely alternatives, best first, as (token id, log-probability).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class DraftCounts:
    """What speculation did for one request or one run. Sums only, so that counts can be added.

    ``accepted_at[j]`` counts the drafts whose position j was accepted, ``drafted_at[j]`` the
    drafts that reached position j. The bonus or recovered token is in neither.
    """

    steps: int = 0
    drafted_steps: int = 0
    committed: int = 0
    committed_drafted: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def record(self, drafted: int, accepted: int, committed: int) -> None:
        """Count one step of one request."""
        self.steps += 1
        self.committed += committed
        if drafted:
            self.drafted_steps += 1
            self.committed_drafted += committed
            self.drafted += drafted
            self.accepted += accepted
            _count_positions(self.drafted_at, drafted)
            _count_positions(self.accepted_at, accepted)

    def copy(self) -> DraftCounts:
        """Counts that later steps do not change."""
        counts = DraftCounts()
        counts.add(self)
        return counts

    def add(self, other: DraftCounts) -> None:
        """Add the counts of ``other`` to these."""
        self.steps += other.steps
        self.drafted_steps += other.drafted_steps
        self.committed += other.committed
        self.committed_drafted += other.committed_drafted
        self.drafted += other.drafted
        self.accepted += other.accepted
        _add_lists(self.drafted_at, other.drafted_at)
        _add_lists(self.accepted_at, other.accepted_at)

    @property
    def tokens_per_step(self) -> float | None:
        """Committed tokens / steps, over all steps, drafted or not."""
        return self.committed / self.steps if self.steps else None

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens / steps, over the steps that carried a draft."""
        return self.committed_drafted / self.drafted_steps if self.drafted_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def coverage(self) -> float | None:
        """Share of steps that carried a draft."""
        return self.drafted_steps / self.steps if self.steps else None

    @property
    def acceptance_by_position_unconditional(self) -> list[float]:
        """Share of drafts (of any length) whose position j was accepted; empty without a draft.

        As long as the longest draft: a position that was never accepted counts as 0.
        """
        missing = len(self.drafted_at) - len(self.accepted_at)
        return [a / self.drafted_steps for a in self.accepted_at + [0] * missing]


def _count_positions(counts: list[int], reached: int) -> None:
    if reached > len(counts):
        counts.extend([0] * (reached - len(counts)))
    for j in range(reached):
        counts[j] += 1


def _add_lists(into: list[int], other: Sequence[int]) -> None:
    if len(other) > len(into):
        into.extend([0] * (len(other) - len(into)))
    for j, n in enumerate(other):
        into[j] += n


@dataclass(slots=True)
class CompletionOutput:
    """One choice of one request.

    ``accepted_flags`` runs parallel to ``token_ids``: True where the token was an accepted draft.
    """

    index: int
    token_ids: list[int]
    text: str
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprob] | None = None
    accepted_flags: list[bool] = field(default_factory=list)
    counts: DraftCounts = field(default_factory=DraftCounts)


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt, or, while streaming, what is new since the last one.

    Times are seconds since the request arrived: ``queue_s`` until it first took part in a step.
    ``draft_ms`` (of the drafters) and ``verify_ms`` (of the steps that verified its drafts) are its
    share so far: a step's time is shared equally by the requests in it. ``prompt_logprobs``, one
    entry per prompt token and None for the first, come with the first tokens of the answer.
    """

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    cached_tokens: int = 0
    first_token_s: float | None = None
    total_s: float | None = None
    queue_s: float | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    draft_ms: float = 0.0
    verify_ms: float = 0.0
