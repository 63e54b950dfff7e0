"""A request and its sequences (one per choice), as the engine sees them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from wager.config import RequestSpeculation, SamplingParams
from wager.errors import RequestError
from wager.runtime.kv import BlockTable
from wager.sampling.sampler import SequenceState
from wager.speculation import SpeculationConfig
from wager.types import CompletionOutput, DraftCounts, RequestOutput, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request.

    ``tokens`` are the prompt and what is committed; keys and values of the first ``computed`` are
    in the pool. The gap between the two is what the next steps compute; there is no other phase.
    """

    number: int
    request: Request
    state: SequenceState
    tokens: list[int]
    table: BlockTable
    computed: int = 0
    observed: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    fresh_flags: list[bool] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Tokens whose keys and values are still to be computed; at least 1."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """True once only the newest committed token is missing."""
        return self.missing == 1 and len(self.tokens) > self.request.prompt_length

    @property
    def scoring(self) -> bool:
        """Whether log-probabilities of the prompt are still wanted of its rows; the first choice's
        are those of all."""
        entries = self.request.prompt_logprobs
        if entries is None or self.state.choice:
            return False
        return len(entries) < self.request.prompt_length

    @property
    def reusable(self) -> list[int]:
        """Tokens of which a cached prefix may be taken: rows that are read from the cache give no
        logits."""
        entries = self.request.prompt_logprobs
        return self.tokens[: len(entries)] if entries and self.scoring else self.tokens

    def take_output(self) -> CompletionOutput:
        """What was committed since the last call."""
        fresh = self.state.take_fresh()
        flags, self.fresh_flags = self.fresh_flags, []
        return CompletionOutput(
            index=self.state.choice,
            token_ids=fresh.token_ids,
            text=fresh.text,
            finish_reason=self.state.finish_reason,
            stop_reason=self.state.stop_reason,
            logprobs=fresh.logprobs,
            counts=self.counts,
            accepted_flags=flags,
        )


@dataclass(slots=True, eq=False)
class Request:
    """One prompt with its sampling options and its choices."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    cache_salt: str
    arrived: float = field(default_factory=time.perf_counter)
    sequences: list[Sequence] = field(default_factory=list)
    cached_tokens: int = 0
    first_token_s: float | None = None
    queue_s: float | None = None
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    # One entry per prompt token, as they become known; None where nobody asked for them.
    prompt_logprobs: list[TokenLogprob | None] | None = None
    prompt_told: bool = False

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    @property
    def prompt_length(self) -> int:
        return len(self.prompt_ids)

    @property
    def finished(self) -> bool:
        return all(s.state.finish_reason is not None for s in self.sequences)

    def start(self) -> None:
        """It takes part in a step; only the first time counts."""
        if self.queue_s is None:
            self.queue_s = time.perf_counter() - self.arrived

    def output(self, choices: list[CompletionOutput]) -> RequestOutput:
        """A delta; times are seconds since the request was added."""
        now = time.perf_counter() - self.arrived
        if self.first_token_s is None and any(c.token_ids for c in choices):
            self.first_token_s = now
        finished = self.finished
        return RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_ids,
            outputs=choices,
            finished=finished,
            cached_tokens=self.cached_tokens,
            first_token_s=self.first_token_s,
            total_s=now if finished else None,
            queue_s=self.queue_s,
            prompt_logprobs=self._take_prompt_logprobs(),
            draft_ms=self.draft_ms,
            verify_ms=self.verify_ms,
        )

    def _take_prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """All of them, once, with the first tokens of the answer."""
        entries = self.prompt_logprobs
        if entries is None or self.prompt_told or self.first_token_s is None:
            return None
        if len(entries) < self.prompt_length:
            return None
        self.prompt_told = True
        return entries


def check_prompt(
    prompt: list[int], params: SamplingParams, vocab_size: int, max_model_len: int
) -> None:
    """Raise RequestError where a model of this vocabulary and context cannot serve it."""
    if not prompt:
        raise RequestError("prompt: is empty, and this model's tokenizer adds no start token")
    if len(prompt) >= max_model_len:
        raise RequestError(
            f"prompt: {len(prompt)} tokens, but the context holds {max_model_len} and the answer "
            "needs at least 1"
        )
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab_size:
            raise RequestError(f"prompt: token {token} is outside the vocabulary of {vocab_size}")
    named = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": [token for token, _ in params.biases],
        "allowed_token_ids": params.allowed_token_ids or (),
    }
    for name, ids in named.items():
        largest = max(ids, default=0)
        if largest >= vocab_size:
            raise RequestError(f"{name}: {largest} is outside the vocabulary of {vocab_size}")


def check_speculation(own: RequestSpeculation | None, engine: SpeculationConfig | None) -> None:
    """Raise RequestError where a request asks for speculation that the engine does not have."""
    if own is None or not own.enabled:
        return
    if engine is None:
        raise RequestError("speculation: this engine decodes plainly; start it with a method")
    most = engine.num_speculative_tokens
    if own.num_speculative_tokens is not None and own.num_speculative_tokens > most:
        raise RequestError(
            f"speculation: num_speculative_tokens is {own.num_speculative_tokens}, and this engine "
            f"drafts at most {most}"
        )
    methods = [one.method for one in engine.methods]
    if own.method is not None and own.method not in methods:
        raise RequestError(
            f"speculation: method {own.method!r} is not one of this engine's: {', '.join(methods)}"
        )
