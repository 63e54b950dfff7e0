"""Fields of recorded requests and replies, read with suspicion: what is wrong is a RequestError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from wager.errors import RequestError

Object: TypeAlias = Mapping[str, Any]

_MESSAGE_KEYS = frozenset({"choices", "messages", "prompt", "body", "__verbose", "error"})


def ids(value: object, name: str) -> tuple[int, ...] | None:
    """Token ids, or None where the field is absent."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(count(token) is not None for token in value):
        raise RequestError(f"{name}: is not a list of token ids")
    return tuple(value)


def count(value: object) -> int | None:
    """A whole number of at least 0, else nothing."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def objects(value: object, name: str) -> list[Object]:
    """The objects of a list; none where the field is absent."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise RequestError(f"{name}: is not a list of objects")
    return value


def unwrapped(part: object) -> object:
    """The body inside an HTTP message, and what was logged as a text that holds JSON."""
    if isinstance(part, str) and part.lstrip()[:1] == "{":
        try:
            inner = json.loads(part)
        except (ValueError, RecursionError):
            return part
        # Only what reads as a message of the API: an answer may be JSON itself.
        if isinstance(inner, dict) and _MESSAGE_KEYS & set(inner):
            part = inner
    if not isinstance(part, Mapping):
        return part
    refuse_error(part)
    if part.get("body") is None:
        return part
    status = count(part.get("status_code"))
    if status is not None and not 200 <= status < 300:
        raise RequestError("the response is an error")
    return unwrapped(part["body"])


def refuse_error(part: Object) -> None:
    """Raise RequestError for a reply that says it failed."""
    if part.get("error"):
        raise RequestError("the response is an error")


@dataclass(frozen=True, slots=True)
class Written:
    """A message as text. The marks that a model writes around reasoning and tool calls are not in
    a log, so that such a text is close to what was generated, not equal to it."""

    text: str
    reasoning: bool
    calls: bool


def written(message: Object, place: str, *, reasoning: bool) -> Written:
    """Reasoning (if wanted), content and tool calls, in the order in which a model writes them."""
    content = message.get("content", message.get("text"))
    if isinstance(content, list):
        content = "".join(_text_of(part, place) for part in content)
    if content is not None and not isinstance(content, str):
        raise RequestError(f"{place}: the content is not text")
    thought = message.get("reasoning_content") or message.get("reasoning")
    thinks = reasoning and isinstance(thought, str)
    calls = objects(message.get("tool_calls"), f"{place}: tool_calls")
    parts = [thought if thinks else "", content or "", *(_call(call, place) for call in calls)]
    return Written("\n".join(part for part in parts if part), thinks, bool(calls))


def _text_of(part: object, place: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise RequestError(f"{place}: a part of type {kind!s:.40} is not text")


def _call(call: Object, place: str) -> str:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{place}: a tool call has no function name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    # The arguments stay as they were recorded: they are the model's own text.
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}'
