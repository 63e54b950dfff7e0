"""What the n-gram drafter costs per request and step, by kind of text and context length.

    python benchmarks/ngram.py [--contexts 1000,10000,100000]

Medians of single calls through the drafter's seam (the cost that the engine sees): `propose` of one
request, and per request in a batch of 16; `observe` of one committed token; observing the prompt,
per token; memory of the index per token of context.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from wager.drafters.base import DraftQuery
from wager.drafters.ngram import NgramDrafter, NgramOptions, index_class
from wager.speculation import MethodConfig

RANGES = ((5, 5), (2, 5), (10, 500))
BATCH = 16
CALLS = 2000
K = 8


def texts(size: int) -> dict[str, list[int]]:
    """Kinds that are hard in different ways, and one that is like prose."""
    rng = random.Random(size)
    words = [max(1, int(50_000 ** rng.random())) for _ in range(size)]
    for _ in range(size // 100):  # passages that come back, as in code and in quotes
        at, to = rng.randrange(size), rng.randrange(size)
        passage = words[at : at + 20]
        words[to : to + len(passage)] = passage
    return {
        "one token repeated": [7] * size,
        "period 7": [i % 7 for i in range(size)],
        "random, 3 ids": rng.choices(range(3), k=size),
        "random, 50k ids": rng.choices(range(50_000), k=size),
        "like prose": words[:size],
    }


def median_us(call: Callable[[int], object], calls: int = CALLS) -> float:
    """Median time of one call in microseconds; the call is given its number."""
    times = []
    for number in range(calls):
        started = time.perf_counter_ns()
        call(number)
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1e3


def measure(text: list[int], shortest: int, longest: int) -> tuple[float, float, float, float]:
    """propose, propose in a batch (per request), observe one token, prompt per token; in us."""
    config = MethodConfig("ngram", K, NgramOptions(shortest, longest))
    drafter = NgramDrafter(config, vocab_size=50_000)
    started = time.perf_counter_ns()
    drafter.start(0, text, "")
    prompt = (time.perf_counter_ns() - started) / 1e3 / len(text)
    one = [DraftQuery(0, len(text), K)]
    propose = median_us(lambda _: drafter.propose(one))
    for request in range(1, BATCH):
        drafter.start(request, text[:1000], "")
    batch = one + [DraftQuery(r, min(len(text), 1000), K) for r in range(1, BATCH)]
    together = median_us(lambda _: drafter.propose(batch), CALLS // 4) / BATCH
    # Only one copied token in four is wrong, so that matches stay long where they can be.
    tail = [t if i % 4 else (t + 1) % 50_000 for i, t in enumerate(text[:CALLS])] * 2
    observe = median_us(lambda i: drafter.observe(0, tail[i : i + 1]), len(tail) // 2)
    return propose, together, observe, prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--contexts", default="1000,10000,100000")
    contexts = [int(size) for size in parser.parse_args().contexts.split(",")]
    print(f"index: {index_class().__module__}; k={K}; medians in microseconds\n")
    print(
        "| text | context | lookup | propose | batched | observe 1 | prompt/token | bytes/token |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for size in contexts:
        for kind, text in texts(size).items():
            for shortest, longest in RANGES:
                times = measure(text, shortest, longest)
                index = index_class()(shortest, longest, True, True)
                index.observe(0, text)
                memory = f"{index.bytes / size:.0f}" if hasattr(index, "bytes") else "n/a"
                cells = " | ".join(f"{t:.2f}" for t in times)
                print(f"| {kind} | {size} | {shortest}-{longest} | {cells} | {memory} |")


if __name__ == "__main__":
    main()
