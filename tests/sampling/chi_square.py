"""Whether counts follow a distribution, or two samples the same one: at 1e-4, by chi-square."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import sqrt
from typing import Any

# A normal value is above this with probability 1e-4.
Z = 3.719
SMALLEST = 5.0
"""Cells that are expected less often than this count as one."""


def critical(freedom: int) -> float:
    """What chi-square exceeds with probability 1e-4 (Wilson and Hilferty, 1931; a little more with
    few degrees of freedom)."""
    part = 2.0 / (9.0 * freedom)
    return freedom * float((1.0 - part + Z * sqrt(part)) ** 3)


def excess(counts: Counter[Any], p: Mapping[Any, float]) -> float:
    """Chi-square as a share of the critical value. What cannot happen must not have happened."""
    total = sum(counts.values())
    impossible = {key for key in counts if not p.get(key, 0.0) > 0.0}
    assert not impossible, f"outside the support: {impossible}"
    assert abs(sum(p.values()) - 1.0) < 1e-9
    cells = [(counts[key], total * share) for key, share in p.items() if share > 0.0]
    cells = _pooled(cells)
    statistic = sum((found - expected) ** 2 / expected for found, expected in cells)
    return statistic / critical(len(cells) - 1) if len(cells) > 1 else 0.0


def excess_of_two(one: Counter[Any], other: Counter[Any]) -> float:
    """The same for two samples, whose distribution is not known."""
    sizes = sum(one.values()), sum(other.values())
    pairs = [(one[key], other[key]) for key in {*one, *other}]
    rare = [pair for pair in pairs if sum(pair) < 2 * SMALLEST]
    pairs = [pair for pair in pairs if sum(pair) >= 2 * SMALLEST]
    if rare:
        pairs.append((sum(a for a, _ in rare), sum(b for _, b in rare)))
    ratio = sqrt(sizes[1] / sizes[0])
    statistic = sum((ratio * a - b / ratio) ** 2 / (a + b) for a, b in pairs)
    return statistic / critical(len(pairs) - 1)


def _pooled(cells: list[tuple[int, float]]) -> list[tuple[int, float]]:
    rare = [cell for cell in cells if cell[1] < SMALLEST]
    kept = [cell for cell in cells if cell[1] >= SMALLEST]
    if sum(expected for _, expected in rare) >= SMALLEST or not kept:
        kept.append((sum(found for found, _ in rare), sum(expected for _, expected in rare)))
    elif rare:
        # Too rare even together: with the rarest of the others.
        kept.sort(key=lambda cell: cell[1])
        kept[0] = (
            kept[0][0] + sum(found for found, _ in rare),
            kept[0][1] + sum(expected for _, expected in rare),
        )
    return kept
