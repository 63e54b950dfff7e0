"""One run of the benchmark: the blocks of a plan, one after the other, and what they found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from wager.arms import PLAIN, Arm
from wager.backend import Answer, Backend, EngineError, Started
from wager.bench.figures import advice, cell
from wager.bench.journal import Journal, PartKey, PartRecord
from wager.bench.measure import Measurement
from wager.bench.plan import Block, Part, Plan, schedule
from wager.bench.results import Cell
from wager.bench.spelling import spelt
from wager.bench.verdicts import OverLoads


@dataclass(frozen=True, slots=True)
class Event:
    """Progress: ``what`` is at ``done`` of ``total`` requests, the run at ``done_in_all``."""

    what: str
    done: int
    total: int
    done_in_all: int
    in_all: int


Progress: TypeAlias = Callable[[Event], None]


@dataclass(slots=True)
class Run:
    """What was found so far. Filled part by part, so that an early end loses nothing finished."""

    plan: Plan
    measurements: list[Measurement]
    described: dict[str, str] = field(default_factory=dict)
    started: dict[str, list[Started]] = field(default_factory=dict)
    identity: dict[str, dict[str, list[Answer]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    @classmethod
    def of(cls, plan: Plan) -> Run:
        """Nothing measured yet."""
        return cls(plan, plan.measurements())

    def cells(self) -> list[Cell]:
        """One per workload, load and speculative arm, of what is complete so far."""
        found = (cell(m, arm) for m in self.measurements for arm in m.arms if arm.name != PLAIN)
        return [c for c in found if c is not None]

    def verdicts(self) -> list[OverLoads]:
        """The advice over the loads."""
        return advice(self.cells())

    def take(self, arm: Arm, part: Part, record: PartRecord) -> None:
        """Take in one finished part."""
        if part.cell is not None:
            self.measurements[part.cell].take(arm, record.answers, record.counted, record.seconds)
        elif part.kind == "identity":
            kept = self.identity.setdefault(arm.name, {})
            for answer in record.answers:
                kept.setdefault(answer.prompt_id, []).append(answer)


@dataclass(slots=True)
class _Tally:
    """Requests of timed parts, by what is shown as one part, and in all."""

    total: Counter[object] = field(default_factory=Counter)
    done: Counter[object] = field(default_factory=Counter)
    in_all: int = 0
    done_in_all: int = 0

    def expect(self, shown: object, part: Part) -> None:
        """A part belongs to the run."""
        if part.cell is not None:
            self.total[shown] += len(part.prompts)
            self.in_all += len(part.prompts)

    def finish(self, shown: object, part: Part) -> None:
        """A part is finished."""
        if part.cell is not None:
            self.done[shown] += len(part.prompts)
            self.done_in_all += len(part.prompts)


@dataclass(slots=True)
class Executor:
    """Runs the blocks of a plan on a backend.

    ``deadline`` is a value of time.monotonic(): the part that runs then is the last one. What an
    earlier run had finished (``journal``) is taken in and not measured again; an arm whose server
    does not start, or dies, is given up for this run, and the others go on.
    """

    backend: Backend
    run: Run
    journal: Journal | None = None
    deadline: float | None = None
    progress: Progress = lambda event: None
    _blocks: list[Block] = field(default_factory=list)
    _done: dict[PartKey, PartRecord] = field(default_factory=dict)
    _tally: _Tally = field(default_factory=_Tally)

    def execute(self) -> None:
        """Measure what is missing; on any exception `run` holds what was finished."""
        plan = self.run.plan
        # Before anything is started: what an engine cannot do is said at once.
        for arm in plan.arms:
            self.run.described[arm.name] = self.backend.check(arm)
        self._blocks = schedule(plan, self.backend.fresh_start_is_cheap)
        if self.journal is not None:
            self._restore(self.journal)
        self._tally = self._counted()
        for number, block in enumerate(self._blocks):
            if block.arm.name in self.run.failed or not self._missing(number):
                continue
            if self._late():
                return
            self._block(number)
        self.run.complete = not any(
            self._missing(number)
            for number, block in enumerate(self._blocks)
            if block.arm.name not in self.run.failed
        )

    def _restore(self, journal: Journal) -> None:
        finished = journal.finished
        for number, started in finished.started.items():
            self.run.started.setdefault(self._blocks[number].arm.name, []).append(started)
        for key, record in sorted(finished.parts.items()):
            block, part = key
            self._done[key] = record
            self.run.take(self._blocks[block].arm, self._blocks[block].parts[part], record)

    def _missing(self, number: int) -> bool:
        """Whether something that counts is left to do; a warm-up alone does not start a server.

        The blocks that are nothing but a warm-up are for what follows them.
        """
        parts = self._blocks[number].parts
        if not any(part.counts for part in parts):
            return any(
                self._missing(n)
                for n, block in enumerate(self._blocks)
                if any(part.counts for part in block.parts)
            )
        return any(
            (number, index) not in self._done for index, part in enumerate(parts) if part.counts
        )

    def _idle(self, number: int, index: int) -> bool:
        """Whether the part at ``index`` is dropped before others that are all there already."""
        parts = self._blocks[number].parts
        if parts[index].kind != "dropped":
            return False
        for later in range(index + 1, len(parts)):
            if parts[later].kind == "dropped":
                break
            if parts[later].counts and (number, later) not in self._done:
                return False
        return True

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _block(self, number: int) -> None:
        arm = self._blocks[number].arm
        try:
            self._run_block(number, arm)
        except EngineError as error:
            self._give_up(arm, error)

    def _run_block(self, number: int, arm: Arm) -> None:
        started = self.backend.start(arm)
        try:
            # Where a start is nothing but a reset, the first one says it all.
            if not (self.backend.fresh_start_is_cheap and arm.name in self.run.started):
                self.run.started.setdefault(arm.name, []).append(started)
                if self.journal is not None:
                    self.journal.started(number, started)
            for index, part in enumerate(self._blocks[number].parts):
                if (number, index) in self._done or self._idle(number, index):
                    continue
                self._part((number, index), arm, part)
                if self._late():
                    return
        finally:
            self.backend.stop()

    def _give_up(self, arm: Arm, error: EngineError) -> None:
        """Without plain decoding, or without any other arm, there is nothing to compare."""
        self.run.failed[arm.name] = str(error)
        if arm.name == PLAIN or len(self.run.failed) == len(self.run.plan.arms) - 1:
            raise error
        self._tally = self._counted()

    def _part(self, key: PartKey, arm: Arm, part: Part) -> None:
        before = self.backend.counters()
        begun = time.perf_counter()
        answers = []
        for answer in self.backend.stream(part.prompts, part.load):
            answers.append(answer)
            self._tell(key, part, len(answers))
        seconds = time.perf_counter() - begun
        counted = self.backend.counters().since(before)
        # Taken in only when the whole part is there: a broken one leaves no unpaired answers.
        record = PartRecord(answers, counted, seconds)
        if part.kind == "warm-up":
            _check(arm, answers)
        elif part.counts:
            self._done[key] = record
            if self.journal is not None:
                self.journal.part(key, record)
            self.run.take(arm, part, record)
            self._tally.finish(self._shown_as(key, part), part)

    def _counted(self) -> _Tally:
        """Requests asked for and finished, without the arms that were given up."""
        tally = _Tally()
        for number, block in enumerate(self._blocks):
            for index, part in enumerate(block.parts):
                if block.arm.name not in self.run.failed:
                    shown = self._shown_as((number, index), part)
                    tally.expect(shown, part)
                    if (number, index) in self._done:
                        tally.finish(shown, part)
        return tally

    def _shown_as(self, key: PartKey, part: Part) -> object:
        """Parts shown as one: those of a cell, and on a server of its own those of one server."""
        return part.cell if self.backend.fresh_start_is_cheap else (key[0], part.cell)

    def _tell(self, key: PartKey, part: Part, answered: int) -> None:
        if part.cell is None:
            return
        # Called between two steps of an engine in this process: nothing here may take long.
        shown, tally = self._shown_as(key, part), self._tally
        self.progress(
            Event(
                self._name(key, part),
                tally.done[shown] + answered,
                tally.total[shown],
                tally.done_in_all + answered,
                tally.in_all,
            )
        )

    def _name(self, key: PartKey, part: Part) -> str:
        planned = self.run.plan.cells[part.cell or 0]
        name = f"{planned.workload}, {spelt(part.load.clients, part.load.rate)}"
        if self.backend.fresh_start_is_cheap:
            return name
        block = self._blocks[key[0]]
        return f"{block.arm.name}: {name} (server {key[0] + 1} of {len(self._blocks)})"


def _check(arm: Arm, answers: Sequence[Answer]) -> None:
    """A first batch of nothing but errors means that there is nothing to measure."""
    errors = [answer.error for answer in answers if answer.error is not None]
    if errors and len(errors) == len(answers):
        raise EngineError(f"{arm.name}: every request of the warm-up failed: {errors[0]}")
