"""The bodies of replies, for the OpenAPI document and for tests that hold replies against it.

Replies are made as plain objects, since a stream makes one per step; these say what is in them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class Answer(BaseModel):
    """No other keys than these, and no value of another type."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class PromptDetails(Answer):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(Answer):
    """Of the answer's tokens; never more than there are."""

    reasoning_tokens: int


class Usage(Answer):
    """Tokens. The prompt counts once, however many choices there are."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None


class Estimated(Answer):
    """What plain decoding would have taken, and how much longer that is; null where unknown."""

    plain_ms: float | None
    speedup: float | None


class SpeculationTold(Answer):
    """What speculation did for this reply; null where nothing is known."""

    steps: int
    drafted: int
    accepted: int
    by_position: list[int]
    tokens_per_step: float | None
    draft_ms: float | None
    verify_ms: float | None
    estimated: Estimated


class Timings(Answer):
    """As llama-server writes them."""

    cache_n: int
    prompt_n: int
    prompt_ms: float | None
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float | None
    predicted_per_token_ms: float | None
    predicted_per_second: float | None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class ChatTop(Answer):
    """A token that was likely."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(ChatTop):
    """A token of the answer."""

    top_logprobs: list[ChatTop]


class ChatLogprobs(Answer):
    """Log-probabilities of a chat."""

    content: list[ChatToken]
    refusal: None


class TextLists(Answer):
    """Log-probabilities of a completion; the first token of a prompt has none."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptToken(Answer):
    """A token that was likely in the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptToken] | None]


class FunctionCalled(Answer):
    """``arguments`` is JSON text."""

    name: str
    arguments: str


class Call(Answer):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCalled


class ChatMessage(Answer):
    """``content`` is null where the reply is nothing but calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class ChatChoice(Answer):
    """One choice of a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class Base(Answer):
    """What all replies and chunks have."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Told(Answer):
    """What whole replies have, and the last chunk of a stream where the usage is asked for."""

    usage: Usage | None = None
    speculation: SpeculationTold | None = None
    timings: Timings | None = None


class ChatAnswer(Base, Told):
    """The reply of ``/v1/chat/completions``."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class FunctionDelta(Answer):
    """``name`` comes once, with the beginning of a call."""

    name: str | None = None
    arguments: str


class CallDelta(Answer):
    """A part of a call."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(Answer):
    """What is new of a message: of one kind."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(Answer):
    """What is new of a choice; ``finish_reason`` is null until its last chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatChunk(Base, Told):
    """An event of a streamed chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class TextChoice(Answer):
    """One choice of a completion, or what is new of it: then ``finish_reason`` is null until its
    last chunk."""

    index: int
    text: str
    logprobs: TextLists | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class TextAnswer(Base, Told):
    """The reply of ``/v1/completions``, or an event of a streamed one."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ServedModel(Answer):
    """A name that the model is served under; ``speculation`` are the settings in effect."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    speculation: dict[str, Any] | None


class Models(Answer):
    """All names."""

    object: Literal["list"]
    data: list[ServedModel]


class Tokenized(Answer):
    """The reply of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Answer):
    """The reply of ``/detokenize``."""

    prompt: str


class ErrorTold(Answer):
    """``param`` is the field that it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class Refusal(Answer):
    """Every reply that is no success, and the last event of a stream that failed."""

    error: ErrorTold = Field(description="What went wrong.")
