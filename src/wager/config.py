"""One frozen record per concern, checked when made. A bad value raises ConfigError (options of the
engine) or RequestError (options of one request), and names the option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from wager.checks import choice, real, whole
from wager.errors import ConfigError, RequestError
from wager.types import KvKind, WeightKind

MAX_STOP_STRINGS = 32
MAX_TOP_LOGPROBS = 64
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a llama-architecture decoder."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float
    rope_theta: float
    tied_head: bool
    # Divisors of the rotary frequencies, one per pair (llama3 scaling, or GGUF's rope_freqs).
    rope_factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is run. Defaults are those of the command line too."""

    weights: WeightKind | Literal["auto"] = "auto"
    kv: KvKind | Literal["auto"] = "auto"
    ops: Literal["auto", "native", "reference"] = "auto"
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_batch_tokens: int = 512
    block_size: int = 16
    kv_memory: int | None = None
    prefix_cache: bool = True
    # Checks the block tables after every step: for tests.
    check_integrity: bool = False

    def __post_init__(self) -> None:
        choice("weights", self.weights, ("auto", *get_args(WeightKind)))
        choice("kv", self.kv, ("auto", "f32", "f16"))
        choice("ops", self.ops, ("auto", "native", "reference"))
        for name in ("threads", "max_model_len", "kv_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: must be at least 1, got {value}")
        for name in ("max_num_seqs", "max_batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.block_size != 16:
            raise ConfigError(f"block_size: only 16 is supported, got {self.block_size}")


@dataclass(frozen=True, slots=True)
class RequestSpeculation:
    """What one request asks of speculation: none, fewer draft tokens, or one of the engine's
    methods only. Raises RequestError."""

    enabled: bool = True
    num_speculative_tokens: int | None = None
    method: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise RequestError(f"speculation: enabled must be true or false, got {self.enabled!r}")
        if self.num_speculative_tokens is not None:
            name = "speculation: num_speculative_tokens"
            whole(name, self.num_speculative_tokens, 1, (1 << 31) - 1, error=RequestError)
        if self.method is not None and not isinstance(self.method, str):
            raise RequestError(f"speculation: method must be a name, got {self.method!r}")

    @classmethod
    def of(cls, given: RequestSpeculation | Mapping[str, Any] | None) -> RequestSpeculation | None:
        """From a mapping with these keys."""
        if given is None or isinstance(given, RequestSpeculation):
            return given
        if not isinstance(given, Mapping):
            raise RequestError('speculation: must be an object, e.g. {"enabled": false}')
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(map(str, given)) - set(known))
        if unknown:
            raise RequestError(
                f"speculation: unknown key {unknown[0]!r}; known keys: {', '.join(known)}"
            )
        return cls(**given)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Names and meanings follow vLLM's SamplingParams.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1 means all. ``seed`` None draws a fresh one.
    ``logprobs`` is the number of alternatives to report per token (0: only the chosen one).
    ``ignore_eos`` goes on past the model's end tokens. ``speculation`` overrides the engine's for
    this request (a mapping with the fields of `RequestSpeculation` will do). Raises RequestError.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    speculation: RequestSpeculation | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "speculation", RequestSpeculation.of(self.speculation))
        # One string, or any sequence of them, is what callers of other engines are used to giving.
        given: Any = self.stop
        stop = (given,) if isinstance(given, str) else tuple(given or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        real("temperature", self.temperature, 0.0, math.inf, error=RequestError)
        real("top_p", self.top_p, 0.0, 1.0, open_low=True, error=RequestError)
        real("min_p", self.min_p, 0.0, 1.0, error=RequestError)
        whole("top_k", self.top_k, -1, (1 << 31) - 1, error=RequestError)
        whole("n", self.n, 1, MAX_CHOICES, error=RequestError)
        whole("min_tokens", self.min_tokens, 0, (1 << 31) - 1, error=RequestError)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1, (1 << 31) - 1, error=RequestError)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens: {self.min_tokens} is larger than max_tokens: {self.max_tokens}"
                )
        if self.seed is not None:
            whole("seed", self.seed, -(1 << 63), (1 << 64) - 1, error=RequestError)
        if self.logprobs is not None:
            whole("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS, error=RequestError)
        self._check_stops()

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop: at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError("stop: each entry must be a string that is not empty")
        for token in self.stop_token_ids:
            whole("stop_token_ids", token, 0, (1 << 31) - 1, error=RequestError)
