"""`wager report`: a page, or Markdown for a ticket, from what `wager bench --json` wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wager.cli.files import write
from wager.errors import ConfigError

Files = Annotated[
    list[Path],
    typer.Argument(metavar="RUN.json...",
                   help="Files of wager bench --json, or its --run-dir; several: one page."),
]  # fmt: skip
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", show_default=False,
                 help="Where to write; - for standard output. Default: RUN.html beside the first "
                      "file; Markdown goes to standard output."),
]  # fmt: skip
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Markdown instead of a page, for a ticket.")
]


def report(files: Files, output: Output = None, markdown: Markdown = False) -> None:
    """Show a measurement as one self-contained page of HTML, or as Markdown."""
    from wager.bench.page import markdown as text
    from wager.bench.page import render as page
    from wager.bench.page.file import read_report

    files = [file / "bench.json" if file.is_dir() else file for file in files]
    runs = page.named(files, [read_report(file) for file in files])
    written = text.render(runs) if markdown else page.render(runs)
    if output is None and not markdown:
        output = files[0].with_suffix(".html")
    if output is None or str(output) == "-":
        sys.stdout.write(written)
        return
    if any(output.absolute() == file.absolute() for file in files):
        raise ConfigError(f"output: {output} is the measurement itself; name another file")
    write(written, output, "output")
    typer.echo(f"wrote {output}")
