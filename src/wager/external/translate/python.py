"""Finds the call in a piece of Python that sets speculation, and reads its keywords as options."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from wager.external.dialects.base import Option
from wager.external.dialects.names import GENERAL, spelled

_VLLM: Final = frozenset({"LLM", "AsyncLLM", "EngineArgs", "AsyncEngineArgs"})
_TRANSFORMERS: Final = frozenset({"generate", "pipeline"})
# For a model that is a variable of the program.
_STAND_INS: Final = {"model": "DRAFTER", "target": "MODEL"}
_NOT_PYTHON: Final = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its engine, what it calls, its speculation options as arguments, the other ones."""

    engine: str
    name: str
    arguments: tuple[str, ...]
    others: tuple[str, ...]


def find_call(text: str) -> Call | None:
    """The first call that has a speculation option; None where the text is not Python or has none.

    Values that are no literals are taken as they are written, models as words that stand for them.
    """
    try:
        with warnings.catch_warnings():
            # What Python thinks of the style of a command is nobody's business here.
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip())
    except _NOT_PYTHON:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (call := _call(node)) is not None:
            return call
    return None


def _call(node: ast.Call) -> Call | None:
    name = ast.unparse(node.func)
    last = name.rpartition(".")[2]
    engine = _engine(name, last)
    if engine is None:
        return None
    arguments: list[str] = []
    others: list[str] = []
    found = False
    for keyword in node.keywords:
        flag = f"--{(keyword.arg or '').replace('_', '-')}"
        option = spelled(flag, engine)
        if option is None or option.key in GENERAL - {"target"}:
            others.append(ast.unparse(keyword))
            continue
        found = found or option.key not in GENERAL
        arguments += [flag, *_value(keyword.value, option)]
    first = next(_positional(node), None)
    if first is not None and engine != "transformers":
        arguments = ["--model", first, *arguments]
    return Call(engine, name, tuple(arguments), tuple(others)) if found else None


def _engine(name: str, last: str) -> str | None:
    if last in _VLLM:
        return "vllm"
    if name in ("sgl.Engine", "sglang.Engine", "Engine"):
        return "sglang"
    return "transformers" if last in _TRANSFORMERS else None


def _positional(node: ast.Call) -> Iterator[str]:
    for argument in node.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value


def _value(node: ast.expr, option: Option) -> list[str]:
    try:
        value: Any = ast.literal_eval(node)
        text = value if isinstance(value, str) else json.dumps(value)
    except _NOT_PYTHON:
        text = _STAND_INS.get(option.key or "", ast.unparse(node))
    return [] if option.kind == "flag" else [text]
