"""What idle speculation costs: how it is measured and said."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks import idle


def _units(share: float, noise: float, count: int = 40) -> list[list[float]]:
    chance = Random(3)
    return [
        [1.0 + chance.gauss(0.0, noise), (1.0 + share) * (1.0 + chance.gauss(0.0, noise))]
        for _ in range(count)
    ]


def test_a_cost_of_two_percent_is_told_from_none() -> None:
    value, low, high = idle.ratio(_units(0.02, 0.005))
    assert value == pytest.approx(1 / 1.02, abs=0.003)
    assert high < 0.99
    _, low, high = idle.ratio(_units(0.0, 0.005))
    assert low < 1.0 < high


def test_every_cell_is_reported_and_judged() -> None:
    results = {
        idle.name_of(n, c): {"units": _units(0.0 if n < 32 else 0.03, 0.001)}
        for n in idle.REQUESTS
        for c in idle.CONTEXTS
    }
    text = idle.report(results)
    assert text.count("| 3000 |") == len(idle.REQUESTS)
    assert [aim.met for aim in idle.aims(results)] == [True] * 6 + [False] * 2
