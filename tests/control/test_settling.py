"""What the controller makes of steps that went by: who is charged, and what is learnt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.test_parts import table
from tests.control.worlds import TWO_CORES, paused_look, world
from wager.bench.simulate import Simulation
from wager.engine.control import decisions as why
from wager.engine.control.acceptance import Acceptance
from wager.engine.control.account import CREDIT, LossAccount
from wager.engine.control.allocate import Allocation, Batch
from wager.engine.control.base import StepResult, StepView
from wager.engine.control.noloss import PLAIN_RUN, NoLoss, _Bet
from wager.engine.control.times import StepTimes
from wager.speculation import SpeculationConfig
from wager.types import Draft

STEP = StepView(requests=1, kv_tokens=300, prompt_rows=0, rows=100)


def controller(**keys: object) -> NoLoss:
    """One that knows what plain steps take, and idles."""
    config = SpeculationConfig.parse({"method": "ngram", **keys})
    assert config is not None
    subject = NoLoss(config, StepTimes(table(TWO_CORES)))
    for _ in range(30):
        subject.looks(STEP)
        subject.settle(STEP, StepResult((plain_ms(subject),), 0.001, {}, {1: [5]}))
    return subject


def plain_ms(subject: NoLoss) -> float:
    return subject.times.plain(1, 300)


def test_a_pause_while_a_rest_was_settled_tells_nothing_about_its_steps() -> None:
    subject = controller()
    before = plain_ms(subject)
    subject.settle(STEP, StepResult([before] * 31, 250.0, {}, {1: [5] * 31}))
    assert plain_ms(subject) == pytest.approx(before, rel=0.01)


def test_the_last_decisions_tell_of_rests() -> None:
    subject = controller()
    subject.decisions.last.clear()
    subject.settle(STEP, StepResult([6.0] * 8, 0.1, {}, {1: [5] * 8}))
    assert [d.reason for d in subject.decisions.last] == [why.RESTING]
    assert subject.decisions.reasons[why.RESTING] == 8


def test_passes_of_a_model_are_charged_in_full_while_idle_too() -> None:
    subject = controller()
    before, plain = subject.account.balance, plain_ms(subject)
    subject.looks(STEP)
    subject._bet = _Bet(Batch(1, 300, 0, plain), Allocation(), model_ms=2 * plain, looked=True)
    subject.settle(STEP, StepResult((plain,), 2 * plain + 0.01, {}, {1: [5]}))
    assert subject.account.balance == pytest.approx(before - 2.0, abs=0.02)


def test_where_nothing_can_be_bet_looking_is_within_the_budget() -> None:
    """However well drafts look; else the account would never recover."""
    simulation = Simulation(world("always", TWO_CORES, search_ms=0.1, answer=1 << 20))
    simulation.run(30)
    account = simulation.controller.account  # type: ignore[attr-defined]
    account.balance = start = -CREDIT
    reasons = simulation.controller.decisions.reasons
    before = reasons.copy()
    simulation.run(25)  # a row is 0.15 plain steps
    assert (reasons - before)[why.BET] == 0
    assert (reasons - before)[why.ACCOUNT] > 0
    assert account.balance > start
    simulation.run(300)
    assert reasons[why.BET] - before[why.BET] > 100


def test_bets_that_bring_less_than_a_look_takes_keep_nobody_looking() -> None:
    """They are taken where they are found, since the look is paid for by then."""
    simulation = Simulation(world("always", TWO_CORES, 16, search_ms=0.05, answer=1 << 20))
    controller = simulation.controller
    simulation.run(40)
    assert controller._hot  # type: ignore[attr-defined]
    controller._looking = 99.0  # type: ignore[attr-defined]
    simulation.run(3)
    assert controller.decisions.last[-1].reason == why.BET
    assert controller._since_bet > 0  # type: ignore[attr-defined]


def test_a_pause_in_a_look_does_not_stop_what_pays() -> None:
    simulation = Simulation(world("always", TWO_CORES, answer=1 << 20))
    simulation.run(200)
    paused_look(simulation, 100.0)
    reasons = simulation.controller.decisions.reasons
    before = reasons[why.BET]
    simulation.run(100)
    assert reasons[why.BET] - before > 90


def test_plain_steps_are_taken_where_they_can_be_measured() -> None:
    subject = controller()
    subject.resting = 0
    subject._plain_left = PLAIN_RUN
    beside = replace(STEP, prompt_rows=64)
    for _ in range(10):
        assert subject.looks(beside)
        subject.settle(beside, StepResult((20.0,), 0.01, {}, {1: [5]}))
    subject.resting = 0
    assert not subject.looks(STEP)


def test_a_new_request_is_no_other_way_to_lose() -> None:
    account = LossAccount(0.005, by_request=True)
    account.balance = -0.7
    assert account.room([99]) == pytest.approx(CREDIT - 0.7)


def test_what_a_large_bet_was_to_be_saved_up_for_is_forgotten() -> None:
    account = LossAccount(0.005)
    account.plain_step(20.0)
    small, account.reserve = account.cap, 300.0
    account.plain_step(20.0)
    assert account.cap > 290.0
    for _ in range(1000):
        account.plain_step(20.0)
    assert account.cap == small


def test_a_draft_that_was_cut_for_room_counts_as_it_was_verified() -> None:
    for drawn, left in ((False, 4), (True, 2)):
        subject = Acceptance()
        distributions = tuple({} for _ in range(4)) if drawn else None
        draft = Draft((1, 2, 3, 4), "ngram", 3, distributions)  # type: ignore[arg-type]
        subject.propose(7, "ngram", draft, 4)
        subject.cut(7, 2)
        (open_one,) = subject._requests[7].awaited
        assert (open_one.verified, len(open_one.tokens)) == (2, left)


def test_tokens_of_a_prompt_that_is_computed_again_are_not_missed() -> None:
    """A preempted request samples without having been a candidate; its open draft goes on."""
    subject = controller()
    subject.acceptance.propose(1, "ngram", Draft((10, 11, 12), "ngram", 3), 0)
    none = StepView(0, 0, 300, 100)
    subject.settle(none, StepResult((20.0,), 0.01, {}, {}, started={1: [10]}))
    assert subject.acceptance.awaits(1, "ngram") == 1
