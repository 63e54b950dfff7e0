"""The seam of control: what the engine asks before a step and tells after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wager.drafters.base import DraftQuery
from wager.engine.control.decisions import Decisions
from wager.engine.drafting import Drafters, GuardedDrafter, cut_after_end
from wager.types import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may draft in this step, at most ``limit`` tokens (>= 1).

    ``context`` are its computed tokens. ``query(n, blocks)`` is what a drafter is asked for n
    tokens; with ``blocks`` it makes room for them, and None says that there is none. ``method`` is
    the only one that may speak for it; "": any. ``ends_with`` tells the tokens after which
    nothing is committed.
    """

    number: int
    context: int
    limit: int
    query: Callable[[int, bool], DraftQuery | None]
    ends_with: Callable[[int], bool]
    method: str = ""


@dataclass(frozen=True, slots=True)
class StepView:
    """A step without drafts: ``requests`` sample in it, with ``kv_tokens`` of context together.

    ``prompt_rows`` are computed beside them; ``rows`` are left for drafts. ``candidates`` are empty
    where nobody is asked.
    """

    requests: int
    kv_tokens: int
    prompt_rows: int
    rows: int
    candidates: Sequence[Candidate] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of it, or of several steps that the controller was not asked about.

    Milliseconds: ``betting`` of all that there would not be without speculation, but for the rows;
    ``steps`` of each step, without that. ``drafted`` are the rows that were verified, by request;
    ``committed`` the tokens of the requests that could have had some. ``started`` are those of
    requests that computed their prompt in this step, the first time or again."""

    steps: Sequence[float]
    betting: float
    drafted: Mapping[int, int]
    committed: Mapping[int, Sequence[int]]
    started: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def took(self) -> float:
        """All steps, without betting."""
        return sum(self.steps)


class Controller(Protocol):
    """Decides who drafts, how much, and what of it is verified."""

    decisions: Decisions
    resting: int
    """Steps from now on in which `looks` will say no. Where the same requests go on and no prompt
    comes in between, it need not be asked: `settle` takes the results of several together."""

    def rows(self, requests: int) -> int:
        """How many rows the drafts of that many requests will want, by what is known before."""
        ...

    def looks(self, step: StepView) -> bool:
        """Whether drafters may be asked in this step, which is still without candidates. While the
        answer is no, nothing is made for it: neither candidates, nor is a drafter told anything."""
        ...

    def draft(self, step: StepView, drafters: Drafters) -> list[Draft]:
        """What is verified, by candidate; called where `looks` said yes."""
        ...

    def settle(self, step: StepView, result: StepResult) -> None:
        """Take in what the step took and brought. Every step that has requests which sample was
        seen by `looks` before, but for those of ``resting``: of several of them ``step`` is the
        one in the middle."""
        ...

    def release(self, request: int) -> None:
        """Forget a request."""
        ...


def ask(
    drafter: Drafters | GuardedDrafter, candidates: Sequence[Candidate], limits: Sequence[int]
) -> list[Draft]:
    """One draft per candidate, at most its limit; a limit of 0 asks for none."""
    found = [NO_DRAFT] * len(candidates)
    queries, places = [], []
    for place, (candidate, limit) in enumerate(zip(candidates, limits, strict=True)):
        query = candidate.query(limit, drafter.needs_blocks) if limit > 0 else None
        if query is not None:
            queries.append(query)
            places.append(place)
    if queries:
        for place, draft in zip(places, drafter.propose(queries), strict=True):
            found[place] = cut_after_end(draft, candidates[place].ends_with)
    return found


class FixedLength:
    """Always ``k``: what engines without a controller do, and what a measured arm means.

    ``evenly``: each draft has its share of the rows before it is made. One that is drawn must not
    be cut for what was drawn, and a model's passes should not be for nothing.
    """

    def __init__(self, k: int, evenly: bool) -> None:
        self.k = k
        self.decisions = Decisions()
        self.resting = 0
        self._evenly = evenly

    def rows(self, requests: int) -> int:
        return self.k * requests

    def looks(self, step: StepView) -> bool:
        """Always."""
        return True

    def draft(self, step: StepView, drafters: Drafters) -> list[Draft]:
        """All of it; where the rows do not suffice, an equal share for everybody."""
        if not step.candidates:
            return []
        share = step.rows // len(step.candidates) if self._evenly else step.rows
        limits = [min(c.limit, self.k, share) for c in step.candidates]
        found = ask(drafters, step.candidates, limits)
        if sum(len(d.tokens) for d in found) <= step.rows:
            return found
        share = step.rows // sum(1 for d in found if d.tokens)
        return [d.cut(share) for d in found]

    def settle(self, step: StepView, result: StepResult) -> None:
        """Nothing is learnt."""

    def release(self, request: int) -> None:
        """Nothing is kept."""
