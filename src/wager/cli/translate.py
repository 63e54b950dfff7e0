"""`wager translate`: speculation options of any engine, explained and written anew."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wager.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from wager.external.dialects.base import Reading
    from wager.external.translate.forms import Form
    from wager.external.translate.understand import Translation

# The command that is translated has options of its own.
CONTEXT: Final = {"ignore_unknown_options": True}

_STYLES: Final = {"error": "bold red", "warning": "yellow", "note": "dim"}
_INDENT: Final = 9
_PIPE_WIDTH: Final = 100
_MOST: Final = 1 << 20

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND|JSON",
        show_default=False,
        help="A command line, options alone, a config or request in JSON, or a Modelfile; in "
        "quotes, or as it is after `--`. `-` reads it from standard input.",
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to", metavar="ENGINE", help="vllm, llamacpp, sglang, ollama, own, or all of them."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def translate(command: Words, to: To = "all", json_: Json = False) -> None:
    """Say what speculation options mean, what is wrong with them, and what they are today."""
    from wager.external.translate.understand import as_json
    from wager.external.translate.understand import translate as translated

    found = translated(_stdin() if command == ["-"] else command, to)
    if json_:
        print(json.dumps(as_json(found), indent=2, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    # Commands are printed on one line each, so that they can be copied.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    _show(Console(width=width, highlight=False, soft_wrap=True, markup=False), found)


def _stdin() -> str:
    try:
        text = sys.stdin.read(_MOST + 1)
    except UnicodeDecodeError:
        raise ConfigError("translate: standard input is not text (UTF-8)") from None
    if len(text) > _MOST:
        raise ConfigError(f"translate: standard input holds more than {_MOST} characters")
    return text


def _show(console: Console, found: Translation) -> None:
    from wager.external.dialects.options import TITLES

    reading = found.reading
    title = TITLES[reading.engine]
    console.print(f"read as   {title}{', of ' + reading.target if reading.target else ''}")
    console.print(f"asks for  {_asked(reading)}")
    if reading.findings:
        console.print()
    # What is wrong comes first; within a kind, in the order of the command.
    for finding in sorted(reading.findings, key=lambda f: list(_STYLES).index(f.severity)):
        console.print(f"{finding.severity:<8}", style=_STYLES[finding.severity], end=" ")
        console.print(finding.what)
        _text(console, finding.text, " " * _INDENT)
    for form in found.forms:
        _form(console, form, TITLES[form.engine])
    stand_ins = [word for word in ("MODEL", "DRAFTER", "FILE", "NAME") if _uses(found, word)]
    if stand_ins:
        console.print(f"\nto fill in: {', '.join(stand_ins)}")


def _asked(reading: Reading) -> str:
    if reading.speculation is None:
        return "no speculation"
    options = (f"{key} {_short(value)}" for key, value in reading.speculation.options.items())
    return ", ".join((reading.speculation.method, *options))


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _form(console: Console, form: Form, title: str) -> None:
    console.print()
    console.print(f"{title} {form.version}".strip(), style="bold")
    if form.error is not None:
        _text(console, form.error, "  no: ")
        if form.commands:
            console.print("  measured and served on another engine:")
    if form.modelfile is not None:
        for line in ("Modelfile:", *(f"  {line}" for line in form.modelfile.splitlines())):
            console.print(f"  {line}")
    for command in form.commands:
        console.print(f"  {command}", style="green")
    for note in form.notes:
        _text(console, note, "  - ")


def _text(console: Console, text: str, indent: str) -> None:
    """Wrapped, with the indent before the first line and as much room before the others."""
    import textwrap

    room = " " * len(indent)
    width = max(console.width, _INDENT + 20)
    # Options are not to be broken at their hyphens.
    wrapper = textwrap.TextWrapper(
        width, initial_indent=indent, subsequent_indent=room, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    for line in wrapper.wrap(text):
        console.print(line)


def _uses(found: Translation, word: str) -> bool:
    import re

    text = "\n".join(
        line for form in found.forms for line in (*form.commands, form.modelfile or "")
    )
    return re.search(rf"(?<![\w/]){word}(?![\w/\-])", text) is not None
