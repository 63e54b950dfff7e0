"""What does it cost to have speculation and not to bet? Throughput beside an engine without it.

    python -m benchmarks.idle [--fresh]

The same requests, in one process and one batch, go on in pairs of steps without speculation and of
steps in which it is idle (upkeep of the indices and looking for drafts, as `auto` does it; never a
bet), in the order A B B A and B A A B. What speculation itself does in a step is timed apart, all
of it counts. The rest of the steps ought to take the same: there the machine's pauses are larger
than any difference, so of the ratios of four pairs a part at each end is left out. The interval is
a bootstrap over units of 64 steps. About 15 minutes on two cores.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import FOLDER, Aim, Result, Store, at_least, table
from wager import LLM, SamplingParams
from wager.bench.workloads import prose
from wager.engine.bets import Bets
from wager.engine.control.allocate import Allocation
from wager.engine.control.noloss import NoLoss
from wager.engine.engine import Engine
from wager.engine.request import Sequence as Running
from wager.engine.scheduler import Work

T = TypeVar("T")

REQUESTS = (1, 4, 16, 32)
CONTEXTS = (300, 3000)
ORDER = (0, 1, 1, 0, 1, 0, 0, 1) * 4
"""Pairs of steps of a unit, 1: idle. So 32 steps of it are idle: one of them looks for drafts."""
ROUND = 16
"""Units with the same requests, which grow by 1,024 tokens meanwhile."""
LEAST = 16
"""Units of a cell."""
SECONDS = 75.0
"""Of a cell, when there are as many."""
TRIMMED = 0.1
"""At each end."""
RESAMPLES = 4000
LEAST_RATIO = 0.995


class Unit(TypedDict):
    """64 steps: seconds of the pairs without speculation and of the idle ones, in their order,
    these without what speculation did itself, which is ``own``, of all together."""

    without: list[float]
    idle: list[float]
    own: float


class Watching(NoLoss):
    """Idle for ever: looks, scores, and never bets."""

    def _allocate(self, *asked: object, **more: object) -> Allocation:
        return Allocation()


class Timed(Bets):
    """Takes the time of all that a step does for speculation."""

    spent = 0.0

    def rows(self) -> int:
        """See `Bets`."""
        return self._timed(super().rows)

    def draft(self, works: list[Work]) -> None:
        """See `Bets`."""
        self._timed(partial(super().draft, works))

    def end(self, over: Sequence[Running]) -> None:
        """See `Bets`."""
        self._timed(partial(super().end, over))

    def settle(self, works: Sequence[Work], total: float) -> tuple[float, int]:
        """See `Bets`."""
        return self._timed(partial(super().settle, works, total))

    def _timed(self, part: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return part()
        finally:
            self.spent += time.perf_counter() - started


def _prompt(llm: LLM, length: int, seed: int) -> list[int]:
    """Text of exactly so many tokens, each time another."""
    rng = Random(seed)
    ids: list[int] = []
    while len(ids) < length:
        ids += llm.model.tokenizer.encode(prose.paragraph(rng, 10) + "\n\n")
    return ids[:length]


def _unit(engine: Engine, bets: Timed) -> Unit:
    """Measure one."""
    unit: Unit = {"without": [], "idle": [], "own": 0.0}
    for arm in ORDER:
        engine.bets = bets if arm else None
        bets.spent = 0.0
        started = time.perf_counter()
        engine.step()
        engine.step()
        took = time.perf_counter() - started
        unit["idle" if arm else "without"].append(took - bets.spent)
        unit["own"] += bets.spent
    return unit


def measure(llm: LLM, requests: int, context: int) -> Result:
    """The units of a cell."""
    made = llm.engine.bets
    if made is None:
        raise AssertionError("the engine of this benchmark has speculation")
    bets = Timed(made.config, made.drafters, llm.engine.scheduler, made.times)
    llm.engine.bets = bets
    units: list[Unit] = []
    started = time.monotonic()
    while len(units) < LEAST or time.monotonic() - started < SECONDS:
        llm.engine.reset_caches()
        bets.controller = Watching(bets.config, llm.engine.times)
        units += _round(
            llm.engine,
            bets,
            [_prompt(llm, context, 1000 * len(units) + i) for i in range(requests)],
        )
    return {"units": units}


def _round(engine: Engine, bets: Timed, prompts: Sequence[list[int]]) -> list[Unit]:
    params = SamplingParams(temperature=0.0, max_tokens=64 * ROUND + 100, ignore_eos=True)
    names = [engine.add_request(prompt, params) for prompt in prompts]
    while sum(s.decoding for s in engine.scheduler.running) < len(prompts):
        engine.step()
    for _ in range(8):  # the first plain steps tell the controller what one takes
        engine.step()
    units = [_unit(engine, bets) for _ in range(ROUND)]
    engine.bets = bets
    for name in names:
        engine.abort(name)
    while engine.has_work():
        engine.step()
    return units


def ratio(units: Sequence[Unit]) -> tuple[float, float, float]:
    """Throughput of idle / throughput without speculation, and its 95 % interval."""
    without, idle = (np.array([unit[arm] for unit in units]) for arm in ("without", "idle"))
    # One row per unit: the ratios of its fours of pairs, and the share of the work of its own.
    rest = np.log(_by_two(idle) / _by_two(without))
    own = np.array([unit["own"] for unit in units]) / np.median(without, axis=1) / len(without[0])
    chance = np.random.default_rng(0)
    picks = chance.integers(0, len(units), size=(RESAMPLES, len(units)))
    low, high = np.quantile([_throughput(rest[p], own[p]) for p in picks], (0.025, 0.975))
    return _throughput(rest, own), float(low), float(high)


def _by_two(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(pairs.reshape(len(pairs), -1, 2).sum(axis=2))


def _throughput(rest: NDArray[np.float64], own: NDArray[np.float64]) -> float:
    """1 / the time that idle takes where none takes 1."""
    rising = np.sort(rest, axis=None)
    cut = int(TRIMMED * len(rising))
    return 1.0 / (math.exp(rising[cut : len(rising) - cut].mean()) + float(own.mean()))


def name_of(requests: int, context: int) -> str:
    """Of a cell."""
    return f"{requests}x{context}"


def report(results: dict[str, Result]) -> str:
    """One line per cell."""
    rows = []
    for requests in REQUESTS:
        for context in CONTEXTS:
            units = results[name_of(requests, context)]["units"]
            value, low, high = ratio(units)
            plain = math.fsum(s for unit in units for s in unit["without"])
            own = math.fsum(unit["own"] for unit in units) / plain
            steps = len(ORDER) * len(units)
            cell = f"{value:.4f} [{low:.4f}, {high:.4f}]"
            rows.append([requests, context, 1e3 * plain / steps, 2 * steps, f"{own:.2%}", cell])
    head = ["requests", "context", "ms per step", "steps", "work of its own", "idle / without"]
    return f"Idle speculation, int8:\n\n{table(head, rows)}"


def aims(results: dict[str, Result]) -> list[Aim]:
    """The lower end of every interval."""
    return [
        at_least(f"idle, {name} tokens, lower end of 95 %", ratio(r["units"])[1], LEAST_RATIO)
        for name, r in results.items()
    ]


def run(store: Store) -> dict[str, Result]:
    """Measure what is missing."""
    llm = LLM(
        "smollm2-135m",
        weights="int8",
        threads=2,
        max_model_len=8192,
        max_num_seqs=max(REQUESTS),
        prefix_cache=False,
        speculation={"method": "auto"},
        kv_memory=6 << 30,
    )
    try:
        return {
            name_of(n, c): store.get(name_of(n, c), partial(measure, llm, n, c))
            for n in REQUESTS
            for c in CONTEXTS
        }
    finally:
        llm.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    options = parser.parse_args()
    results = run(Store(options.fresh, FOLDER / "idle"))
    print(report(results))
    print()
    print(table(["what", "aim", "found", "met"], [a.row for a in aims(results)]))


if __name__ == "__main__":
    main()
