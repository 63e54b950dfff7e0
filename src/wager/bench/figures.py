"""From answers to the figures of one cell, and from cells to advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wager.arms import PLAIN, Arm
from wager.backend import Answer, Counters, Prompt
from wager.bench.doubts import doubts
from wager.bench.drafts import DraftFigures
from wager.bench.drafts import figures as draft_figures
from wager.bench.identity import Identity, compare
from wager.bench.latency import SERVED_AT_ONCE_S, count_of, decode, latencies
from wager.bench.measure import Measurement
from wager.bench.results import BothCounts, BothTimes, Cell, RequestResult
from wager.bench.statistics import (
    Ratio,
    Verdict,
    ceiling,
    disturbed,
    mean,
    median,
    paired_ratio,
    verdict,
)
from wager.bench.verdicts import (
    TOLERATED_FAILURES,
    AtLoad,
    Facts,
    OverLoads,
    Status,
    over_loads,
    reason,
)
from wager.bench.workloads.checks import followed, loops


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds and tokens of one prompt in one arm over its runs; None is not known.

    Medians where every run gave as many tokens, else means, so that the tokens are those of the
    seconds. ``decode`` seconds are of ``decode_tokens`` tokens, those after the first piece.
    """

    total: float
    first: float | None
    tokens: float | None
    decode: float | None
    decode_tokens: float | None

    @classmethod
    def of(cls, answers: Sequence[Answer], at_once_s: float) -> _Times:
        decodes = [d for a in answers if (d := decode(a, at_once_s)) is not None]
        told = [n for a in answers if (n := count_of(a)) is not None]
        known = len(told) == len(answers)
        whole = len(decodes) == len(answers)
        middle = median if len(set(told)) <= 1 else mean
        of_decode = median if len({d.tokens for d in decodes}) <= 1 else mean
        return cls(
            middle([a.total_s for a in answers]) or 0.0,
            middle([a.first_token_s for a in answers if a.first_token_s is not None]),
            middle([float(n) for n in told]) if known else None,
            of_decode([d.seconds for d in decodes]) if whole else None,
            of_decode([float(d.tokens) for d in decodes]) if whole else None,
        )

    def lasting(self, tokens: float) -> float:
        """Seconds of the whole request, had the reply been of ``tokens`` tokens.

        Only decoding grows with them. Scaling the prompt's time too would call the arm slower
        whose replies happen to be shorter, and, over many replies, the one that is not the
        reference.
        """
        if self.tokens is None or self.tokens == tokens:
            return self.total
        if self.decode is None or not self.decode_tokens:
            return self.total * (tokens / self.tokens)
        seconds = self.total + (tokens - self.tokens) * self.decode / self.decode_tokens
        return max(seconds, self.first or 0.0)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The sound answers to the measured prompts of one arm and of plain decoding."""

    prompts: list[Prompt]
    plain: list[list[Answer]]
    spec: list[list[Answer]]

    @classmethod
    def of(cls, measurement: Measurement, arm: Arm) -> _Sides:
        prompts = measurement.measured(arm)
        return cls(
            prompts,
            [measurement.sound(PLAIN, p) for p in prompts],
            [measurement.sound(arm.name, p) for p in prompts],
        )


def cell(measurement: Measurement, arm: Arm) -> Cell | None:
    """What one speculative arm did against the plain one; None if nothing is complete yet."""
    if not measurement.attempted(arm):
        return None
    sides = _Sides.of(measurement, arm)
    at_once = _at_once(measurement)
    plain = [_Times.of(answers, at_once) for answers in sides.plain]
    spec = [_Times.of(answers, at_once) for answers in sides.spec]
    requests = _requests(measurement, sides, plain, spec)
    speed, decode_speed = paired_ratio(*_equal_tokens(plain, spec)), _decode_speedup(plain, spec)
    share = _prefill_share(plain)
    # Of replies that all failed the counters tell nothing about drafting.
    counted = measurement.counters(arm.name) if sides.prompts else Counters()
    drafts = draft_figures([answers[0] for answers in sides.spec], counted)
    cost = _verify_cost(sides.spec, drafts, decode_speed.value)
    highest = highest_speedup(measurement.load.clients, share, requests, drafts.tokens_per_step)
    status = _status(drafts, speed, highest)
    lost = max(measurement.failed_share(PLAIN), measurement.failed_share(arm.name))
    sound = status != "NOT ACTIVE" and lost <= TOLERATED_FAILURES
    settled = verdict(speed, highest) if sound else None
    identity = _identity(measurement, sides)
    return Cell(
        workload=measurement.workload,
        clients=measurement.load.clients,
        rate=measurement.load.rate,
        engine=measurement.engine,
        arm=arm.name,
        method=arm.speculation.method if arm.speculation else PLAIN,
        status=status,
        plain_tok_s=_tokens_per_second(measurement, PLAIN, plain),
        spec_tok_s=_tokens_per_second(measurement, arm.name, spec),
        speedup=speed.value,
        speedup_low=speed.low,
        speedup_high=speed.high,
        plain_decode_tok_s=_decode_tokens_per_second(plain),
        spec_decode_tok_s=_decode_tokens_per_second(spec),
        decode_speedup=decode_speed.value,
        prefill_share=share,
        **_draft_fields(drafts),
        verify_cost_estimated=cost,
        **_latency_fields(sides, at_once),
        outputs=len(requests),
        identical=identity.equal if identity.compared else None,
        identity=identity,
        followed=_followed(sides),
        loops=_loops(sides.spec),
        errors=BothCounts(measurement.errors(PLAIN), measurement.errors(arm.name)),
        repeated_prompts=measurement.repeated_prompts,
        random_prompts=measurement.random_prompts,
        verdict=settled,
        reason=_reason(measurement, status, settled, speed, share, drafts, cost, lost),
        notes=doubts(measurement, arm),
        requests=requests,
        by_source=None if counted.by_source is None else dict(counted.by_source),
        warm=measurement.warm,
    )


def _draft_fields(drafts: DraftFigures) -> dict[str, Any]:
    return {
        "draft_figures_from": drafts.source,
        "active": drafts.active,
        "tokens_per_step": drafts.tokens_per_step,
        "tokens_per_step_mean_of_requests": drafts.tokens_per_step_mean,
        "acceptance_length": drafts.acceptance_length,
        "coverage": drafts.coverage,
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
        "acceptance_rate": drafts.acceptance_rate,
        "acceptance_rate_mean_of_requests": drafts.acceptance_rate_mean,
        "acceptance_by_position_unconditional": drafts.unconditional,
        "acceptance_by_position_conditional": drafts.conditional,
    }


def _latency_fields(sides: _Sides, at_once_s: float) -> dict[str, Any]:
    before = latencies((a for answers in sides.plain for a in answers), at_once_s)
    after = latencies((a for answers in sides.spec for a in answers), at_once_s)
    return {
        "ttft_s": BothTimes(before.ttft, after.ttft),
        "tpot_s": BothTimes(before.tpot, after.tpot),
        "chunk_gap_s": BothTimes(before.chunk_gap, after.chunk_gap),
        "request_s": BothTimes(before.request, after.request),
        "excluded": BothCounts(before.excluded, after.excluded),
    }


def _status(drafts: DraftFigures, speed: Ratio, highest: float | None) -> Status:
    if drafts.active is False:
        return "NOT ACTIVE"
    return "DISTURBED" if disturbed(speed, highest) else "measured"


def _reason(
    measurement: Measurement,
    status: Status,
    settled: Verdict | None,
    speed: Ratio,
    share: float | None,
    drafts: DraftFigures,
    cost: float | None,
    failed_share: float,
) -> str:
    length = drafts.acceptance_length
    return reason(
        Facts(
            verdict=settled,
            status=status,
            speedup=speed.value,
            prefill_share=share,
            coverage=drafts.coverage,
            drafted_per_draft=drafts.drafted_per_draft,
            accepted_per_draft=None if length is None else length - 1.0,
            tokens_per_step=drafts.tokens_per_step,
            cost=cost,
            failed_share=failed_share,
            alone=measurement.load.clients == 1,
            own=measurement.engine == "own",
        )
    )


def highest_speedup(
    clients: int | None,
    prefill_share: float | None,
    requests: Sequence[RequestResult],
    tokens_per_step: float | None = None,
) -> float | None:
    """What the steps of the replies allow at most; None where an engine does not tell them.

    With several clients a prompt is read between the steps of others, which drafts make fewer, so
    that only the tokens per step bound the gain. Where a server tells steps only in all, its
    ``tokens_per_step`` stand in for those of the replies.
    """
    if prefill_share is None or not requests:
        return None
    share = prefill_share if clients == 1 else 0.0
    steps = [(r.tokens, r.steps) for r in requests if r.steps is not None and r.tokens is not None]
    if len(steps) == len(requests):
        return ceiling(share, steps)
    return None if tokens_per_step is None else 1.0 / (share + (1.0 - share) / tokens_per_step)


def _requests(
    measurement: Measurement, sides: _Sides, plain: Sequence[_Times], spec: Sequence[_Times]
) -> list[RequestResult]:
    out = []
    rows = zip(sides.prompts, sides.plain, sides.spec, plain, spec, strict=True)
    for prompt, plain_answers, spec_answers, before, after in rows:
        counts = spec_answers[0].counts
        whole = compare([(prompt.id, plain_answers, spec_answers)])
        out.append(
            RequestResult(
                id=prompt.id,
                tokens=count_of(spec_answers[0]),
                steps=counts.steps if counts else None,
                drafted=counts.drafted if counts else None,
                accepted=counts.accepted if counts else None,
                plain_s=before.total,
                spec_s=after.total,
                identical=whole.equal == 1 if _comparable(measurement, prompt) else None,
            )
        )
    return out


def _comparable(measurement: Measurement, prompt: Prompt) -> bool:
    return measurement.exact or prompt.params.temperature == 0.0


def _identity(measurement: Measurement, sides: _Sides) -> Identity:
    rows = zip(sides.prompts, sides.plain, sides.spec, strict=True)
    return compare([(p.id, a, b) for p, a, b in rows if _comparable(measurement, p)])


def request_seconds(measurement: Measurement, arm: Arm) -> tuple[list[float], list[float]]:
    """Seconds of whole requests, plain and in an arm, of the same prompts and the same tokens."""
    sides = _Sides.of(measurement, arm)
    at_once = _at_once(measurement)
    return _equal_tokens(
        [_Times.of(answers, at_once) for answers in sides.plain],
        [_Times.of(answers, at_once) for answers in sides.spec],
    )


def _equal_tokens(
    plain: Sequence[_Times], spec: Sequence[_Times]
) -> tuple[list[float], list[float]]:
    """Replies of equal length are compared as they are. Where the outputs differ in length (which
    our own engine never does) the speculative decode time is scaled to the plain number of tokens.
    A pair with a reply of unknown length, or of none, takes no part."""
    both = [(a, b) for a, b in zip(plain, spec, strict=True) if a.tokens and b.tokens]
    return [a.total for a, _ in both], [b.lasting(a.tokens or 0.0) for a, b in both]


def _at_once(measurement: Measurement) -> float:
    return 0.0 if measurement.engine == "own" else SERVED_AT_ONCE_S


def _decode_speedup(plain: Sequence[_Times], spec: Sequence[_Times]) -> Ratio:
    """The same of decode. A reply of one token has no decode time and is left out."""
    above, below = [], []
    for a, b in zip(plain, spec, strict=True):
        if a.decode is None or b.decode is None or not a.decode_tokens or not b.decode_tokens:
            continue
        above.append(a.decode)
        below.append(b.decode * (a.decode_tokens / b.decode_tokens))
    return paired_ratio(above, below)


def _prefill_share(plain: Sequence[_Times]) -> float | None:
    known = [(t.first, t.total) for t in plain if t.first is not None]
    return paired_ratio([first for first, _ in known], [total for _, total in known]).value


def _tokens_per_second(measurement: Measurement, arm: str, times: Sequence[_Times]) -> float | None:
    """All clients together. In a closed loop that is tokens x clients / sum of the latencies.

    With a given rate of arrivals: all counted tokens / seconds of the parts.
    """
    known = [(t.tokens, t.total) for t in times if t.tokens is not None]
    clients = measurement.load.clients
    if clients is not None:
        return paired_ratio([clients * n for n, _ in known], [total for _, total in known]).value
    every = (a for p in measurement.prompts for a in measurement.sound(arm, p))
    seconds = measurement.seconds.get(arm, 0.0)
    return sum(count_of(a) or 0 for a in every) / seconds if known and seconds > 0.0 else None


def _decode_tokens_per_second(times: Sequence[_Times]) -> float | None:
    """One client, from its first token to its last."""
    known = [(t.decode_tokens, t.decode) for t in times if t.decode_tokens and t.decode]
    return paired_ratio([n for n, _ in known], [seconds for _, seconds in known]).value


def _verify_cost(
    answers: Sequence[Sequence[Answer]],
    drafts: DraftFigures,
    decode_speedup: float | None,
) -> float | None:
    """Decode time per step of the arm / plain decode time per token, at the same load.

    That is tokens per step / decode speed-up. Estimated: the first step of a request, which reads
    the prompt, is taken off where an engine tells each request's steps, and is in it elsewhere.
    """
    if decode_speedup is None:
        return None
    per_step = drafts.tokens_per_step
    if drafts.source == "requests":
        pairs = [
            (counts.committed - 1, counts.steps - 1)
            for own in answers
            if (counts := own[0].counts) is not None and counts.steps > 1
        ]
        per_step = paired_ratio([t for t, _ in pairs], [steps for _, steps in pairs]).value
    return None if per_step is None else per_step / decode_speedup


def _followed(sides: _Sides) -> int | None:
    if not sides.prompts or any(prompt.expected is None for prompt in sides.prompts):
        return None
    return sum(
        followed(answers[0].text, prompt.expected or "")
        for prompt, answers in zip(sides.prompts, sides.spec, strict=True)
    )


def _loops(spec: Sequence[Sequence[Answer]]) -> int | None:
    """None where an engine does not tell token ids."""
    if any(answers[0].token_ids is None for answers in spec):
        return None
    return sum(loops(answers[0].token_ids or ()) for answers in spec)


def advice(cells: Sequence[Cell]) -> list[OverLoads]:
    """One verdict per workload and arm, over the numbers of clients (or rates) measured."""
    keys = dict.fromkeys((c.workload, c.arm) for c in cells)
    out = []
    for workload, arm in keys:
        own = [c for c in cells if (c.workload, c.arm) == (workload, arm)]
        loads = [
            AtLoad(load, c.verdict, c.speedup, c.reason)
            for c in own
            if (load := c.clients if c.clients is not None else c.rate) is not None
        ]
        out.append(over_loads(workload, arm, loads, "clients" if own[0].clients else "requests/s"))
    return out
