"""`wager tune`: a look at each method, estimates for all of its lengths, real runs of the best few.

Every measurement is a plan of `wager bench` for its one executor: paired, there and back, with a
journal. What is chosen was measured; estimates only say what is worth measuring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from wager.arms import PLAIN, Arm, arm_of
from wager.backend import Backend
from wager.bench.estimate import StepTable
from wager.bench.journal import Journal
from wager.bench.machine import machine, versions
from wager.bench.measure import Measurement
from wager.bench.plan import Plan
from wager.bench.run import Event, Executor, Progress, Run
from wager.bench.tune import choice, rounds
from wager.bench.tune.predict import (
    Acceptance,
    Prediction,
    StepCost,
    baselines,
    basis,
    blind,
    counted,
    looked_cost,
    predict,
    shortlist,
    table_cost,
)
from wager.bench.tune.space import Candidate, Family, can_be_scheduled, ranges, scheduled
from wager.bench.workloads.sources import Wanted, draw

PROMPTS: Final = 8
LOOK_PROMPTS: Final = 6
_GAIN: Final = 1.01
_NOISY: Final = 0.15
# Prompts of one round are in no other; a check has its own.
SEEDS: Final = {
    "look": 10_007, "first": 20_011, "decide": 0, "again": 50_021, "schedule": 30_013,
    "check": 40_009,
}  # fmt: skip

_TITLES: Final = {
    "look": "a look", "first": "first round", "decide": "real runs", "schedule": "the schedule",
    "check": "the check", "again": "once more",
}  # fmt: skip

Replayer = Callable[[Sequence[Arm], Sequence[Measurement]], dict[str, dict[str, Acceptance]]]
"""Acceptance by arm and workload, of those arms whose drafts follow from recorded answers."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. ``wanted.loads`` are numbers of clients; ``deadline`` is a value of
    time.monotonic(). Journals go to ``run_dir``."""

    engine: str
    model: str
    families: tuple[Family, ...]
    wanted: Wanted
    repeats: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    deadline: float | None = None
    run_dir: Path | None = None
    resume: bool = False

    @property
    def loads(self) -> list[int]:
        return [load.clients for load in self.wanted.loads if load.clients is not None]

    @property
    def visits(self) -> int:
        """How often every prompt is asked in every arm."""
        return rounds.VISITS * self.repeats


@dataclass(slots=True)
class Outcome:
    """What was found. ``decided`` is the run that the choice rests on.

    ``by_load`` names the best arm at each number of clients, ``chosen`` is the one for all of them;
    ``schedule`` are vLLM's ranges. ``candidates`` and ``predictions`` are by arm; ``basis`` says
    where the estimates come from.
    """

    wish: Wish
    look: Run
    decided: Run
    chosen: Arm = field(default_factory=lambda: Arm(PLAIN))
    by_load: dict[int, str] = field(default_factory=dict)
    scores: dict[str, dict[int, choice.Score]] = field(default_factory=dict)
    predictions: dict[str, Prediction] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    schedule: list[list[int]] | None = None
    expected: list[choice.Expected] = field(default_factory=list)
    basis: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def version(self) -> str | None:
        """The engine's own, as it said at a start."""
        every = [s for starts in self.decided.started.values() for s in starts]
        return next((s.version for s in every if s.version is not None), None)


