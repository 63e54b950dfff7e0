"""The options of `wager tune` that `wager bench` does not have, or has otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from wager.cli.options import MODEL_HELP

WORKLOADS: Final = "copy,rename,explain"
CLIENTS: Final = "1,8"

Workload = Annotated[
    str | None,
    typer.Option("--workload", metavar="LIST", show_default=False,
                 help="The mixture to tune for: names or files as in `wager bench`. "
                      f"Default: {WORKLOADS}."),
]  # fmt: skip
Clients = Annotated[
    str | None,
    typer.Option("--clients", "--max-concurrency", metavar="LIST", show_default=False,
                 help=f"Requests in flight. Default: {CLIENTS}."),
]  # fmt: skip
Methods = Annotated[
    str | None,
    typer.Option("--methods", metavar="LIST", show_default=False,
                 help="As arms, e.g. ngram,suffix,draft_model:model=D; what an arm sets is not "
                      "varied. Default: those that need no drafter of their own."),
]  # fmt: skip
MaxK = Annotated[int, typer.Option("--max-k", help="Longest draft that is tried.")]
FromReplay = Annotated[
    Path | None,
    typer.Option("--from-replay", metavar="LOGS.jsonl", show_default=False,
                 help="Acceptance from recorded answers (docs/replay.md). Without --workload "
                      "their prompts are the workload too."),
]  # fmt: skip
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", show_default=False,
                 help="Write the choice there, for `wager serve --tuned FILE`."),
]  # fmt: skip
Check = Annotated[
    Path | None,
    typer.Option("--check", metavar="FILE", show_default=False,
                 help="Only measure on fresh prompts whether what that file expects comes out."),
]  # fmt: skip
Simulate = Annotated[
    str | None,
    typer.Option("--simulate", metavar="TABLE", show_default=False,
                 help="No engine, no MODEL: what to expect of step times (plain=5.7,9=7.8 in ms by "
                      "rows, or a saved table) and --acceptance."),
]  # fmt: skip
Acceptance = Annotated[
    str | None,
    typer.Option("--acceptance", metavar="LIST", show_default=False,
                 help="For --simulate: unconditional, by position, e.g. 0.84,0.79,0.77."),
]  # fmt: skip
Coverage = Annotated[
    float | None,
    typer.Option("--coverage", metavar="SHARE", show_default=False,
                 help="For --simulate: share of steps that carry a draft. Default: 1."),
]  # fmt: skip
Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", show_default=False, help=MODEL_HELP),
]
Prompts = Annotated[
    int | None,
    typer.Option("--prompts", show_default=False, help="Per workload and load. Default: 8."),
]
