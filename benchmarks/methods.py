"""What each method of drafting brings on every workload: `wager bench` over the own engine.

    python -m benchmarks.methods [--workload copy,agent]

Runs of one client if not said otherwise, arms in turn (A B B A), paired by prompt:

- cold: methods without a model, int8; a drafter knows nothing but the request it drafts for.
- warm: suffix decoding once more after 50 other prompts of the same workload were answered, in
  every start of an arm. No prompt is among them twice, so the gain is that of similar requests,
  not of repeated ones.
- agent: two sessions of ten turns in full length, for eight clients, where drafts that are wrong
  cost the most.
- self: the target's own weights at 4 bits draft for f32. The file of SmolLM2 is itself 4-bit, so
  that they agree almost always: it shows what drafting with a model costs, not what a model of
  another file would have right.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import Aim, Result, Store, at_least, ratio, run_module, table
from wager.bench.workloads.generated import RECIPES

WARM = 50
NGRAM, SUFFIX, LIST = "ngram:k=8,min=2,max=5", "suffix:k=8", "suffix+ngram:k=8"
SELF = "draft_model:model=self,quantization=int4,k=4"


@dataclass(frozen=True)
class Run:
    """One call of `wager bench`: plain decoding and ``arms``, on all workloads or ``only`` one."""

    title: str
    weights: str
    arms: tuple[str, ...]
    options: tuple[str, ...]
    only: str | None = None


SHORT = ("--max-tokens", "64")
RUNS = {
    "cold": Run(
        "Methods without a model, cold, int8, one client, at most 64 tokens",
        "int8", (NGRAM, SUFFIX, LIST), (*SHORT, "--prompts", "10"),
    ),
    "warm": Run(
        f"The same after {WARM} other requests of the workload",
        "int8", (SUFFIX,), (*SHORT, "--prompts", "10", "--warm", str(WARM)),
    ),
    "agent": Run(
        "Two sessions of an agent in full length, int8, eight clients",
        "int8", (NGRAM, SUFFIX, LIST), ("--prompts", "20", "--clients", "8"), "agent",
    ),
    "self": Run(
        "Drafts of the target's own weights at 4 bits (of a file that is 4-bit), f32, one client",
        "f32", (NGRAM, SELF), (*SHORT, "--prompts", "6"),
    ),
}  # fmt: skip
KEPT = (
    "workload", "arm", "warm", "speedup", "speedup_low", "speedup_high", "decode_speedup",
    "tokens_per_step", "acceptance_rate", "outputs", "identical", "verdict",
)  # fmt: skip


def measure(store: Store, workloads: Sequence[str]) -> Result:
    """The cells of each run, by its name; each run is kept by itself."""
    return {
        name: store.get(f"methods-{name}", partial(_measure, run, workloads))
        for name, run in RUNS.items()
        if run.only is None or run.only in workloads
    }


def _measure(run: Run, workloads: Sequence[str]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        run_module(
            "wager", "bench", "smollm2-135m", "--weights", run.weights,
            "--workload", run.only or ",".join(workloads), "--arms", ",".join(["plain", *run.arms]),
            "--max-model-len", "2048", "--json", str(file), *run.options,
        )  # fmt: skip
        found = json.loads(file.read_text())
    cells = [{key: cell[key] for key in KEPT} for cell in found["cells"]]
    # `--warm` measures cold cells beside the warm ones; another run has those.
    return {"cells": [c for c in cells if c["warm"] or "--warm" not in run.options]}


def report(result: Result) -> str:
    """One table per run."""
    head = [
        "workload", "arm", "whole requests, x [95 %]", "decode x", "tokens/step", "accepted %",
        "equal", "verdict",
    ]  # fmt: skip
    return "\n\n".join(
        f"{RUNS[name].title}:\n\n{table(head, [_row(cell) for cell in run['cells']])}"
        for name, run in result.items()
    )


def _row(cell: dict[str, Any]) -> list[object]:
    low, high = cell["speedup_low"], cell["speedup_high"]
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    rate = cell["acceptance_rate"]
    return [
        cell["workload"].split(" after ")[0],
        f"`{cell['arm']}`",
        None if cell["speedup"] is None else f"{cell['speedup']:.2f}{interval}",
        cell["decode_speedup"],
        cell["tokens_per_step"],
        None if rate is None else 100 * rate,
        f"{cell['identical']}/{cell['outputs']}",
        cell["verdict"],
    ]


def aims(result: Result) -> list[Aim]:
    """Suffix decoding beside the lookup of n-grams, where an agent repeats itself."""
    agent = {
        name: {cell["arm"]: cell for cell in run["cells"] if cell["workload"].startswith("agent")}
        for name, run in result.items()
    }
    found = [
        (
            f"{what}, {clients}",
            ratio(_figure(agent, run, SUFFIX, key), _figure(agent, of, NGRAM, key)),
        )
        for clients, run, of in (
            ("1 client, cold", "cold", "cold"),
            ("1 client, warm", "warm", "cold"),
            ("8 clients, full length", "agent", "agent"),
        )
        for what, key in (("whole requests", "speedup"), ("tokens per step", "tokens_per_step"))
    ]
    cells = [cell for run in result.values() for cell in run["cells"]]
    changed = sum(cell["outputs"] - (cell["identical"] or 0) for cell in cells)
    return [
        *(at_least(f"agent, suffix of ngram: {what}", value, 1.0) for what, value in found),
        Aim("replies changed by a method", "0", str(changed), changed == 0),
    ]


def _figure(cells: dict[str, Any], run: str, arm: str, key: str) -> float | None:
    value = cells.get(run, {}).get(arm, {}).get(key)
    return None if value is None else float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default=",".join(RECIPES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Store(fresh=False, folder=Path(folder)), options.workload.split(","))
    print(report(found))
    print("\nAims:\n")
    print(table(["what", "aim", "found", "met"], [aim.row for aim in aims(found)]))


if __name__ == "__main__":
    main()
