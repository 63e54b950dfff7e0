"""``/metrics``: what the server and its engine did, as Prometheus reads it.

The engine's figures come from its last snapshot, those of requests from what is told here when
something happens to one. The names are vLLM's where it has one, under ``wager:``, and with
``--metrics-alias vllm`` under ``vllm:`` with its labels too. docs/metrics.md has them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from starlette.responses import Response

from wager.engine.snapshot import Snapshot
from wager.engine.stats import UNNAMED, Histogram
from wager.server.exposition import CONTENT_TYPE, Family, Labels, known, one
from wager.server.service import Service, service_of
from wager.server.window import Window
from wager.types import DraftCounts

if TYPE_CHECKING:
    from starlette.requests import Request

    from wager.server.truth import RequestRecord

REASONS: Final = ("stop", "length", "abort", "error")
"""Reasons of an end that are counted; a call of tools is a stop."""
_STOPS: Final = ("tool_calls", "function_call")
GAUGE_S: Final = 300.0
"""Seconds that the gauge of the speed-up looks back."""

_FIRST_TOKEN: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
# Small models decode faster than the first of vLLM's bounds.
_BETWEEN: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST: Final = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS: Final = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100000.0,
)  # fmt: skip
_CHOICES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)

_HISTOGRAMS: Final[Mapping[str, tuple[tuple[float, ...], str]]] = {
    "time_to_first_token_seconds": (_FIRST_TOKEN, "From arrival to the first token."),
    "inter_token_latency_seconds": (
        _BETWEEN, "Between two steps that brought tokens of a request, whatever their number.",
    ),
    "request_time_per_output_token_seconds": (
        _BETWEEN, "Mean time per token of a request, after its first.",
    ),
    "e2e_request_latency_seconds": (_REQUEST, "From arrival to the end."),
    "request_queue_time_seconds": (_REQUEST, "From arrival to the first step."),
    "request_prefill_time_seconds": (_REQUEST, "From the first step to the first token."),
    "request_decode_time_seconds": (_REQUEST, "From the first token to the end."),
    "request_inference_time_seconds": (_REQUEST, "From the first step to the end."),
    "request_prompt_tokens": (_TOKENS, "Prompt tokens of a request."),
    "request_generation_tokens": (_TOKENS, "Tokens written for a request, of all its choices."),
    "request_max_num_generation_tokens": (_TOKENS, "Tokens of a request's longest choice."),
    "request_params_n": (_CHOICES, "Choices of a request."),
    "request_params_max_tokens": (_TOKENS, "max_tokens of a request, where it was given."),
}  # fmt: skip


class ServerMetrics:
    """Counters and histograms of requests, and the page that shows them with the engine's.

    For the event loop's thread alone. What the service is asked for is asked when the page is.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.window = Window()
        self._received = 0
        self._refused: Counter[int] = Counter()
        self._ended = dict.fromkeys(REASONS, 0)
        self._prompt_tokens = self._cached_tokens = 0
        self._histograms = {name: Histogram(bounds) for name, (bounds, _) in _HISTOGRAMS.items()}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    # What happens to requests

    def started(self) -> None:
        """A request goes to the engine."""
        self._received += 1

    def first_token(self, seconds: float) -> None:
        """A request has its first token, ``seconds`` after it arrived."""
        self._observe("time_to_first_token_seconds", seconds)

    def finished(self, record: RequestRecord) -> None:
        """A request is over, whatever its end."""
        reason = "stop" if record.finish_reason in _STOPS else record.finish_reason
        self._ended[reason if reason in REASONS else "error"] += 1
        if record.first_token_s is None and record.finish_reason in ("abort", "error"):
            # It was refused, or given up before anything came of it: it has no sizes and times.
            return
        self._prompt_tokens += record.prompt_tokens
        self._cached_tokens += record.cached_tokens
        self._observe("request_prompt_tokens", record.prompt_tokens)
        self._observe("request_generation_tokens", record.completion_tokens)
        self._observe("request_max_num_generation_tokens", record.longest)
        self._observe("request_params_n", record.choices)
        self._observe("request_params_max_tokens", record.max_tokens)
        queue, first, total = record.queue_s, record.first_token_s, record.total_s
        self._observe("request_queue_time_seconds", queue)
        self._observe("e2e_request_latency_seconds", total)
        self._observe("request_prefill_time_seconds", _between(queue, first))
        self._observe("request_decode_time_seconds", record.decode_s)
        self._observe("request_inference_time_seconds", _between(queue, total))
        after_first = record.completion_tokens - record.choices
        if record.decode_s is not None and after_first > 0:
            # Choices decode beside each other.
            each = record.decode_s * record.choices / after_first
            self._observe("request_time_per_output_token_seconds", each)
        for gap in record.inter_token_s:
            self._observe("inter_token_latency_seconds", gap)

    def refused(self, status: int) -> None:
        """A request was answered with an error, of that HTTP status."""
        self._refused[status] += 1

    def _observe(self, name: str, value: float | None) -> None:
        if value is not None:
            self._histograms[name].observe(max(value, 0.0))

    # What the page says

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics but the process's: for the registry."""
        snapshot = self._service.llm.snapshot
        for family in self._families():
            yield from self._requests(family)
            yield from _engine(family, snapshot)
            yield from _drafts(family, snapshot)
        yield from self._own(snapshot)

    def _families(self) -> Iterator[Family]:
        model = self._service.names[0]
        yield Family("wager", {"model": model}, by_method=True)
        if self._service.options.metrics_alias == "vllm":
            yield Family("vllm", {"model_name": model, "engine": "0"}, by_method=False)

    def _requests(self, family: Family) -> Iterator[Metric]:
        llm = self._service.llm
        yield family.gauge("num_requests_running", "Requests that take part in steps.",
                           one(llm.running))  # fmt: skip
        yield family.gauge("num_requests_waiting", "Requests that wait for their turn.",
                           one(llm.waiting))  # fmt: skip
        yield family.counter(
            "request_success", "Requests that are over, by why they ended.",
            {(reason,): n for reason, n in self._ended.items()}, ("finished_reason",),
        )  # fmt: skip
        yield family.counter(
            "prompt_tokens", "Prompt tokens of requests that are over and had a token.",
            one(self._prompt_tokens),
        )  # fmt: skip
        yield family.counter(
            "prompt_tokens_cached", "Those of them that came from the prefix cache.",
            one(self._cached_tokens),
        )  # fmt: skip
        for name, histogram in self._histograms.items():
            yield family.histogram(name, _HISTOGRAMS[name][1], {(): histogram})

    def _own(self, snapshot: Snapshot) -> Iterator[Metric]:
        """What no other engine shows."""
        family = next(self._families())
        yield family.counter("requests_received", "Requests that went to the engine.",
                             one(self._received))  # fmt: skip
        yield family.counter(
            "requests_refused", "Requests that were answered with an error, by HTTP status.",
            {(str(status),): n for status, n in sorted(self._refused.items())}, ("status",),
        )  # fmt: skip
        yield from _steps(family, snapshot)
        if snapshot.methods:
            yield from self._speculation(family, snapshot)

    def _speculation(self, family: Family, snapshot: Snapshot) -> Iterator[Metric]:
        yield family.counter(
            "drafter_failures", "Requests that a drafter was switched off for, having failed.",
            one(snapshot.drafter_failures),
        )  # fmt: skip
        yield family.histogram("draft_time_seconds", "Drafting, by step.",
                               {(): snapshot.draft_times})  # fmt: skip
        yield family.counter(
            "estimated_plain_seconds",
            "Estimated: what plain decoding would have taken for the tokens of decode steps.",
            one(snapshot.estimated_plain_ms / 1e3),
        )
        yield family.counter("compared_seconds", "What those decode steps took.",
                             one(snapshot.compared_ms / 1e3))  # fmt: skip
        change = self.window.change(snapshot, GAUGE_S)
        self.window.add(snapshot)
        yield family.gauge(
            "estimated_speedup",
            "Estimated: plain decoding's time / the time taken, of recent decode steps.",
            known(change.speedup if change is not None else None),
        )
        yield family.gauge("estimated_plain_step_seconds",
                           "Estimated: what a step without drafts would take now.",
                           known(_seconds(snapshot.plain_ms)))  # fmt: skip
        yield from _control(family, snapshot)


