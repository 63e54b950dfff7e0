"""`wager tune --simulate`: figures from figures, and nothing that would be measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wager.cli.main import main
from wager.engine.costs import StepCosts

TABLE = ["tune", "--simulate", "plain=5.7,9=7.8"]
Capture = pytest.CaptureFixture[str]


def rows(said: str) -> list[list[str]]:
    """The table's lines, split; the first is the head."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in said.splitlines()]
    return lines[next(i for i, line in enumerate(lines) if line[0] == "clients") :]


def test_what_is_expected_by_concurrency(capsys: Capture) -> None:
    asked = [*TABLE, "--acceptance", "0.84,0.79,0.77,0.75", "--clients", "1,32"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("speed-up of decode, estimated")
    head, one, many = rows(said)
    assert head == ["clients", "k=1", "k=2", "k=3", "k=4", "best k", "controller"]
    # One request: a step of k + 1 rows lasts 5.7 + 2.1 * k / 8 ms and brings 1 + sum of the shares.
    shares = [1.0, 0.84, 0.79, 0.77, 0.75]
    for k in range(1, 5):
        tokens = sum(shares[: k + 1])
        speed_up = tokens * 5.7 / (5.7 + 2.1 * k / 8)
        assert float(one[k]) == pytest.approx(speed_up, rel=0.03)
    assert one[5] == "4"
    assert float(one[6]) > 0.97 * float(one[4])
    assert float(many[4]) < float(one[4])


def test_the_controller_does_not_lose_where_nothing_pays(capsys: Capture) -> None:
    assert main([*TABLE, "--acceptance", "0.01", "--clients", "1"]) == 0
    _, line = rows(capsys.readouterr().out)
    assert float(line[1]) < 1.0
    assert line[2] == "plain"
    assert float(line[3]) >= 0.99


def test_a_table_of_the_engine_is_taken(tmp_path: Path, capsys: Capture) -> None:
    costs, file = StepCosts(lambda rows, context: 5.0 + 0.3 * rows), tmp_path / "costs.json"
    costs.measure_start(1024)
    costs.save(file)
    asked = ["tune", "--simulate", str(file), "--acceptance", "0.9,0.8", "--clients", "1"]
    assert main([*asked, "--max-k", "1"]) == 0
    head, _ = rows(capsys.readouterr().out)
    assert head == ["clients", "k=1", "best k", "controller"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([], "acceptance: --simulate needs it"),
        (["--acceptance", "0.8,0.9"], "acceptance: 0.8,0.9: .* never rise"),
        (["--acceptance", "1.2"], "acceptance: 1.2"),
        (["--acceptance", "0.5,-0.1"], "acceptance: 0.5,-0.1"),
        (["--acceptance", "nan"], "acceptance: nan"),
        (["--acceptance", "0.5,nan,0.2"], "acceptance: 0.5,nan"),
        (["--acceptance", "much"], "acceptance: 'much' are not numbers"),
        (["--acceptance", "0.5", "--coverage", "0"], "coverage: must be above 0"),
        (["--acceptance", "0.5", "--coverage", "nan"], "coverage: must be above 0"),
        (["--acceptance", "0.5", "--max-k", "0"], "max-k: must be a whole number from 1"),
        (["--acceptance", "0.5", "--clients", "0"], "clients"),
        # Nothing that would be without effect is taken.
        (["--acceptance", "0.5", "--seed", "3"], "seed: --simulate measures nothing"),
        (["--acceptance", "0.5", "--weights", "int8"], "weights: --simulate measures nothing"),
        (["--acceptance", "0.5", "--repeats", "2"], "repeats: --simulate measures nothing"),
        (["--acceptance", "0.5", "--workload", "copy"], "workload: --simulate measures nothing"),
        (["--acceptance", "0.5", "--resume"], "resume: --simulate measures nothing"),
        (["--acceptance", "0.5", "model"], "model: --simulate measures nothing"),
        (["--acceptance", "0.5", "--engine", "vllm"], "engine: --simulate measures nothing"),
    ],
)
def test_what_makes_no_sense_is_one_line(more: list[str], named: str, capsys: Capture) -> None:
    assert main([*TABLE, *more]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.search(named, printed.err), printed.err


def test_what_belongs_to_it_is_refused_without_it(capsys: Capture) -> None:
    assert main(["tune", "nowhere", "--acceptance", "0.5"]) == 2
    assert "acceptance: belongs to --simulate" in capsys.readouterr().err
