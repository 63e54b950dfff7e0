"""What is kept between runs of the benchmarks, and how it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.results import Store, at_least, at_most, ratio, table

from benchmarks import results


def test_a_result_is_measured_once(tmp_path: Path) -> None:
    runs: list[int] = []

    def measure() -> dict[str, int]:
        runs.append(1)
        return {"n": len(runs)}

    assert Store(False, tmp_path).get("a", measure) == {"n": 1}
    assert Store(False, tmp_path).get("a", measure) == {"n": 1}
    assert Store(True, tmp_path).get("a", measure) == {"n": 2}


def test_results_of_other_sources_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Store(False, tmp_path).get("a", lambda: {"n": 1}) == {"n": 1}
    monkeypatch.setattr(results, "stamp", lambda: "another")
    assert Store(False, tmp_path).get("a", lambda: {"n": 2}) == {"n": 2}


def test_a_failed_measurement_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> dict[str, int]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        Store(False, tmp_path).get("a", fail)
    with pytest.raises(ValueError):
        Store(False, tmp_path).get("a", lambda: {"n": float("nan")})
    assert Store(False, tmp_path).get("a", lambda: {"n": 3}) == {"n": 3}


def test_what_was_not_measured_is_not_a_number() -> None:
    assert table(["a", "b"], [[None, 1.2345]]) == "| a | b |\n| --- | --- |\n| n/a | 1.23 |"
    assert ratio(None, 2.0) is None
    assert ratio(1.0, None) is None
    assert at_least("x", None, 2.0).row == ["x", ">= 2x", "n/a", "n/a"]


def test_aims_are_met_at_their_bound() -> None:
    assert at_least("x", 2.0, 2.0).met is True
    assert at_least("x", 1.99, 2.0).met is False
    assert at_most("x", 3.0, 3.0, " %").row == ["x", "<= 3 %", "3 %", "yes"]
    assert at_most("x", 3.01, 3.0).met is False
