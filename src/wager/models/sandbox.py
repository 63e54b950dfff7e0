"""The jinja environment that chat templates run in: what published ones expect, and bounds.

Blocks are trimmed; there are ``break`` and ``continue``, ``generation`` blocks (which mark an
assistant's text for training and print it here), ``raise_exception``, ``strftime_now``, and a
``tojson`` without HTML escapes, as in transformers.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_REPEATED: Final = 1 << 20
MAX_ROUNDS: Final = 1 << 20


class Sandbox(ImmutableSandboxedEnvironment):
    """Also bounds what one expression can make: ``'x' * 10**9``, ``9**9**9``."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("powers are not allowed in a chat template")
        for value, times in ((left, right), (right, left)):
            repeats = isinstance(value, str | bytes | list | tuple)
            if repeats and isinstance(times, int) and len(value) * times > MAX_REPEATED:
                raise SecurityError("a repetition is too long")
        return super().call_binop(context, operator, left, right)


class Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` prints what is inside."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own form)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rounds:
    """A ``range`` with one budget for a whole rendering, so that nested loops end."""

    def __init__(self) -> None:
        self._left = MAX_ROUNDS

    def range(self, *bounds: int) -> range:
        result = range(*bounds)
        # Before len(): a range longer than sys.maxsize has none.
        self._left -= max(0, (result.stop - result.start) // result.step)
        if self._left < 0:
            raise SecurityError("loops too often")
        return result


def environment() -> Sandbox:
    """A fresh one."""
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


def read_names(sandbox: Sandbox, text: str) -> frozenset[str]:
    """The names that a template takes from its caller. Raises jinja2.TemplateError.

    A name that the template sets somewhere counts only where it asks whether it is defined.
    """
    tree = sandbox.parse(text)
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }
    return frozenset(meta.find_undeclared_variables(tree) - (own - asked)) - sandbox.globals.keys()


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
