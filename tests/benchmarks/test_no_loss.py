"""What `benchmarks.no_loss` makes of seconds."""

from __future__ import annotations

from random import Random

import pytest
from benchmarks.no_loss import ARMS, CELLS, CONTROLLED, FIXED, IDLE, PLAIN

from benchmarks import no_loss


def result(
    controlled: float, fixed: float, seed: int = 0, changed: int = 0, noise: float = 0.03
) -> no_loss.Result:
    """Twenty prompts; the two are times, plain decoding takes 1, each with 3 % of noise."""
    chance = Random(seed)
    times = {PLAIN: 1.0, CONTROLLED: controlled, IDLE: 1.0, FIXED[0]: fixed, FIXED[1]: 2.0}
    seconds = {
        name: [time * chance.gauss(1.0, noise) for _ in range(20)] for name, time in times.items()
    }
    return {"seconds": seconds, "changed": changed}


def test_the_cells_cover_what_they_are_to_cover() -> None:
    assert len(CELLS) <= 24
    assert {c.clients for c in CELLS} == {1, 4, 16, 32}
    assert {c.weights for c in CELLS} == {"f32", "int8"}
    wanted = {"copy", "edit", "explain", "story", "random", "json", "agent", "flip"}
    assert {c.workload for c in CELLS} == wanted
    assert all(c.count >= c.clients for c in CELLS)


def test_a_loss_is_found_and_noise_is_none() -> None:
    cells = CELLS[:4]
    good = [result(1.0, 1.1, seed) for seed in range(4)]
    assert all(aim.met for aim in no_loss.aims(cells, good))
    bad = [*good[:3], result(1.08, 1.0, 9, changed=2)]
    found = {aim.what: aim for aim in no_loss.aims(cells, bad)}
    assert not found["cells that lose more than 1 %"].met
    assert cells[3].name in found["cells that lose more than 1 %"].found
    assert not found["cells below 0.95x the best fixed"].met
    assert not found["replies that differ from plain ones"].met


def test_holm_s_procedure_stops_at_the_first_that_is_not_rejected() -> None:
    assert no_loss.holm([0.001, 0.2, 0.012], 0.025) == [True, False, True]
    assert no_loss.holm([0.02, 0.02], 0.025) == [False, False]
    assert no_loss.holm([]) == []


def test_signs() -> None:
    assert no_loss.chance_of([-1.0] * 12) == pytest.approx(2**-12, abs=3e-4)
    assert no_loss.chance_of([1.0] * 12) == 1.0
    assert no_loss.chance_of([1.0, -1.0] * 6) > 0.3


def test_pooled_is_a_mean_over_cells() -> None:
    results = [result(0.5, 1.0, 1), result(2.0, 1.0, 2)]
    value, low, high = no_loss.pooled(results, PLAIN, CONTROLLED)
    assert low < value < high
    assert value == pytest.approx(1.0, abs=0.03)


def test_the_report_names_every_cell() -> None:
    text = no_loss.report(CELLS[:2], [result(0.5, 0.8, noise=0.0), result(1.0, 1.25, noise=0.0)])
    assert "| int8 | 1 | copy | 2.000 | 1.000 | 1.250 | 0.500 | 0 |" in text
    assert "| int8 | 1 | edit | 1.000 | 1.000 | 0.800 | 0.500 | 0 |" in text
    assert "pooled, idle over no speculation: 1.000 [1.000, 1.000]" in text
    assert len(ARMS) == 5
