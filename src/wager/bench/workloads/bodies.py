"""One line of a file of requests to a Prompt: bodies of the OpenAI API and plain prompts.

Every field is honoured, is known not to change the reply, or is refused by name; fields that
nobody knows are handed back for one warning. The fields are those of OpenAI's chat and completion
requests and the sampling options that vLLM adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from wager.backend import Messages, Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError, RequestError

DEFAULT_TOKENS: Final = 256
"""Most tokens of a reply where neither the file nor the caller gives a limit."""

_SAMPLING: Final = frozenset({
    "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "stop", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos",
})  # fmt: skip
_HANDLED: Final = frozenset({"messages", "prompt", "max_tokens", "max_completion_tokens"})

# What a request may say about itself and its answer without changing what is generated. The model
# is the one under test, replies are always streamed, and recorded answers are not sent.
_SILENT: Final = frozenset({
    "model", "stream", "stream_options", "user", "metadata", "store", "service_tier",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "id", "custom_id", "request_id", "question_id", "task_id", "method", "url", "timestamp",
    "created", "name", "category", "sub_category", "subset", "difficulty", "multiturn", "source",
    "src_id", "tags", "completion", "response", "answer", "output", "reference", "expected",
})  # fmt: skip

# Options that are not measured, with the values that leave the reply as it is.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "grammar": ("",),
    "json_schema": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "documents": ([],),
}
_MESSAGE: Final = frozenset({"role", "content"})


@dataclass(frozen=True, slots=True)
class Body:
    """What a line asks for (one prompt, or several), and the fields of it that nobody knows."""

    prompts: tuple[Prompt, ...]
    unknown: frozenset[str]
    dropped_reply: bool


def read_body(
    record: Mapping[str, Any],
    where: str,
    id: str,
    *,
    temperature: float,
    seed: int,
    cap: int | None,
) -> Body:
    """One request. ``where`` names the file and line in errors, ``id`` the prompt.

    ``temperature`` holds where the record gives none, and so does ``seed``; ``cap`` lowers its
    limit of tokens, and is the limit where it gives none. Raises ConfigError.
    """
    given = {key: value for key, value in record.items() if value is not None}
    _refuse(given, where)
    options = {key: given[key] for key in _SAMPLING if key in given}
    for key in ("stop", "stop_token_ids"):
        if not isinstance(options.get(key, []), str | list):
            raise ConfigError(f"{where}: {key}: must be a list, got {options[key]!r:.40}")
    options.setdefault("temperature", temperature)
    options.setdefault("seed", seed)
    try:
        params = SamplingParams(max_tokens=_limit(given, where, cap), **options)
    except RequestError as error:
        raise ConfigError(f"{where}: {error}") from error
    unknown = frozenset(given) - _SAMPLING - _HANDLED - _SILENT - frozenset(_NEUTRAL)
    if ("messages" in given) == ("prompt" in given):
        found = "both" if "messages" in given else "none"
        raise ConfigError(f"{where}: needs either messages or prompt, and has {found}")
    if "prompt" in given:
        prompts = _prompts(given["prompt"], where, Prompt(id, params))
        return Body(tuple(prompts), unknown, dropped_reply=False)
    messages = _messages(given["messages"], where)
    # The last word of a recorded conversation is the answer, which is what will be generated.
    dropped = messages[-1][0] == "assistant"
    if dropped and len(messages) == 1:
        raise ConfigError(f"{where}: messages: nothing is asked before the assistant's answer")
    asked = messages[:-1] if dropped else messages
    return Body((Prompt(id, params, messages=asked),), unknown, dropped)


def _refuse(given: Mapping[str, Any], where: str) -> None:
    for key, neutral in _NEUTRAL.items():
        if key in given and not any(_same(given[key], value) for value in neutral):
            raise ConfigError(
                f"{where}: {key}: not supported in a workload; remove the field, or the line"
            )


def _same(given: object, neutral: object) -> bool:
    # 1 equals True in Python, and not in JSON.
    return given == neutral and isinstance(given, bool) == isinstance(neutral, bool)


def _limit(given: Mapping[str, Any], where: str, cap: int | None) -> int:
    limits = [given[key] for key in ("max_completion_tokens", "max_tokens") if key in given]
    for limit in limits:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigError(
                f"{where}: max_tokens: must be a whole number of at least 1, got {limit!r}"
            )
    if len(set(limits)) > 1:
        raise ConfigError(f"{where}: max_tokens and max_completion_tokens differ; keep one of them")
    if not limits:
        return DEFAULT_TOKENS if cap is None else cap
    return int(limits[0]) if cap is None else min(cap, int(limits[0]))


def _prompts(prompt: object, where: str, blank: Prompt) -> list[Prompt]:
    """``blank`` with the text or ids; several where one request holds several prompts."""
    if isinstance(prompt, str) and prompt:
        return [replace(blank, text=prompt)]
    if isinstance(prompt, list) and prompt:
        if all(_is_id(token) for token in prompt):
            return [replace(blank, token_ids=tuple(prompt))]
        if all(isinstance(one, str | list) for one in prompt):
            parts = [(f".{i}" if len(prompt) > 1 else "", one) for i, one in enumerate(prompt, 1)]
            return [
                found
                for tail, one in parts
                for found in _prompts(one, where, replace(blank, id=f"{blank.id}{tail}"))
            ]
    raise ConfigError(
        f"{where}: prompt: must be a text or a list of token ids, and not empty; got {prompt!r:.60}"
    )


def _is_id(token: object) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and token >= 0


def _messages(messages: object, where: str) -> Messages:
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f"{where}: messages: must be a list that is not empty")
    return tuple(_message(entry, where, i) for i, entry in enumerate(messages, 1))


def _message(entry: object, where: str, number: int) -> tuple[str, str]:
    """(role, text) of message ``number`` of a chat. Raises ConfigError for anything but text."""
    place = f"{where}: messages: number {number}"
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{place} is not an object with role and content")
    role, content = entry.get("role"), entry.get("content")
    if not isinstance(role, str) or not role:
        raise ConfigError(f"{place} has no role")
    extra = sorted(key for key in entry if key not in _MESSAGE and entry[key] not in (None, [], ""))
    if extra:
        raise ConfigError(f"{place}: {extra[0]}: only text is measured; remove it, or the line")
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    if not isinstance(content, str):
        raise ConfigError(f"{place} has no text as content")
    return role, content


def _part(part: object, place: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, Mapping) else part
    raise ConfigError(f"{place}: a part of type {kind!r:.40}: only text is measured")
