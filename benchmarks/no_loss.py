"""Does the controller lose anywhere? Whole requests against the engine without speculation.

    python -m benchmarks.no_loss [--fresh] [--cells copy-1-int8,...]

Five arms: no speculation, the controller (method auto), the same that watches and never bets
(idle), and fixed drafts of 4 and 8 tokens by the same methods (`benchmarks.paired` says how they
are compared). What is finished is kept, so an interrupted run goes on; about 90 minutes on two
cores.

A cell is a loss where the controller is shown to take more than 1 / 0.99 of the plain time, and
behind where it takes more than 1 / 0.95 of the time of the better fixed length: one-sided tests at
2.5 %, Holm-adjusted over the cells.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.idle import Watching
from benchmarks.paired import Cell, best_of, pooled, rejected_cells, run, slower, speed_up
from benchmarks.results import FOLDER, Aim, Result, Store, at_least, at_most, table
from wager.arms import PLAIN, Arm, parse_arms
from wager.bench.backend import EngineBackend
from wager.engine.bets import Bets
from wager.engine.control.base import Controller

CONTROLLED, IDLE = "auto", "idle"
FIXED = ("suffix+ngram:k=4,min=2,max=5", "suffix+ngram:k=8,min=2,max=5")
ARMS = (PLAIN, CONTROLLED, IDLE, *FIXED)
GROUPS = {4: 4, 16: 3, 32: 2}
"""Of two prompts per client."""


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
    single = {"int8": 16, "f32": 12}
    return tuple(
        Cell(
            workload,
            clients,
            weights,
            single[weights] if clients == 1 else 2 * clients * GROUPS[clients],
        )
        for (weights, clients), workloads in wanted.items()
        for workload in workloads
    )


CELLS = _cells()


class WithIdle(EngineBackend):
    """One arm has a controller that never bets."""

    def controller(self, arm: Arm, bets: Bets) -> Controller:
        """See `EngineBackend`."""
        if arm.name == IDLE:
            return Watching(bets.config, bets.times)
        return super().controller(arm, bets)


def arms() -> tuple[Arm, ...]:
    """In the order of ARMS; `idle` is `auto` under another name."""
    plain, auto, *fixed = parse_arms(",".join((PLAIN, CONTROLLED, *FIXED)))
    return (plain, auto, replace(auto, name=IDLE), *fixed)


def _pooled(
    cells: Sequence[Cell], results: Sequence[Result], over: str, under: str
) -> tuple[float, float, float]:
    return pooled(cells, results, [over] * len(cells), [under] * len(cells))


def report(cells: Sequence[Cell], results: Sequence[Result]) -> str:
    """The table of all cells, and the pooled figures."""
    rows = []
    for cell, result in zip(cells, results, strict=True):
        found = [f"{speed_up(cell, result, name):.3f}" for name in ARMS[1:]]
        rows.append([cell.weights, cell.clients, cell.workload, *found, result["changed"]])
    head = ["weights", "clients", "workload", "controller", "idle", "k=4", "k=8", "changed replies"]
    lines = ["No loss: speed-up of whole requests over no speculation:", "", table(head, rows), ""]
    for what, over, under in (
        ("controller over no speculation", PLAIN, CONTROLLED),
        ("idle over no speculation", PLAIN, IDLE),
        *((f"controller over {name}", name, CONTROLLED) for name in FIXED),
    ):
        value, low, high = _pooled(cells, results, over, under)
        lines.append(f"pooled, {what}: {value:.3f} [{low:.3f}, {high:.3f}]")
    return "\n".join(lines)


def aims(cells: Sequence[Cell], results: Sequence[Result]) -> list[Aim]:
    """What the controller promises."""
    plain = [PLAIN] * len(cells)
    best = [best_of(c, r, FIXED) for c, r in zip(cells, results, strict=True)]
    lost = rejected_cells(cells, slower(cells, results, CONTROLLED, plain, 0.99))
    behind = rejected_cells(cells, slower(cells, results, CONTROLLED, best, 0.95))
    changed = sum(r["changed"] for r in results)
    return [
        at_most("cells that lose more than 1 %", len(lost), 0, note=", ".join(lost)),
        at_most("cells below 0.95x the best fixed", len(behind), 0, note=", ".join(behind)),
        at_least("controller, pooled", _pooled(cells, results, PLAIN, CONTROLLED)[0], 0.995),
        *(
            at_least(
                f"controller over {name}, pooled",
                _pooled(cells, results, name, CONTROLLED)[0],
                1.0,
            )
            for name in FIXED
        ),
        at_most("replies that differ from plain ones", changed, 0),
    ]


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
    results = run(Store(options.fresh, FOLDER / "no_loss"), cells, arms(), WithIdle)
    print(report(cells, results))
    print()
    print(table(["what", "aim", "found", "met"], [a.row for a in aims(cells, results)]))


if __name__ == "__main__":
    main()
