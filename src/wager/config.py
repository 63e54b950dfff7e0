"""One frozen record per concern, checked when made. A bad value raises ConfigError (options of the
engine) or RequestError (options of one request), and names the option."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias, get_args

from wager.checks import choice, real, whole
from wager.errors import ConfigError, RequestError
from wager.types import KvKind, WeightKind

MAX_STOP_STRINGS = 32
MAX_LOGPROBS = 20
"""Alternatives of one token, of the answer or of the prompt; as OpenAI and vLLM have it."""
MAX_CHOICES = 128
MAX_BIASES = 4096
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256
MAX_GRAMMAR_CHARACTERS = 1 << 18
MAX_GRAMMAR_CHOICES = 4096
_MAX_ID: Final = (1 << 31) - 1

GrammarKind: TypeAlias = Literal["json_schema", "json_object", "regex", "choice", "grammar"]


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
class StructuredOutput:
    """What an answer has to look like. ``value`` is, by ``kind``:

    json_schema  the schema, as JSON text
    json_object  "": any JSON object
    regex        a regular expression for the whole answer
    choice       the answers to choose from, a tuple of strings
    grammar      a context-free grammar, as Lark or GBNF text

    Raises RequestError; whether it can be compiled is known only with a vocabulary.
    """

    kind: GrammarKind
    value: str | tuple[str, ...] = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            known = ", ".join(get_args(GrammarKind))
            raise RequestError(f"structured: kind must be one of {known}; got {self.kind!r}")
        if self.kind == "choice":
            self._check_choices()
            return
        if not isinstance(self.value, str):
            raise RequestError(f"structured: {self.kind} needs a text, got {self.value!r}")
        if (self.kind == "json_object") == bool(self.value):
            raise RequestError(
                f"structured: {self.kind} "
                + ("takes no value" if self.value else "needs a value that is not empty")
            )
        _check_text("structured", self.value, MAX_GRAMMAR_CHARACTERS)
        if self.kind == "json_schema":
            self._check_schema(self.value)

    def _check_choices(self) -> None:
        given: Any = self.value
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise RequestError(f"structured: choice needs a list of texts, got {given!r}")
        choices = tuple(given)
        object.__setattr__(self, "value", choices)
        if not 1 <= len(choices) <= MAX_GRAMMAR_CHOICES:
            raise RequestError(
                f"structured: choice needs 1 to {MAX_GRAMMAR_CHOICES} texts, got {len(choices)}"
            )
        for one in choices:
            if not isinstance(one, str) or not one:
                raise RequestError("structured: each choice must be a text that is not empty")
        _check_text("structured", "".join(choices), MAX_GRAMMAR_CHARACTERS)

    @staticmethod
    def _check_schema(text: str) -> None:
        try:
            schema = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            why = "is nested too deeply" if isinstance(error, RecursionError) else "is not JSON"
            raise RequestError(f"structured: the schema {why}") from error
        if not isinstance(schema, dict):
            raise RequestError("structured: the schema must be a JSON object")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Names and meanings follow vLLM's SamplingParams.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1 means all. ``seed`` None draws a fresh one.
    ``presence_penalty`` and ``frequency_penalty`` are subtracted from the logits of tokens that the
    answer holds already (once, and per occurrence); ``repetition_penalty`` divides positive and
    multiplies negative logits of tokens that prompt or answer hold.
    ``logit_bias`` is added to logits: a mapping of token ids, or pairs; kept as sorted pairs.
    Only ``allowed_token_ids`` can be picked, end tokens too. ``bad_words`` are not completed, as
    the tokens that the tokenizer makes of them alone and behind a space.
    ``ignore_eos`` goes on past the model's end tokens. ``logprobs`` is the number of alternatives
    to report per token (0: only the chosen one), ``prompt_logprobs`` the same for the prompt's.
    ``structured`` is what the answer has to look like. Without ``skip_special_tokens`` the text
    shows special tokens. ``speculation`` overrides the engine's for this request (a mapping with
    the fields of `RequestSpeculation` will do). Raises RequestError.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured: StructuredOutput | None = None
    skip_special_tokens: bool = True
    speculation: RequestSpeculation | None = None

    def __post_init__(self) -> None:
        self._keep("speculation", RequestSpeculation.of(self.speculation))
        # One string, or any sequence of them, is what callers of other engines are used to giving.
        self._keep("stop", _texts("stop", self.stop, MAX_STOP_STRINGS))
        self._keep("bad_words", _texts("bad_words", self.bad_words, MAX_BAD_WORDS))
        for word in self.bad_words:
            _check_text("bad_words", word, MAX_BAD_WORD_CHARACTERS)
        self._keep("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids or ()))
        self._keep("logit_bias", _biases(self.logit_bias or ()))
        if self.allowed_token_ids is not None:
            allowed = tuple(sorted(set(_ids("allowed_token_ids", self.allowed_token_ids))))
            self._keep("allowed_token_ids", allowed)
            if not allowed:
                raise RequestError("allowed_token_ids: is empty, so no token could be picked")
        self._check_distribution()
        self._check_lengths()
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                whole(name, value, 0, MAX_LOGPROBS, error=RequestError)
        if self.structured is not None and not isinstance(self.structured, StructuredOutput):
            raise RequestError(f"structured: must be a StructuredOutput, got {self.structured!r}")
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name}: must be true or false, got {getattr(self, name)!r}")

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` as it is kept."""
        return self.logit_bias if isinstance(self.logit_bias, tuple) else ()

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_distribution(self) -> None:
        real("temperature", self.temperature, 0.0, math.inf, error=RequestError)
        real("top_p", self.top_p, 0.0, 1.0, open_low=True, error=RequestError)
        real("min_p", self.min_p, 0.0, 1.0, error=RequestError)
        whole("top_k", self.top_k, -1, _MAX_ID, error=RequestError)
        real("presence_penalty", self.presence_penalty, -2.0, 2.0, error=RequestError)
        real("frequency_penalty", self.frequency_penalty, -2.0, 2.0, error=RequestError)
        # Above 0 is what it means; beyond these, logits would leave the range of float32.
        real("repetition_penalty", self.repetition_penalty, 0.01, 100.0, error=RequestError)
        if self.seed is not None:
            whole("seed", self.seed, -(1 << 63), (1 << 64) - 1, error=RequestError)

    def _check_lengths(self) -> None:
        whole("n", self.n, 1, MAX_CHOICES, error=RequestError)
        whole("min_tokens", self.min_tokens, 0, _MAX_ID, error=RequestError)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1, _MAX_ID, error=RequestError)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens: {self.min_tokens} is larger than max_tokens: {self.max_tokens}"
                )


