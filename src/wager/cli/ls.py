"""``wager ls``."""

from __future__ import annotations

import sys


def ls() -> None:
    """Print the models that are here, and the weights that are packed for them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from wager.models.catalogue import CATALOGUE
    from wager.models.store import kept_models

    kept = kept_models()
    if not kept:
        print(f"no model is here yet; to pull: {', '.join(CATALOGUE)}, or ORG/REPO[:QUANT]")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "size", "quantisation", "packed", "path"):
        table.add_column(title, justify="right" if title == "size" else "left", overflow="fold")
    for model in kept:
        packed = ", ".join(f"{file.weights} {file.nbytes / 1e6:.0f} MB" for file in model.packed)
        size = "" if model.nbytes is None else f"{model.nbytes / 1e6:.0f} MB"
        name = model.name if model.nbytes is not None or not model.quantisation else (
            f"{model.name} (not pulled)"
        )  # fmt: skip
        table.add_row(name, size, model.quantisation, packed or "-", str(model.path))
    # A pipe has no width to wrap at: there every model is one line.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
