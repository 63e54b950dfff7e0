"""Milliseconds per step by rows, and prefill, beside llama.cpp's own benchmark.

Arms alternate: wager f32, llama.cpp f32, wager int8, llama.cpp q8_0, wager int4, llama.cpp q4_1,
then the same backwards. A step of r rows is what verifying a draft of r - 1 tokens costs: for wager
the whole step with the sampler, logits of every row; llama-bench times a batch of r prompt tokens,
with logits of the last row only, and without a sampler. That difference is in llama.cpp's favour.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence

from benchmarks import kernels
from benchmarks.peers import Peers
from benchmarks.results import Aim, Result, at_most, ratio, table
from wager import LLM, SamplingParams
from wager.bench.results import STEP_CONTEXT as CONTEXT
from wager.bench.results import STEP_ROWS as ROWS
from wager.ops.base import BLOCK
from wager.ops.native import NativeOps

PREFILL = 512
ROUNDS = 2
REPEATS = 6
# (name, our weights, llama.cpp's kind)
PAIRS = (("f32", "f32"), ("int8", "q8_0"), ("int4", "q4_1"))
# The aim of v(8), where one is set.
BOUNDS = {"f32": 1.30, "int8": 1.70}

Samples = dict[str, dict[str, list[float]]]
"""Arm, then rows, then milliseconds."""


def limit_ms(llm: LLM, rows: int, machine: Result) -> float:
    """The least that a step of ``llm`` at CONTEXT can take; see `kernels.limit_ms`."""
    kv = llm.engine.target.pool.bytes_per_block * CONTEXT / BLOCK
    model = llm.model
    read_bytes = model.packed_bytes + kv
    return kernels.limit_ms(model.config, model.weights, read_bytes, rows, CONTEXT, machine)


def llama_bench(
    peers: Peers, kind: str, sizes: Sequence[int], depth: int, repeats: int, threads: int = 2
) -> dict[str, list[float]]:
    """Milliseconds of batches of prompt tokens at a depth, by size."""
    command = [
        peers.llama("llama-bench"), "-m", peers.gguf(kind), "-t", str(threads), "-n", "0",
        "-p", ",".join(map(str, sizes)), "-d", str(depth), "-r", str(repeats), "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        str(entry["n_prompt"]): [ns / 1e6 for ns in entry["samples_ns"]]
        for entry in json.loads(done.stdout)
    }


def prefill_ms(llm: LLM, tokens: int = PREFILL) -> float:
    """Milliseconds from a prompt of that many tokens to its first token, nothing cached."""
    llm.reset_caches()
    prompt = [(7919 * (i + 1)) % llm.engine.vocab_size for i in range(tokens)]
    params = SamplingParams(temperature=0.0, max_tokens=1)
    return 1e3 * (llm.generate([prompt], params)[0].total_s or 0.0)


def measure(llms: dict[str, LLM], peers: Peers) -> Result:
    """Medians of all arms, ``steps`` and ``prefill``, and the machine's ``rates`` meanwhile."""
    probes = []
    steps: Samples = {}
    prefill: dict[str, list[float]] = {}
    arms = [arm for ours, theirs in PAIRS for arm in (f"wager {ours}", f"llama.cpp {theirs}")]
    if not (peers.has("llama") and peers.has("models")):
        arms = [arm for arm in arms if arm.startswith("wager")]
    for number in range(ROUNDS):
        probes.append(kernels.rates(native_ops(llms["f32"])))
        for arm in arms if number % 2 == 0 else arms[::-1]:
            engine, _, kind = arm.partition(" ")
            if engine == "wager":
                llm = llms[kind]
                found = {str(r): llm.engine.costs.measure(r, CONTEXT, REPEATS) for r in ROWS}
                prefill_ms(llm)
                whole = [prefill_ms(llm) for _ in range(3)]
            else:
                found = llama_bench(peers, kind, ROWS, CONTEXT, REPEATS)
                whole = llama_bench(peers, kind, [PREFILL], 0, 3)[str(PREFILL)]
            for rows, samples in found.items():
                steps.setdefault(arm, {}).setdefault(rows, []).extend(samples)
            prefill.setdefault(arm, []).extend(whole)
    return {
        "steps": {a: {r: statistics.median(s) for r, s in by.items()} for a, by in steps.items()},
        "prefill": {a: statistics.median(samples) for a, samples in prefill.items()},
        "rates": kernels.best(probes),
    }


def limits(llms: dict[str, LLM], result: Result) -> dict[str, list[float]]:
    """Least milliseconds by ROWS for each of our weight kinds."""
    rates = result["rates"]
    return {kind: [limit_ms(llm, r, rates) for r in ROWS] for kind, llm in llms.items()}


def native_ops(llm: LLM) -> NativeOps:
    """The op set of a model, which has to be the fast one. Exits where it was not built."""
    if not isinstance(llm.model.ops, NativeOps):
        raise SystemExit("benchmarks: the native op set was not built; see the README")
    return llm.model.ops


def report(result: Result, least: dict[str, list[float]]) -> str:
    """Both tables."""
    rows = []
    for ours, theirs in PAIRS:
        for arm in (f"wager {ours}", f"llama.cpp {theirs}"):
            by = result["steps"].get(arm, {})
            v8 = ratio(by.get("9"), by.get("1"))
            rows.append([arm, *(by.get(str(r)) for r in ROWS), v8])
        if ours in least:
            rows.append([f"limit {ours}", *least[ours], ""])
    prefill = [
        [arm, ms, PREFILL / ms * 1e3] for arm, ms in result["prefill"].items()
    ]  # fmt: skip
    return "\n\n".join(
        (
            f"Milliseconds per step by rows, one request, context {CONTEXT} "
            "(limit: bytes / bandwidth or multiply-adds / peak):",
            table(["rows", *map(str, ROWS), "v(8)"], rows),
            f"Prefill of {PREFILL} tokens:",
            table(["engine", "ms", "tokens/s"], prefill),
        )
    )


def aims(result: Result, least: dict[str, list[float]]) -> list[Aim]:
    """Plain step and prefill against llama.cpp; v(8) against its bound or the machine's limit."""
    found = []
    for ours, theirs in PAIRS:
        mine = result["steps"][f"wager {ours}"]
        peer = result["steps"].get(f"llama.cpp {theirs}", {})
        found.append(
            at_most(
                f"plain step, {ours}, of llama.cpp {theirs}",
                ratio(mine["1"], peer.get("1")),
                1.0,
                "x",
            )
        )
        if ours in BOUNDS:
            bound, v8 = BOUNDS[ours], mine["9"] / mine["1"]
            of_limit = ratio(mine["9"], least[ours][ROWS.index(9)]) if ours in least else None
            met = v8 <= bound or (of_limit is not None and of_limit <= 1.35)
            text = f"{v8:.2f}" + (f", {of_limit:.2f}x the limit" if of_limit is not None else "")
            found.append(Aim(f"v(8), {ours}", f"<= {bound:.2f}, or <= 1.35x the limit", text, met))
        part = ratio(
            result["prefill"][f"wager {ours}"], result["prefill"].get(f"llama.cpp {theirs}")
        )
        found.append(at_most(f"prefill, {ours}, of llama.cpp {theirs}", part, 1.0, "x"))
    return found
