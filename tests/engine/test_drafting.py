"""Several methods behind one guard: who is asked when, and what a member that fails costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.engine.drafting import Drafters, GuardedDrafter, cut_after_end
from wager.types import NO_DRAFT, Draft

V = 50
BLOCK_BYTES = 2 * 16 * 2 * 2 * 16 * 4
"""Of the tiny model, and of any drafter of its shape."""


class Told:
    """Answers from a table by request; notes everything that it is told."""

    needs = DrafterNeeds()

    def __init__(self, answers: dict[int, Any], fails: Sequence[str] = ()) -> None:
        self.answers, self.fails = answers, fails
        self.calls: list[tuple[str, Any]] = []

    def _note(self, call: str, what: Any) -> None:
        self.calls.append((call, what))
        if call in self.fails:
            raise RuntimeError(f"{call} fails")

    def attach(self, host: DraftHost) -> None: ...

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        self._note("start", request)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        self._note("propose", [q.request for q in queries])
        return [self.answers.get(q.request, NO_DRAFT) for q in queries]

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        self._note("observe", request)

    def release(self, request: int) -> None:
        self._note("release", request)

    def clear(self) -> None:
        self._note("clear", None)

    def close(self) -> None:
        self._note("close", None)


def together(*members: Told, clock: Callable[[], float] = lambda: 0.0) -> Drafters:
    """Takes no time unless it is told to: a machine that stands still is no drafter's fault."""
    return Drafters([GuardedDrafter(member, V, clock=clock) for member in members])


def queries(*requests: int, limit: int = 4) -> list[DraftQuery]:
    return [DraftQuery(request, 10, limit) for request in requests]


def draft(*tokens: int, source: str = "a") -> Draft:
    return Draft(tokens, source)


def test_the_first_draft_that_has_tokens_is_taken() -> None:
    first = Told({1: draft(1), 3: draft(3)})
    second = Told({1: draft(9, source="b"), 2: draft(2, source="b")})
    third = Told({2: draft(8, source="c")})
    found = together(first, second, third).propose(queries(1, 2, 3, 4))
    assert found == [draft(1), draft(2, source="b"), draft(3), NO_DRAFT]
    assert [d.source for d in found] == ["a", "b", "a", ""]
    # Later ones are asked for those only that have none yet, in the same order.
    assert second.calls == [("propose", [2, 4])]
    assert third.calls == [("propose", [4])]


def test_nobody_is_asked_for_nothing() -> None:
    first, second = Told({1: draft(1), 2: draft(2)}), Told({})
    assert together(first, second).propose(queries(1, 2)) == [draft(1), draft(2)]
    assert second.calls == []


def test_a_draft_is_no_longer_than_asked_for() -> None:
    q = np.full(V, 1 / V)
    long = Draft((1, 2, 3, 4, 5), "a", 2, (q,) * 5)
    (found,) = together(Told({1: long})).propose(queries(1, limit=3))
    assert (found.tokens, found.match_length) == ((1, 2, 3), 2)
    assert found.distributions is not None
    assert len(found.distributions) == 3


@pytest.mark.parametrize(("model", "off"), [(False, True), (True, False)])
def test_one_that_takes_too_long_is_off_for_those_who_asked(model: bool, off: bool) -> None:
    """But not one with a model: what that takes is in proportion to the text."""
    now = 0.0
    slow = Told({1: draft(1), 2: draft(2)})
    subject = GuardedDrafter(slow, V, clock=lambda: now)
    subject.needs_blocks = model
    note = slow._note

    def takes(call: str, what: Any) -> None:
        nonlocal now
        now += {"start": 0.1, "propose": 1.5}.get(call, 0.0)
        note(call, what)

    slow._note = takes  # type: ignore[method-assign]
    subject.start(1, [5], "")
    assert subject.failures == 0
    # What it found is right all the same.
    assert subject.propose(queries(1)) == [draft(1)]
    assert subject.failures == int(off)
    assert subject.propose(queries(1, 2))[0] == (NO_DRAFT if off else draft(1))
    assert slow.calls[-1] == ("propose", [2] if off else [1, 2])
    assert subject.seconds == pytest.approx(3.1)


