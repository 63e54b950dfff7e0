"""The bodies of requests: names and types, nothing converted. What the values may be is checked
where they are used (`convert`, `SamplingParams`); which fields there are beside these, in `fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from wager.server.errors import ApiError

B = TypeVar("B", bound=BaseModel)

Prompt: TypeAlias = str | list[str] | list[int] | list[list[int]]

_MOST_MESSAGES: Final = 4096
_MOST_TOOLS: Final = 1024


def _prompt(value: object) -> object:
    """By the first entry: a union of lists would try every kind on every entry."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("prompt", "must be a string, token ids, or a list of either")
    if not value:
        raise PydanticCustomError("prompt", "is empty")
    first = value[0]
    if isinstance(first, str):
        good = all(isinstance(text, str) for text in value)
    elif isinstance(first, list):
        good = all(isinstance(ids, list) and _token_ids(ids) for ids in value)
    else:
        good = _token_ids(value)
    if not good:
        raise PydanticCustomError(
            "prompt", "must hold strings only, token ids only, or lists of token ids only"
        )
    return value


def _token_ids(value: list[object]) -> bool:
    return all(type(token) is int and token >= 0 for token in value)


class Strict(BaseModel):
    """No value is taken for one of another type; infinite numbers are none."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Closed(Strict):
    """An object with no other keys than these."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Open(Strict):
    """An object whose other keys go to the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(Closed):
    """``include_obfuscation`` is about OpenAI's own padding of events; there is none here."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(Closed):
    """``schema`` is always kept to, also where ``strict`` is not asked for."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Closed):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Closed):
    """vLLM's way to ask for a form; exactly one of the keys."""

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Speculation(Closed):
    """What this request asks of speculation; less than the server was started with, never more."""

    enabled: bool | None = None
    num_speculative_tokens: int | None = None
    method: str | None = None


class Function(Open):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Open):
    """OpenAI's wrapping of a function."""

    type: Literal["function"]
    function: Function


class FunctionName(Closed):
    """The name of one of the tools."""

    name: str


class NamedTool(Closed):
    """The tool that has to be called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Open):
    """``arguments`` are JSON text, as they came with the reply."""

    name: str
    arguments: str | dict[str, Any]


class ToolCall(Open):
    """A call of a tool in an earlier reply."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Part(Open):
    """A part of a message; only those of type ``text`` are read."""

    type: str
    text: str | None = None


class Message(Open):
    """One message of a conversation."""

    role: str = Field(min_length=1)
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _has_something(self) -> Message:
        calls = self.role == "assistant" and self.tool_calls
        if self.content is None and not calls:
            raise PydanticCustomError("content", "has no content")
        return self


class Sampled(Strict):
    """What both routes take. Left out or null: the model's own default, else vLLM's."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    speculation: Speculation | None = None


class ChatBody(Sampled):
    """``POST /v1/chat/completions``"""

    messages: list[Message] = Field(min_length=1, max_length=_MOST_MESSAGES)
    max_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = Field(default=None, max_length=_MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(Sampled):
    """``POST /v1/completions``; ``max_tokens`` null is all that the context has room for."""

    prompt: Annotated[Prompt, PlainValidator(_prompt, json_schema_input_type=Prompt)]
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = None


class TokenizeBody(Strict):
    """``POST /tokenize``, of a prompt or of messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=_MOST_MESSAGES)
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[Tool] | None = Field(default=None, max_length=_MOST_TOOLS)
    tool_choice: ToolChoice | None = None


class DetokenizeBody(Strict):
    """``POST /detokenize``"""

    model: str | None = None
    tokens: list[int]


_EXPECTED: Final = {
    "stop": "must be a string, or a list of strings",
    "content": "must be a string, a list of parts, or null where the message calls tools",
    "arguments": "must be JSON text",
    "tool_choice": 'must be "none", "auto", "required", or {"type": "function", "function": '
    '{"name": ...}}',
    "json": "must be a JSON schema, as an object or as text",
}
"""What is said of fields that may be of several types."""

_TYPES: Final = frozenset({"str", "int", "float", "bool", "NamedTool"})
_SAID: Final = {
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "too_short": "is empty",
    "string_too_short": "is empty",
    "missing": "is missing",
    "extra_forbidden": "is not a key that is known here",
}
"""What is said of faults, by pydantic's names of them, where its own words are for programmers."""
_LONG: Final = 200


def parse(model: type[B], body: Mapping[str, Any]) -> B:
    """The body as the model of its route. Raises ApiError (400), which names the field."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _refusal(found["loc"], _SAID.get(found["type"], found["msg"])) from None


def _refusal(place: tuple[int | str, ...], text: str) -> ApiError:
    path: list[str] = []
    last = ""
    for part in place:
        if isinstance(part, int):
            path.append(f"[{part}]")
        elif part in _TYPES or not part.isidentifier():
            # The branch of a union: no key of the body, and neither is what follows.
            break
        else:
            path.append(f".{part}" if path else part)
            last = part
    reason = _EXPECTED.get(last, "") if len(path) < len(place) else ""
    if not reason:
        reason = text.replace("Input should be", "must be")
        reason = reason[:1].lower() + reason[1:]
    param = str(place[0]) if place else None
    return ApiError(400, f"{''.join(path)[:_LONG] or 'body'}: {reason}", param=param)
