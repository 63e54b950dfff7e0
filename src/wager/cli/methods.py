"""`wager methods`: which ways of drafting exist for a model."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A pulled name, a directory in Hugging Face layout, a GGUF file, or a name on the "
        "model hub (org/name).",
    ),
]
Candidates = Annotated[
    list[str] | None,
    typer.Option("--candidates", metavar="DIR|ID", show_default=False,
                 help="Models to compare as drafters, or directories that hold some; repeatable."),
]  # fmt: skip
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="ENGINE", show_default=False,
                 help="Only what this engine runs: own, vllm, llamacpp, sglang, ollama or "
                      "transformers."),
]  # fmt: skip
Offline = Annotated[
    bool, typer.Option("--offline", help="Do not ask the hub: what HF_HUB_OFFLINE=1 does.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def methods(
    model: Model,
    candidates: Candidates = None,
    engine: Engine = None,
    offline: Offline = False,
    json_: Json = False,
) -> None:
    """List the ways of drafting for a model: memory, engines, commands. No weights are read."""
    if offline:
        # Read when the hub's library is imported, which is later.
        os.environ["HF_HUB_OFFLINE"] = "1"
    from rich.console import Console

    from wager.bench.methods.engines import known_engine
    from wager.bench.methods.find import find
    from wager.bench.methods.report import show, to_json

    only = known_engine(engine) if engine is not None else None
    found = find(model, candidates or (), hub=not offline)
    if json_:
        print(json.dumps(to_json(found, only), indent=2, ensure_ascii=False, allow_nan=False))
        return
    # A pipe has no width to wrap at: there every way is one line.
    width = None if sys.stdout.isatty() else 1000
    show(Console(width=width, highlight=False), found, only)
