"""How figures are spelt for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

NA: Final = "n/a"


class Drafted(Protocol):
    """Counts of drafted and of accepted tokens."""

    @property
    def drafted(self) -> int: ...

    @property
    def accepted(self) -> int: ...


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


def shares_by_source(counts: Mapping[str, Drafted]) -> str:
    """What became of the drafts of each source, those with most tokens first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1].drafted, item[0]))
    return "; ".join(
        f"{source} {percent(own.accepted / own.drafted if own.drafted else None)} of "
        f"{own.drafted:,} tokens accepted"
        for source, own in ordered
    )


_ROUNDS_UP: Final = 0.9995
"""Of the next unit: 999.9 MB has three digits as 1 GB only."""


def size(nbytes: float) -> str:
    """Bytes in powers of ten, as `wager ls` gives them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= _ROUNDS_UP * scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} B"


def count(number: int) -> str:
    """A number of parameters."""
    for unit, scale in (("B", 1e9), ("M", 1e6)):
        if number >= _ROUNDS_UP * scale:
            return f"{number / scale:.3g} {unit}"
    return str(number)
