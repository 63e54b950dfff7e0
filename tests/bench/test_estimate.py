"""The arithmetic of speculation, against published figures and by hand."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.bench import estimate
from wager.bench.estimate import StepTable, step_table
from wager.engine.costs import StepCosts
from wager.errors import ConfigError

PUBLISHED = [0.842, 0.794, 0.770, 0.747]

shares = st.floats(0.01, 1.0, allow_nan=False)


def test_published_acceptance_by_position_is_unconditional() -> None:
    assert estimate.tokens_per_step(PUBLISHED) == pytest.approx(4.153)
    as_conditional = estimate.survival(PUBLISHED)
    assert estimate.tokens_per_step(as_conditional) == pytest.approx(3.41, abs=0.005)
    implied = estimate.conditional(PUBLISHED)
    assert implied == pytest.approx([0.842, 0.943, 0.970, 0.970], abs=0.0005)


def test_published_speed_up_of_eight_drafts() -> None:
    table = step_table("plain=5.7,9=7.8")
    cost = table.verify_cost(8)
    assert cost == pytest.approx(1.368, abs=0.001)
    with_bonus = estimate.speed_up(7.7 + 1.0, cost)
    assert 6.3 <= with_bonus <= 6.4
    assert estimate.speed_up(7.7, cost) == pytest.approx(5.63, abs=0.005)
    # What rounding of the published figures leaves open.
    assert estimate.speed_up(8.65, 7.85 / 5.65) == pytest.approx(6.23, abs=0.005)
    assert estimate.speed_up(8.75, 7.75 / 5.75) == pytest.approx(6.49, abs=0.005)
    assert estimate.break_even(cost) == pytest.approx(1.37, abs=0.005)


def test_three_quarters_of_five_drafts_has_two_readings() -> None:
    conditional = estimate.survival([0.75] * 5)
    assert estimate.tokens_per_step(conditional) == pytest.approx(3.29, abs=0.005)
    assert estimate.tokens_per_step_from_rate(0.75, 5) == pytest.approx(4.75)
    # Read as conditional, the rate of the same drafter is far from 75 %, and falls with k.
    assert estimate.acceptance_rate(conditional) == pytest.approx(0.458, abs=0.0005)
    assert estimate.acceptance_rate(estimate.survival([0.75])) == pytest.approx(0.75)


@given(st.lists(shares, max_size=12))
def test_conditional_and_unconditional_are_inverse(p: list[float]) -> None:
    assert estimate.conditional(estimate.survival(p)) == pytest.approx(p)


@given(shares, st.integers(1, 12))
def test_constant_acceptance_is_the_geometric_sum(alpha: float, k: int) -> None:
    expected = sum(alpha**j for j in range(k + 1))
    assert estimate.tokens_per_step(estimate.survival([alpha] * k)) == pytest.approx(expected)


def test_nothing_is_known_behind_a_position_that_was_never_reached() -> None:
    assert estimate.conditional([0.5, 0.0, 0.0]) == [0.5, 0.0, None]
    assert estimate.acceptance_rate([]) is None
    assert estimate.tokens_per_step([]) == 1.0


def test_coverage_weighs_the_drafts() -> None:
    assert estimate.tokens_per_step([0.5, 0.25], coverage=0.4) == pytest.approx(1.3)


@pytest.mark.parametrize("bad", [[0.5, 0.6], [1.2], [-0.1]])
def test_shares_that_cannot_be_those_of_a_chain(bad: list[float]) -> None:
    with pytest.raises(ValueError):
        estimate.tokens_per_step(bad)


def test_best_length_against_all_lengths() -> None:
    table = StepTable({1: 10.0, 2: 10.5, 9: 14.0, 17: 24.0}, "given")
    s = estimate.survival([0.8] * 16)
    every = {k: estimate.tokens_per_step(s[:k]) * 10.0 / table.ms(1 + k) for k in range(1, 17)}
    best = estimate.best_k(s, table)
    assert best.k == max(every, key=lambda k: every[k])
    assert best.speed_up == pytest.approx(max(every.values()))


def test_plain_decoding_is_best_where_nothing_pays() -> None:
    table = step_table("plain=10,2=20")
    assert estimate.best_k(estimate.survival([0.9] * 4), table) == estimate.Choice(0, 1.0)
    # What drafting itself costs can turn a gain into none.
    cheap = step_table("plain=10,9=10")
    s = estimate.survival([0.6] * 4)
    assert estimate.best_k(s, cheap).k == 4
    assert estimate.best_k(s, cheap, draft_ms=[0.0, 9.0, 18.0, 27.0, 36.0]).k == 0


def test_more_clients_make_drafts_dearer() -> None:
    table = step_table("plain=10,8=12,16=20,72=90")
    s = estimate.survival([0.7] * 8)
    alone, many = estimate.best_k(s, table), estimate.best_k(s, table, clients=8)
    assert alone.k > many.k


@given(st.dictionaries(st.integers(0, 4), shares, min_size=1), st.integers(1, 4))
def test_the_mean_step_is_the_mean_over_all_combinations(
    weights: dict[int, float], clients: int
) -> None:
    total = sum(weights.values())
    lengths = {k: w / total for k, w in weights.items()}
    table = StepTable({1: 5.0, 3: 5.5, 9: 9.0}, "given")
    expected = 0.0
    for picked in itertools.product(lengths.items(), repeat=clients):
        weight, drafted = 1.0, 0
        for length, probability in picked:
            weight *= probability
            drafted += length
        expected += weight * table.ms(clients + drafted)
    assert table.mean_ms(clients, lengths) == pytest.approx(expected)


def test_steps_between_and_beyond_what_was_measured() -> None:
    table = step_table("9=7.8, plain=5.7")
    assert table.ms(1) == 5.7
    assert table.ms(5) == pytest.approx(6.75)
    assert table.ms(17) == pytest.approx(9.9)
    assert table.last == 9
    # Noise at the end of a table must not make many rows cheaper than few.
    assert step_table("plain=5,8=9,9=8").ms(40) == 8.0
    with pytest.raises(ValueError):
        table.ms(0)


def test_tables_from_files(tmp_path: Path) -> None:
    costs = StepCosts(lambda rows, context: 0.0)
    for rows, context, ms in ((1, 64, 5.0), (9, 64, 7.0), (1, 1024, 6.0), (9, 1024, 9.0)):
        costs.cells[rows, context] = ms
    saved = tmp_path / "costs.json"
    costs.save(saved)
    assert dict(step_table(str(saved)).known) == {1: 5.0, 9: 7.0}
    assert dict(step_table(str(saved), context=900).known) == {1: 6.0, 9: 9.0}
    bench = tmp_path / "run.json"
    bench.write_text(json.dumps({"step_ms": {"1": 5.5, "2": 6.0, "32": None}, "cells": []}))
    assert dict(step_table(str(bench)).known) == {1: 5.5, 2: 6.0}
    assert step_table(str(bench)).source == str(bench)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("9=7.8", "plain"),
        ("plain=5,9=x", "'9=x'"),
        ("plain=5,1=6", "twice"),
        ("plain=-5", "1=-5"),
        ("plain=nan", "nan"),
        ("plain=5,0=4", "0=4"),
        ("nowhere.json", "nowhere.json"),
    ],
)
def test_tables_that_are_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"steps: .*{says}"):
        step_table(text)


@pytest.mark.parametrize("text", ["{", "[]", '{"step_ms": {"1": null}}', '{"step_ms": {"a": 1}}'])
def test_files_that_hold_no_steps(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json"):
        step_table(str(path))


def test_the_examples_of_the_docs() -> None:
    """Every line of docs/arithmetic.md gives the numbers behind it."""
    page = (Path(__file__).parents[2] / "docs/arithmetic.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    compared = 0
    for line in block.splitlines():
        code, _, said = line.partition("  # ")
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", said)]
        if not numbers:
            exec(code, names)
            continue
        value = eval(code, names)
        found = value if isinstance(value, list) else [value]
        assert found == pytest.approx(numbers, abs=0.006 if len(numbers) == 1 else 0.0006)
        compared += 1
    assert compared == 6


def test_arithmetic_needs_neither_numpy_nor_the_extension() -> None:
    code = "import wager.bench.estimate, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(run.stdout.split()) & {"numpy", "torch", "wager._native", "tokenizers"}
