"""The records that are printed and written: the contract of `--json`.

Field order and names are those of docs/bench.schema.json. None becomes null: not measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from wager.backend import SourceCounts
from wager.bench.identity import Identity
from wager.bench.latency import Percentiles
from wager.bench.statistics import Verdict
from wager.bench.verdicts import OverLoads, Status

SCHEMA: Final = 2
STEP_ROWS: Final = (1, 2, 3, 5, 9, 17, 32)
STEP_CONTEXT: Final = 512


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One prompt in both arms; times are medians over the repeats, counts those of the first.

    ``identical`` is None where the replies cannot be expected to be equal (sampled, and not on
    the project's own engine).
    """

    id: str
    tokens: int | None
    steps: int | None
    drafted: int | None
    accepted: int | None
    plain_s: float
    spec_s: float
    identical: bool | None


@dataclass(frozen=True, slots=True)
class BothTimes:
    """A latency in seconds of both arms."""

    plain: Percentiles
    spec: Percentiles


@dataclass(frozen=True, slots=True)
class BothCounts:
    """Numbers of replies of both arms."""

    plain: int
    spec: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload, load and arm against plain decoding. ``notes`` are doubts about replies.

    ``by_source`` has the drafts of all timed runs by what proposed them, None where an engine does
    not tell. ``warm`` is how many other prompts of the kind were answered before, untimed, after
    every start of an arm; None: none, the arm was cold.
    """

    workload: str
    clients: int | None
    rate: float | None
    engine: str
    arm: str
    method: str
    status: Status
    plain_tok_s: float | None
    spec_tok_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    plain_decode_tok_s: float | None
    spec_decode_tok_s: float | None
    decode_speedup: float | None
    prefill_share: float | None
    draft_figures_from: Literal["requests", "server"] | None
    active: bool | None
    tokens_per_step: float | None
    tokens_per_step_mean_of_requests: float | None
    acceptance_length: float | None
    coverage: float | None
    drafted: int | None
    accepted: int | None
    acceptance_rate: float | None
    acceptance_rate_mean_of_requests: float | None
    acceptance_by_position_unconditional: list[float] | None
    acceptance_by_position_conditional: list[float | None] | None
    verify_cost_estimated: float | None
    ttft_s: BothTimes
    tpot_s: BothTimes
    chunk_gap_s: BothTimes
    request_s: BothTimes
    outputs: int
    identical: int | None
    identity: Identity
    followed: int | None
    loops: int | None
    errors: BothCounts
    excluded: BothCounts
    repeated_prompts: bool
    random_prompts: bool
    verdict: Verdict | None
    reason: str
    notes: list[str]
    requests: list[RequestResult]
    by_source: dict[str, SourceCounts] | None = None
    warm: int | None = None


@dataclass(frozen=True, slots=True)
class StartUp:
    """Median seconds until an arm was ready: with empty start-up caches, with full ones, any."""

    cold: float | None = None
    warm: float | None = None
    any: float | None = None


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Differences of an engine's own counters over the timed parts; they cover the whole server.

    ``generated`` are output tokens. ``resets``: how often they were seen to begin anew; then the
    rest is not known.
    """

    steps: int | None
    drafts: int | None
    drafted: int | None
    accepted: int | None
    accepted_at: list[int] | None
    preemptions: int | None
    generated: int | None
    resets: int


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What is known of one arm over the whole run; the first one is plain decoding.

    ``identity`` is of the identity pass (untimed greedy prompts with log-probabilities), None where
    there was none. ``error`` is why the arm could not be measured.
    """

    arm: str
    method: str
    options: dict[str, Any]
    description: str
    command: list[str] | None
    version: str | None
    effective: dict[str, Any]
    startup_s: StartUp
    kv_tokens: int | None
    kv_share_lost: float | None
    draft_time_share: float | None
    active: bool | None
    counters: ServerCounts
    identity: Identity | None
    warnings: list[str]
    error: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one run of the benchmark found. ``complete`` is False if it stopped early."""

    model: str
    engine: str
    weights: str | None
    kv: str | None
    threads: int | None
    machine: dict[str, Any]
    versions: dict[str, str]
    complete: bool
    step_ms: dict[str, float | None]
    arms: list[ArmResult]
    cells: list[Cell]
    verdicts: list[OverLoads]

    def to_json(self) -> str:
        """The contract, as text; never NaN or infinity."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, allow_nan=False) + "\n"
