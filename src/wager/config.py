"""One frozen record per concern, checked when made. A bad value raises ConfigError (options of the
engine) or RequestError (options of one request), and names the option."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from wager.errors import ConfigError, RequestError
from wager.types import KvKind, WeightKind

MAX_STOP_STRINGS = 32
MAX_TOP_LOGPROBS = 64
MAX_CHOICES = 128
# The most recent match of long n-grams is kept current at a cost per token that grows with this.
MAX_LOOKUP = 1024


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
        _choice("weights", self.weights, ("auto", "f32", "int8"))
        _choice("kv", self.kv, ("auto", "f32", "f16"))
        _choice("ops", self.ops, ("auto", "native", "reference"))
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
class SpeculationConfig:
    """vLLM's ``speculative_config`` keys, and ours. See docs/speculation.md.

    As in vLLM, one lookup bound given alone is copied to the other, and 5 is taken for both when
    neither is given.
    """

    method: str
    num_speculative_tokens: int
    prompt_lookup_min: int = 5
    prompt_lookup_max: int = 5
    match: Literal["recent", "earliest"] = "recent"
    cyclic: bool = True
    verify: Literal["match"] = "match"
    # Options of a third-party method, handed through as they are.
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, value: SpeculationConfig | Mapping[str, Any] | str | None
    ) -> SpeculationConfig | None:
        """From a mapping, from JSON text, or None for plain decoding."""
        if value is None or isinstance(value, SpeculationConfig):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ConfigError(f"speculative-config: not valid JSON: {error}") from error
        if not isinstance(value, Mapping):
            raise ConfigError(
                "speculative-config: must be a JSON object, e.g. "
                '{"method": "ngram", "num_speculative_tokens": 8}'
            )
        return cls._from_mapping({str(k).replace("-", "_"): v for k, v in value.items()})

    @classmethod
    def _from_mapping(cls, raw: dict[str, Any]) -> SpeculationConfig:
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(raw) - known)
        if unknown:
            raise ConfigError(
                f"speculative-config: unknown key {unknown[0]!r}; "
                f"known keys: {', '.join(sorted(known))}"
            )
        if "method" not in raw:
            raise ConfigError('speculative-config: "method" is missing, e.g. {"method": "ngram"}')
        if "num_speculative_tokens" not in raw:
            raise ConfigError('speculative-config: "num_speculative_tokens" is missing, e.g. 8')
        low, high = raw.get("prompt_lookup_min"), raw.get("prompt_lookup_max")
        if low is None and high is None:
            low = high = 5
        raw["prompt_lookup_min"] = high if low is None else low
        raw["prompt_lookup_max"] = low if high is None else high
        return cls(**raw)

    def describe(self) -> str:
        """The values in effect, in one line for people."""
        parts = [f"{self.method}, at most {self.num_speculative_tokens} draft tokens"]
        if self.method == "ngram":
            parts.append(f"lookup {self.prompt_lookup_min} to {self.prompt_lookup_max}")
            parts.append(f"{self.match} match, {'cyclic' if self.cyclic else 'not cyclic'}")
        return ", ".join(parts)

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not self.method:
            raise ConfigError("method: must be the name of a drafting method")
        _integer(
            "num_speculative_tokens",
            self.num_speculative_tokens,
            1,
            1024,
            "to decode without speculation leave the speculative config out",
        )
        _integer("prompt_lookup_min", self.prompt_lookup_min, 1, MAX_LOOKUP)
        _integer("prompt_lookup_max", self.prompt_lookup_max, 1, MAX_LOOKUP)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min: {self.prompt_lookup_min} is larger than prompt_lookup_max: "
                f"{self.prompt_lookup_max}"
            )
        _choice("match", self.match, ("recent", "earliest"))
        if not isinstance(self.cyclic, bool):
            raise ConfigError(f"cyclic: must be true or false, got {self.cyclic!r}")
        if self.verify != "match":
            raise ConfigError(f"verify: only 'match' is supported, got {self.verify!r}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Names and meanings follow vLLM's SamplingParams.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1 means all. ``seed`` None draws a fresh one.
    ``logprobs`` is the number of alternatives to report per token (0: only the chosen one).
    ``ignore_eos`` goes on past the model's end tokens. Raises RequestError.
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

    def __post_init__(self) -> None:
        # One string, or any sequence of them, is what callers of other engines are used to giving.
        given: Any = self.stop
        stop = (given,) if isinstance(given, str) else tuple(given or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        _real("temperature", self.temperature, 0.0, math.inf)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _whole("top_k", self.top_k, -1, (1 << 31) - 1)
        _whole("n", self.n, 1, MAX_CHOICES)
        _whole("min_tokens", self.min_tokens, 0, (1 << 31) - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, (1 << 31) - 1)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens: {self.min_tokens} is larger than max_tokens: {self.max_tokens}"
                )
        if self.seed is not None:
            _whole("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        self._check_stops()

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop: at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError("stop: each entry must be a string that is not empty")
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0, (1 << 31) - 1)


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}: must be one of {', '.join(allowed)}; got {value!r}")


def _integer(name: str, value: object, low: int, high: int, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        tail = f"; {hint}" if hint else ""
        raise ConfigError(
            f"{name}: must be a whole number from {low} to {high}, got {value!r}{tail}"
        )


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name}: must be a whole number from {low} to {high}, got {value!r}")


def _real(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    bad = isinstance(value, bool) or not isinstance(value, int | float)
    if bad or not math.isfinite(float(value)):  # type: ignore[arg-type]
        raise RequestError(f"{name}: must be a finite number, got {value!r}")
    number = float(value)  # type: ignore[arg-type]
    if number < low or number > high or (open_low and number == low):
        raise RequestError(
            f"{name}: must be {'above' if open_low else 'at least'} {low:g}"
            f"{f' and at most {high:g}' if high < math.inf else ''}, got {value!r}"
        )
