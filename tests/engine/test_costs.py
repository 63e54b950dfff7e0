"""The step-time table: measured within a budget, whoever uses the machine, and never invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from wager.engine.costs import ROWS, StepCosts


def linear(rows: int, context: int) -> float:
    return 10.0 + 2.0 * rows + context / 1000


def test_the_start_measures_every_row_count_and_stays_in_its_budget() -> None:
    calls = []

    def run(rows: int, context: int) -> float:
        calls.append((rows, context))
        return linear(rows, context)

    costs = StepCosts(run)
    costs.measure_start(room=4096, budget_s=0.01)
    assert set(costs.table(64)) <= set(ROWS)
    assert all(rows + context <= 4096 for rows, context in calls)


def test_a_busy_machine_at_an_earlier_start_misleads_nobody() -> None:
    calls = 0

    def run(rows: int, context: int) -> float:
        nonlocal calls
        calls += 1
        return linear(rows, context) * (3.0 if calls % 4 == 0 else 1.0)

    costs = StepCosts(run, {(17, 64): 400.0, (1, 64): 11.0})
    costs.measure_start(room=4096, budget_s=0.5)
    assert costs.table(64) == {1: 11.0, **{r: linear(r, 64) for r in ROWS[1:]}}


def test_a_short_context_is_measured_within_its_room() -> None:
    costs = StepCosts(linear)
    costs.measure_start(room=40, budget_s=0.01)
    assert costs.table(0)
    small = StepCosts(linear)
    small.measure_start(room=4, budget_s=0.01)
    assert set(small.table(0)) <= {1, 2, 3}


def test_what_was_not_measured_is_not_invented() -> None:
    costs = StepCosts(linear)
    assert costs.predict(1, 0) is None
    assert costs.table(64) == {}


def test_between_cells_and_beyond_them() -> None:
    costs = StepCosts(linear, {(rows, 64): 10.0 + 2.0 * rows for rows in ROWS})
    assert costs.predict(7, 64) == pytest.approx(24.0)
    assert costs.predict(64, 64) == pytest.approx(138.0)


def test_a_table_survives_a_restart_and_a_damaged_file_does_not_hurt(tmp_path: Path) -> None:
    path = tmp_path / "costs" / "table.json"
    StepCosts(linear, {(1, 64): 5.0}).save(path)
    again = StepCosts(linear)
    assert again.load(path)
    assert again.table(64) == {1: 5.0}
    for text in (
        "",
        "{}",
        '{"schema": 2, "cells": []}',
        '{"schema": 1, "cells": [[1, 64, 5, 1]]}',
        '{"schema": 2, "cells": [[1, 64, -5]]}',
    ):
        path.write_text(text)
        fresh = StepCosts(linear)
        assert not fresh.load(path)
        assert fresh.cells == {}
    assert not fresh.load(tmp_path / "missing.json")
