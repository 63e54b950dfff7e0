"""What a reply says of itself beside the answer: usage, speculation, timings; and what is kept of a
request that is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from wager.config import SamplingParams
from wager.engine.llm import Collector
from wager.server import truth
from wager.server.truth import RequestRecord
from wager.types import RequestOutput

if TYPE_CHECKING:
    from wager.server.service import Service

Unfinished: TypeAlias = Literal["abort", "error"]
"""Nobody wants the rest any more; it was refused, or could not go on."""


def usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int | None
) -> dict[str, Any]:
    """OpenAI's ``usage``. ``reasoning_tokens`` None: a route that knows no reasoning."""
    told: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    if reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return told


def together(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """The answers to several prompts of one request as one: times run from the first arrival."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    queues = [o.queue_s for o in outputs if o.queue_s is not None]
    firsts = [o.first_token_s for o in outputs if o.first_token_s is not None]
    totals = [o.total_s for o in outputs if o.total_s is not None]
    return replace(
        first,
        prompt_token_ids=[token for o in outputs for token in o.prompt_token_ids],
        outputs=[choice for o in outputs for choice in o.outputs],
        cached_tokens=sum(o.cached_tokens for o in outputs),
        queue_s=min(queues, default=None),
        first_token_s=min(firsts, default=None),
        total_s=max(totals, default=None),
        prompt_logprobs=None,
        draft_ms=sum(o.draft_ms for o in outputs),
        verify_ms=sum(o.verify_ms for o in outputs),
    )


def figures(outputs: Sequence[RequestOutput], service: Service) -> dict[str, Any]:
    """``speculation`` and ``timings`` of a whole reply."""
    whole = together(outputs)
    return {
        "speculation": truth.speculation(whole, service.llm.snapshot),
        "timings": truth.timings(whole),
    }


def speed(outputs: Sequence[RequestOutput]) -> dict[str, str]:
    """The header with the tokens per second of decoding; none where nothing was timed."""
    rate = truth.tokens_per_second(together(outputs))
    return {} if rate is None else {"x-tokens-per-second": f"{rate:.2f}"}


@dataclass(slots=True)
class Progress:
    """One prompt of a request, while its answer comes.

    ``arrived`` and the times that `take` is given are seconds of one clock. What has begun ends
    once: by `finish`, or else by `abandon`.
    """

    name: str
    prompt_ids: list[int]
    params: SamplingParams
    arrived: float
    tokens: int = 0
    cached_tokens: int = 0
    begun: bool = False
    over: bool = False
    _collector: Collector = field(default_factory=Collector)
    _last: float | None = None
    _gaps: list[float] = field(default_factory=list)

    def begin(self, service: Service) -> None:
        """It goes to the engine: from here on it is counted, and has to come to an end."""
        service.metrics.started()

    def take(self, piece: RequestOutput, now: float, service: Service) -> None:
        """Note what is new. What the piece holds belongs to this object afterwards, which adds
        to it: copy what is to stay as it is."""
        self.begun = True
        fresh = sum(len(choice.token_ids) for choice in piece.outputs)
        self.cached_tokens = piece.cached_tokens
        if fresh:
            if self._last is not None:
                self._gaps.append(now - self._last)
            elif piece.first_token_s is not None:
                service.metrics.first_token(piece.first_token_s)
            self._last = now
            self.tokens += fresh
        # A copy: the whole answer is put into the last one that is given.
        self._collector.add(replace(piece))

    def whole(self) -> RequestOutput:
        """All that came."""
        if not self.begun:
            return RequestOutput(self.name, self.prompt_ids, [], False)
        return self._collector.output()

    def finish(self, route: str, model: str, service: Service) -> None:
        """It is over: into the figures with it."""
        output = self.whole()
        self._note(self._record(output, route, model), output, service)

    def abandon(
        self, route: str, model: str, now: float, reason: Unfinished, service: Service
    ) -> None:
        """It is over before its answer was whole."""
        output = self.whole()
        record = self._record(output, route, model)
        total_s = now - self.arrived
        self._note(replace(record, finish_reason=reason, total_s=total_s), output, service)

    def _record(self, output: RequestOutput, route: str, model: str) -> RequestRecord:
        record = RequestRecord.of(
            output,
            route=route,
            model=model,
            inter_token_s=self._gaps,
            max_tokens=self.params.max_tokens,
        )
        return replace(record, choices=self.params.n)

    def _note(self, record: RequestRecord, output: RequestOutput, service: Service) -> None:
        self.over = True
        service.metrics.finished(record)
        service.recent.add(record, output, service.llm.llm.tokenizer)
