"""One run of the benchmark from its options: the plan, the cells, the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wager.bench.backend import Backend
from wager.bench.machine import machine, versions
from wager.bench.measure import PLAIN, Arm, Measurement, measure, warm_up
from wager.bench.prompts import Recipe
from wager.bench.results import STEP_CONTEXT, STEP_ROWS, Cell, Report, cell
from wager.bench.statistics import median
from wager.bench.workloads import prompts

if TYPE_CHECKING:
    from wager.engine.llm import LLM

_STEP_ROUNDS: Final = 3

Progress = Callable[[str, int, int], None]
"""(what runs, runs done, runs in all) of the current workload and number of clients."""


@dataclass(slots=True)
class Plan:
    """What is to be measured."""

    recipes: Sequence[Recipe]
    clients: Sequence[int]
    arms: Sequence[Arm]
    repeats: int
    prompts: int
    max_tokens: int | None
    seed: int = 0


@dataclass(slots=True)
class Run:
    """The cells so far. Filled as measurements end, so that an interrupt loses nothing."""

    cells: list[Cell] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    def add(self, measurement: Measurement) -> None:
        """Take in what one measurement holds, complete or not."""
        found = [cell(measurement, arm) for arm in measurement.arms if arm.name != PLAIN]
        self.cells.extend(c for c in found if c is not None)
        self.measurements.append(measurement)

    def draft_share(self, arm: str) -> float | None:
        """Share of an arm's engine time that went into drafting (propose and observe)."""
        total = sum(m.total_ms.get(arm, 0.0) for m in self.measurements)
        return sum(m.draft_ms.get(arm, 0.0) for m in self.measurements) / total if total else None


def execute(backend: Backend, plan: Plan, vocab_size: int, run: Run, progress: Progress) -> None:
    """Measure everything in ``plan``; on any exception ``run`` holds what was finished."""
    warm = True
    for recipe in plan.recipes:
        drawn = prompts(recipe, plan.prompts, vocab_size, plan.seed, plan.max_tokens)
        for clients in plan.clients:
            if warm:
                warm_up(backend, drawn[0], plan.arms)
                warm = False
            what = f"{recipe.name}, {clients} client{'s' if clients > 1 else ''}"
            measurement = Measurement(recipe.name, clients, drawn, list(plan.arms))

            def tell(done: int, total: int, what: str = what) -> None:
                progress(what, done, total)

            try:
                measure(backend, measurement, plan.repeats, tell)
            finally:
                run.add(measurement)


def step_times(llm: LLM) -> dict[str, float | None]:
    """Median milliseconds of a whole step (with sampler) of one request by rows, context 512.

    None where the context of the model has no room for it.
    """
    fitting = [rows for rows in STEP_ROWS if STEP_CONTEXT + rows <= llm.engine.max_model_len]
    times: dict[int, list[float]] = {rows: [] for rows in STEP_ROWS}
    # Round by round, so that a disturbance does not strike all steps of one size.
    for _ in range(_STEP_ROUNDS):
        for rows in fitting:
            times[rows] += llm.engine.costs.measure(rows, STEP_CONTEXT, repeats=3)
    return {str(rows): median(found) for rows, found in times.items()}


def describe(llm: LLM, run: Run, step_ms: dict[str, float | None]) -> Report:
    """The whole report of a run on the project's own engine."""
    return Report(
        model=llm.model.name,
        weights=llm.model.weights,
        kv=llm.engine.kv,
        threads=llm.model.ops.threads,
        machine=machine(llm.model.ops.instruction_set),
        versions=versions(),
        step_ms=step_ms,
        cells=run.cells,
    )
