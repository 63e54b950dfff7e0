"""The controller: bets only where it pays, and never more than the loss account covers.

While it is idle (no bet within the last steps) a few requests are looked up now and then, and what
would have been proposed is scored against what plain decoding commits; a bet is what starts the
search for all. Nothing else is a mode: every step is decided anew, by what the drafts at hand
are expected to bring and what the step is expected to take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wager.engine.control import decisions as why
from wager.engine.control.acceptance import Acceptance
from wager.engine.control.account import LossAccount
from wager.engine.control.allocate import Allocation, Batch, Offer, Proposal, allocate, forced
from wager.engine.control.base import Candidate, StepResult, StepView, ask
from wager.engine.control.bids import Bids
from wager.engine.control.passes import Passes, with_model, without_model
from wager.engine.control.pauses import Pauses
from wager.engine.control.times import StepTimes
from wager.engine.drafting import Drafters
from wager.speculation import SpeculationConfig
from wager.types import NO_DRAFT, Draft

HOT: Final = 10
"""Steps after a bet in which all requests are looked up, fewer where looking is dear."""
HOT_COST: Final = 0.25
"""Plain steps that looking may take in those of them that bring no bet."""
LOOKED_AT: Final = 8
"""Requests that are looked up in an idle step at most."""
SEARCH: Final = 0.5
"""Share of the loss budget that idle steps may spend, on average; with less they look seldom."""
SELDOM: Final = 32
"""Idle steps, of which at least one looks for drafts."""
SAVED: Final = 0.1
"""Plain steps that can be saved up for looking, or owed for it."""
STREAK: Final = 2
"""Tokens of a shadow that came true, and it is time to ask for a draft again."""
VERIFY_RUN: Final = 800
"""Verify steps in a row, until plain ones tell again what plain decoding takes."""
PLAIN_RUN: Final = 4


@dataclass(slots=True)
class _Bet:
    """The step that is under way."""

    batch: Batch
    allocation: Allocation = field(default_factory=Allocation)
    model_ms: float = 0.0
    """What passes of drafters took."""
    looked: bool = False


class NoLoss:
    """`Controller` with a stated bound, see `account.py`. ``clock`` gives seconds."""

    def __init__(
        self,
        config: SpeculationConfig,
        times: StepTimes,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most = config.num_speculative_tokens
        self._draws = config.verify != "match"
        self.times = times
        self.account = LossAccount(config.loss_budget, config.objective == "latency")
        self.acceptance = Acceptance()
        self.decisions = why.Decisions()
        self.passes = Passes(self.times, self.acceptance, self.account, clock)
        self._bet: _Bet | None = None
        self._steps = 0
        self._since_bet = HOT
        self._rows_per_request = 0.0
        self._verify_run = self._plain_left = 0
        self._pauses = Pauses()
        self._search = SAVED
        self.resting = 0
        self._looking = 0.0  # plain steps that a look for all of them takes

    def rows(self, requests: int) -> int:
        """Somewhat more than the last bets took; none while idle."""
        if self._since_bet >= self._tail:
            return 0
        return int(1.5 * self._rows_per_request * requests) + 1

    def looks(self, step: StepView) -> bool:
        """See `Controller`."""
        self._steps += 1
        self._since_bet += 1
        self._bet = None
        if not self.times.known:
            self._note(why.NO_TIMES, step)
            return False
        plain_ms = self.times.plain(step.requests, step.kv_tokens)
        self.account.plain_step(plain_ms)
        batch = Batch(step.requests, step.kv_tokens, step.prompt_rows, plain_ms)
        self._bet = _Bet(batch)
        if self.times.doubtful and not self._plain_left:
            self._plain_left = PLAIN_RUN
        # Beside prompts nothing can be measured.
        ordered = self._plain_left > 0 and not step.prompt_rows
        if ordered or not self.times.calibrated(step.requests, step.prompt_rows > 0):
            self._plain_left -= ordered
            self._note(why.PLAIN, step)
            return False
        if self.resting:
            self.resting -= 1
            self._note(why.RESTING, step)
            return False
        return True

    def draft(self, step: StepView, drafters: Drafters) -> list[Draft]:
        """See `Controller`."""
        if self._bet is None:
            raise AssertionError("a draft is asked for in a step without bets")
        batch = self._bet.batch
        bids = self._look_up(step, drafters)
        spent = weighed = sunk = 0.0
        for member in with_model(drafters):
            gain = self._allocate(step, batch, bids.offers).gain
            alone = len(drafters.members) == 1
            made, ms, expected = self.passes.propose(
                step, batch, member, bids.values, self._most, gain, alone, self._steps
            )
            spent += ms
            # Where tokens are drawn at random, how long that took tells of what was drawn.
            cost = expected if self._draws else ms
            if made and made[0].probe:
                sunk += cost  # it was not made to pay
            else:
                weighed += cost
            bids.add(made)
        proposals, offers = bids.proposals, bids.offers
        chosen = self._allocate(step, batch, offers, weighed, sunk)
        probe = next((p for p in proposals if p.probe and p.draft.distributions), None)
        if probe is not None and not chosen.rows:
            # What was drawn is scored by its verification alone.
            offers[probe.place] = replace(offers[probe.place], proposal=probe)
            chosen = forced(offers, probe, batch, self.times, weighed + sunk)
        admitted = [NO_DRAFT] * len(offers)
        for place, (offer, length) in enumerate(zip(offers, chosen.lengths, strict=False)):
            if offer.proposal is not None and length:
                admitted[place] = offer.proposal.draft.cut(length)
                offer.proposal.verified = len(admitted[place].tokens)
        self._await(step, proposals)
        self._bet = _Bet(batch, chosen, spent, looked=True)
        reason = why.BET
        if chosen.rows:
            # What brings less than looking for it took is taken, but not looked for again.
            if chosen.gain >= self._looking:
                self._since_bet = 0
            share = chosen.rows / batch.requests
            self._rows_per_request += 0.2 * (share - self._rows_per_request)
        elif chosen.wanted:
            # Looking for all must not go on where nothing can be bet.
            reason = why.ACCOUNT
            self._since_bet = HOT + 1
        else:
            reason = why.NO_GAIN if proposals else why.NO_PROPOSAL
        self._note(reason, step, len(proposals), admitted)
        return admitted

    def _allocate(
        self,
        step: StepView,
        batch: Batch,
        offers: Sequence[Offer],
        spent_ms: float = 0.0,
        sunk_ms: float = 0.0,
    ) -> Allocation:
        room = self.account.room(c.number for c in step.candidates) - sunk_ms / batch.plain_ms
        return allocate(offers, batch, self.times, step.rows, room, spent_ms)

    def settle(self, step: StepView, result: StepResult) -> None:
        """See `Controller`. A plain step's own time is no bet's fault: only what betting took of
        it is charged. Beside prompts a bet is charged by what its rows are expected to take, since
        the prompts' time is not known so well."""
        bet, self._bet = self._bet, None
        if bet is not None and bet.allocation.rows != sum(result.drafted.values()):
            # There were no blocks for all of it.
            for request in result.committed:
                self.acceptance.cut(request, result.drafted.get(request, 0))
        for request, tokens in (*result.committed.items(), *result.started.items()):
            self.acceptance.commit(request, tokens)
        if not result.committed or not self.times.known:
            self._settle_other(step, result)
        elif bet is None:
            self._settle_rest(step, result)
        elif bet.allocation.rows:
            self._settle_bet(step, result, bet)
        else:
            self._settle_plain(step, result, bet)

    def release(self, request: int) -> None:
        """See `Controller`."""
        self.acceptance.release(request)
        self.account.release(request)

    # Parts

    @property
    def _tail(self) -> int:
        return HOT if HOT * self._looking <= HOT_COST else max(int(HOT_COST / self._looking), 1)

    @property
    def _hot(self) -> bool:
        return self._since_bet <= self._tail

    def _rest(self) -> None:
        """For how many steps from now on nobody is looked up, having spent what may be on that."""
        if self._search < 0.0:
            grows = max(SEARCH * self.account.budget, 1e-9)
            self.resting = min(math.ceil(-self._search / grows), SELDOM - 1)

    def _idle(self, spent: float, steps: int) -> float:
        """What plain steps are charged for ``spent`` plain steps of looking and upkeep.

        While idle no more than the budget of that step: what upkeep takes is not lost by betting,
        and must not keep bets from being made for ever.
        """
        budget = steps * self.account.budget
        # As a debt too: a pause of the machine is not what looking takes.
        self._search = min(max(self._search + SEARCH * budget - spent, -SAVED), SAVED)
        return min(spent, 0.9 * budget)

    def _settle_other(self, step: StepView, result: StepResult) -> None:
        """A step in which nobody could have drafted, such as one of prompts alone."""
        if self.times.known:
            plain = self.times.plain(max(step.requests, 1), step.kv_tokens)
            time = (result.took + result.betting) / plain
            self.account.settle({}, result.betting / plain, time)

    def _settle_bet(self, step: StepView, result: StepResult, bet: _Bet) -> None:
        plain, expected, took = bet.batch.plain_ms, bet.allocation.verify_ms, result.took
        usual = self._note_looking(result, bet) * plain
        drafted = sum(result.drafted.values())
        if step.prompt_rows:
            took = expected
        elif drafted == bet.allocation.rows:
            self.times.record_verify(step.requests, expected, drafted, took)
        looking = result.betting - bet.model_ms
        time = self._pauses.charged((took + looking) / plain, (expected + usual) / plain)
        time += bet.model_ms / plain
        self._verify_run += 1
        if self._verify_run >= VERIFY_RUN:
            self._verify_run, self._plain_left = 0, PLAIN_RUN
        self.account.settle(_counts(result), time - 1.0, time)

    def _settle_plain(self, step: StepView, result: StepResult, bet: _Bet) -> None:
        plain = bet.batch.plain_ms
        usual = self._note_looking(result, bet)
        self._verify_run = 0
        if not step.prompt_rows:
            self._record_plain(step, result.steps, plain)
        model = bet.model_ms / plain
        charge = result.betting / plain - model
        if self._hot:
            charge = self._pauses.charged(1.0 + charge, 1.0 + usual) - 1.0
        else:
            charge = self._idle(charge, 1)
        self.account.settle(_counts(result), model + charge, 1.0)
        if bet.looked and not self._hot:
            self._rest()

    def _settle_rest(self, step: StepView, result: StepResult) -> None:
        """Steps that went by without a question."""
        steps = len(result.steps)
        plain = self.times.plain(step.requests, step.kv_tokens)
        self._steps += 1
        self._keep(why.RESTING, _Bet(Batch(step.requests, step.kv_tokens, 0, plain)))
        self._steps += steps - 1
        self._record_plain(step, result.steps, plain)
        self.resting -= steps
        self._since_bet += steps
        self.decisions.count(why.RESTING, steps=steps)
        charge = self._idle(result.betting / plain, steps)
        self.account.settle(_counts(result), charge, float(steps), steps)

    def _record_plain(self, step: StepView, took: Sequence[float], plain: float) -> None:
        if self.times.calibrated(step.requests, False):
            for ms in took:
                self._pauses.plain(ms / plain)
        self.times.record_plain(step.requests, step.kv_tokens, *took)

    def _note_looking(self, result: StepResult, bet: _Bet) -> float:
        """What looking takes while hot, in plain steps, before this step is taken in."""
        usual = self._looking
        if self._hot:
            took = (result.betting - bet.model_ms) / bet.batch.plain_ms
            # A pause of the machine is not what looking takes.
            self._looking += 0.2 * (min(took, 2.0 * usual + 0.05) - usual)
        return usual

    def _look_up(self, step: StepView, drafters: Drafters) -> Bids:
        """What the drafters have to say that cost no pass of a model."""
        room = self.account.room(c.number for c in step.candidates)
        hot = self._hot and self._looking <= room
        bids = Bids(step.candidates, self.acceptance)
        for member in without_model(drafters):
            limits = [0] * len(step.candidates)
            for place, candidate in enumerate(step.candidates):
                most = self._limit(candidate)
                if self._due(candidate, member.method, hot, place) and not bids.enough(place, most):
                    limits[place] = most
            drafts = ask(member, step.candidates, limits) if any(limits) else ()
            bids.add(
                [Proposal(p, member.method, d, limits[p]) for p, d in enumerate(drafts) if d.tokens]
            )
        return bids

    def _limit(self, candidate: Candidate) -> int:
        return min(candidate.limit, self._most)

    def _due(self, candidate: Candidate, method: str, hot: bool, place: int) -> bool:
        if candidate.method not in ("", method):
            return False
        if hot:
            return True
        if place >= LOOKED_AT:
            return False
        streak = self.acceptance.awaits(candidate.number, method)
        return streak is None or streak >= STREAK

    def _await(self, step: StepView, proposals: Sequence[Proposal]) -> None:
        """Every proposal is scored once its tokens are known, verified or not."""
        for one in proposals:
            request = step.candidates[one.place].number
            if one.verified or self.acceptance.awaits(request, one.method) is None:
                self.acceptance.propose(request, one.method, one.draft, one.verified)

    def _note(
        self, reason: str, step: StepView, proposals: int = 0, admitted: Sequence[Draft] = ()
    ) -> None:
        self.decisions.count(reason, (len(d.tokens) for d in admitted))
        if self._bet is not None:
            self._keep(reason, self._bet, proposals, [d for d in admitted if d.tokens])

    def _keep(
        self, reason: str, bet: _Bet, proposals: int = 0, taken: Sequence[Draft] = ()
    ) -> None:
        if not self.decisions.tells(reason):
            return
        self.decisions.keep(
            why.Decision(
                step=self._steps,
                reason=reason,
                requests=bet.batch.requests,
                proposals=proposals,
                lengths=tuple(len(d.tokens) for d in taken),
                sources=tuple(d.source for d in taken),
                expected=bet.allocation.tokens,
                gain=bet.allocation.gain,
                risk=bet.allocation.risk,
                balance=self.account.balance,
                plain_ms=bet.batch.plain_ms,
                verify_ms=bet.allocation.verify_ms,
            )
        )


def _counts(result: StepResult) -> dict[int, int]:
    return {request: len(tokens) for request, tokens in result.committed.items()}
