"""Drafters that cost passes of a model: whether to ask them, for whom, and for how many tokens.

Their tokens cannot be had for nothing, so what they would bring has to be known before: it is
estimated from earlier drafts of the same request and of all. Where too little is known, or long
ago, a full loss account pays for a probe, at growing distances while probes bring nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wager.engine.control.acceptance import Acceptance
from wager.engine.control.account import LossAccount
from wager.engine.control.allocate import MARGIN, Batch, Proposal, verify_ms
from wager.engine.control.base import Candidate, StepView, ask
from wager.engine.control.times import StepTimes
from wager.engine.drafting import Drafters, GuardedDrafter

LADDER: Final = (1, 2, 3, 4, 6, 8, 12, 16)
AMORTISED: Final = 32
"""Steps over which what it takes to catch up with a text is spread when a bet is weighed. The
account has to cover all of it at once."""
FIRST_GUESS: Final = 0.6
"""Time of a pass of the drafter, in passes of the target, until one was measured."""
PROBE_TOKENS: Final = 4
PROBE_EVERY: Final = 400
PROBE_SELDOM: Final = 6400
KNOWN: Final = 20.0
"""Drafts after which there is something to go by."""


@dataclass(frozen=True, slots=True)
class _Plan:
    places: tuple[int, ...] = ()
    tokens: int = 0
    gain: float = 0.0
    probe: bool = False


class Passes:
    """What is known of drafters with a model, and the decision to ask them."""

    def __init__(
        self,
        times: StepTimes,
        acceptance: Acceptance,
        account: LossAccount,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._times = times
        self._acceptance = acceptance
        self._account = account
        self._ratios: dict[str, float] = {}
        self._next_probe: dict[str, int] = {}
        self._distance: dict[str, int] = {}

    def propose(
        self,
        step: StepView,
        batch: Batch,
        member: GuardedDrafter,
        values: Sequence[float],
        most: int,
        gain: float,
        alone: bool,
        at: int,
    ) -> tuple[list[Proposal], float, float]:
        """(drafts, milliseconds they took, milliseconds they were expected to take).

        ``values`` are the tokens that the drafts at hand are expected to bring, by candidate;
        ``gain`` what they bring together. ``alone``: no other method needs the account. ``at`` is
        the number of the step.
        """
        places = [
            p
            for p, c in enumerate(step.candidates)
            if c.method in ("", member.method) and member.serves(c.number)
        ]
        if not places:
            return [], 0.0, 0.0
        plan = self._best(step, batch, member, places, values, most)
        if not plan.places or plan.gain <= max(gain, MARGIN):
            saved = 0.0 if alone else 0.95 * self._account.cap
            plan = self._probe(step, batch, member, places, most, saved, at)
        if not plan.places:
            return [], 0.0, 0.0
        return self._ask(step, member, plan)

    def _best(
        self,
        step: StepView,
        batch: Batch,
        member: GuardedDrafter,
        places: Sequence[int],
        values: Sequence[float],
        most: int,
    ) -> _Plan:
        survival = {p: self._survival(step.candidates[p], member, most) for p in places}
        best = _Plan()
        room = self._account.room(c.number for c in step.candidates)
        for k in LADDER:
            if k > most:
                break
            sums = {p: sum(survival[p][:k]) for p in places}
            asked = tuple(p for p in places if sums[p] > values[p])
            if not asked or len(asked) * k > step.rows:
                break
            tokens = sum(max(sums.get(p, 0.0), v) for p, v in enumerate(values))
            behind = self._behind(step, member, asked)
            now = self._draft_ms(member, asked, behind, k)
            spread = self._draft_ms(member, asked, behind / AMORTISED, k)
            verify = self._verify_ms(step, batch, asked, k)
            gain = 1.0 + tokens / batch.requests - (verify + spread) / batch.plain_ms
            if gain <= max(best.gain, MARGIN):
                continue
            risk = (verify + now) / batch.plain_ms - 1.0
            if risk > room:
                # To be saved up for: a drafter with a model earns and costs in larger pieces.
                self._account.reserve = max(self._account.reserve, 1.25 * risk)
                continue
            best = _Plan(asked, k, gain)
        return best

    def _probe(
        self,
        step: StepView,
        batch: Batch,
        member: GuardedDrafter,
        places: Sequence[int],
        most: int,
        saved: float,
        at: int,
    ) -> _Plan:
        name = member.method
        if at < self._next_probe.get(name, 0) or self._account.balance < saved:
            return _Plan()
        # The one that is least behind costs least.
        place = min(places, key=lambda p: self._behind(step, member, (p,)))
        k = self._affordable(step, batch, member, place, min(most, PROBE_TOKENS, step.rows))
        if k < 1:
            return _Plan()
        if self._acceptance.observations(member.method) < KNOWN:
            distance = 1
        else:
            distance = min(2 * self._distance.get(name, PROBE_EVERY // 2), PROBE_SELDOM)
            self._distance[name] = distance
        self._next_probe[name] = at + distance
        return _Plan((place,), k, probe=True)

    def _affordable(
        self, step: StepView, batch: Batch, member: GuardedDrafter, place: int, most: int
    ) -> int:
        """The longest probe, of at most ``most`` tokens, that the account covers."""
        room = self._account.room(c.number for c in step.candidates)
        behind = self._behind(step, member, (place,))
        risk = 0.0
        for k in range(most, 0, -1):
            ms = self._draft_ms(member, (place,), behind, k)
            risk = (ms + self._verify_ms(step, batch, (place,), k)) / batch.plain_ms - 1.0
            if risk <= room:
                return k
        self._account.reserve = max(self._account.reserve, 1.25 * risk)
        return 0

    def _ask(
        self, step: StepView, member: GuardedDrafter, plan: _Plan
    ) -> tuple[list[Proposal], float, float]:
        behind = self._behind(step, member, plan.places)
        expected = self._draft_ms(member, plan.places, behind, plan.tokens)
        limits = [0] * len(step.candidates)
        for place in plan.places:
            limits[place] = min(plan.tokens, step.candidates[place].limit)
        started = self._clock()
        drafts = ask(member, step.candidates, limits)
        ms = 1e3 * (self._clock() - started)
        longest = max((len(d.tokens) for d in drafts), default=0)
        shape = self._shape(len(plan.places), behind, max(longest, 1))
        known = self._ratios.get(member.method)
        share = 1.0 if known is None else 0.1
        self._ratios[member.method] = (known or 0.0) * (1.0 - share) + share * ms / shape
        found = [
            Proposal(p, member.method, d, limits[p], probe=plan.probe)
            for p, d in enumerate(drafts)
            if d.tokens
        ]
        return found, ms, expected

    def _survival(self, candidate: Candidate, member: GuardedDrafter, most: int) -> list[float]:
        return self._acceptance.survival(
            candidate.number, member.method, 0, min(most, candidate.limit), 1.0
        )

    def _behind(self, step: StepView, member: GuardedDrafter, places: Sequence[int]) -> float:
        """Rows that the drafter has to compute before its first token, beyond one each."""
        asked = [step.candidates[p] for p in places]
        return float(sum(member.behind(c.number, c.context + 1) - 1 for c in asked))

    def _shape(self, requests: int, behind: float, k: int) -> float:
        """Passes of k draft tokens, as the target would take them."""
        weights = self._times.weights
        return weights(requests + behind) + (k - 1) * weights(requests)

    def _draft_ms(
        self, member: GuardedDrafter, places: Sequence[int], behind: float, k: int
    ) -> float:
        ratio = self._ratios.get(member.method, FIRST_GUESS)
        return ratio * self._shape(len(places), behind, k)

    def _verify_ms(self, step: StepView, batch: Batch, places: Sequence[int], k: int) -> float:
        attended = float(sum(k * step.candidates[p].context for p in places))
        return verify_ms(self._times, batch, len(places) * k, attended)


def without_model(drafters: Drafters) -> list[GuardedDrafter]:
    """The members that cost no pass of a model."""
    return [m for m in drafters.members if not m.needs_blocks]


def with_model(drafters: Drafters) -> list[GuardedDrafter]:
    """The members that cost passes of a model."""
    return [m for m in drafters.members if m.needs_blocks]
