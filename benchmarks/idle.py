"""What does it cost to have speculation and not to bet? Throughput beside an engine without it.

    python -m benchmarks.idle [--fresh]

The same requests, in one process and one batch, go on in pairs of steps without speculation and of
steps in which it is idle (upkeep of the indices and looking for drafts, as `auto` does it; never a
bet), in the order A B B A and B A A B. A unit are 64 steps; a tenth of the units at each end is
left out, and the interval is a bootstrap over them. About 15 minutes on two cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from random import Random

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import FOLDER, Aim, Result, Store, at_least, table
from wager import LLM, SamplingParams
from wager.bench.workloads import prose
from wager.engine.bets import Bets
from wager.engine.control.allocate import Allocation
from wager.engine.control.noloss import NoLoss
from wager.engine.engine import Engine

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
LEAST_RATIO = 0.995


class Watching(NoLoss):
    """Idle for ever: looks, scores, and never bets."""

    def _allocate(self, *asked: object, **more: object) -> Allocation:
        return Allocation()


def _prompt(llm: LLM, length: int, seed: int) -> list[int]:
    """Text of exactly so many tokens, each time another."""
    rng = Random(seed)
    ids: list[int] = []
    while len(ids) < length:
        ids += llm.model.tokenizer.encode(prose.paragraph(rng, 10) + "\n\n")
    return ids[:length]


def _unit(engine: Engine, bets: Bets) -> list[float]:
    """Seconds without speculation, and of idle steps."""
    seconds = [0.0, 0.0]
    for arm in ORDER:
        engine.bets = bets if arm else None
        started = time.perf_counter()
        engine.step()
        engine.step()
        seconds[arm] += time.perf_counter() - started
    return seconds


def measure(llm: LLM, requests: int, context: int) -> Result:
    """Of each unit the seconds [without speculation, idle]."""
    bets = llm.engine.bets
    if bets is None:
        raise AssertionError("the engine of this benchmark has speculation")
    units: list[list[float]] = []
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


def _round(engine: Engine, bets: Bets, prompts: Sequence[list[int]]) -> list[list[float]]:
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


def ratio(units: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Throughput of idle / throughput without speculation, and its 95 % interval."""
    logs = np.log([without / idle for without, idle in units])
    chance = np.random.default_rng(0)
    picks = np.sort(logs[chance.integers(0, len(logs), size=(4000, len(logs)))], axis=1)
    low, high = np.exp(np.quantile(_trimmed(picks), (0.025, 0.975)))
    return float(np.exp(_trimmed(np.sort(logs)))), float(low), float(high)


def _trimmed(rising: NDArray[np.float64]) -> NDArray[np.float64]:
    cut = int(TRIMMED * rising.shape[-1])
    return np.asarray(rising[..., cut : rising.shape[-1] - cut].mean(axis=-1))


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
            step = 1e3 * sum(w for w, _ in units) / (len(ORDER) * len(units))
            cell = f"{value:.4f} [{low:.4f}, {high:.4f}]"
            rows.append([requests, context, step, 2 * len(ORDER) * len(units), cell])
    head = ["requests", "context", "ms per plain step", "steps", "throughput, idle / without"]
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
