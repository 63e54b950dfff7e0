"""How much of a plain step passes outside the kernels: Python, scheduling, sampling, text.

The op set is wrapped so that each call is timed; what is left of the wall time of a step is
overhead. The wrapping itself counts as overhead too.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.results import Aim, Result, at_most, table
from wager import LLM, SamplingParams

STEPS = 200


class TimedOps:
    """An op set whose calls add up their time in ``seconds``."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ops, name)
        if not callable(value):
            return value

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return value(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        setattr(self, name, timed)
        return timed


def measure(llms: dict[str, LLM]) -> Result:
    """By weight kind: median milliseconds of a plain step, and of it outside the op set."""
    result: Result = {}
    for kind, llm in llms.items():
        plain = llm.model.ops
        ops = TimedOps(plain)
        llm.model.ops = ops
        llm.set_speculation(None)
        try:
            params = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
            llm.engine.add_request([(7919 * (i + 1)) % 40000 for i in range(64)], params)
            llm.engine.step()
            whole, outside = [], []
            while llm.engine.has_work():
                before, started = ops.seconds, time.perf_counter()
                llm.engine.step()
                seconds = time.perf_counter() - started
                whole.append(1e3 * seconds)
                outside.append(1e3 * (seconds - (ops.seconds - before)))
        finally:
            llm.model.ops = plain
        result[kind] = {
            "step_ms": statistics.median(whole),
            "outside_ms": statistics.median(outside),
        }
    return result


def report(result: Result) -> str:
    """One line per weight kind."""
    rows = [
        [kind, r["step_ms"], r["outside_ms"], 100 * r["outside_ms"] / r["step_ms"]]
        for kind, r in result.items()
    ]
    head = ["weights", "ms per plain step", "outside the op set", "%"]
    return f"Engine overhead, one request:\n\n{table(head, rows)}"


def aims(result: Result) -> list[Aim]:
    """3 % of a step at one request, f32."""
    f32 = result["f32"]
    share = 100 * f32["outside_ms"] / f32["step_ms"]
    return [at_most("engine overhead outside kernels, f32, 1 request", share, 3.0, " %")]