def _engine(family: Family, snapshot: Snapshot) -> Iterator[Metric]:
    used = snapshot.kv_used / snapshot.kv_blocks if snapshot.kv_blocks else None
    yield family.gauge("kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all of them.",
                       known(used))  # fmt: skip
    yield family.counter("prefix_cache_queries", "Prompt tokens that were needed.",
                         known(snapshot.prefix_queries))  # fmt: skip
    yield family.counter("prefix_cache_hits", "Those of them that came from the prefix cache.",
                         known(snapshot.prefix_hits))  # fmt: skip
    yield family.counter("num_preemptions", "Times that a sequence lost its blocks to another.",
                         one(snapshot.preemptions))  # fmt: skip
    yield family.counter("generation_tokens", "Tokens committed.",
                         one(snapshot.counts.committed))  # fmt: skip


def _drafts(family: Family, snapshot: Snapshot) -> Iterator[Metric]:
    """Only tokens that were committed count as accepted, and no draft is counted that was not
    verified. Nothing at all is shown where the engine has no method."""
    if not snapshot.methods:
        return
    groups: dict[Labels, DraftCounts] = {(): snapshot.counts}
    more: Labels = ()
    if family.by_method:
        groups = {(method,): counts for method, counts in by_method(snapshot).items()}
        more = ("method",)
    yield family.counter("spec_decode_num_drafts", "Steps of a request that carried a draft.",
                         {own: c.drafted_steps for own, c in groups.items()}, more)  # fmt: skip
    yield family.counter("spec_decode_num_draft_tokens", "Draft tokens that were verified.",
                         {own: c.drafted for own, c in groups.items()}, more)  # fmt: skip
    yield family.counter("spec_decode_num_accepted_tokens", "Draft tokens that were committed.",
                         {own: c.accepted for own, c in groups.items()}, more)  # fmt: skip
    at: dict[Labels, float] = {
        (*own, str(j)): float(count)
        for own, c in groups.items()
        for j, count in enumerate([*c.accepted_at, *[0] * (len(c.drafted_at) - len(c.accepted_at))])
    }
    yield family.counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafts whose token at that position was committed.", at, (*more, "position"),
    )  # fmt: skip


