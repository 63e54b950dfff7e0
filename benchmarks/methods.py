"""What each method of drafting brings on every workload: `wager bench` over the own engine.

    python -m benchmarks.methods [--workload copy,agent]

Three runs, one client, arms in turn (A B B A), paired by prompt:

- cold: methods without a model, int8; a drafter knows nothing but the request it drafts for.
- warm: suffix decoding once more after 50 other prompts of the same workload were answered, in
  every start of an arm. No prompt is among them twice, so the gain is that of similar requests,
  not of repeated ones.
- self: the target's own weights at 4 bits draft for f32. The file of SmolLM2 is itself 4-bit, so
  that they agree almost always: it shows what drafting with a model costs, not what a model of
  another file would have right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT, Aim, Result, Store, at_least, ratio, table
from wager.bench.workloads.generated import RECIPES

WARM = 50
NGRAM, SUFFIX, LIST = "ngram:k=8,min=2,max=5", "suffix:k=8", "suffix+ngram:k=8"
SELF = "draft_model:model=self,quantization=int4,k=4"
RUNS: dict[str, tuple[str, list[str], list[str]]] = {
    "cold": ("int8", [NGRAM, SUFFIX, LIST], ["--prompts", "10"]),
    "warm": ("int8", [SUFFIX], ["--prompts", "10", "--warm", str(WARM)]),
    "self": ("f32", [NGRAM, SELF], ["--prompts", "6"]),
}
"""By name: weights, arms beside plain, and what else is asked of `wager bench`."""
KEPT = (
    "workload", "arm", "warm", "speedup", "speedup_low", "speedup_high", "decode_speedup",
    "tokens_per_step", "acceptance_rate", "outputs", "identical", "verdict",
)  # fmt: skip


def measure(store: Store, workloads: Sequence[str]) -> Result:
    """The cells of each run, by its name; each run is kept by itself."""
    return {name: store.get(f"methods-{name}", lambda n=name: _run(n, workloads)) for name in RUNS}


def _run(name: str, workloads: Sequence[str]) -> Result:
    weights, arms, further = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        command = [
            sys.executable, "-m", "wager", "bench", "smollm2-135m", "--weights", weights,
            "--workload", ",".join(workloads), "--arms", ",".join(["plain", *arms]),
            "--max-tokens", "64", "--max-model-len", "2048", "--json", str(file), *further,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
        found = json.loads(file.read_text())
    cells = [{key: cell[key] for key in KEPT} for cell in found["cells"]]
    if name == "warm":
        # `--warm` measures cold cells beside the warm ones; the run "cold" has those.
        cells = [cell for cell in cells if cell["warm"]]
    return {"weights": weights, "cells": cells}


def report(result: Result) -> str:
    """One table per run."""
    titles = {
        "cold": "Methods without a model, cold, int8, one client",
        "warm": f"The same after {WARM} other requests of the workload",
        "self": "Drafts of the target's own weights at 4 bits (of a file that is 4-bit), f32",
    }
    head = [
        "workload", "arm", "whole requests, x [95 %]", "decode x", "tokens/step", "accepted %",
        "equal", "verdict",
    ]  # fmt: skip
    return "\n\n".join(
        f"{titles[name]}:\n\n{table(head, [_row(cell) for cell in run['cells']])}"
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
    cold, warm = (_by(result[name]["cells"], "agent") for name in ("cold", "warm"))
    over = cold.get(NGRAM, {})
    changed = sum(
        cell["outputs"] - (cell["identical"] or 0)
        for run in result.values()
        for cell in run["cells"]
    )
    return [
        *(
            at_least(
                f"agent, {what}, suffix of ngram ({when})",
                ratio(found.get(SUFFIX, {}).get(key), over.get(key)),
                1.0,
            )
            for what, key in (("decode", "decode_speedup"), ("tokens per step", "tokens_per_step"))
            for when, found in (("cold", cold), ("warm", warm))
        ),
        Aim("replies changed by a method", "0", str(changed), changed == 0),
    ]


def _by(cells: Sequence[dict[str, Any]], workload: str) -> dict[str, dict[str, Any]]:
    return {c["arm"]: c for c in cells if c["workload"].split(" after ")[0] == workload}


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
