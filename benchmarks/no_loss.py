"""Does the controller lose anywhere? Whole requests against the engine without speculation.

    python -m benchmarks.no_loss [--fresh] [--cells copy-1-int8,...]

Five arms answer the same prompts in turn (A B C D E E D C B A): no speculation, the controller
(method auto), the same that watches and never bets (idle), and fixed drafts of 4 and 8 tokens by
the same methods. Every arm keeps what its controller learnt from cell to cell, as a server would;
texts are forgotten. What is finished is kept, so an interrupted run goes on; about 90 minutes on
two cores.

Units are prompts. A cell is a loss where a paired sign-flip test over its prompts says that the
controller's time is more than 1 / 0.99 of the plain time, Holm-adjusted over the cells, at 2.5 %;
and worse than a fixed length where it takes more than 1 / 0.95 of the time of the best of them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.results import FOLDER, Aim, Result, Store, at_least, at_most, table
from wager import LLM
from wager.arms import PLAIN, Arm, parse_arms
from wager.backend import Load, Started
from wager.bench.backend import EngineBackend
from wager.bench.plan import Plan, PlannedCell
from wager.bench.run import Executor, Run
from wager.bench.workloads.generated import RECIPES, prompts
from wager.engine.control.allocate import Allocation, Batch, Offer
from wager.engine.control.base import Controller, StepView
from wager.engine.control.noloss import NoLoss

CONTROLLED, IDLE = "auto", "idle"
FIXED = ("suffix+ngram:k=4,min=2,max=5", "suffix+ngram:k=8,min=2,max=5")
ARMS = (PLAIN, CONTROLLED, IDLE, *FIXED)
MAX_TOKENS = 128
CONTEXT = 2048
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


def _cells() -> tuple[Cell, ...]:
    wanted = {
        ("int8", 1): ("copy", "edit", "explain", "story", "random", "json", "agent", "flip"),
        ("int8", 4): ("edit", "explain", "flip"),
        ("int8", 16): ("copy", "edit", "explain", "flip"),
        ("int8", 32): ("edit", "story", "json"),
        ("f32", 1): ("edit", "explain", "flip"),
        ("f32", 4): ("agent", "story"),
        ("f32", 16): ("explain",),
    }
    return tuple(
        Cell(workload, clients, weights, max(12 if weights == "f32" else 16, 2 * clients))
        for (weights, clients), workloads in wanted.items()
        for workload in workloads
    )


CELLS = _cells()


class Watching(NoLoss):
    """Idle for ever: looks, scores, and never bets."""

    def _allocate(
        self, step: StepView, batch: Batch, offers: Sequence[Offer], spent_ms: float
    ) -> Allocation:
        return Allocation()


class Lasting(EngineBackend):
    """Keeps the controller of each arm from start to start."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm)
        self._engine = llm.engine
        self._controllers: dict[str, Controller] = {}

    def start(self, arm: Arm) -> Started:
        started = super().start(arm)
        bets = self._engine.bets
        if bets is not None:
            if arm.name == IDLE and arm.name not in self._controllers:
                bets.controller = Watching(bets.config, self._engine.times)
            bets.controller = self._controllers.setdefault(arm.name, bets.controller)
        return started


def arms() -> tuple[Arm, ...]:
    """In the order of ARMS; `idle` is `auto` under another name."""
    plain, auto, *fixed = parse_arms(",".join((PLAIN, CONTROLLED, *FIXED)))
    return (plain, auto, replace(auto, name=IDLE), *fixed)


def measure(backend: Lasting, cell: Cell, vocab_size: int) -> Result:
    """By arm the seconds of each prompt, of all runs together; and how many replies differed."""
    load = Load(clients=cell.clients)
    asked = tuple(prompts(RECIPES[cell.workload], cell.count, vocab_size, 0, MAX_TOKENS))
    plan = Plan(
        engine="own",
        model="smollm2-135m",
        arms=arms(),
        cells=(PlannedCell(cell.workload, load, asked),),
        repeats=1,
        warm_up=asked[:1],
    )
    run = Run.of(plan)
    Executor(backend, run).execute()
    answers = run.measurements[0].answers
    return {
        "seconds": {
            name: [sum(a.total_s for a in answers[name][p.id]) for p in asked] for name in ARMS
        },
        "changed": sum(
            answers[name][p.id][0].token_ids != answers[PLAIN][p.id][0].token_ids
            for name in ARMS[1:]
            for p in asked
        ),
    }


# What follows from the seconds


def speed_up(seconds: dict[str, list[float]], arm: str) -> float:
    """Time of plain decoding / time."""
    return math.fsum(seconds[PLAIN]) / math.fsum(seconds[arm])


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


