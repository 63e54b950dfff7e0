"""What `benchmarks.no_loss`, `.auto` and `.paired` make of seconds."""

from __future__ import annotations

from random import Random

import pytest
from benchmarks.no_loss import ARMS, CELLS, CONTROLLED, FIXED, IDLE, PLAIN

from benchmarks import auto, no_loss, paired

SINGLE = [c for c in CELLS if c.clients == 1]
MANY = [c for c in CELLS if c.clients > 1]


def result(
    cell: paired.Cell,
    controlled: float,
    fixed: float = 1.1,
    seed: int = 0,
    changed: int = 0,
    noise: float = 0.03,
) -> paired.Result:
    """Plain decoding takes 1. With one client each prompt has its noise, else each pass a group."""
    chance = Random(seed)
    times = {PLAIN: 1.0, CONTROLLED: controlled, IDLE: 1.0, FIXED[0]: fixed, FIXED[1]: 2.0}
    passes = {}
    for name, time in times.items():
        passes[name] = []
        for _ in range(2):
            groups = [chance.gauss(1.0, noise) for _ in range(cell.count // cell.group)]
            passes[name].append([time * groups[at // cell.group] for at in range(cell.count)])
    return {"passes": passes, "changed": changed}


def test_the_cells_cover_what_they_are_to_cover() -> None:
    assert len(CELLS) <= 24
    assert {c.clients for c in CELLS} == {1, 4, 16, 32}
    assert {c.weights for c in CELLS} == {"f32", "int8"}
    wanted = {"copy", "edit", "explain", "story", "random", "json", "agent", "flip"}
    assert {c.workload for c in CELLS} == wanted
    assert all(c.count % c.group == 0 and c.count >= 2 * c.group for c in CELLS)


def test_units_are_prompts_or_where_they_share_a_fate_passes_of_groups() -> None:
    assert len(paired.units(SINGLE[0], result(SINGLE[0], 1.0), PLAIN)) == SINGLE[0].count
    found = paired.units(MANY[0], result(MANY[0], 1.0, noise=0.0), PLAIN)
    assert found == [MANY[0].group] * (2 * MANY[0].count // MANY[0].group)


@pytest.mark.parametrize("of", [SINGLE, MANY], ids=["one client", "several"])
def test_a_loss_is_found_and_noise_is_none(of: list[paired.Cell]) -> None:
    good = [result(cell, 1.0, 1.1, seed) for seed, cell in enumerate(of)]
    assert all(aim.met for aim in no_loss.aims(of, good))
    bad = [*good[:-1], result(of[-1], 1.12, 1.0, 9, changed=2)]
    found = {aim.what: aim for aim in no_loss.aims(of, bad)}
    assert not found["cells that lose more than 1 %"].met
    assert of[-1].name in found["cells that lose more than 1 %"].found
    assert not found["cells below 0.95x the best fixed"].met
    assert not found["replies that differ from plain ones"].met


def test_holm_s_procedure_stops_at_the_first_that_is_not_rejected() -> None:
    assert paired.holm([0.001, 0.2, 0.012], 0.025) == [True, False, True]
    assert paired.holm([0.02, 0.02], 0.025) == [False, False]
    assert paired.holm([]) == []


def test_signs() -> None:
    assert paired.chance_of([-1.0] * 12) == pytest.approx(2**-12, abs=3e-4)
    assert paired.chance_of([1.0] * 12) == 1.0
    assert paired.chance_of([1.0, -1.0] * 6) > 0.3


def test_scatter_is_that_within_samples() -> None:
    assert paired.scatter([[1.0, 3.0], [101.0, 103.0]]) == pytest.approx(2.0**0.5)
    assert paired.scatter([[1.0], [2.0]]) == 0.0


def test_pooled_is_a_mean_over_cells() -> None:
    cells = SINGLE[:2]
    results = [result(cells[0], 0.5, seed=1), result(cells[1], 2.0, seed=2)]
    value, low, high = paired.pooled(cells, results, [PLAIN] * 2, [CONTROLLED] * 2)
    assert low < value < high
    assert value == pytest.approx(1.0, abs=0.03)


def test_the_report_names_every_cell() -> None:
    cells = CELLS[:2]
    results = [result(cells[0], 0.5, 0.8, noise=0.0), result(cells[1], 1.0, 1.25, noise=0.0)]
    text = no_loss.report(cells, results)
    assert "| int8 | 1 | copy | 2.000 | 1.000 | 1.250 | 0.500 | 0 |" in text
    assert "| int8 | 1 | edit | 1.000 | 1.000 | 0.800 | 0.500 | 0 |" in text
    assert "pooled, idle over no speculation: 1.000 [1.000, 1.000]" in text
    assert len(ARMS) == 5


def test_auto_is_held_against_the_best_of_each_workload() -> None:
    cells = [paired.Cell(name, 1, "int8", 4) for name in ("copy", "story")]
    found = []
    for ngram, suffix in ((0.5, 0.8), (1.25, 1.0)):
        times = dict(zip(auto.ARMS, (1.0, 0.75, ngram, suffix), strict=True))
        passes = {name: [[time] * 4] * 2 for name, time in times.items()}
        found.append({"passes": passes, "changed": 0})
    (aim,) = auto.aims(cells, found)
    assert not aim.met  # sqrt(0.5 * 1.0) / 0.75
    assert aim.found.startswith("0.943x")
    assert "| copy | 1.333 | 2.000 | 1.250 |" in auto.report(cells, found)
