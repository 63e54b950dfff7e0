"""The grammar that makes a reply a call of a tool, in the words of llguidance's Lark.

JSON inside a call is written as chat templates write it (one space behind a comma or a colon),
which is what models have learnt, and what leaves no room for endless white space.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from wager.config import StructuredOutput
from wager.server.parsing.reasoning import THINK, THOUGHT
from wager.server.parsing.tools import TOOL_CLOSE, TOOL_OPEN, Function, Style, choose

_SPACING: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
# Keywords whose values are data: what looks like a reference there is none.
_DATA: Final = frozenset(("const", "enum", "default", "examples"))
# Keywords whose keys are names, not keywords.
_NAMES: Final = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
)


def tool_grammar(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: object,
    style: Style,
    *,
    parallel: bool = True,
    reasoning: bool = False,
    opened_reasoning: bool = False,
    special: Container[str] = (),
) -> StructuredOutput | None:
    """The grammar of a reply whose ``tool_choice`` is "required" or names a function, else None.

    ``parallel`` allows several calls where none is named. With ``reasoning`` the model may think
    first, with ``opened_reasoning`` it does already. ``special`` holds the texts of the
    tokenizer's special tokens: a mark among them is that token, not its letters. Raises
    RequestError that names ``tool_choice`` or the place in ``tools``.
    """
    choice = choose(tools, tool_choice)
    if not choice.forced:
        return None

    def mark(text: str) -> str:
        return text if text in special else json.dumps(text)

    names = [f"tool_{i}" for i in range(len(choice.functions))]
    several = parallel and not choice.single
    lines = ["%llguidance {}", *_start(reasoning, opened_reasoning, mark)]
    if style == "hermes":
        lines.append('calls: call ("\\n" call)*' if several else "calls: call")
        body = f'"\\n" ({" | ".join(names)}) "\\n"'
        lines.append(f"call: {mark(TOOL_OPEN)} {body} {mark(TOOL_CLOSE)}")
    else:
        lines.append(f"calls: {' | '.join(names)}")
    key = "arguments" if style == "hermes" else "parameters"
    lines += [
        f"{name}: %json {json.dumps(_call(function, key))}"
        for name, function in zip(names, choice.functions, strict=True)
    ]
    return StructuredOutput("grammar", "\n".join(lines) + "\n")


def _start(reasoning: bool, opened: bool, mark: Callable[[str], str]) -> list[str]:
    if not reasoning and not opened:
        return ["start: calls"]
    close = mark(THOUGHT)
    lines = ["TEXT: /(.|\\n)*/"]
    if close == THOUGHT:
        # Text holds no special tokens, so it ends where this one comes.
        lines.append(f"thought: TEXT {close}")
    else:
        lines.append(f"thought[lazy]: TEXT {close}")
    if opened:
        return ['start: thought "\\n\\n" calls', *lines]
    return ["start: calls | thinking calls", f'thinking: {mark(THINK)} thought "\\n\\n"', *lines]


def _call(function: Function, key: str) -> dict[str, Any]:
    """The JSON schema of one call."""
    given = function.parameters
    if given is None:
        arguments: dict[str, Any] = {"type": "object", "additionalProperties": False}
    else:
        arguments = {"type": "object", **_moved(given, f"#/properties/{key}")}
    return {
        "x-guidance": {**_SPACING, "lenient": not function.strict},
        "type": "object",
        "properties": {"name": {"const": function.name}, key: arguments},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _moved(schema: Mapping[str, Any], root: str) -> dict[str, Any]:
    """A schema that stands at ``root`` now: its references to its own parts follow."""

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: below(key, item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    def below(key: str, value: Any) -> Any:
        if key in _DATA:
            return value
        if key in _NAMES and isinstance(value, Mapping):
            return {name: walk(item) for name, item in value.items()}
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            return root + value[1:]
        return walk(value)

    return walk(schema)  # type: ignore[no-any-return]
