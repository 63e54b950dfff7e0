"""Which functions a request offers, which of them its reply must call, and how a model calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from wager.errors import RequestError

Style: TypeAlias = Literal["hermes", "llama3"]

TOOL_OPEN: Final = "<tool_call>"
TOOL_CLOSE: Final = "</tool_call>"
PYTHON_TAG: Final = "<|python_tag|>"

_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
# Other families write something else between the same marks.
_OTHERS: Final = ("<function=", "<arg_key>", "<tool_sep>")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call. ``parameters`` is a JSON schema, None: it takes none.

    ``strict``: arguments must follow the schema to the letter, or the request is refused.
    """

    name: str
    parameters: Mapping[str, Any] | None
    strict: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What ``tool_choice`` makes of ``tools``: the functions that may be called, in their order.

    ``forced``: the reply must be a call; ``single``: exactly one.
    """

    functions: tuple[Function, ...]
    forced: bool = False
    single: bool = False


def tool_style(template: str | None) -> Style:
    """How a model with this chat template writes calls. Raises RequestError if that is unknown."""
    text = template or ""
    if TOOL_OPEN in text and "arguments" in text and not any(mark in text for mark in _OTHERS):
        return "hermes"
    if PYTHON_TAG in text or ('"name":' in text and '"parameters":' in text):
        return "llama3"
    raise RequestError(
        "tools: this model's chat template shows no way of calling tools that is known here; what "
        'works: <tool_call>{"name": ..., "arguments": ...}</tool_call> (Hermes, Qwen) and '
        '{"name": ..., "parameters": ...} (Llama 3)'
    )


def marks(style: Style) -> tuple[str, ...]:
    """Texts that must reach the parser even if the tokenizer counts them as special tokens."""
    return (TOOL_OPEN, TOOL_CLOSE) if style == "hermes" else (PYTHON_TAG,)


def choose(tools: Sequence[Mapping[str, Any]] | None, tool_choice: object) -> Choice:
    """Raises RequestError that names the place in ``tools``, or ``tool_choice``."""
    functions = _functions(tools)
    if tool_choice is None or tool_choice == "auto":
        return Choice(functions)
    if tool_choice == "none":
        return Choice(())
    if not functions:
        raise RequestError("tool_choice: there are no tools to call")
    if tool_choice == "required":
        return Choice(functions, forced=True)
    name = _named(tool_choice)
    chosen = tuple(function for function in functions if function.name == name)
    if not chosen:
        known = ", ".join(function.name for function in functions)
        raise RequestError(f"tool_choice: no tool is named {name[:128]!r}; known: {known}")
    return Choice(chosen, forced=True, single=True)


def _named(tool_choice: object) -> str:
    """The name in ``{"type": "function", "function": {"name": ...}}``."""
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function":
        named = tool_choice.get("function")
        name = named.get("name") if isinstance(named, Mapping) else None
        if isinstance(name, str):
            return name
    raise RequestError(
        'tool_choice: must be "none", "auto", "required" or '
        '{"type": "function", "function": {"name": ...}}'
    )


def _functions(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Function, ...]:
    given: Any = tools
    if given is None:
        return ()
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise RequestError("tools: must be a list")
    functions = tuple(_function(tool, f"tools[{i}]") for i, tool in enumerate(given))
    names: set[str] = set()
    for i, function in enumerate(functions):
        if function.name in names:
            raise RequestError(f"tools[{i}].function.name: {function.name!r} is there twice")
        names.add(function.name)
    return functions


def _function(tool: object, place: str) -> Function:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise RequestError(f'{place}: must be {{"type": "function", "function": {{...}}}}')
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{place}.function: must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{place}.function.name: must be 1 to 128 letters, digits or any of _ . : / -"
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{place}.function.description: must be a text")
    parameters = function.get("parameters")
    if parameters is not None:
        if not isinstance(parameters, Mapping):
            raise RequestError(f"{place}.function.parameters: must be a JSON schema (an object)")
        if parameters.get("type", "object") != "object":
            raise RequestError(f'{place}.function.parameters.type: must be "object"')
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{place}.function.strict: must be true or false")
    return Function(name, parameters, bool(strict))