@dataclass(slots=True)
class Tuner:
    """``steps`` is the engine's table of step times, if it has one; ``replay`` gives acceptance
    without an engine, if it can."""

    backend: Backend
    wish: Wish
    vocab_size: Callable[[], int]
    progress: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(_nothing)
    say: Callable[[str], None] = lambda line: None
    steps: Callable[[], StepTable | None] = lambda: None
    replay: Replayer | None = None
    runs: dict[str, Run] = field(default_factory=dict)

    def tune(self) -> Outcome:
        """Raises ConfigError and EngineError; what was finished then is in the journals."""
        begun = time.monotonic()
        leads = [Candidate(f, f.longest) for f in self.wish.families if f.lead]
        arms, count = [lead.arm for lead in leads], self.wish.wanted.count or PROMPTS
        if len(leads) == len(self.wish.families) and all(len(c.family.lengths) < 2 for c in leads):
            # Every arm is given: there is nothing to estimate.
            run = self.measure("decide", arms, count)
            outcome = Outcome(self.wish, run, run, candidates={c.arm.name: c for c in leads})
        else:
            look = self.measure("look", arms, min(count, LOOK_PROMPTS))
            outcome = Outcome(self.wish, look, look, candidates={c.arm.name: c for c in leads})
            self._estimate(outcome)
            self._decide(outcome, count)
        self._score(outcome, count)
        failed = {**outcome.look.failed, **outcome.decided.failed}
        outcome.notes += [f"{arm} could not be measured: {error}" for arm, error in failed.items()]
        self._settle(outcome)
        outcome.seconds = time.monotonic() - begun
        return outcome

    def measure(self, name: str, arms: Sequence[Arm], count: int) -> Run:
        """Plain decoding and these arms on ``count`` fresh prompts of each workload and load."""
        wish, cheap = self.wish, self.backend.fresh_start_is_cheap
        seed = wish.wanted.seed + SEEDS[name]
        wanted = replace(wish.wanted, count=count, seed=seed)
        drawn = draw(wanted, self.vocab_size, same_for_all_loads=cheap)
        for note in drawn.notes:
            self.say(note)
        plan = Plan(
            engine=wish.engine,
            model=wish.model,
            arms=(Arm(PLAIN), *arms),
            cells=drawn.cells,
            repeats=wish.repeats,
            warm_up=drawn.warm_up,
            settings={"machine": machine(None), "versions": versions(), **wish.settings},
        )
        run = Run.of(plan)
        path = None if wish.run_dir is None else wish.run_dir / f"{name}.jsonl"
        book = nullcontext() if path is None else Journal(path, plan.digest(), resume=wish.resume)
        self.runs[name] = run
        named = ", ".join(arm.name for arm in plan.arms)
        self.say(f"{_TITLES[name]}: {named}; {count} prompts")
        with book as journal, self.progress() as progress:
            Executor(self.backend, run, journal, wish.deadline, progress).execute()
        return run

    def _left(self) -> float | None:
        deadline = self.wish.deadline
        return None if deadline is None else deadline - time.monotonic()

    def _estimate(self, outcome: Outcome) -> None:
        """Fill in the predictions of every candidate that can be estimated."""
        families = self.wish.families
        every = [Candidate(f, k) for f in families for k in (f.lengths or (None,))]
        cells = outcome.look.cells()
        plain = baselines(cells)
        table = self.steps()
        replayed: dict[str, dict[str, Acceptance]] = {}
        if self.replay is not None:
            replayed = self.replay([c.arm for c in every], outcome.look.measurements)
        for one in every:
            name, method = one.arm.name, one.family.method
            lead = _lead(families, one.family)
            looked = lead.arm(lead.longest).name
            if looked in outcome.look.failed:
                continue
            own = [c for c in cells if c.arm == looked]
            accepted = replayed.get(name) or (counted(own, one.k) if one.family.lead else {})
            if table is None:
                cost: StepCost = looked_cost(own)
            else:
                drafts = replayed.get(looked) or counted(own, lead.longest)
                cost = table_cost(table, own, drafts)
            found = predict(one, accepted, cost, plain)
            if found is None:
                continue
            outcome.predictions[name] = found
            outcome.basis[method] = basis(accepted, cost)

    def _shortlist(self, outcome: Outcome) -> list[Candidate]:
        """What is worth real runs."""
        found = [p.candidate for p in shortlist(list(outcome.predictions.values()))]
        families = self.wish.families
        known = [_lead(families, p.candidate.family) for p in outcome.predictions.values()]
        for family in families:
            lost = family.arm(family.longest).name in outcome.look.failed
            if family.lead and family not in known and not lost:
                outcome.notes.append(
                    f"{family.method}: the engine tells too little for an estimate, so some "
                    "lengths are measured as they are"
                )
                found += blind(family)
        return found

    def _decide(self, outcome: Outcome, count: int) -> None:
        """Real runs of the candidates, in rounds where time is short."""
        candidates, found = self._rounds(outcome, count)
        for one in candidates:
            outcome.candidates[one.arm.name] = one
        if not candidates:
            outcome.notes.append(
                "no length of any method comes near plain decoding by the estimate, so none but "
                "the looks was measured"
            )
            return
        arms = [one.arm for one in candidates]
        if not found:
            outcome.notes.append("the time was up after the look: the choice rests on it alone")
        for number, (keep, prompts) in enumerate(found):
            arms = arms[:keep] if not number else rounds.best(outcome.decided, arms, keep)
            if keep < len(candidates) and not number:
                outcome.notes.append(f"there was time for {keep} of {len(candidates)} arms")
            name = "decide" if number == len(found) - 1 else "first"
            outcome.decided = self.measure(name, arms, prompts)

    def _score(self, outcome: Outcome, count: int) -> None:
        """Fill in the scores; measure once more where a gain was larger than its steps allow, since
        the machine was not steady then."""
        outcome.scores = rounds.scores(outcome.decided)
        names = choice.disturbed(outcome.scores)
        arms = [arm for arm in outcome.decided.plan.arms if arm.name in names]
        if not arms:
            return
        left, cost = self._left(), self._cost(outcome.decided)
        if left is not None and cost.of(len(arms) + 1, count) > left:
            outcome.notes.append(
                "a gain was larger than its steps allow, and there was no time to measure it "
                "again; give a longer --time-limit"
            )
            return
        outcome.notes.append(
            "a gain was larger than its steps allow, so the best arms were measured once more; "
            "the choice rests on that"
        )
        outcome.decided = self.measure("again", arms, count)
        outcome.scores = rounds.scores(outcome.decided)

    def _rounds(
        self, outcome: Outcome, count: int
    ) -> tuple[list[Candidate], list[tuple[int, int]]]:
        """Candidates and rounds; settled once, so that a resumed run measures the same."""
        kept = None if self.wish.run_dir is None else self.wish.run_dir / "rounds.json"
        if kept is not None and self.wish.resume and kept.is_file():
            return rounds.read(kept, self.wish.families)
        candidates = self._shortlist(outcome)
        cost = self._cost(outcome.look)
        found = rounds.within(self._left(), len(candidates), count, cost) if candidates else []
        if kept is not None:
            rounds.write(kept, candidates, found)
        return candidates, found

    def _cost(self, look: Run) -> rounds.Cost:
        """Of the mean start of the mean arm, from the look."""
        asked = took = 0.0
        for arm in look.plan.arms:
            asked += sum(len(a) for m in look.measurements for a in _answers(m, arm))
            took += sum(m.seconds.get(arm.name, 0.0) for m in look.measurements)
        per_prompt = took / asked * len(look.plan.cells) if asked else 0.0
        starts = [s.startup_s or 0.0 for every in look.started.values() for s in every]
        cheap = self.backend.fresh_start_is_cheap or not starts
        startup = 0.0 if cheap else sum(starts) / len(starts)
        return rounds.Cost(startup, per_prompt, self.wish.visits)

    def _settle(self, outcome: Outcome) -> None:
        """The best at each load, the one for all, a schedule where that is better."""
        loads = self.wish.loads
        outcome.by_load = {load: choice.best_at(outcome.scores, load) for load in loads}
        name = choice.best_overall(outcome.scores, loads)
        arms = {arm.name: arm for arm in outcome.decided.plan.arms}
        outcome.chosen = arms[name]
        self._schedule(outcome)
        # The real runs too where they were measured once more: that they were noisy is why.
        deciding = (self.runs.get("decide", outcome.decided), outcome.decided)
        noises = [choice.visit_noise(run) for run in deciding]
        noise = max((found.deviation for found in noises if found is not None), default=0.0)
        if noise > _NOISY:
            outcome.notes.append(
                f"repeated runs of the same prompts differ by {100 * noise:.0f} %: "
                "something else used the machine, so intervals are wide; measure again when it "
                "is idle"
            )
        if not outcome.decided.complete:
            outcome.notes.append("the time was up before every run was done; fewer prompts count")
        outcome.expected = rounds.expectations(outcome.decided, outcome.chosen)

    def _schedule(self, outcome: Outcome) -> None:
        """Where the best length differs by load: measure the schedule, and take it if it holds."""
        loads, chosen = self.wish.loads, outcome.chosen
        found = _best_schedule(self.wish.engine, outcome, loads)
        if found is None:
            return
        family, lengths, promised = found
        now = choice.mean_over(outcome.scores.get(chosen.name, {}), loads)
        if promised < _GAIN * now:
            return
        arm = scheduled(family, lengths)
        others = [] if chosen.name == PLAIN else [chosen]
        count = self.wish.wanted.count or PROMPTS
        left, cost = self._left(), self._cost(outcome.look)
        if left is not None and cost.of(len(others) + 2, count) > left:
            outcome.notes.append(
                f"a schedule ({arm.name}) might be better still, but there was no time to measure "
                "it; give a longer --time-limit"
            )
            return
        run = self.measure("schedule", [arm, *others], count)
        measured = rounds.scores(run)
        best = choice.best_overall(measured, loads)
        outcome.scores |= measured
        if best == arm.name:
            outcome.decided, outcome.chosen = run, arm
            outcome.schedule = ranges(lengths)
        elif arm.name in run.failed:
            outcome.notes.append(f"{arm.name} could not be measured: {run.failed[arm.name]}")
        else:
            outcome.notes.append(f"the schedule {arm.name} was measured and did not do better")


