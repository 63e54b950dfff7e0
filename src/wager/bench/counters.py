"""An engine's counters over the parts of a measurement. Pure.

They belong to the whole server: whatever else it answered meanwhile is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from wager.backend import Counters, SourceCounts


def total(parts: Sequence[Counters]) -> Counters:
    """The sum over parts (differences of readings); a field that one part lacks is not known.

    Without any part nothing is known.
    """
    found: dict[str, Any] = {}
    for field in fields(Counters):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "resets":
            found[field.name] = sum(values)
        elif not values or any(value is None for value in values):
            found[field.name] = None
        elif isinstance(values[0], tuple):
            found[field.name] = tuple(sum(at) for at in zip_longest(*values, fillvalue=0))
        elif isinstance(values[0], Mapping):
            found[field.name] = _by_source(values)
        else:
            found[field.name] = sum(values)
    return Counters(**found)


def _by_source(parts: Sequence[Mapping[str, SourceCounts]]) -> dict[str, SourceCounts]:
    found: dict[str, SourceCounts] = {}
    for part in parts:
        for source, counts in part.items():
            found[source] = found.get(source, SourceCounts()).plus(counts)
    return found
