"""The controller: bets only where it pays, and never more than the loss account covers.

While it is idle (no bet within the last steps) only a few requests are looked up in each step, and
what would have been proposed is scored against what plain decoding commits; a bet is what starts
the search for all. Nothing else is a mode: every step is decided anew, by what the drafts at hand
are expected to bring and what the step is expected to take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wager.engine.control import decisions as why
from wager.engine.control.acceptance import Acceptance
from wager.engine.control.account import LossAccount
from wager.engine.control.allocate import Allocation, Batch, Offer, Proposal, allocate, forced
from wager.engine.control.base import Candidate, StepResult, StepView, ask
from wager.engine.control.passes import Passes, with_model, without_model
from wager.engine.control.times import StepTimes
from wager.engine.drafting import Drafters
from wager.speculation import SpeculationConfig
from wager.types import NO_DRAFT, Draft

CAUTION: Final = 1.0
"""Standard errors that the chances of a draft are put lower, since they are estimates."""
HOT: Final = 10
"""Steps after a bet in which all requests are looked up, fewer where looking is dear."""
HOT_COST: Final = 0.25
"""Plain steps that looking may take in those of them that bring no bet."""
LOOKED_AT: Final = 8
"""Requests that are looked up in an idle step at most."""
SEARCH: Final = 0.5
"""Share of the loss budget that idle steps may spend, on average; with less they look seldom."""
SELDOM: Final = 16
"""Idle steps, of which at least one looks for drafts."""
SAVED: Final = 0.1
"""Plain steps that can be saved up for looking, or owed for it."""
STREAK: Final = 2
"""Tokens of a shadow that came true, and it is time to ask for a draft again."""
VERIFY_RUN: Final = 800
"""Verify steps in a row, until plain ones tell again what plain decoding takes."""
PLAIN_RUN: Final = 4
ODD: Final = 1.5
"""A verify step that took so many times what was expected is put down to the machine, once."""
ODD_RARE: Final = 50


@dataclass(slots=True)
class _Bet:
    """The step that is under way."""

    batch: Batch
    allocation: Allocation = field(default_factory=Allocation)
    model_ms: float = 0.0
    """What passes of drafters took."""


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
        self._since_odd = ODD_RARE
        self._search = SAVED
        self._unsearched = 0
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
        if self._plain_left or not self.times.calibrated(step.requests, step.prompt_rows > 0):
            self._plain_left = max(self._plain_left - 1, 0)
            self._note(why.PLAIN, step)
            return False
        if self._rests():
            self._note(why.RESTING, step)
            return False
        return True

    def draft(self, step: StepView, drafters: Drafters) -> list[Draft]:
        """See `Controller`."""
        if self._bet is None:
            raise AssertionError("a draft is asked for in a step without bets")
        batch = self._bet.batch
        proposals = self._look_up(step, drafters)
        offers = self._best(step, proposals)
        spent = weighed = 0.0
        for member in with_model(drafters):
            values = [sum(o.survival) for o in offers]
            gain = self._allocate(step, batch, offers, 0.0).gain
            alone = len(drafters.members) == 1
            made, ms, expected = self.passes.propose(
                step, batch, member, values, self._most, gain, alone
            )
            spent += ms
            # Where tokens are drawn at random, how long that took tells of what was drawn.
            weighed += expected if self._draws else ms
            if made:
                proposals += made
                offers = self._best(step, proposals)
        chosen = self._allocate(step, batch, offers, weighed)
        probe = next((p for p in proposals if p.probe and p.draft.distributions), None)
        if probe is not None and not chosen.rows:
            # What was drawn is scored by its verification alone.
            offers[probe.place] = replace(offers[probe.place], proposal=probe)
            chosen = forced(offers, probe, batch, self.times, weighed)
        admitted = [NO_DRAFT] * len(offers)
        for place, (offer, length) in enumerate(zip(offers, chosen.lengths, strict=False)):
            if offer.proposal is not None and length:
                admitted[place] = offer.proposal.draft.cut(length)
                offer.proposal.verified = len(admitted[place].tokens)
        self._await(step, proposals)
        self._bet = _Bet(batch, chosen, spent)
        reason = why.BET
        if chosen.rows:
            self._since_bet = 0
            share = chosen.rows / batch.requests
            self._rows_per_request += 0.2 * (share - self._rows_per_request)
        elif chosen.wanted:
            # Looking for all must not go on where nothing can be bet.
            reason = why.ACCOUNT
            self._since_bet = HOT
        else:
            reason = why.NO_GAIN if proposals else why.NO_PROPOSAL
        self._note(reason, step, len(proposals), admitted)
        return admitted

    def _allocate(
        self, step: StepView, batch: Batch, offers: Sequence[Offer], spent_ms: float
    ) -> Allocation:
        room = self.account.room(c.number for c in step.candidates)
        return allocate(offers, batch, self.times, step.rows, room, spent_ms)

    def settle(self, step: StepView, result: StepResult) -> None:
        """See `Controller`. A plain step's own time is no bet's fault: only what betting took of
        it is charged. Beside prompts a bet is charged by what its rows are expected to take, since
        the prompts' time is not known so well."""
        for request, tokens in result.committed.items():
            self.acceptance.commit(request, tokens)
        bet, self._bet = self._bet, None
        if bet is None or not result.committed:
            self._settle_other(step, result)
            return
        plain = bet.batch.plain_ms
        if self._hot:
            took = (result.betting - bet.model_ms) / plain
            self._looking += 0.2 * (took - self._looking)
        counts = {r: len(t) for r, t in result.committed.items()}
        expected, took = bet.allocation.verify_ms, result.total - result.betting
        if not bet.allocation.rows:
            self._verify_run = 0
            if not step.prompt_rows:
                self.times.record_plain(step.requests, step.kv_tokens, took)
            self.account.settle(counts, self._idle(result.betting / plain), 1.0)
            return
        if step.prompt_rows:
            took = expected
        elif result.drafted == bet.allocation.rows:
            self.times.record_verify(step.requests, expected, result.drafted, took)
            took = self._charged(took, expected)
        self._verify_run += 1
        if self._verify_run >= VERIFY_RUN:
            self._verify_run, self._plain_left = 0, PLAIN_RUN
        time = (took + result.betting) / plain
        self.account.settle(counts, time - 1.0, time)

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

    def _rests(self) -> bool:
        """Whether this step does without looking, having spent what it may on that."""
        if self._hot or self._search >= 0.0 or self._unsearched >= SELDOM - 1:
            self._unsearched = 0
            return False
        self._unsearched += 1
        return True

    def _idle(self, spent: float) -> float:
        """What a plain step is charged for ``spent`` plain steps of looking and upkeep.

        While idle no more than the budget of that step: what upkeep takes is not lost by betting,
        and must not keep bets from being made for ever.
        """
        budget = self.account.budget
        if self._hot:
            return spent
        # As a debt too: a pause of the machine is not what looking takes.
        self._search = min(max(self._search + SEARCH * budget - spent, -SAVED), SAVED)
        return min(spent, 0.9 * budget)

    def _settle_other(self, step: StepView, result: StepResult) -> None:
        """A step in which nobody could have drafted, such as one of prompts alone: the drafters
        take them in."""
        if self.times.known and result.total > 0.0:
            plain = self.times.plain(max(step.requests, 1), step.kv_tokens)
            self.account.settle({}, result.betting / plain, result.total / plain)

    def _look_up(self, step: StepView, drafters: Drafters) -> list[Proposal]:
        """What the drafters have to say that cost no pass of a model."""
        room = self.account.room(c.number for c in step.candidates)
        hot = self._hot and self._looking <= room
        found = []
        for member in without_model(drafters):
            limits = [
                self._limit(c) if self._due(c, member.method, hot, place) else 0
                for place, c in enumerate(step.candidates)
            ]
            drafts = ask(member, step.candidates, limits) if any(limits) else ()
            found += [
                Proposal(p, member.method, d, limits[p]) for p, d in enumerate(drafts) if d.tokens
            ]
        return found

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

    def _best(self, step: StepView, proposals: Sequence[Proposal]) -> list[Offer]:
        """By candidate the proposal that is expected to bring most."""
        best = [Offer((), c.context) for c in step.candidates]
        values = [0.0] * len(best)
        for proposal in proposals:
            place, draft = proposal.place, proposal.draft
            survival = self.acceptance.survival(
                step.candidates[place].number,
                draft.source,
                draft.match_length,
                proposal.length,
                CAUTION,
            )
            value = sum(survival)
            if value > values[place]:
                best[place] = Offer(survival, step.candidates[place].context, proposal)
                values[place] = value
        return best

    def _await(self, step: StepView, proposals: Sequence[Proposal]) -> None:
        """Every proposal is scored once its tokens are known, verified or not."""
        for one in proposals:
            request = step.candidates[one.place].number
            if one.verified or self.acceptance.awaits(request, one.method) is None:
                self.acceptance.propose(request, one.method, one.draft, one.verified)

    def _charged(self, took: float, expected: float) -> float:
        """What a verify step is charged: a single one that took oddly long is the machine's."""
        self._since_odd += 1
        if took <= ODD * expected or self._since_odd < ODD_RARE:
            return took
        self._since_odd = 0
        return expected

    def _note(
        self, reason: str, step: StepView, proposals: int = 0, admitted: Sequence[Draft] = ()
    ) -> None:
        bet = self._bet
        self.decisions.count(reason, (len(d.tokens) for d in admitted))
        if bet is None or not self.decisions.tells(reason):
            return
        taken = [d for d in admitted if d.tokens]
        self.decisions.keep(
            why.Decision(
                step=self._steps,
                reason=reason,
                requests=step.requests,
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
