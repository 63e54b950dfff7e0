"""What idle speculation costs: how it is measured and said."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks import idle


def _units(own: float, slower: float, noise: float, count: int = 40) -> list[idle.Unit]:
    """Steps of which one in 30 is held up, whichever arm it belongs to."""
    chance = Random(3)

    def pairs(takes: float) -> list[float]:
        return [
            takes * (1.0 + chance.gauss(0.0, noise)) + (chance.random() < 1 / 30) for _ in range(16)
        ]

    return [
        {"without": pairs(1.0), "idle": pairs(1.0 + slower), "own": 16 * own} for _ in range(count)
    ]


def test_a_cost_of_one_percent_is_told_from_none() -> None:
    for own, slower in ((0.01, 0.0), (0.0, 0.01)):
        value, low, high = idle.ratio(_units(own, slower, 0.01))
        assert value == pytest.approx(1 / 1.01, abs=0.002)
        assert high < 0.995
    _, low, high = idle.ratio(_units(0.0, 0.0, 0.01))
    assert low < 1.0 < high


def test_every_cell_is_reported_and_judged() -> None:
    results = {
        idle.name_of(n, c): {"units": _units(0.0 if n < 32 else 0.03, 0.0, 0.001)}
        for n in idle.REQUESTS
        for c in idle.CONTEXTS
    }
    text = idle.report(results)
    assert text.count("| 3000 |") == len(idle.REQUESTS)
    assert [aim.met for aim in idle.aims(results)] == [True] * 6 + [False] * 2
