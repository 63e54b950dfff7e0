"""Resident size with a full 4k context, and the time from starting a process to its first token.

    python -m benchmarks.memory

SmolLM2, int8 weights, f16 keys and values. Each in a fresh process; the packed weights are on disk
already and in the page cache, as at any start but the first.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from benchmarks.results import ROOT, Aim, Result, at_most, child, table
from benchmarks.shapes import memory

CONTEXT = 4096
STARTS = 5


def fill() -> Result:
    """Fill a context of 4096 tokens but one, then look at this process."""
    from wager import LLM, SamplingParams

    llm = LLM("smollm2-135m", weights="int8", kv="f16", max_model_len=CONTEXT, max_num_seqs=1)
    answer = 64
    prompt = [(7919 * (i + 1)) % 40000 + 10 for i in range(CONTEXT - answer)]
    params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
    output = llm.generate([prompt], params)[0]
    if len(output.outputs[0].token_ids) != answer:
        raise RuntimeError("the context was not filled")
    result = {**memory(), "packed_mb": llm.model.packed_bytes / 1e6}
    llm.close()
    return result


def first_token_s(weights: str) -> float:
    """Seconds from starting `wager run` to the first character of its answer."""
    command = [
        sys.executable, "-m", "wager", "run", "smollm2-135m", "--raw", "Once upon a time",
        "--temperature", "0", "--max-tokens", "4", "--weights", weights,
    ]  # fmt: skip
    started = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        found = process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
    if not found or process.returncode != 0:
        raise RuntimeError("wager run answered nothing")
    return seconds


def measure() -> Result:
    """``fill`` in a process of its own; the median of several starts for each weight kind."""
    starts = {}
    for weights in ("int8", "f32"):
        first_token_s(weights)
        starts[weights] = statistics.median(first_token_s(weights) for _ in range(STARTS))
    return {"full": child("benchmarks.memory", "fill"), "start_s": starts}


def report(result: Result) -> str:
    """Two small tables."""
    full = result["full"]
    return "\n\n".join(
        (
            f"SmolLM2 int8, f16 KV, context of {CONTEXT} tokens filled, MB:",
            table(
                ["resident", "of it anonymous", "peak", "packed weights"],
                [[full["resident"], full["anonymous"], full["peak"], full["packed_mb"]]],
            ),
            "From starting `wager run` to its first character, warm disk, s:",
            table(list(result["start_s"]), [list(result["start_s"].values())]),
        )
    )


def aims(result: Result) -> list[Aim]:
    """350 MB; 1.5 s."""
    return [
        at_most("resident, int8, full 4k context", result["full"]["peak"], 350, " MB", "peak"),
        at_most("start to first token, int8", result["start_s"]["int8"], 1.5, " s"),
        at_most("start to first token, f32", result["start_s"]["f32"], 1.5, " s"),
    ]


def main() -> None:
    if sys.argv[1:] == ["fill"]:
        print(json.dumps(fill()))
    else:
        print(report(measure()))


if __name__ == "__main__":
    main()
