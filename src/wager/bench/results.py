"""From answers to the records that are printed and written: the contract of `--json`.

Field order and names are those of docs/bench.schema.json. None becomes null: not measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from wager.bench.backend import Answer
from wager.bench.checks import followed, loops
from wager.bench.measure import PLAIN, Arm, Measurement
from wager.bench.prompts import Prompt
from wager.bench.statistics import Ratio, Verdict, ceiling, median, paired_ratio, pool, verdict
from wager.errors import ConfigError
from wager.models.paths import replacing

SCHEMA: Final = 1
STEP_ROWS: Final = (1, 2, 3, 5, 9, 17, 32)
STEP_CONTEXT: Final = 512


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One prompt in both arms; times are medians over the repeats, counts those of the first."""

    id: str
    tokens: int
    steps: int | None
    drafted: int | None
    accepted: int | None
    plain_s: float
    spec_s: float
    identical: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload, number of clients and method."""

    workload: str
    clients: int
    method: str
    plain_tok_s: float | None
    spec_tok_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    plain_decode_tok_s: float | None
    spec_decode_tok_s: float | None
    decode_speedup: float | None
    prefill_share: float | None
    tokens_per_step: float | None
    acceptance_length: float | None
    coverage: float | None
    drafted: int | None
    accepted: int | None
    acceptance_rate: float | None
    acceptance_by_position_unconditional: list[float] | None
    outputs: int
    identical: int
    followed: int | None
    loops: int
    verdict: Verdict | None
    requests: list[RequestResult]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one run of the benchmark found."""

    model: str
    weights: str
    kv: str
    threads: int
    machine: dict[str, Any]
    versions: dict[str, str]
    step_ms: dict[str, float | None]
    cells: list[Cell]

    def to_json(self) -> str:
        """The contract, as text; never NaN or infinity."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, allow_nan=False) + "\n"


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of one prompt in one arm, medians over its runs."""

    total: float
    first: float
    decode: float
    tokens: int

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> _Times:
        def middle(values: list[float]) -> float:
            return median(values) or 0.0

        return cls(
            middle([a.total_s for a in answers]),
            middle([a.first_token_s for a in answers]),
            middle([a.total_s - a.first_token_s for a in answers]),
            len(answers[0].token_ids),
        )


def cell(measurement: Measurement, arm: Arm) -> Cell | None:
    """What one speculative arm did against the plain one; None if no prompt is complete."""
    prompts = measurement.measured()
    if not prompts:
        return None
    plain = [measurement.answers[PLAIN][p.id] for p in prompts]
    spec = [measurement.answers[arm.name][p.id] for p in prompts]
    plain_times = [_Times.of(answers) for answers in plain]
    spec_times = [_Times.of(answers) for answers in spec]
    requests = [
        _request(p, a, b, s, t)
        for p, a, b, s, t in zip(prompts, plain, spec, plain_times, spec_times, strict=True)
    ]
    speed = _speedup(plain_times, spec_times, decode=False)
    share = paired_ratio([t.first for t in plain_times], [t.total for t in plain_times]).value
    return Cell(
        workload=measurement.workload,
        clients=measurement.clients,
        method=arm.name,
        plain_tok_s=_tokens_per_second(plain_times, measurement.clients),
        spec_tok_s=_tokens_per_second(spec_times, measurement.clients),
        speedup=speed.value,
        speedup_low=speed.low,
        speedup_high=speed.high,
        plain_decode_tok_s=_decode_tokens_per_second(plain_times),
        spec_decode_tok_s=_decode_tokens_per_second(spec_times),
        decode_speedup=_speedup(plain_times, spec_times, decode=True).value,
        prefill_share=share,
        **_draft_figures(spec),
        outputs=len(requests),
        identical=sum(request.identical for request in requests),
        followed=_followed(prompts, spec),
        loops=sum(loops(answers[0].token_ids) for answers in spec),
        verdict=verdict(speed, highest_speedup(measurement.clients, share, requests)),
        requests=requests,
    )


def highest_speedup(
    clients: int, prefill_share: float | None, requests: Sequence[RequestResult]
) -> float | None:
    """What the steps of the replies allow at most; None where an engine does not tell them.

    With several clients a prompt is read between the steps of others, which drafts make fewer, so
    that only the tokens per step bound the gain.
    """
    steps = [(r.tokens, r.steps) for r in requests if r.steps is not None]
    if prefill_share is None or len(steps) < len(requests):
        return None
    return ceiling(prefill_share if clients == 1 else 0.0, steps)


def _request(
    prompt: Prompt, plain: list[Answer], spec: list[Answer], before: _Times, after: _Times
) -> RequestResult:
    counts = spec[0].counts
    replies = {tuple(answer.token_ids) for answer in (*plain, *spec)}
    return RequestResult(
        id=prompt.id,
        tokens=after.tokens,
        steps=counts.steps if counts else None,
        drafted=counts.drafted if counts else None,
        accepted=counts.accepted if counts else None,
        plain_s=before.total,
        spec_s=after.total,
        identical=len(replies) == 1,
    )


def _speedup(plain: Sequence[_Times], spec: Sequence[_Times], *, decode: bool) -> Ratio:
    """Plain time / speculative time for the same number of tokens.

    Replies of equal length are compared as they are. Where the outputs differ in length (which our
    own engine never does) the speculative time is scaled to the plain number of tokens. A reply of
    one token has no decode time and is left out of the decode speed-up.
    """
    above, below = [], []
    for a, b in zip(plain, spec, strict=True):
        tokens = (a.tokens - decode, b.tokens - decode)
        if min(tokens) < 1:
            continue
        above.append(a.decode if decode else a.total)
        below.append((b.decode if decode else b.total) * (tokens[0] / tokens[1]))
    return paired_ratio(above, below)


def _tokens_per_second(times: Sequence[_Times], clients: int) -> float | None:
    """All clients together. In a closed loop that is tokens x clients / sum of the latencies."""
    return paired_ratio([clients * t.tokens for t in times], [t.total for t in times]).value


def _decode_tokens_per_second(times: Sequence[_Times]) -> float | None:
    """One client, from its first token to its last."""
    longer = [t for t in times if t.tokens > 1]
    return paired_ratio([t.tokens - 1 for t in longer], [t.decode for t in longer]).value


def _draft_figures(spec: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    known = [answers[0].counts for answers in spec]
    counts = pool([c for c in known if c is not None]) if None not in known else None
    return {
        "tokens_per_step": counts.tokens_per_step if counts else None,
        "acceptance_length": counts.acceptance_length if counts else None,
        "coverage": counts.coverage if counts else None,
        "drafted": counts.drafted if counts else None,
        "accepted": counts.accepted if counts else None,
        "acceptance_rate": counts.acceptance_rate if counts else None,
        "acceptance_by_position_unconditional": (
            counts.acceptance_by_position_unconditional or None if counts else None
        ),
    }


def _followed(prompts: Sequence[Prompt], spec: Sequence[Sequence[Answer]]) -> int | None:
    if any(prompt.expected is None for prompt in prompts):
        return None
    return sum(
        followed(answers[0].text, prompt.expected or "")
        for prompt, answers in zip(prompts, spec, strict=True)
    )


def check_writable(path: Path) -> None:
    """Raise ConfigError before a long run rather than after it."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"json: {path} is not a file in an existing directory")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"json: {path.parent} cannot be written to")


def write(report: Report, path: Path) -> None:
    """Write the contract in one go: the old file or the new one is there, never half of one."""
    text = report.to_json()
    try:
        with replacing(path) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(f"json: cannot write {path}: {error.strerror}") from error
