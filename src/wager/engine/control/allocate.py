"""Which rows of a step go to which draft.

For a given number of rows the best are those with the highest survival; since that falls along a
draft, they are beginnings of drafts. So one sort gives the best step of every size, and of these
the one with the most expected tokens per millisecond is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

import numpy as np

from wager.engine.control.times import F64, Curve, StepTimes
from wager.types import Draft

MARGIN: Final = 0.02
"""A bet must promise this share of a plain step; less is not worth its risk."""


@dataclass(slots=True)
class Proposal:
    """A draft that was made, for the candidate at a place; a ``probe`` was made to be scored.

    ``asked`` tokens were asked for; ``verified`` of those that came are verified.
    """

    place: int
    method: str
    draft: Draft
    asked: int
    verified: int = 0
    probe: bool = False

    @property
    def length(self) -> int:
        """What is decided by. Where tokens were drawn at random it is not how many came: a draft
        may end with a certain token, and to leave it out for that would change how often the token
        comes."""
        return len(self.draft.tokens) if self.draft.distributions is None else self.asked


@dataclass(frozen=True, slots=True)
class Offer:
    """A draft that may be verified: its survival by position, and the context of its request."""

    survival: Sequence[float]
    context: int
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A step without drafts. ``plain_ms`` is what it takes without the prompts' rows."""

    requests: int
    kv_tokens: int
    prompt_rows: int
    plain_ms: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """``lengths`` by offer. ``gain`` is what is expected, ``risk`` what is lost if nothing is
    accepted, both in plain steps; ``verify_ms`` is the step's expected time. ``wanted`` is the gain
    that there would be with more room, 0 where ``lengths`` is what is best anyway."""

    lengths: tuple[int, ...] = ()
    gain: float = 0.0
    risk: float = 0.0
    tokens: float = 0.0
    verify_ms: float = 0.0
    wanted: float = 0.0

    @property
    def rows(self) -> int:
        return sum(self.lengths)


def verify_ms(times: StepTimes, batch: Batch, drafted: int, attended: float) -> float:
    """Milliseconds of the batch with ``drafted`` rows more, without those of its prompts."""
    return times.verify(batch.requests, batch.kv_tokens, drafted, attended, batch.prompt_rows)


def allocate(
    offers: Sequence[Offer], batch: Batch, times: StepTimes, rows: int, room: float, spent_ms: float
) -> Allocation:
    """The best step of at most ``rows`` draft rows that risks at most ``room`` plain steps.

    ``spent_ms`` is what finding the drafts took; it is lost in any case, but a bet has to pay it.
    """
    drafted = min(sum(len(o.survival) for o in offers), rows)
    if drafted < 1:
        return Allocation()
    curve = times.curve(batch.requests, batch.kv_tokens, batch.prompt_rows)
    lengths, *figures = chooser()(
        [o.survival for o in offers],
        [o.context for o in offers],
        *curve,
        batch.requests,
        drafted,
        batch.plain_ms,
        spent_ms,
        room,
        MARGIN,
    )
    return Allocation(tuple(lengths), *figures)


Choice: TypeAlias = tuple[list[int], float, float, float, float, float]
"""(length by offer, gain, risk, tokens, ms, wanted), as in `Allocation`."""


@cache
def chooser() -> Callable[..., Choice]:
    """`choose` of the C++ extension, or its Python form where that was not built."""
    try:
        from wager._native import allocate as native
    except ImportError:
        return choose
    return native  # type: ignore[no-any-return]


def choose(
    survival: Sequence[Sequence[float]],
    contexts: Sequence[int],
    table_rows: F64,
    table_ms: F64,
    terms: tuple[float, float, float, float],
    correction_rows: F64,
    correction_log: F64,
    requests: int,
    most: int,
    plain_ms: float,
    spent_ms: float,
    room: float,
    margin: float,
) -> Choice:
    """`allocate` over plain numbers; by the last four it is decided what is worth its risk."""
    owners = np.array([i for i, s in enumerate(survival) for _ in s], np.int64)
    chances = np.array([one for s in survival for one in s])
    order = np.argsort(-chances, kind="stable")[:most]
    attended = np.cumsum(np.array(contexts, np.float64)[owners[order]])
    tokens = requests + np.cumsum(chances[order])
    curve = Curve(table_rows, table_ms, terms, correction_rows, correction_log)
    ms = curve.ms(requests + np.arange(1.0, len(order) + 1.0), attended)
    cost = (ms + spent_ms) / plain_ms
    gain, pace = tokens / requests - cost, tokens / cost
    best = int(np.argmax(pace))
    allowed = int(np.searchsorted(cost - 1.0, room, side="right"))
    chosen = int(np.argmax(pace[:allowed])) if allowed else -1
    wanted = float(gain[best]) if chosen != best and gain[best] > margin else 0.0
    if chosen < 0 or gain[chosen] <= margin:
        return [], 0.0, 0.0, 0.0, 0.0, wanted
    lengths = np.bincount(owners[order[: chosen + 1]], minlength=len(survival)).tolist()
    found = (float(a[chosen]) for a in (gain, cost - 1.0, tokens, ms))
    return (lengths, *found, wanted)


def forced(
    offers: Sequence[Offer], proposal: Proposal, batch: Batch, times: StepTimes, spent_ms: float
) -> Allocation:
    """A whole draft, whatever it is expected to bring."""
    place, length = proposal.place, len(proposal.draft.tokens)
    ms = verify_ms(times, batch, length, float(length * offers[place].context))
    risk = (ms + spent_ms) / batch.plain_ms - 1.0
    tokens = batch.requests + sum(offers[place].survival[:length])
    return Allocation(
        lengths=tuple(length if i == place else 0 for i in range(len(offers))),
        gain=tokens / batch.requests - 1.0 - risk,
        risk=risk,
        tokens=tokens,
        verify_ms=ms,
    )
