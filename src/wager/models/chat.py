"""Chat templates: jinja text from a model file, so it is run in a sandbox with limits.

The environment is the one that published templates are written for (that of transformers): blocks
trimmed, ``break`` and ``continue``, ``raise_exception``, ``strftime_now``, ``tojson`` without HTML
escapes. A template sees the messages and the names of a few tokens, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from wager.errors import ModelError, RequestError

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TEMPLATE: Final = 1 << 20
MAX_OUTPUT: Final = 1 << 24
MAX_ROUNDS: Final = 1 << 20


class ChatTemplate:
    """A template that is compiled at its first use. ``tokens`` maps names such as ``bos_token``."""

    def __init__(self, text: str, tokens: Mapping[str, str], name: str) -> None:
        if len(text) > MAX_TEMPLATE:
            raise ModelError(f"{name}: the chat template is longer than {MAX_TEMPLATE} characters")
        self.text = text
        self.tokens = dict(tokens)
        self._name = name
        self._template: Template | None = None

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """The text of a conversation. Raises RequestError, or ModelError for a broken template."""
        import jinja2

        _check(messages)
        if self._template is None:
            self._template = self._compile()
        parts, length = [], 0
        try:
            for part in self._template.generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                range=_Rounds().range,
                **self.tokens,
            ):
                parts.append(part)
                length += len(part)
                if length > MAX_OUTPUT:
                    raise RequestError(
                        f"messages: the chat template wrote more than {MAX_OUTPUT} characters"
                    )
        except jinja2.TemplateError as error:
            reason = _one_line(error)
            raise RequestError(f"messages: refused by the model's chat template: {reason}") from (
                error
            )
        # What a template runs is foreign code: whatever it raises ends this request, no more.
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {_one_line(error)}"
            raise RequestError(f"messages: the model's chat template failed: {reason}") from error
        except (MemoryError, RecursionError) as error:
            raise RequestError("messages: the model's chat template grew out of bounds") from error
        return "".join(parts)

    def _compile(self) -> Template:
        import jinja2

        environment = _environment()
        try:
            return environment.from_string(self.text)  # type: ignore[no-any-return]
        except (jinja2.TemplateError, RecursionError) as error:
            reason = _one_line(error)
            raise ModelError(f"{self._name}: the chat template is broken: {reason}") from error


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        """Also bounds what one expression can make: ``'x' * 10**9``, ``9**9**9``."""

        intercepted_binops = frozenset(["*", "**"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                raise SecurityError("powers are not allowed in a chat template")
            for value, times in ((left, right), (right, left)):
                repeats = isinstance(value, str | bytes | list | tuple)
                if repeats and isinstance(times, int) and len(value) * times > MAX_TEMPLATE:
                    raise SecurityError("a repetition is too long")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(pattern: str) -> str:
        return datetime.now().strftime(pattern)

    def tojson(
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

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


class _Rounds:
    """A ``range`` with one budget for a whole rendering, so that nested loops end."""

    def __init__(self) -> None:
        self._left = MAX_ROUNDS

    def range(self, *bounds: int) -> range:
        from jinja2.exceptions import SecurityError

        result = range(*bounds)
        # Before len(): a range longer than sys.maxsize has none.
        self._left -= max(0, (result.stop - result.start) // result.step)
        if self._left < 0:
            raise SecurityError("loops too often")
        return result


def _check(messages: Sequence[Mapping[str, str]]) -> None:
    if not messages:
        raise RequestError("messages: there is none")
    for i, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise RequestError(f"messages: number {i + 1} has no text as {key!r}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
