"""Does `auto` find the method that is best, on each workload? Against each method by itself.

    python -m benchmarks.auto [--fresh] [--workload copy,agent]

Whole requests, int8, one client: no speculation, the controller with both methods, and each method
with a fixed length of 8 (`benchmarks.paired` says how they are compared). The best single method of
a workload is named with hindsight, by the same figures. About 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.paired import Cell, best_of, pooled, run, speed_up
from benchmarks.results import FOLDER, Aim, Result, Store, at_least, table
from wager.arms import PLAIN, parse_arms
from wager.bench.backend import EngineBackend
from wager.bench.workloads.generated import RECIPES

AUTO = "auto"
SINGLE = ("ngram:k=8,min=2,max=5", "suffix:k=8")
ARMS = (PLAIN, AUTO, *SINGLE)
LEAST = 0.97


def _against_best(cells: Sequence[Cell], results: Sequence[Result]) -> tuple[float, float, float]:
    best = [best_of(c, r, SINGLE) for c, r in zip(cells, results, strict=True)]
    return pooled(cells, results, best, [AUTO] * len(cells))


def report(cells: Sequence[Cell], results: Sequence[Result]) -> str:
    """One line per workload."""
    rows = [
        [cell.workload, *(f"{speed_up(cell, result, name):.3f}" for name in ARMS[1:])]
        for cell, result in zip(cells, results, strict=True)
    ]
    value, low, high = _against_best(cells, results)
    head = table(["workload", AUTO, *(f"`{name}`" for name in SINGLE)], rows)
    return (
        f"Speed-up of whole requests, int8, one client:\n\n{head}\n\n"
        f"pooled, auto over the best single method of each: {value:.3f} [{low:.3f}, {high:.3f}]"
    )


def aims(cells: Sequence[Cell], results: Sequence[Result]) -> list[Aim]:
    """Within 3 % of the best."""
    value, low, high = _against_best(cells, results)
    note = f"{low:.3f} to {high:.3f}"
    return [at_least("auto over the best single method, pooled", value, LEAST, note=note)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    parser.add_argument("--workload", default=",".join(RECIPES))
    options = parser.parse_args()
    cells = [Cell(name, 1, "int8", 16) for name in options.workload.split(",")]
    arms = parse_arms(",".join(ARMS))
    results = run(Store(options.fresh, FOLDER / "auto"), cells, arms, EngineBackend)
    print(report(cells, results))
    print()
    print(table(["what", "aim", "found", "met"], [a.row for a in aims(cells, results)]))


if __name__ == "__main__":
    main()
