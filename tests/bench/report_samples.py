"""Reports as `wager bench --json` writes them: a full one and a nearly empty one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from wager.backend import SourceCounts
from wager.bench.identity import Control, Divergence, Identity
from wager.bench.latency import Percentiles
from wager.bench.results import (
    ArmResult,
    BothCounts,
    BothTimes,
    Cell,
    Report,
    RequestResult,
    ServerCounts,
    StartUp,
)
from wager.bench.statistics import paired_ratio, verdict
from wager.bench.verdicts import OverLoads

EVIL = "<script>alert('x')</script> & | `tick`"
NGRAM, DRAFT = "ngram:k=4,min=2,max=5", "draft_model:model=/models/small,k=3"
SPEEDS = {
    ("copy", NGRAM): (3.1, 2.2), ("copy", DRAFT): (1.5, 1.1),
    ("explain", NGRAM): (1.08, 0.78), ("explain", DRAFT): (1.2, 0.7),
    ("random", NGRAM): (0.97, 0.93), ("random", DRAFT): (0.62, 0.5),
}  # fmt: skip
MACHINE = {"cpu": "Example CPU <8 cores>", "cores": 8, "memory": 33_500_000_000, "isa": None}
VERSIONS = {"wager": "0.1.0", "python": "3.11.9", "numpy": "2.1.0"}
NO_STEPS: dict[str, float | None] = dict.fromkeys(("1", "2", "3", "5", "9", "17", "32"))
EQUAL = Identity(12, 12, "tokens", [], Control(12, 12))
CHANGED = Identity(
    12, 10, "tokens", [Divergence(EVIL, 41, 0.0021), Divergence("explain-07", 3, None)],
    Control(12, 11),
)  # fmt: skip


def three(p50: float) -> Percentiles:
    return Percentiles(p50, 1.4 * p50, None)


def both(plain: float, spec: float) -> BothTimes:
    return BothTimes(three(plain), three(spec))


def request_of(rng: Random, name: str, speed: float) -> RequestResult:
    plain = 2.0 * rng.uniform(0.7, 1.3)
    return RequestResult(name, 128, 61, 200, 66, plain, plain / (speed * rng.uniform(0.85, 1.2)),
                         True)  # fmt: skip


def a_cell(workload: str, clients: int, arm: str, speed: float, **changes: Any) -> Cell:
    rng = Random(f"{workload}/{clients}/{arm}")
    requests = [request_of(rng, f"{workload}-{i:02d}", speed) for i in range(12)]
    found = paired_ratio([r.plain_s for r in requests], [r.spec_s for r in requests])
    tokens = 1.0 + 1.6 * min(speed, 2.0)
    shares = [min(0.95, 0.35 * speed) * 0.85**j for j in range(4)]
    cell = Cell(
        workload=workload, clients=clients, rate=None, engine="vllm", arm=arm,
        method=arm.split(":")[0], status="measured",
        plain_tok_s=19.8 * clients, spec_tok_s=19.8 * clients * speed,
        speedup=found.value, speedup_low=found.low, speedup_high=found.high,
        plain_decode_tok_s=20.5, spec_decode_tok_s=20.5 * speed, decode_speedup=speed * 1.05,
        prefill_share=0.07, draft_figures_from="server", active=True, tokens_per_step=tokens,
        tokens_per_step_mean_of_requests=tokens * 1.15, acceptance_length=tokens + 0.4,
        coverage=0.72, drafted=2_400, accepted=806, acceptance_rate=806 / 2_400,
        acceptance_rate_mean_of_requests=0.41,
        acceptance_by_position_unconditional=shares,
        acceptance_by_position_conditional=[shares[0], 0.85, 0.85, None],
        verify_cost_estimated=tokens / speed,
        ttft_s=both(0.21, 0.22), tpot_s=both(0.05, 0.05 / speed),
        chunk_gap_s=both(0.05, 0.09), request_s=both(2.0, 2.0 / speed),
        outputs=12, identical=12, identity=EQUAL, followed=None, loops=0,
        errors=BothCounts(0, 0), excluded=BothCounts(0, 0), repeated_prompts=False,
        random_prompts=workload == "random", verdict=verdict(found), reason="of the example",
        notes=[], requests=requests,
    )  # fmt: skip
    return replace(cell, **changes)


def an_arm(arm: str, **changes: Any) -> ArmResult:
    result = ArmResult(
        arm=arm, method=arm.split(":")[0], options={}, description="", version="0.32.0",
        command=["vllm", "serve", "/models/a b", "--speculative-config", '{"method":"<x>"}'],
        effective={}, startup_s=StartUp(61.0, 34.5, 40.2), kv_tokens=131_072, kv_share_lost=None,
        draft_time_share=None, active=None,
        counters=ServerCounts(None, None, None, None, None, 0, None, 0), identity=None,
        warnings=[], error=None,
    )  # fmt: skip
    return replace(result, **changes)


def full() -> Report:
    """Three workloads, two loads, two arms; a gain, a loss, and what can go wrong."""
    cells = [
        a_cell(workload, clients, arm, speed)
        for (workload, arm), speeds in SPEEDS.items()
        for clients, speed in zip((1, 8), speeds, strict=True)
    ]
    cells[4] = replace(
        cells[4], identity=CHANGED, identical=10, errors=BothCounts(1, 2), loops=3, followed=9,
        excluded=BothCounts(0, 1), repeated_prompts=True, notes=[EVIL],
    )  # fmt: skip
    cells[8] = replace(cells[8], status="NOT ACTIVE", verdict=None, active=False, drafted=0,
                       accepted=0, acceptance_rate=None, acceptance_length=None, coverage=0.0,
                       acceptance_by_position_unconditional=None,
                       acceptance_by_position_conditional=None)  # fmt: skip
    cells[0] = replace(cells[0], status="DISTURBED", verdict="no difference")
    sources = {"suffix": SourceCounts(400, 1_800, 700), EVIL: SourceCounts(200, 600, 106)}
    cells[1] = replace(cells[1], by_source=sources, warm=50)
    arms = [
        an_arm("plain"),
        an_arm(NGRAM, active=True, kv_share_lost=0.0, identity=CHANGED, draft_time_share=0.004,
               description="ngram, k 4", effective={"prompt_lookup_min": 2},
               warnings=[f"async scheduling is off {EVIL}"] * 2),
        an_arm(DRAFT, active=True, kv_tokens=98_304, kv_share_lost=0.25, identity=EQUAL,
               startup_s=StartUp(None, None, 55.0), error="died: out of memory"),
    ]  # fmt: skip
    verdicts = [
        OverLoads("copy", NGRAM, "use", None, "2.20x at 8 clients: a step brings 4.20 tokens"),
        OverLoads("copy", DRAFT, "use", None, "1.10x at 8 clients: a step brings 2.76 tokens"),
        OverLoads("explain", NGRAM, "use below 8 clients", 8.0, "0.78x at 8 clients: verify cost"),
        OverLoads("explain", DRAFT, "use below 8 clients", 8.0, "0.70x at 8 clients: verify cost"),
        OverLoads("random", NGRAM, "no difference", None, "0.97x at 1 client: coverage"),
        OverLoads("random", DRAFT, "do not use", None, "0.62x at 1 client: acceptance"),
    ]
    step_ms = {**NO_STEPS, "1": 20.0, "2": 20.4, "3": 21.0, "5": 22.4, "9": 26.0}
    return Report("/models/SmolLM2 <135M>", "vllm", "bfloat16", None, 2, MACHINE, VERSIONS, False,
                  step_ms, arms, cells, verdicts)  # fmt: skip


def one_load() -> Report:
    """The project's own engine, one client, one arm."""
    report = full()
    cells = [c for c in report.cells if c.clients == 1 and c.arm == NGRAM]
    cells = [replace(c, engine="own", draft_figures_from="requests") for c in cells]
    return replace(report, engine="own", model="smollm2-135m", complete=True, cells=cells,
                   arms=report.arms[:2], verdicts=report.verdicts[::2])  # fmt: skip


