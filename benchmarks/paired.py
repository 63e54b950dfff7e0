"""Arms that answer the same prompts in turn in one process, and what may be said of their times.

Each group of prompts is answered by all arms there and back (A B C C B A): one prompt where there
is one client, else two per client. What an arm's controller learnt goes on from group to group and
from cell to cell, as in a server; texts are forgotten.

The units are prompts where there is one client. In a batch all share one fate: there a unit is one
pass of one arm over one group, and how far units scatter is told by all such cells together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist, fmean

import numpy as np

from benchmarks.results import Result, Store
from wager import LLM
from wager.arms import PLAIN, Arm
from wager.backend import Load
from wager.bench.backend import EngineBackend
from wager.bench.plan import Plan, PlannedCell
from wager.bench.run import Executor, Run
from wager.bench.workloads.generated import RECIPES, prompts

MAX_TOKENS = 128
CONTEXT = 2048
MOST_SEQS = 32
RESAMPLES = 20_000
LEVEL = 0.025


@dataclass(frozen=True)
class Cell:
    """One workload of ``count`` prompts at a number of clients, with weights of one kind."""

    workload: str
    clients: int
    weights: str
    count: int

    @property
    def name(self) -> str:
        return f"{self.workload}-{self.clients}-{self.weights}"

    @property
    def group(self) -> int:
        """Prompts that are answered before the next arm's turn."""
        return 1 if self.clients == 1 else 2 * self.clients


def measure(backend: EngineBackend, arms: Sequence[Arm], cell: Cell, vocab_size: int) -> Result:
    """By arm the seconds of each prompt in the first and in the second pass; and how many replies
    were not those of plain decoding."""
    asked = tuple(prompts(RECIPES[cell.workload], cell.count, vocab_size, 0, MAX_TOKENS))
    planned = PlannedCell(cell.workload, Load(clients=cell.clients), asked, batch=cell.group)
    plan = Plan(
        engine="own",
        model="smollm2-135m",
        arms=tuple(arms),
        cells=(planned,),
        repeats=1,
        warm_up=asked[:1],
    )
    run = Run.of(plan)
    Executor(backend, run).execute()
    answers = run.measurements[0].answers
    return {
        "passes": {
            arm.name: [[answers[arm.name][p.id][at].total_s for p in asked] for at in (0, 1)]
            for arm in arms
        },
        "changed": sum(
            answers[arm.name][p.id][0].token_ids != answers[PLAIN][p.id][0].token_ids
            for arm in arms
            for p in asked
        ),
    }


def run(
    store: Store, cells: Sequence[Cell], arms: Sequence[Arm], backend: type[EngineBackend]
) -> list[Result]:
    """Measure what is missing, one kind of weights after the other."""
    found = {}
    for weights in dict.fromkeys(c.weights for c in cells):
        llm = LLM(
            "smollm2-135m",
            weights=weights,
            threads=2,
            max_model_len=CONTEXT,
            max_num_seqs=MOST_SEQS,
        )
        own, size = backend(llm), llm.engine.vocab_size
        for cell in (c for c in cells if c.weights == weights):
            found[cell.name] = store.get(cell.name, partial(measure, own, arms, cell, size))
        llm.close()
    return [found[cell.name] for cell in cells]


# What follows from the seconds


def units(cell: Cell, result: Result, arm: str) -> list[float]:
    """Seconds of each unit."""
    passes = result["passes"][arm]
    if cell.clients == 1:
        return [sum(both) for both in zip(*passes, strict=True)]
    starts = range(0, len(passes[0]), cell.group)
    return [math.fsum(one[at : at + cell.group]) for one in passes for at in starts]


def seconds(cell: Cell, result: Result, arm: str) -> float:
    """Of all prompts together."""
    return math.fsum(units(cell, result, arm))


def speed_up(cell: Cell, result: Result, arm: str) -> float:
    """Time of plain decoding / time."""
    return seconds(cell, result, PLAIN) / seconds(cell, result, arm)


def best_of(cell: Cell, result: Result, arms: Sequence[str]) -> str:
    """The fastest of some arms in this cell."""
    return min(arms, key=lambda arm: seconds(cell, result, arm))


def slower(
    cells: Sequence[Cell], results: Sequence[Result], arm: str, than: Sequence[str], share: float
) -> list[float]:
    """By cell the one-sided p that ``arm`` runs at less than ``share`` of the speed of the arm
    ``than`` of that cell."""
    logs = []
    for cell, result, other in zip(cells, results, than, strict=True):
        pairs = zip(units(cell, result, other), units(cell, result, arm), strict=True)
        logs.append([math.log(theirs / (share * ours)) for theirs, ours in pairs])
    spread = scatter([one for cell, one in zip(cells, logs, strict=True) if cell.clients > 1])
    return [
        chance_of(one)
        if cell.clients == 1 or not spread
        else NormalDist().cdf(fmean(one) * math.sqrt(len(one)) / spread)
        for cell, one in zip(cells, logs, strict=True)
    ]


def scatter(samples: Sequence[Sequence[float]]) -> float:
    """Standard deviation within samples of different means; 0 where there is none."""
    squares = math.fsum((x - fmean(one)) ** 2 for one in samples for x in one)
    free = sum(len(one) - 1 for one in samples)
    return math.sqrt(squares / free) if free > 0 else 0.0


def chance_of(differences: Sequence[float]) -> float:
    """One-sided p of a sum that low if each difference could as well have the other sign."""
    values = np.asarray(differences)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(RESAMPLES, len(values)))
    return float((1 + (signs @ values <= values.sum()).sum()) / (1 + RESAMPLES))


def holm(chances: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which are rejected when all are tested together (S. Holm, 1979)."""
    rejected = [False] * len(chances)
    for rank, index in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        if chances[index] > level / (len(chances) - rank):
            break
        rejected[index] = True
    return rejected


def rejected_cells(cells: Sequence[Cell], chances: Sequence[float]) -> list[str]:
    """The names of those that are rejected together."""
    return [c.name for c, bad in zip(cells, holm(chances), strict=True) if bad]


def pooled(
    cells: Sequence[Cell], results: Sequence[Result], over: Sequence[str], under: Sequence[str]
) -> tuple[float, float, float]:
    """Geometric mean over the cells of time of ``over`` / time of ``under`` (arms by cell), and its
    95 % interval, bootstrapped over the units of each cell."""
    chance = np.random.default_rng(0)
    logs, point = np.zeros(2000), 0.0
    for cell, result, first, second in zip(cells, results, over, under, strict=True):
        above, below = (np.asarray(units(cell, result, name)) for name in (first, second))
        picks = chance.integers(0, len(above), size=(2000, len(above)))
        logs += np.log(above[picks].sum(axis=1) / below[picks].sum(axis=1))
        point += math.log(above.sum() / below.sum())
    low, high = np.exp(np.quantile(logs / len(results), (0.025, 0.975)))
    return math.exp(point / len(results)), float(low), float(high)