def slower(seconds: dict[str, list[float]], arm: str, than: str, share: float) -> float:
    """One-sided p that ``arm`` runs at less than ``share`` of the speed of ``than``."""
    pairs = zip(seconds[than], seconds[arm], strict=True)
    return chance_of([theirs - share * ours for theirs, ours in pairs])


def pooled(results: Sequence[Result], over: str, under: str) -> tuple[float, float, float]:
    """Geometric mean over the cells of time of ``over`` / time of ``under``, and its 95 % interval,
    bootstrapped over the prompts of each cell."""
    chance = np.random.default_rng(0)
    logs, point = np.zeros(2000), 0.0
    for result in results:
        above, below = (np.asarray(result["seconds"][name]) for name in (over, under))
        picks = chance.integers(0, len(above), size=(2000, len(above)))
        logs += np.log(above[picks].sum(axis=1) / below[picks].sum(axis=1))
        point += math.log(above.sum() / below.sum())
    low, high = np.exp(np.quantile(logs / len(results), (0.025, 0.975)))
    return math.exp(point / len(results)), float(low), float(high)


def report(cells: Sequence[Cell], results: Sequence[Result]) -> str:
    """The table of all cells, and the pooled figures."""
    rows = []
    for cell, result in zip(cells, results, strict=True):
        found = [f"{speed_up(result['seconds'], name):.3f}" for name in ARMS[1:]]
        rows.append([cell.weights, cell.clients, cell.workload, *found, result["changed"]])
    head = ["weights", "clients", "workload", "controller", "idle", "k=4", "k=8", "changed replies"]
    lines = ["No loss: speed-up of whole requests over no speculation:", "", table(head, rows), ""]
    for what, over, under in (
        ("controller over no speculation", PLAIN, CONTROLLED),
        ("idle over no speculation", PLAIN, IDLE),
        *((f"controller over {name}", name, CONTROLLED) for name in FIXED),
    ):
        value, low, high = pooled(results, over, under)
        lines.append(f"pooled, {what}: {value:.3f} [{low:.3f}, {high:.3f}]")
    return "\n".join(lines)


def aims(cells: Sequence[Cell], results: Sequence[Result]) -> list[Aim]:
    """What the controller promises."""
    seconds = [r["seconds"] for r in results]
    best = [min(FIXED, key=lambda name, of=s: math.fsum(of[name])) for s in seconds]  # type: ignore[misc]
    lost = _named(cells, [slower(s, CONTROLLED, PLAIN, 0.99) for s in seconds])
    behind = _named(
        cells, [slower(s, CONTROLLED, b, 0.95) for s, b in zip(seconds, best, strict=True)]
    )
    changed = sum(r["changed"] for r in results)
    return [
        at_most("cells that lose more than 1 %", len(lost), 0, note=", ".join(lost)),
        at_most("cells below 0.95x the best fixed", len(behind), 0, note=", ".join(behind)),
        at_least("controller, pooled", pooled(results, PLAIN, CONTROLLED)[0], 0.995),
        *(
            at_least(f"controller over {name}, pooled", pooled(results, name, CONTROLLED)[0], 1.0)
            for name in FIXED
        ),
        at_most("replies that differ from plain ones", changed, 0),
    ]


def _named(cells: Sequence[Cell], chances: Sequence[float]) -> list[str]:
    return [c.name for c, bad in zip(cells, holm(chances), strict=True) if bad]


def run(store: Store, cells: Sequence[Cell]) -> list[Result]:
    """Measure what is missing, one kind of weights after the other."""
    found = {}
    for weights in dict.fromkeys(c.weights for c in cells):
        llm = LLM(
            "smollm2-135m", weights=weights, threads=2, max_model_len=CONTEXT, max_num_seqs=32
        )
        backend, size = Lasting(llm), llm.engine.vocab_size
        for cell in (c for c in cells if c.weights == weights):
            found[cell.name] = store.get(cell.name, partial(measure, backend, cell, size))
        llm.close()
    return [found[cell.name] for cell in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    parser.add_argument("--cells", default="", help="comma list, e.g. copy-1-int8; default: all")
    options = parser.parse_args()
    every = {cell.name: cell for cell in CELLS}
    names = [name for name in options.cells.split(",") if name] or list(every)
    if unknown := set(names) - set(every):
        parser.error(f"--cells: {', '.join(sorted(unknown))}; there are: {', '.join(every)}")
    cells = [every[name] for name in names]
    results = run(Store(options.fresh, FOLDER / "no_loss"), cells)
    print(report(cells, results))
    print()
    print(table(["what", "aim", "found", "met"], [a.row for a in aims(cells, results)]))


if __name__ == "__main__":
    main()