def by_method(snapshot: Snapshot) -> dict[str, DraftCounts]:
    """Counts of drafts by method, every method that the engine has among them.

    A method may draft from several sources ("suffix (past answers)"): its name comes first.
    """
    found = {_short(method): DraftCounts() for method in snapshot.methods}
    for source, counts in snapshot.by_source.items():
        method = source.split()[0] if source.strip() else UNNAMED
        found.setdefault(method, DraftCounts()).add(counts)
    return found


def _short(method: str) -> str:
    """Methods of third parties are named by where their class is."""
    return method.rpartition(":")[2].lower() if ":" in method else method


def _steps(family: Family, snapshot: Snapshot) -> Iterator[Metric]:
    times: dict[Labels, Histogram] = {
        ("plain",): snapshot.plain_times,
        ("verify",): snapshot.verify_times,
        ("prefill",): snapshot.prefill_times,
    }
    yield family.histogram(
        "step_time_seconds",
        "Whole steps: with prompt tokens (prefill), else with drafts (verify), or neither (plain).",
        times, ("kind",),
    )  # fmt: skip
    yield family.counter("num_request_steps", "Steps, once for each request that took part.",
                         one(snapshot.counts.steps))  # fmt: skip


def _control(family: Family, snapshot: Snapshot) -> Iterator[Metric]:
    control = snapshot.control
    if control is None:
        return
    yield family.counter(
        "controller_decisions", "Steps that could have had drafts, by what was decided.",
        {(reason,): n for reason, n in control.reasons.items()}, ("reason",),
    )  # fmt: skip
    yield family.counter(
        "controller_draft_lengths", "Drafts by how many of their tokens were verified.",
        {(str(length),): n for length, n in sorted(control.lengths.items())}, ("length",),
    )  # fmt: skip
    yield family.gauge("controller_balance_steps", "The loss account, in plain steps.",
                       known(control.balance))  # fmt: skip
    yield family.counter("controller_lost_steps", "Plain steps that bets cost beyond their gain.",
                         known(control.lost))  # fmt: skip
    yield family.counter("controller_gained_steps", "Plain steps that bets brought.",
                         known(control.gained))  # fmt: skip


def _between(start: float | None, end: float | None) -> float | None:
    return end - start if start is not None and end is not None else None


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


async def page(request: Request) -> Response:
    """``GET /metrics``."""
    return Response(service_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE})
