"""How figures are spelt for people."""

from __future__ import annotations

from typing import Final

NA: Final = "n/a"


def number(value: float | None, digits: int = 1) -> str:
    """Fixed digits, or n/a: what was not measured is never shown as 0."""
    return NA if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share as a whole percentage, or n/a."""
    return NA if value is None else f"{100 * value:.0f} %"


def spelt(clients: int | None, rate: float | None) -> str:
    """A load in words."""
    if clients is None:
        return f"{rate:g} requests/s"
    return f"{clients} client{'s' if clients > 1 else ''}"
