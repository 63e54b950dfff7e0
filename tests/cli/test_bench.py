"""`wager bench` from its options to its file, on a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.tiny import write_tiny_hf
from wager.bench import measure as measuring
from wager.bench.backend import EngineBackend
from wager.cli.main import main
from wager.errors import RequestError

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "bench.schema.json").read_text())
Capture = pytest.CaptureFixture[str]
QUICK = ["--workload", "random", "--prompts", "3", "--max-tokens", "8", "--threads", "1"]


def bench(model: Path, file: Path, *more: str) -> Any:
    assert main(["bench", str(model), *QUICK, "--json", str(file), *more]) == 0

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in JSON")

    found = json.loads(file.read_text(), parse_constant=refuse)
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    return found


def test_a_run_writes_the_contract_and_prints_the_table(
    tiny_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    found = bench(tiny_path, tmp_path / "out.json", "--clients", "1,2")
    assert (found["weights"], found["kv"], found["threads"]) == ("f32", "f32", 1)
    assert found["step_ms"]["1"] is None  # a context of 512 has no room for 512 and a row
    assert [(c["workload"], c["clients"]) for c in found["cells"]] == [("random", 1), ("random", 2)]
    for cell in found["cells"]:
        assert cell["outputs"] == cell["identical"] == 3
        assert [r["tokens"] for r in cell["requests"]] == [8, 8, 8]
        assert all(r["steps"] + r["accepted"] == 8 for r in cell["requests"])
        assert 0 < cell["prefill_share"] < 1
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out
    assert printed.out.count("random") >= 2
    assert "changed no reply: 6 of 6" in printed.out
    assert "measured: random, 2 clients" in printed.err


def test_steps_are_timed_where_the_context_has_room(tmp_path: Path) -> None:
    model = write_tiny_hf(tmp_path / "long", max_context=1024, seed=1)
    found = bench(model, tmp_path / "out.json", "--weights", "int8")
    assert found["weights"] == "int8"
    assert all(ms > 0 for ms in found["step_ms"].values())


def test_several_arms(tiny_path: Path, tmp_path: Path) -> None:
    arms = [
        f'{{"method": "ngram", "num_speculative_tokens": {k}, "prompt_lookup_min": 1}}'
        for k in (2, 4)
    ]
    found = bench(tiny_path, tmp_path / "out.json", "-sc", arms[0], "-sc", arms[1])
    assert [c["method"] for c in found["cells"]] == ["ngram k=2 lookup=1-1", "ngram k=4 lookup=1-1"]
    assert [c["identical"] for c in found["cells"]] == [3, 3]
    plain = [[r["plain_s"] for r in c["requests"]] for c in found["cells"]]
    assert plain[0] == plain[1]


def test_a_failing_run_leaves_no_file(
    tiny_path: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.json"
    # The prompts of this workload are longer than this context.
    arguments = ["bench", str(tiny_path), *QUICK, "--max-model-len", "150", "--json", str(file)]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "random-00: prompt: 200 tokens" in err
    assert list(tmp_path.iterdir()) == []

    def broken(*_: object) -> None:
        raise RequestError("broken")

    file.write_text("older")
    monkeypatch.setattr(EngineBackend, "counters", broken)
    assert main(["bench", str(tiny_path), *QUICK, "--json", str(file)]) == 2
    assert file.read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1


def interrupt_after(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    real, done = measuring._run, []

    def run(*arguments: Any) -> None:
        done.append(1)
        if len(done) > runs:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(measuring, "_run", run)


def test_an_interrupt_prints_what_there_is(
    tiny_path: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first cell takes 4 runs for each of 3 prompts; then one pair of the second is complete.
    interrupt_after(monkeypatch, 14)
    file = tmp_path / "out.json"
    arguments = ["bench", str(tiny_path), *QUICK, "--clients", "1,2", "--json", str(file)]
    assert main(arguments) == 130
    printed = capsys.readouterr()
    assert "INTERRUPTED" in printed.out
    assert "random at 1 client" in printed.out
    assert "random at 2 clients" in printed.out
    assert not file.exists()


def test_an_interrupt_before_the_first_pair_prints_nothing(
    tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 1)
    assert main(["bench", str(tiny_path), *QUICK]) == 130
    assert capsys.readouterr().out == ""


def test_a_chat_workload_needs_a_template(tmp_path: Path, capsys: Capture) -> None:
    model = write_tiny_hf(tmp_path / "base", seed=1)
    settings = model / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace('"chat_template"', '"other"'))
    assert main(["bench", str(model), "--workload", "story", "--prompts", "2"]) == 2
    assert "workload: story is a chat" in capsys.readouterr().err


def test_demo_says_that_it_is_a_quick_look(tmp_path: Path, capsys: Capture) -> None:
    model = write_tiny_hf(tmp_path / "tiny", seed=1)
    assert main(["bench", str(model), "--workload", "random", "--demo", "--max-tokens", "8"]) == 0
    printed = capsys.readouterr().out
    assert "weights int8" in printed
    assert "8 prompts per workload" in printed
    assert "fewer than 16 prompts" in printed
