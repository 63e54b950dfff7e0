"""What speculation did in a cell: from the requests' own counts, else from the server's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wager.backend import Answer, Counters
from wager.bench.estimate import conditional
from wager.bench.statistics import mean, pool, tokens_per_step
from wager.types import DraftCounts


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """None is not known. Names and meanings are those of the contract (docs/bench.md)."""

    source: Literal["requests", "server"] | None = None
    tokens_per_step: float | None = None
    tokens_per_step_mean: float | None = None
    acceptance_length: float | None = None
    coverage: float | None = None
    drafted_per_draft: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    acceptance_rate: float | None = None
    acceptance_rate_mean: float | None = None
    unconditional: list[float] | None = None
    conditional: list[float | None] | None = None

    @property
    def active(self) -> bool | None:
        """Whether anything was drafted."""
        return None if self.drafted is None else self.drafted > 0


def figures(replies: Sequence[Answer], counted: Counters) -> DraftFigures:
    """Of the replies if every one tells its counts, else of the server's counters."""
    known = [answer.counts for answer in replies if answer.counts is not None]
    if known and len(known) == len(replies):
        return _of_requests(known)
    return _of_server(counted)


def _of_requests(requests: Sequence[DraftCounts]) -> DraftFigures:
    counts = pool(requests)
    steps = tokens_per_step([(c.committed, c.steps) for c in requests])
    unconditional = counts.acceptance_by_position_unconditional or None
    return DraftFigures(
        source="requests",
        tokens_per_step=counts.tokens_per_step,
        tokens_per_step_mean=steps.mean_of_requests,
        acceptance_length=counts.acceptance_length,
        coverage=counts.coverage,
        drafted_per_draft=counts.drafted / counts.drafted_steps if counts.drafted_steps else None,
        drafted=counts.drafted,
        accepted=counts.accepted,
        acceptance_rate=counts.acceptance_rate,
        # A request without a draft has no rate.
        acceptance_rate_mean=mean([r for c in requests if (r := c.acceptance_rate) is not None]),
        unconditional=unconditional,
        conditional=_conditional(unconditional),
    )


def _of_server(counted: Counters) -> DraftFigures:
    if counted.drafted is None:
        return DraftFigures()
    drafts, drafted, accepted = counted.drafts, counted.drafted, counted.accepted
    if accepted is not None and accepted > drafted:
        # Some count the target's own token with the accepted ones: then neither is known.
        accepted = None
    steps = counted.steps
    if steps is None and counted.generated is not None and accepted is not None:
        # Each step of a request commits its accepted tokens and one more.
        steps = counted.generated - accepted
    per_step = 1.0 + accepted / steps if steps and accepted is not None else None
    if steps and counted.generated is not None and accepted is not None:
        # Output alone: vLLM counts draft tokens as accepted that lie behind the end of a reply.
        per_step = counted.generated / steps
    per_draft = accepted / drafts if drafts and accepted is not None else None
    at = counted.accepted_at
    unconditional = [a / drafts for a in at] if at and drafts and max(at) <= drafts else None
    return DraftFigures(
        source="server",
        tokens_per_step=per_step,
        acceptance_length=None if per_draft is None else 1.0 + per_draft,
        coverage=min(1.0, drafts / steps) if steps and drafts is not None else None,
        drafted_per_draft=drafted / drafts if drafts else None,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted and accepted is not None else None,
        unconditional=unconditional,
        conditional=_conditional(unconditional),
    )


def _conditional(unconditional: Sequence[float] | None) -> list[float | None] | None:
    """None too where a server's counters contradict themselves, as they may while it is busy."""
    if not unconditional:
        return None
    try:
        return conditional(unconditional)
    except ValueError:
        return None
