"""`wager doctor`: whether wager runs on this machine, on what, and how fast it could be."""

from __future__ import annotations

import json
import sys
from shutil import get_terminal_size
from typing import Annotated

import typer

from wager.cli.status import CANNOT_RUN

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object (docs/doctor.schema.json).")
]


def doctor(json_: Json = False) -> int:
    """Say whether wager runs here, on what, and what bounds its speed. Needs no model.

    Status 1 where `wager run` would fail with its defaults.
    """
    from wager.bench.doctor.find import diagnose
    from wager.bench.doctor.report import text, to_json

    found = diagnose()
    if json_:
        print(json.dumps(to_json(found), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        # A pipe has no width to wrap at.
        print(text(found, get_terminal_size().columns if sys.stdout.isatty() else None))
    return 0 if found.engine.problem is None else CANNOT_RUN
