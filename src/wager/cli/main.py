"""The `wager` command: one verb per file, each of which imports what it needs when it runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

from wager import __version__
from wager.cli.status import INTERRUPTED, USER_ERROR
from wager.errors import WagerError

VERBS: Final = (
    "pull", "ls", "rm", "run", "serve", "bench", "tune", "report", "methods", "fit", "replay",
    "memory", "translate", "doctor",
)  # fmt: skip
"""In the order of `wager --help`; verb v is the function v of module wager.cli.v, or a group of
functions."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wager {__version__}")
        raise typer.Exit


def _wager(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Speculative decoding that is exact, fast on a CPU, and honest about when it does not pay."""


def build() -> typer.Typer:
    """The command with every verb. Loads neither numpy nor the extension."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_wager)
    for verb in VERBS:
        module = import_module(f"wager.cli.{verb}")
        if isinstance(group := getattr(module, verb), typer.Typer):
            app.add_typer(group, name=verb)
            continue
        # A verb that takes another command's options says so in CONTEXT.
        settings = getattr(module, "CONTEXT", None)
        app.command(verb, context_settings=settings)(getattr(module, verb))
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    0 done; 1 `wager doctor` found that wager does not run here; 2 something that the user can put
    right, with one line on standard error; 130 interrupted. A reader that goes away (a closed pipe)
    ends the command without a word.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        status = build()(args=arguments, prog_name="wager", standalone_mode=False)
    except WagerError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # Typer's own errors (an unknown option, a missing argument) share no public base class in
        # the versions that are supported, but they all have this method.
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        # Without any argument the help was printed, and there is nothing to add.
        return _fail(usage()) if usage() else USER_ERROR
    return status if isinstance(status, int) else 0


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"wager: warning: {message}", file=sys.stderr)


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"wager: error: {line}", file=sys.stderr)
    return USER_ERROR
