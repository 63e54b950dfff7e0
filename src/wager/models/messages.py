"""Conversations as clients send them, made into what chat templates expect.

Templates want texts as content and objects as arguments of tool calls; clients send lists of parts
and JSON text. Whatever is not understood is refused with its place: ``messages[3].content[1]``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from wager.errors import RequestError

_REFUSED: Final = {
    "audio": "this model takes text only",
    "function_call": "use tool_calls",
    "refusal": "give the text as content",
}


def conversation(
    messages: Sequence[Mapping[str, Any]], arguments_as_text: bool = False
) -> list[dict[str, Any]]:
    """Copies of the messages with plain text as ``content``.

    Keys without a value are dropped; keys that are not known here reach the template as they are.
    ``arguments_as_text`` keeps the arguments of tool calls as JSON text. Raises RequestError.
    """
    given: Any = messages
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise RequestError("messages: must be a list of messages")
    if not messages:
        raise RequestError("messages: there is none")
    return [
        _message(message, f"messages[{i}]", arguments_as_text) for i, message in enumerate(messages)
    ]


def _message(message: object, place: str, arguments_as_text: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{place}: must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{place}.role: must be a text such as user, system, assistant or tool")
    made: dict[str, Any] = {}
    for key, value in message.items():
        if value is None or (key == "tool_calls" and value == []):
            continue
        if key in _REFUSED:
            raise RequestError(f"{place}.{key}: is not supported; {_REFUSED[key]}")
        made[key] = value
    # Another name for the same: some servers give it out under this one.
    if "reasoning" in made:
        made.setdefault("reasoning_content", made.pop("reasoning"))
    for key in ("reasoning_content", "tool_call_id", "name"):
        if not isinstance(made.get(key, ""), str):
            raise RequestError(f"{place}.{key}: must be a text")
    for key in ("reasoning_content", "tool_calls"):
        if key in made and role != "assistant":
            raise RequestError(f"{place}.{key}: only the assistant has one, not the role {role!r}")
    if "tool_calls" in made:
        made["tool_calls"] = _calls(made["tool_calls"], f"{place}.tool_calls", arguments_as_text)
    if "content" in made:
        made["content"] = _content(made["content"], f"{place}.content")
    elif "tool_calls" in made or "reasoning_content" in made:
        made["content"] = ""
    else:
        raise RequestError(f"{place}.content: is missing")
    return made


def _content(content: object, place: str) -> str:
    """The text; text parts are put together as lines, which is what other servers do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise RequestError(f"{place}: must be a text or a list of parts of type text")
    return "\n".join(_part(part, f"{place}[{i}]") for i, part in enumerate(content))


def _part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise RequestError(f"{place}: must be an object with a type")
    if kind != "text":
        raise RequestError(
            f"{place}: parts of type {kind[:64]!r} are not supported; this model takes text only"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{place}.text: must be a text")
    return text


def _calls(calls: object, place: str, arguments_as_text: bool) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{place}: must be a list")
    return [_call(call, f"{place}[{i}]", arguments_as_text) for i, call in enumerate(calls)]


def _call(call: object, place: str, arguments_as_text: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or call.get("type", "function") != "function":
        raise RequestError(f'{place}: must be {{"type": "function", "function": {{...}}}}')
    if not isinstance(function, Mapping):
        raise RequestError(f"{place}.function: must be an object with name and arguments")
    if not isinstance(call.get("id", ""), str):
        raise RequestError(f"{place}.id: must be a text")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{place}.function.name: must be a text that is not empty")
    given = function.get("arguments")
    arguments: Any = _arguments(given, f"{place}.function.arguments")
    if arguments_as_text:
        arguments = given if isinstance(given, str) and given.strip() else json.dumps(arguments)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _arguments(given: object, place: str) -> dict[str, Any]:
    """An object, or the JSON text of one; nothing is an empty one."""
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given, parse_constant=_no_constant) if given.strip() else {}
        except (ValueError, RecursionError):
            raise RequestError(f"{place}: is not the JSON text of an object") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(f"{place}: must be the JSON text of an object")
    return dict(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