def bare() -> Report:
    """An engine that tells nothing, and one prompt: hardly a figure is known."""
    no_times = BothTimes(Percentiles(), Percentiles())
    nothing = Identity(0, 0, None, [], None)
    unknown = {
        "plain_tok_s", "spec_tok_s", "speedup", "speedup_low", "speedup_high",
        "plain_decode_tok_s", "spec_decode_tok_s", "decode_speedup", "prefill_share",
        "draft_figures_from", "active", "tokens_per_step", "tokens_per_step_mean_of_requests",
        "acceptance_length", "coverage", "drafted", "accepted", "acceptance_rate",
        "acceptance_rate_mean_of_requests", "acceptance_by_position_unconditional",
        "acceptance_by_position_conditional", "verify_cost_estimated", "identical", "loops",
        "verdict",
    }  # fmt: skip
    cell = a_cell(
        "mine", 1, "arm", 1.0, engine="url", ttft_s=no_times, tpot_s=no_times,
        chunk_gap_s=no_times, request_s=no_times, identity=nothing, outputs=0, requests=[],
        reason="too few", **dict.fromkeys(unknown),
    )  # fmt: skip
    arms = [an_arm(name, command=None, version=None, startup_s=StartUp(), kv_tokens=None)
            for name in ("plain", "arm")]  # fmt: skip
    advice = [OverLoads("mine", "arm", None, None, "too few")]
    return Report("m", "url", None, None, None, {**MACHINE, "memory": None}, VERSIONS, True,
                  NO_STEPS, arms, [cell], advice)  # fmt: skip


def blank() -> Report:
    """Stopped before anything was complete."""
    return replace(bare(), cells=[], verdicts=[], complete=False)
