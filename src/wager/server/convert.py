"""From a body to what the engine is asked: sampling options, the form of the answer, prompts.

Nothing here waits or answers; what may take long runs in threads (`prepared`, `compiled`), never on
the event loop. What a request leaves out is the model's own default (its generation config).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from wager.checks import whole
from wager.config import (
    MAX_LOGPROBS,
    RequestSpeculation,
    SamplingParams,
    StructuredOutput,
)
from wager.errors import RequestError
from wager.server.errors import ApiError
from wager.server.schema import ChatBody, CompletionBody, ResponseFormat, StructuredOutputs
from wager.server.waiting import within

if TYPE_CHECKING:
    from wager.server.service import Service

Body: TypeAlias = ChatBody | CompletionBody
Form: TypeAlias = tuple[str, StructuredOutput]
"""The field that asks for it, and what the answer has to look like."""
T = TypeVar("T")

MAX_TOKENS: Final = 16
"""Of a completion that says nothing, as OpenAI has it. A chat goes on to the end of the context."""
COMPILE_S: Final = 10.0
"""What a grammar may take to compile by the clock, beside others and on a busy machine. Of the
processor's time it has less, see `wager.sampling.grammar`."""
_STOP_IDS: Final = 1024
_MOST_ANSWERS: Final = 256
"""Of one request, to all its prompts; more where the options allow as many of either."""
_DIGITS: Final = 10
_MOST_TOKENS: Final = (1 << 31) - 1

_AS_GIVEN: Final = (
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "min_tokens", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "include_stop_str_in_output", "ignore_eos",
    "skip_special_tokens", "prompt_logprobs", "stop_token_ids", "allowed_token_ids", "bad_words",
)  # fmt: skip


def sampling(body: Body, service: Service, form: StructuredOutput | None = None) -> SamplingParams:
    """The sampling options of a body, the model's own where it says nothing.

    Raises ApiError or RequestError, which name the field.
    """
    given: dict[str, Any] = {
        name: value for name in _AS_GIVEN if (value := getattr(body, name)) is not None
    }
    for name in ("stop_token_ids", "allowed_token_ids", "bad_words"):
        if name in given:
            given[name] = tuple(given[name])
    if len(given.get("stop_token_ids", ())) > _STOP_IDS:
        raise RequestError(f"stop_token_ids: at most {_STOP_IDS}")
    most = service.options.max_choices
    if given.get("n", 1) > most:
        raise RequestError(f"n: at most {most} choices, got {given['n']}")
    given["stop"] = _stops(body.stop, service.options.max_stops)
    if body.logit_bias:
        given["logit_bias"] = _biases(body.logit_bias)
    if body.speculation is not None:
        asked = body.speculation.model_dump(exclude_none=True)
        given["speculation"] = RequestSpeculation(**asked)
    given["max_tokens"] = _max_tokens(body)
    given["logprobs"] = _logprobs(body)
    if isinstance(body, CompletionBody) and body.echo and body.logprobs is not None:
        asked_prompt = body.prompt_logprobs or 0
        whole("prompt_logprobs", asked_prompt, 0, MAX_LOGPROBS, error=RequestError)
        given["prompt_logprobs"] = max(body.logprobs, asked_prompt)
    return replace(service.default_params(), **given, structured=form)


def prompt_only(body: Body) -> bool:
    """Whether nothing is to be written: the prompt comes back, with its log-probabilities."""
    return isinstance(body, CompletionBody) and bool(body.echo) and _asked_tokens(body) == 0


def _asked_tokens(body: Body) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_completion_tokens: {new} is not max_tokens: {old}; they mean the same, give one"
        )
    return new if old is None else old


def _max_tokens(body: Body) -> int | None:
    """None is all that the context has room for."""
    asked = _asked_tokens(body)
    if asked is None:
        silent = isinstance(body, CompletionBody) and "max_tokens" not in body.model_fields_set
        return MAX_TOKENS if silent else None
    if asked == 0:
        if not prompt_only(body):
            raise RequestError("max_tokens: must be at least 1; 0 is for completions with echo")
        if (body.min_tokens or 0) > 0:
            raise RequestError(f"min_tokens: {body.min_tokens} is larger than max_tokens: 0")
        # The engine has no answer without a token; it is not shown.
        return 1
    name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
    whole(name, asked, 1, _MOST_TOKENS, error=RequestError)
    return asked


def _logprobs(body: Body) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    if not body.logprobs:
        if body.top_logprobs:
            raise RequestError("top_logprobs: needs logprobs: true")
        return None
    top = body.top_logprobs or 0
    whole("top_logprobs", top, 0, MAX_LOGPROBS, error=RequestError)
    return top


def _stops(given: str | list[str] | None, most: int) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > most:
        raise RequestError(f"stop: at most {most} strings, got {len(stops)}")
    return stops


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _DIGITS):
            raise RequestError(f"logit_bias: {key[:40]!r} is no token id")
        if int(key) in biases:
            raise RequestError(f"logit_bias: token {int(key)} is given twice")
        biases[int(key)] = bias
    return biases


# The form of the answer


def form(body: Body, service: Service) -> Form | None:
    """What ``response_format`` or ``structured_outputs`` asks for. Raises ApiError."""
    found = []
    if body.response_format is not None and body.response_format.type != "text":
        found.append(("response_format", _of_format(body.response_format)))
    if body.structured_outputs is not None:
        found.append(("structured_outputs", _of_structured(body.structured_outputs)))
    if len(found) > 1:
        raise RequestError("structured_outputs: response_format is given too; give one of them")
    if not found:
        return None
    field, (kind, value) = found[0]
    check_size(field, value, service)
    return field, renamed(field, lambda: StructuredOutput(kind, value))


