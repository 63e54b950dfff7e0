"""`make bench`: every figure of the README, in one run, as markdown.

    python -m benchmarks.run_all [--fresh] [--skip engines,quality]

About 70 minutes on two cores, with nothing else running. What is finished is kept in
benchmarks/results and not measured again, so an interrupted run goes on where it was; results of
other sources or of another CPU are not kept. Peers that `scripts/peers.sh` did not set up (in
`.peers`, or where WAGER_PEERS says) are n/a.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from functools import partial

from benchmarks import (
    drafters,
    engines,
    kernels,
    memory,
    methods,
    overhead,
    quality,
    shapes,
    steps,
)
from benchmarks.peers import Peers
from benchmarks.results import FOLDER, Aim, Result, Store, say, table
from wager import LLM
from wager.bench.machine import machine, versions
from wager.bench.workloads.generated import RECIPES

PARTS = ("steps", "overhead", "engines", "quality", "memory", "shapes", "drafters", "methods")
THREADS = 2
QUIET = 0.7
PEER_VERSIONS = {
    "vllm": "vLLM 0.32.0 CPU",
    "suffix": "arctic-inference 0.1.1",
    "llama": "llama.cpp b11434",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    parser.add_argument("--skip", default="", help=f"comma list of: {', '.join(PARTS)}")
    options = parser.parse_args()
    skipped = {part for part in options.skip.split(",") if part}
    if unknown := skipped - set(PARTS):
        parser.error(f"--skip: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    started = time.monotonic()
    text = run(Store(options.fresh), [part for part in PARTS if part not in skipped])
    (FOLDER / "report.md").write_text(text + "\n")
    print(text)
    say(f"done in {(time.monotonic() - started) / 60:.1f} minutes; kept in {FOLDER}")


def run(store: Store, parts: list[str]) -> str:
    """Measure what is missing; returns the report."""
    peers = Peers.find()
    llms = {
        kind: LLM(
            "smollm2-135m", weights=kind, threads=THREADS, max_model_len=2048, prefix_cache=False
        )
        for kind in ("f32", "int8", "int4")
    }
    rates = store.get("machine", lambda: machine_rates(llms["f32"]))
    sections, aims = [heading(llms["f32"], peers, rates)], list[Aim]()

    def add(text: str, found: list[Aim]) -> None:
        sections.append(text)
        aims.extend(found)

    if "steps" in parts:
        found = store.get("steps", lambda: steps.measure(llms, peers))
        least = steps.limits(llms, found)
        add(steps.report(found, least), steps.aims(found, least))
    if "overhead" in parts:
        found = store.get("overhead", lambda: overhead.measure(llms))
        add(overhead.report(found), overhead.aims(found))
    if "engines" in parts:
        found = engines.measure(store, llms, peers)
        add(engines.report(found), engines.aims(found))
    if "quality" in parts:
        found = store.get("quality", lambda: quality.measure(llms, peers))
        add(quality.report(found), quality.aims(found))
    for llm in llms.values():
        llm.close()
    if "memory" in parts:
        found = store.get("memory", memory.measure)
        add(memory.report(found), memory.aims(found))
    if "shapes" in parts:
        for name in shapes.SHAPES:
            found = store.get(f"shapes-{name}", partial(shapes.measure, name))
            add(shapes.report(found), shapes.aims(found))
    if "drafters" in parts:
        found = store.get("drafters", lambda: drafters.measure(peers))
        add(drafters.report(found), drafters.aims(found))
    if "methods" in parts:
        found = methods.measure(store, list(RECIPES))
        add(methods.report(found), methods.aims(found))
    sections.append("Aims:\n\n" + table(["what", "aim", "found", "met"], [a.row for a in aims]))
    return "\n\n".join(sections)


def machine_rates(llm: LLM) -> Result:
    """Bandwidth and peak, and how busy the machine was before anything was measured."""
    load = os.getloadavg()[0]
    if load > QUIET:
        say(f"WARNING: the load is {load:.1f}: other work runs, and the figures will not hold")
    return {"load": load, **kernels.rates(steps.native_ops(llm))}


def heading(llm: LLM, peers: Peers, rates: Result) -> str:
    """What it was measured on, and with."""
    ops = llm.model.ops
    about = machine(ops.instruction_set)
    used = [f"{name} {version}" for name, version in versions().items()]
    used += [text for part, text in PEER_VERSIONS.items() if peers.has(part)]
    peaks = [f"{kind} {rate / 1e9:.0f} G/s" for kind, rate in rates["multiply_adds"].items()]
    lines = (
        f"{time.strftime('%Y-%m-%d')}, {about['cpu']}, {about['cores']} cores, {about['isa']}, "
        f"{ops.threads} threads, load at the start {rates['load']:.1f}"
        + (" (NOT QUIET)" if rates["load"] > QUIET else ""),
        f"read bandwidth {rates['read'] / 1e9:.1f} GB/s, peak multiply-adds {', '.join(peaks)}",
        ", ".join(used),
    )
    return "\n".join(f"- {line}" for line in lines)


if __name__ == "__main__":
    # A terminated run must still end the servers that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