def _texts(name: str, given: Any, most: int) -> tuple[str, ...]:
    """One string, or some, as a tuple."""
    if given is not None and not isinstance(given, Iterable):
        raise RequestError(f"{name}: must be a string or a list of strings, got {given!r}")
    texts = (given,) if isinstance(given, str) else tuple(given or ())
    if len(texts) > most:
        raise RequestError(f"{name}: at most {most} strings, got {len(texts)}")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise RequestError(f"{name}: each entry must be a string that is not empty")
    return texts


def _ids(name: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise RequestError(f"{name}: must be a list of token ids, got {given!r}")
    ids = tuple(given)
    for token in ids:
        whole(name, token, 0, _MAX_ID, error=RequestError)
    return ids


def _biases(given: Any) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias, by id."""
    items = given.items() if isinstance(given, Mapping) else given
    try:
        pairs = [(token, bias) for token, bias in items]
    except (TypeError, ValueError) as error:
        raise RequestError('logit_bias: must map token ids to numbers, e.g. {"42": -5}') from error
    if len(pairs) > MAX_BIASES:
        raise RequestError(f"logit_bias: at most {MAX_BIASES} tokens, got {len(pairs)}")
    for token, bias in pairs:
        whole("logit_bias", token, 0, _MAX_ID, error=RequestError)
        real("logit_bias", bias, -100.0, 100.0, error=RequestError)
    if len({token for token, _ in pairs}) < len(pairs):
        raise RequestError("logit_bias: a token is given twice")
    return tuple(sorted((token, float(bias)) for token, bias in pairs))


def _check_text(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise RequestError(f"{name}: at most {most} characters, got {len(text)}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"{name}: is not valid Unicode: {error.reason}") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