def check_size(field: str, value: str | Sequence[str], service: Service) -> None:
    """Raise RequestError where a schema or a grammar is larger than the server takes."""
    most = service.options.max_schema_bytes
    texts = (value,) if isinstance(value, str) else value
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if size > most:
        raise RequestError(f"{field}: {size} bytes, and at most {most} are taken")


def _of_format(given: ResponseFormat) -> tuple[Any, str | tuple[str, ...]]:
    if given.type == "json_object":
        return "json_object", ""
    if given.json_schema is None:
        raise RequestError("response_format.json_schema: is missing")
    return "json_schema", _schema_text(given.json_schema.schema_)


def _of_structured(given: StructuredOutputs) -> tuple[Any, str | tuple[str, ...]]:
    asked: dict[str, tuple[Any, str | tuple[str, ...]]] = {}
    if given.json_ is not None:
        text = given.json_ if isinstance(given.json_, str) else _schema_text(given.json_)
        asked["json"] = ("json_schema", text)
    if given.json_object:
        asked["json_object"] = ("json_object", "")
    if given.regex is not None:
        asked["regex"] = ("regex", given.regex)
    if given.choice is not None:
        asked["choice"] = ("choice", tuple(given.choice))
    if given.grammar is not None:
        asked["grammar"] = ("grammar", given.grammar)
    if len(asked) != 1:
        raise RequestError(
            "structured_outputs: exactly one of json, json_object, regex, choice and grammar; got "
            + (", ".join(asked) or "none")
        )
    return next(iter(asked.values()))


def _schema_text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def renamed(field: str, work: Callable[[], T]) -> T:
    """Run it; what is refused is said of the field that the client gave."""
    try:
        return work()
    except RequestError as error:
        _, colon, reason = str(error).partition(": ")
        raise ApiError(400, f"{field}: {reason if colon else error}", param=field) from error


async def compiled(service: Service, asked: Form) -> None:
    """Have the grammar ready before the engine is asked, which then finds it.

    Raises ApiError where it is none, or takes too long: by itself, not behind others.
    """
    from wager.sampling.grammar import prepare

    field, structured = asked
    model = service.llm.llm.model
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        renamed(field, lambda: prepare(model.tokenizer, model.generation.eos_ids, structured))

    running = loop.run_in_executor(_compilers(), work)
    try:
        await begun.wait()
        await within(running, COMPILE_S)
    except asyncio.TimeoutError as error:
        reason = f"took longer than {COMPILE_S:g} s to compile; make it simpler"
        raise ApiError(400, f"{field}: {reason}", param=field) from error
    finally:
        running.cancel()


@lru_cache(maxsize=1)
def _compilers() -> ThreadPoolExecutor:
    # Apart from the threads that read prompts: what compiles for ever holds up its like alone.
    return ThreadPoolExecutor(2, thread_name_prefix="wager-grammar")


# Prompts


def completion_prompts(body: CompletionBody, service: Service) -> list[list[int]]:
    """The token ids of each prompt. Raises ApiError or RequestError."""
    prompts = _listed(body)
    options = service.options
    answers = len(prompts) * (body.n or 1)
    most = max(_MOST_ANSWERS, options.max_prompts, options.max_choices)
    if answers > most:
        raise RequestError(f"n: at most {most} answers to all prompts together, not {answers}")
    tokenizer = service.llm.llm.tokenizer
    special = body.add_special_tokens is not False
    ids = [
        tokenizer.encode(one, add_special=special) if isinstance(one, str) else one
        for one in prompts
    ]
    for one in ids:
        check_ids(one, service, "prompt")
    return ids


def count_prompts(body: CompletionBody, service: Service) -> int:
    """How many prompts there are. Raises RequestError where a request may not have as many."""
    count, most = len(_listed(body)), service.options.max_prompts
    if count > most:
        raise RequestError(f"prompt: at most {most} prompts in a request, got {count}")
    return count


def _listed(body: CompletionBody) -> Sequence[Any]:
    given = body.prompt
    one_only = isinstance(given, str) or isinstance(given[0], int)
    return [given] if one_only else given


def texts_of(body: CompletionBody) -> list[str] | None:
    """The prompts, where they were given as text."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    return [str(text) for text in given] if isinstance(given[0], str) else None


def check_ids(ids: Sequence[int], service: Service, field: str) -> None:
    """Raise ApiError (400) where the context or the vocabulary has no room for a prompt."""
    engine = service.llm.llm.engine
    if not ids:
        reason = "is empty, and this model's tokenizer adds no start token"
        raise ApiError(400, f"{field}: {reason}", param=field)
    if len(ids) >= engine.max_model_len:
        reason = f"{len(ids)} tokens, but the context holds {engine.max_model_len}"
        raise ApiError(
            400,
            f"{field}: {reason} and the answer needs at least 1",
            param=field,
            code="context_length_exceeded",
        )
    largest = max(ids)
    if largest >= engine.vocab_size:
        reason = f"token {largest} is outside the vocabulary of {engine.vocab_size}"
        raise ApiError(400, f"{field}: {reason}", param=field)


def check_model(name: str | None, service: Service) -> str:
    """The name under which the model is asked for, the first one where it is not said.

    Raises ApiError (404).
    """
    if name is None:
        return service.names[0]
    if name not in service.names:
        served = ", ".join(service.names)
        raise ApiError(
            404,
            f"model: {name[:128]!r} is not served here; there is: {served}",
            param="model",
            code="model_not_found",
        )
    return name