def test_a_member_that_fails_is_off_for_those_who_asked(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Told({}, fails=["propose"]), Told({1: draft(5), 2: draft(6)})
    subject = together(first, second)
    with caplog.at_level(logging.WARNING):
        assert subject.propose(queries(1, 2)) == [draft(5), draft(6)]
    assert "propose fails" in caplog.text
    assert subject.failures == 2
    first.fails = ()
    first.answers = {1: draft(1), 3: draft(3)}
    assert subject.propose(queries(1, 2, 3)) == [draft(5), draft(6), draft(3)]
    assert first.calls[-1] == ("propose", [3])
    # Told of its end, the same number is a new request.
    subject.release(1)
    assert subject.propose(queries(1)) == [draft(1)]
    assert subject.failures == 2


@pytest.mark.parametrize("call", ["start", "observe"])
def test_what_cannot_be_told_switches_one_request_off(call: str) -> None:
    first, second = Told({1: draft(1), 2: draft(2)}, fails=[call]), Told({1: draft(7)})
    subject = together(first, second)
    tell: dict[str, Callable[[int], None]] = {
        "start": lambda request: subject.start(request, [1, 2], ""),
        "observe": lambda request: subject.observe(request, [3]),
    }
    tell[call](1)
    first.fails = ()
    tell[call](2)
    subject.observe(1, [4])
    assert subject.propose(queries(1, 2)) == [draft(7), draft(2)]
    assert subject.failures == 1
    # It is told no more of that request, until it ends.
    assert [c for c in first.calls if c[1] == 1] == [(call, 1)]
    assert ("observe", 1) in second.calls
    subject.release(1)
    assert first.calls[-1] == ("release", 1)


def test_a_release_that_fails_hurts_nobody() -> None:
    first, second = Told({}, fails=["release"]), Told({})
    together(first, second).release(4)
    assert second.calls == [("release", 4)]


HALF = np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (draft(1, -1), "outside the vocabulary of 50"),
        (draft(1, V), "outside the vocabulary of 50"),
        (Draft((1, 0), "a", 0, (HALF,)), "1 distributions for 2 draft tokens"),
        (Draft((2,), "a", 0, (HALF,)), "not drawn from its distribution"),
        (Draft((1,), "a", 0, (np.array([1.0, 0.0]),)), "not drawn from its distribution"),
        (Draft((1,), "a", 0, (np.full(V + 1, 1 / (V + 1)),)), "not drawn from its distribution"),
        (Draft((1,), "a", 0, (np.array([0.5, np.nan]),)), "not drawn from its distribution"),
        (Draft((0,), "a", 0, (np.array([0.5, np.nan]),)), "does not sum to 1"),
        (Draft((0,), "a", 0, (np.array([0.5, 0.4]),)), "does not sum to 1"),
        (Draft((0,), "a", 0, (np.array([1.5, -0.5]),)), "does not sum to 1"),
    ],
    ids=str,
)
def test_what_cannot_be_verified_is_not_taken(
    bad: Draft, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    subject = together(Told({1: bad, 2: draft(2)}), Told({1: draft(6)}))
    with caplog.at_level(logging.WARNING):
        assert subject.propose(queries(1, 2)) == [draft(6), draft(2)]
    assert why in caplog.text
    assert subject.failures == 1


def test_as_many_drafts_as_questions() -> None:
    class Short(Told):
        def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
            return [draft(1)]

    subject = together(Short({}), Told({1: draft(3)}))
    assert subject.propose(queries(1, 2)) == [draft(3), NO_DRAFT]
    assert subject.failures == 2


def test_all_time_in_the_drafters_counts() -> None:
    """That of requests that end too."""
    ticks = iter(range(1000))
    subject = together(Told({}), Told({}), clock=lambda: float(next(ticks)))
    subject.start(1, [1], "")
    subject.observe(1, [1])
    subject.propose(queries(1))
    subject.release(1)
    assert subject.seconds == 8.0


def test_nothing_is_drafted_behind_an_end() -> None:
    q = np.full(V, 1 / V)
    whole = Draft((4, 5, 6), "a", 0, (q, q, q))
    cut = cut_after_end(whole, lambda token: token == 5)
    assert cut.tokens == (4, 5)
    assert cut.distributions is not None
    assert len(cut.distributions) == 2
    assert cut_after_end(whole, lambda token: token == 6) is whole
