"""The controller's parts, each by itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from wager.bench.worlds import H100, TWO_CORES, Device
from wager.drafters.base import DrafterNeeds, DraftQuery
from wager.engine.control.acceptance import Acceptance
from wager.engine.control.account import CREDIT, ERROR, LossAccount, savings
from wager.engine.control.allocate import MARGIN, Batch, Offer, allocate, choose, chooser
from wager.engine.control.base import Candidate, StepView
from wager.engine.control.noloss import NoLoss
from wager.engine.control.times import StepTimes
from wager.engine.costs import CONTEXTS, ROWS, StepCosts
from wager.engine.drafting import Drafters, GuardedDrafter
from wager.speculation import SpeculationConfig
from wager.types import Draft


def table(device: Device) -> StepCosts:
    costs = StepCosts(lambda rows, context: 0.0)
    for context, rows in itertools.product(CONTEXTS, ROWS):
        costs.cells[rows, context] = device.ms(rows, context, rows * context)
    return costs


# Acceptance


def taught(chances: list[float], drafts: int, match: int = 5, seed: int = 0) -> Acceptance:
    """An acceptance model that saw drafts with these conditional chances."""
    subject, chance = Acceptance(), Random(seed)
    for number in range(drafts):
        right = 0
        while right < len(chances) and chance.random() < chances[right]:
            right += 1
        tokens = tuple(range(1, len(chances) + 1))
        subject.propose(number, "ngram", Draft(tokens, "ngram", match), len(tokens))
        subject.commit(number, [*tokens[:right], 0])
        subject.release(number)
    return subject


def test_the_chances_of_positions_are_learnt() -> None:
    chances = [0.9, 0.6, 0.95]
    found = taught(chances, 4000).survival(99999, "ngram", 5, 3, 0.0)
    expected = list(itertools.accumulate(chances, lambda a, b: a * b))
    assert found == pytest.approx(expected, abs=0.08)


def test_the_bound_lies_below_and_closes_in() -> None:
    few, many = taught([0.8] * 4, 10), taught([0.8] * 4, 4000)
    for subject in (few, many):
        likely = subject.survival(9999, "ngram", 5, 8, 0.0)
        sure = subject.survival(9999, "ngram", 5, 8, 1.0)
        assert all(a > b for a, b in zip(likely, sure, strict=True))
        assert sure == sorted(sure, reverse=True)

    def gap(subject: Acceptance) -> float:
        return math.log(
            subject.survival(9999, "ngram", 5, 4, 0.0)[3]
            / subject.survival(9999, "ngram", 5, 4, 1.0)[3]
        )

    assert gap(many) < 0.5 * gap(few)


def test_a_shadow_is_scored_as_what_was_verified() -> None:
    verified, shadow = Acceptance(), Acceptance()
    chance = Random(1)
    for number in range(300):
        right = chance.randrange(5)
        draft = Draft((1, 2, 3, 4), "suffix", 3)
        verified.propose(number, "suffix", draft, 4)
        verified.commit(number, [*draft.tokens[:right], 0])
        shadow.propose(number, "suffix", draft, 0)
        # Plain decoding commits one token per step.
        for token in [*draft.tokens[:right], 0]:
            shadow.commit(number, [token])
        assert shadow.awaits(number, "suffix") is None
        for one in (verified, shadow):
            one.release(number)
    for caution in (0.0, 1.0):
        assert verified.survival(-1, "suffix", 3, 4, caution) == pytest.approx(
            shadow.survival(-1, "suffix", 3, 4, caution)
        )


def test_what_lies_behind_the_verified_part_is_scored_too() -> None:
    subject = Acceptance()
    subject.propose(1, "ngram", Draft((1, 2, 3, 4), "ngram", 9), 2)
    subject.commit(1, [1, 2, 3])
    assert subject.awaits(1, "ngram") == 3
    subject.commit(1, [4])
    assert subject.awaits(1, "ngram") is None


def test_of_a_drawn_draft_only_the_verified_part_counts() -> None:
    subject = Acceptance()
    drawn = tuple(np.full(4, 0.25) for _ in range(3))
    subject.propose(1, "draft_model", Draft((1, 2, 3), "draft_model", 0, drawn), 1)
    subject.commit(1, [1, 2, 3])
    assert subject.observations("draft_model") == pytest.approx(1.0)
    assert subject.awaits(1, "draft_model") is None


def test_a_request_that_copies_is_told_from_one_that_does_not() -> None:
    subject = taught([0.5] * 6, 500)
    for _ in range(10):
        subject.propose(1, "ngram", Draft((1, 2, 3), "ngram", 5), 3)
        subject.commit(1, [1, 2, 3, 4])
        subject.propose(2, "ngram", Draft((1, 2, 3), "ngram", 5), 3)
        subject.commit(2, [9])
    copying, free = (subject.survival(r, "ngram", 5, 3, 1.0) for r in (1, 2))
    assert copying[2] > 0.5
    assert free[0] < 0.3
    subject.release(1)
    subject.release(2)
    assert subject.survival(1, "ngram", 5, 3, 1.0) == subject.survival(2, "ngram", 5, 3, 1.0)


def test_long_matches_are_better_from_the_start() -> None:
    subject = Acceptance()
    first = [subject.survival(1, "ngram", match, 1, 0.0)[0] for match in (1, 2, 4, 7, 12)]
    assert first == sorted(first)
    assert first[0] < 0.5 < 0.85 < first[-1]


# The account


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_of_the_account(seed: int) -> None:
    """Whatever comes of the bets, as long as none is dearer than it was expected to be."""
    chance, subject = Random(seed), LossAccount(0.005)
    subject.plain_step(30.0 if seed % 2 else 5.0)
    bad = chance.random()
    worst = run = 0.0
    for _ in range(5000):
        risk = chance.uniform(0.0, 4.0)
        time, tokens = 1.0, 1
        if risk <= subject.room([1]):
            time = 1.0 + risk
            tokens = 1 if chance.random() < bad else chance.randrange(1, 12)
        subject.settle({1: tokens}, time - 1.0, time)
        run = max(run + time - tokens - 0.005 * time, 0.0)
        worst = max(worst, run)
    assert worst <= CREDIT + subject.cap + 1e-9
    if bad > 0.95:
        assert worst > 0.5  # it is used


def test_an_account_by_request_guards_the_one_that_gains_nothing() -> None:
    together, single = LossAccount(0.005), LossAccount(0.005, by_request=True)
    for account in (together, single):
        account.plain_step(30.0)
        for _ in range(10):
            account.settle({1: 5, 2: 1}, 0.2, 1.2)
    assert together.room([1, 2]) == CREDIT + together.cap
    assert single.room([1, 2]) < 0 < single.room([1])
    single.release(2)
    assert single.room([2]) == CREDIT


def test_a_window_may_lose_twice_the_budget() -> None:
    """Of 400 steps, or of 8 seconds where steps are short."""
    for ms, steps in ((300.0, 400), (20.0, 400), (5.0, 1600)):
        saved = savings(0.005, ms)
        assert 0.005 * steps + saved + CREDIT + ERROR == pytest.approx(0.01 * steps)
    assert savings(0.0, 5.0) == 0.0


def test_searching_is_charged_to_plain_steps() -> None:
    account = LossAccount(0.005)
    for _ in range(100):
        account.settle({1: 1}, 0.01, 1.0)
    assert account.balance == pytest.approx(-0.5)


# Step times


@pytest.mark.parametrize("device", [TWO_CORES, H100], ids=lambda d: d.name)
def test_a_table_of_one_request_tells_the_steps_of_many(device: Device) -> None:
    times = StepTimes(table(device))
    for requests, context in itertools.product((1, 4, 16), (64, 300, 3000)):
        kv = requests * context
        assert times.plain(requests, kv) == pytest.approx(device.ms(requests, kv, kv), rel=0.02)
        found = [times.verify(requests, kv, n, n * context) for n in (1, 4, 16)]
        expected = [device.ms(requests + n, kv, kv + n * context) for n in (1, 4, 16)]
        assert found == pytest.approx(expected, rel=0.03)


def test_steps_that_take_longer_are_learnt_apart_and_together() -> None:
    times = StepTimes(table(TWO_CORES))
    plain = times.plain(1, 300)
    verify = times.verify(1, 300, 8, 2400)
    for _ in range(300):
        times.record_plain(1, 300, 1.2 * plain)
        times.record_verify(1, times.verify(1, 300, 8, 2400), 8, 1.8 * verify)
    assert times.plain(1, 300) == pytest.approx(1.2 * plain, rel=0.03)
    assert times.verify(1, 300, 8, 2400) == pytest.approx(1.8 * verify, rel=0.03)


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_what_a_plain_step_takes_is_told_by_plain_steps_alone(factor: float) -> None:
    """An account that took it from verify steps would call their loss none."""
    times = StepTimes(table(TWO_CORES))
    for _ in range(10):
        times.record_plain(1, 300, times.plain(1, 300))
    before = times.plain(1, 300)
    true = factor * times.verify(1, 300, 8, 2400)
    for _ in range(200):
        times.record_verify(1, times.verify(1, 300, 8, 2400), 8, true)
    assert times.plain(1, 300) == before
    assert times.verify(1, 300, 8, 2400) == pytest.approx(true, rel=0.02)


def test_a_step_as_long_as_expected_moves_nothing() -> None:
    times = StepTimes(table(TWO_CORES))
    for drafted, factor in ((1, 1.1), (5, 1.3), (20, 0.9)) * 20:
        raw = StepTimes(table(TWO_CORES)).verify(1, 300, drafted, 300.0 * drafted)
        times.record_verify(
            1, times.verify(1, 300, drafted, 300.0 * drafted), drafted, factor * raw
        )
    for drafted in (1, 3, 5, 9, 14, 20, 40):
        expected = times.verify(1, 300, drafted, 300.0 * drafted)
        for _ in range(8):
            times.record_verify(1, expected, drafted, expected)
        assert times.verify(1, 300, drafted, 300.0 * drafted) == pytest.approx(expected, rel=0.01)


def test_a_first_step_that_was_held_up_says_nothing() -> None:
    """Where that stopped all bets nothing would be learnt any more."""
    times = StepTimes(table(TWO_CORES))
    before = times.verify(1, 300, 8, 2400)
    times.record_verify(1, before, 8, 5 * before)
    assert times.verify(1, 300, 8, 2400) == pytest.approx(before)
    for _ in range(3):
        times.record_verify(1, times.verify(1, 300, 8, 2400), 8, 1.5 * before)
    assert times.verify(1, 300, 8, 2400) == pytest.approx(1.5 * before, rel=0.1)


def test_what_plain_steps_take_longer_does_not_make_rows_dearer() -> None:
    """A batch that takes longer than one request told is told so by its plain steps; what more
    rows add to it is not known by that."""
    times = StepTimes(table(TWO_CORES))
    rows = times.verify(16, 6400, 16, 6400) - times.plain(16, 6400)
    for _ in range(50):
        times.record_plain(1, 300, StepTimes(table(TWO_CORES)).plain(1, 300))
        times.record_plain(16, 6400, 1.4 * StepTimes(table(TWO_CORES)).plain(16, 6400))
    plain = times.plain(16, 6400)
    assert plain == pytest.approx(1.4 * StepTimes(table(TWO_CORES)).plain(16, 6400), rel=0.05)
    assert times.verify(16, 6400, 16, 6400) - plain == pytest.approx(rows, rel=0.15)


def test_an_error_of_some_sizes_is_not_made_up_for_by_another() -> None:
    """What a step is expected to take leans on the sizes beside its own; if one of them is off, its
    own must not move for ever to make up for that."""
    times = StepTimes(table(TWO_CORES))

    def raw(drafted: int) -> float:
        return StepTimes(table(TWO_CORES)).verify(1, 300, drafted, 300.0 * drafted)

    longer = {2: 1.0, 9: 1.1, 15: 1.5}
    for _ in range(400):
        for drafted, factor in longer.items():
            expected = times.verify(1, 300, drafted, 300.0 * drafted)
            times.record_verify(1, expected, drafted, factor * raw(drafted))
    for drafted, factor in longer.items():
        assert times.verify(1, 300, drafted, 300.0 * drafted) == pytest.approx(
            factor * raw(drafted), rel=0.02
        )
    for _ in range(400):
        for drafted, factor in ((7, 1.5), (13, 1.0)):
            expected = times.verify(1, 300, drafted, 300.0 * drafted)
            times.record_verify(1, expected, drafted, factor * raw(drafted))
    for drafted in range(1, 17):
        assert 0.98 < times.verify(1, 300, drafted, 300.0 * drafted) / raw(drafted) < 1.52


def test_one_odd_step_changes_little() -> None:
    times = StepTimes(table(TWO_CORES))
    for _ in range(50):
        times.record_plain(1, 300, times.plain(1, 300))
    before = times.plain(1, 300)
    times.record_plain(1, 300, 30 * before)
    assert times.plain(1, 300) < 1.05 * before


def test_without_a_table_nothing_is_known() -> None:
    costs = StepCosts(lambda rows, context: 0.0)
    times = StepTimes(costs)
    assert not times.known
    costs.cells.update(table(TWO_CORES).cells)
    assert times.known


def test_beside_prompts_draft_rows_cost_what_further_rows_cost() -> None:
    times = StepTimes(table(TWO_CORES))
    alone = times.verify(1, 0, 8, 0) - times.plain(1, 0)
    beside = times.verify(1, 0, 8, 0, beside=200) - times.plain(1, 0)
    slope = (TWO_CORES.rows[32] - TWO_CORES.rows[17]) / 15
    assert beside == pytest.approx(8 * slope, rel=0.1)
    assert beside > alone


# What was drawn at random


class Drawing:
    """A drafter with a model that drew these tokens, which took so many seconds."""

    needs = DrafterNeeds(host=True, blocks=True)

    def __init__(self, tokens: tuple[int, ...], seconds: float) -> None:
        self.tokens = tokens
        self.seconds = seconds
        self.now = 0.0

    def behind(self, request: int, length: int) -> int:
        return 1

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        self.now += self.seconds
        flat = np.full(8, 0.125)
        drawn = Draft(self.tokens, "draft_model", 0, (flat,) * len(self.tokens))
        return [drawn.cut(query.limit) for query in queries]


class Lost(Drawing):
    """Cannot say where it stands."""

    def behind(self, request: int, length: int) -> int:
        raise RuntimeError("lost")


def admitted(drafter: Drawing) -> tuple[int, GuardedDrafter]:
    """How many of its tokens are verified, where four pay and one does not."""
    costs = StepCosts(lambda rows, context: 0.0)
    for context, (rows, ms) in itertools.product(CONTEXTS, {1: 10.0, 2: 20.0, 32: 20.5}.items()):
        costs.cells[rows, context] = ms
    config = SpeculationConfig.parse({
        "method": "draft_model", "model": "D", "num_speculative_tokens": 4, "verify": "rejection",
    })  # fmt: skip
    assert config is not None
    member = GuardedDrafter(drafter, 8, "draft_model")  # type: ignore[arg-type]
    subject = NoLoss(config, StepTimes(costs), clock=lambda: drafter.now)
    for _ in range(3):
        subject.times.record_plain(1, 64, 10.0)
    for _ in range(300):
        drawn = Draft((1, 2, 3, 4), "draft_model", 0, (np.full(8, 0.125),) * 4)
        subject.acceptance.propose(1, "draft_model", drawn, 4)
        subject.acceptance.commit(1, [1, 2, 3, 4])
    subject.account.plain_step(10.0)
    for _ in range(10):
        subject.account.settle({1: 2}, 0.0, 1.0)

    def query(limit: int, blocks: bool) -> DraftQuery:
        return DraftQuery(1, 65, limit)

    candidate = Candidate(1, 64, 100, query, lambda token: False)
    step = StepView(requests=1, kv_tokens=64, prompt_rows=0, rows=100, candidates=[candidate])
    assert subject.looks(step)
    (draft,) = subject.draft(step, Drafters([member]))
    return len(draft.tokens), member


@pytest.mark.parametrize("tokens", [(7,), (7, 6), (7, 6, 5, 4)])
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_whether_a_drawn_draft_is_verified_does_not_depend_on_what_was_drawn(
    tokens: tuple[int, ...], seconds: float
) -> None:
    """A draft may end early because of a token in it, and take less time for that. To leave it out
    therefore would be to leave out that token more often than its distribution says."""
    assert admitted(Drawing(tokens, seconds))[0] == len(tokens)


def test_a_drafter_that_cannot_tell_what_it_lacks_costs_its_drafts_alone() -> None:
    found, member = admitted(Lost((7, 6, 5, 4), 0.0))
    assert found == 0
    assert member.failures == 1
    assert not member.serves(1)


# Allocation


@pytest.mark.parametrize("seed", range(12))
def test_the_allocation_is_the_best_there_is(seed: int) -> None:
    chance = Random(seed)
    times = StepTimes(table(TWO_CORES))
    offers = [
        Offer(
            list(
                itertools.accumulate(
                    (chance.uniform(0.3, 1.0) for _ in range(4)), lambda a, b: a * b
                )
            ),
            100,
        )
        for _ in range(3)
    ]
    batch = Batch(3, 300, 0, times.plain(3, 300))
    found = allocate(offers, batch, times, 100, 100.0, 0.0)
    best = max(
        itertools.product(range(5), repeat=3),
        key=lambda lengths: _pace(lengths, offers, batch, times),
    )
    if found.lengths:
        assert _pace(found.lengths, offers, batch, times) == pytest.approx(
            _pace(best, offers, batch, times)
        )
    else:
        assert _pace(best, offers, batch, times) * batch.plain_ms / 3 < 1 + 2 * MARGIN


def _pace(lengths, offers, batch, times) -> float:  # type: ignore[no-untyped-def]
    tokens = batch.requests + sum(sum(o.survival[:n]) for o, n in zip(offers, lengths, strict=True))
    drafted = sum(lengths)
    if not drafted:
        return float(tokens / times.plain(3, 300))
    return float(tokens / times.verify(batch.requests, batch.kv_tokens, drafted, drafted * 100))


def test_the_extension_chooses_as_the_python_form_does() -> None:
    chance = Random(5)
    native, bets, none = chooser(), 0, 0
    assert native is not choose
    for device, count in itertools.product((TWO_CORES, H100), (1, 2, 5, 40)):
        times = StepTimes(table(device))
        times.record_plain(3, 300, 1.1 * times.plain(3, 300))
        times.record_verify(3, 10.0, 9, 12.5)
        times.record_verify(3, 20.0, 60, 18.0)
        for case in range(60):
            scale = chance.choice((0.02, 0.3, 1.0))
            survival = [
                list(itertools.accumulate(chance.random() for _ in range(chance.randint(0, 17))))
                for _ in range(count)
            ]
            survival = [
                sorted((s / len(one) * scale for s in one), reverse=True) for one in survival
            ]
            contexts = [chance.randint(1, 3000) for _ in range(count)]
            most = max(min(sum(map(len, survival)), chance.choice((3, 1000))), 1)
            if not any(survival):
                continue
            curve = times.curve(count, sum(contexts), beside=7 * (case % 2))
            plain = times.plain(count, sum(contexts))
            room = chance.choice((0.01, 0.3, 2.0, 50.0))
            rest = (count, most, plain, chance.choice((0.0, 1.0)), room, MARGIN)
            ours = native(survival, contexts, *curve, *rest)
            theirs = choose(survival, contexts, *curve, *rest)
            assert ours[0] == theirs[0]
            assert ours[1:] == pytest.approx(theirs[1:], rel=1e-9, abs=1e-12)
            bets += bool(ours[0])
            none += not ours[0]
    assert min(bets, none) > 50


def test_the_account_bounds_what_is_risked() -> None:
    times = StepTimes(table(TWO_CORES))
    batch = Batch(1, 300, 0, times.plain(1, 300))
    offer = Offer([0.99**j for j in range(1, 17)], 300)
    free = allocate([offer], batch, times, 100, 10.0, 0.0)
    tight = allocate([offer], batch, times, 100, 0.4, 0.0)
    none = allocate([offer], batch, times, 100, 0.01, 0.0)
    assert free.rows > tight.rows > 0
    assert free.wanted == 0.0
    assert tight.risk <= 0.4
    assert tight.wanted > tight.gain > 0
    assert not none.lengths
    assert none.wanted > 0
    assert allocate([offer], batch, times, 3, 10.0, 0.0).rows == 3


def test_no_gain_no_bet() -> None:
    times = StepTimes(table(TWO_CORES))
    batch = Batch(1, 300, 0, times.plain(1, 300))
    assert allocate([Offer([0.05, 0.01], 300)], batch, times, 100, 10.0, 0.0).lengths == ()
    assert allocate([Offer((), 300)], batch, times, 100, 10.0, 0.0).lengths == ()
    good = Offer([0.9, 0.8], 300)
    assert allocate([good], batch, times, 100, 10.0, 0.0).rows == 2
    # What looking for it took must be paid too.
    assert allocate([good], batch, times, 100, 10.0, 2 * batch.plain_ms).lengths == ()