def _best_schedule(
    engine: str, outcome: Outcome, loads: Sequence[int]
) -> tuple[Family, list[tuple[int, int]], float] | None:
    """Of one family: the best length at each load (0: plain), and the mean that it promises."""
    best = None
    families: list[Family] = []
    for one in outcome.candidates.values():
        if one.family not in families and can_be_scheduled(engine, one.family):
            families.append(one.family)
    for family in families:
        names = {n: c for n, c in outcome.candidates.items() if c.family == family}
        own = {name: outcome.scores[name] for name in names if name in outcome.scores}
        at = [(load, choice.best_at(own, load)) for load in loads]
        lengths = [(load, names[name].k or 0 if name != PLAIN else 0) for load, name in at]
        if len({k for _, k in lengths}) < 2:
            continue
        by_load = {load: own[name][load] for load, name in at if name != PLAIN}
        promised = choice.mean_over(by_load, loads)
        if best is None or promised > best[2]:
            best = (family, lengths, promised)
    return best


def _nothing(event: Event) -> None:
    """Nobody is told."""


def _lead(families: Sequence[Family], family: Family) -> Family:
    """The family that was looked at for this one: itself, or the lead that it is a variant of."""
    at = next(i for i, other in enumerate(families) if other == family)
    return next(f for f in reversed(families[: at + 1]) if f.lead)


def _answers(measurement: Measurement, arm: Arm) -> list[list[Any]]:
    return list(measurement.answers.get(arm.name, {}).values())


def arm_from(config: Mapping[str, Any], name: str = "tuned") -> Arm:
    """The arm of a tuned file's speculation. Raises ConfigError for one without a method."""
    return arm_of(config, name)
