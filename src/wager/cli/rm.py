"""``wager rm NAME``."""

from __future__ import annotations


def rm(name: str) -> None:
    """Remove a pulled model and its packed weights (of a path of one's own only the latter)."""
    from wager.models.store import remove

    removed, freed = remove(name)
    for path in removed:
        print(f"removed {path}")
    print(f"{freed / 1e6:.0f} MB freed")
