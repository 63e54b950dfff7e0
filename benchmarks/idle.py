"""What does it cost to have speculation and not to bet? Throughput beside an engine without it.

    python -m benchmarks.idle [--fresh]

The same requests, in one process and one batch, go on in blocks of steps without speculation and of
steps in which it is idle (upkeep of the indices and looking for drafts, as `auto` does it; never a
bet), in the order A B B A. Units are such quadruples; the interval is a bootstrap over them. About
12 minutes on two cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from random import Random

import numpy as np

from benchmarks.results import FOLDER, Aim, Result, Store, at_least, table
from wager import LLM, SamplingParams
from wager.bench.workloads import prose
from wager.engine.control.allocate import Allocation, Batch, Offer
from wager.engine.control.base import StepView
from wager.engine.control.noloss import NoLoss
from wager.engine.engine import Engine

REQUESTS = (1, 4, 16, 32)
CONTEXTS = (300, 3000)
BLOCK = 16
"""Steps; the controller looks for drafts at least once in so many."""
LEAST, MOST = 12, 48
"""Quadruples of blocks."""
SECONDS = 45.0
"""That a cell takes beyond the least, at most."""
LEAST_RATIO = 0.995


class Watching(NoLoss):
    """Idle for ever: looks, scores, and never bets."""

    def _allocate(
        self, step: StepView, batch: Batch, offers: Sequence[Offer], spent_ms: float
    ) -> Allocation:
        return Allocation()


def _prompt(llm: LLM, length: int, seed: int) -> list[int]:
    """Text of exactly so many tokens, each time another."""
    rng = Random(seed)
    ids: list[int] = []
    while len(ids) < length:
        ids += llm.model.tokenizer.encode(prose.paragraph(rng, 10) + "\n\n")
    return ids[:length]


def _block(engine: Engine) -> float:
    started = time.perf_counter()
    for _ in range(BLOCK):
        engine.step()
    return time.perf_counter() - started


def measure(llm: LLM, requests: int, context: int) -> Result:
    """Seconds of each quadruple: [without speculation, idle]."""
    engine = llm.engine
    engine.reset_caches()
    bets = engine.bets
    if bets is None:
        raise AssertionError("the engine of this benchmark has speculation")
    bets.controller = Watching(bets.config, engine.times)
    params = SamplingParams(temperature=0.0, max_tokens=4 * BLOCK * (MOST + 2), ignore_eos=True)
    names = [
        engine.add_request(_prompt(llm, context, 1000 * context + i), params)
        for i in range(requests)
    ]
    while not all(s.decoding for s in engine.scheduler.sequences()):
        engine.step()
    _block(engine)  # the first plain steps tell the controller what one takes
    quads, started = [], time.monotonic()
    try:
        while len(quads) < MOST:
            if len(quads) >= LEAST and time.monotonic() - started > SECONDS:
                break
            seconds = [0.0, 0.0]
            for arm in (0, 1, 1, 0) if len(quads) % 2 else (1, 0, 0, 1):
                engine.bets = bets if arm else None
                seconds[arm] += _block(engine)
            quads.append(seconds)
    finally:
        engine.bets = bets
        for name in names:
            engine.abort(name)
        while engine.has_work():
            engine.step()
    return {"quads": quads, "looks": bets.controller.decisions.reasons}


def ratio(quads: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Throughput of idle / throughput without speculation, and its 95 % interval."""
    logs = np.log([without / idle for without, idle in quads])
    chance = np.random.default_rng(0)
    means = logs[chance.integers(0, len(logs), size=(4000, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(means, (0.025, 0.975)))
    return float(np.exp(logs.mean())), float(low), float(high)


def name_of(requests: int, context: int) -> str:
    """Of a cell."""
    return f"{requests}x{context}"


def report(results: dict[str, Result]) -> str:
    """One line per cell."""
    rows = []
    for requests in REQUESTS:
        for context in CONTEXTS:
            quads = results[name_of(requests, context)]["quads"]
            value, low, high = ratio(quads)
            step = 1e3 * sum(w for w, _ in quads) / (2 * BLOCK * len(quads))
            cell = f"{value:.4f} [{low:.4f}, {high:.4f}]"
            rows.append([requests, context, step, 4 * BLOCK * len(quads), cell])
    head = ["requests", "context", "ms per plain step", "steps", "throughput, idle / without"]
    return f"Idle speculation, int8:\n\n{table(head, rows)}"


def aims(results: dict[str, Result]) -> list[Aim]:
    """The lower end of every interval."""
    return [
        at_least(f"idle, {name} tokens, lower end of 95 %", ratio(r["quads"])[1], LEAST_RATIO)
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
