"""`wager tune` from its options to its file: on a tiny random model, and a dummy of an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.external.test_server import DummyBackend
from tests.tiny import write_tiny_hf
from wager.cli.main import main
from wager.external import engines
from wager.external.tuned import read_tuned

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "tuned.schema.json").read_text())
Capture = pytest.CaptureFixture[str]
QUICK = ["--workload", "words", "--prompts", "5", "--max-tokens", "8"]
OWN = [*QUICK, "--clients", "1", "--threads", "1", "--max-k", "2"]


def valid(file: Path) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in JSON")

    found = json.loads(file.read_text(), parse_constant=refuse)
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    return found


class Engine(DummyBackend):
    """A dummy under vLLM's name: it never drafts."""

    name = "vllm"

    def environment(self, arm: Any) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def roomy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context that holds the words: of this tokenizer each is several tokens."""
    return write_tiny_hf(tmp_path_factory.mktemp("roomy"), max_context=2048, seed=1, sharpness=4.0)


@pytest.fixture
def dummy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines._BACKENDS, "vllm", ("tests.cli.test_tune", "Engine"))


def test_the_own_engine_is_tuned(roomy_path: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "tuned.json"
    assert main(["tune", str(roomy_path), *OWN, "-o", str(file), "--no-color"]) == 0
    printed = capsys.readouterr()
    found = valid(file)
    assert (found["engine"], found["model"]) == ("own", str(roomy_path))
    assert found["command"][:3] == ["wager", "run", str(roomy_path)]
    assert found["command"][3:] == found["arguments"]
    assert found["arguments"][:2] == ["--threads", "1"]
    assert found["measured_with"]["workloads"] == ["words"]
    assert found["measured_with"]["options"]["threads"] == 1
    assert (found["speculation"] is None) == (found["expected"] == [])
    assert "Command:\nwager run " in printed.out
    assert "1 client: " in printed.out
    assert "measured: words, 1 client" in printed.err
    assert read_tuned(file).command == found["command"]


def test_what_was_tuned_is_checked(roomy_path: Path, tmp_path: Path, capsys: Capture) -> None:
    """Whatever this machine says of the tiny model: what is expected is written by hand."""
    file = tmp_path / "tuned.json"
    assert main(["tune", str(roomy_path), *OWN, "-o", str(file)]) == 0
    found = json.loads(file.read_text())
    one = {
        "workload": "words", "clients": 1, "speedup": 1.0, "low": 0.001, "high": 1000.0,
        "measured_low": 0.9, "measured_high": 1.1, "prompts": 5,
    }  # fmt: skip
    found["speculation"] = {"method": "ngram", "num_speculative_tokens": 2}
    for low, status, said in ((0.001, 0, "inside"), (999.0, 1, "OUTSIDE")):
        found["expected"] = [{**one, "low": low}]
        file.write_text(json.dumps(found))
        capsys.readouterr()
        assert main(["tune", str(roomy_path), "--check", str(file), "--no-color"]) == status
        assert said in capsys.readouterr().out
    found["speculation"] = None
    file.write_text(json.dumps(found))
    assert main(["tune", str(roomy_path), "--check", str(file)]) == 0
    assert "no speed-up to check" in capsys.readouterr().out


def test_logs_stand_for_the_workload(roomy_path: Path, tmp_path: Path, capsys: Capture) -> None:
    logs = tmp_path / "logs.jsonl"
    rows = [{"prompt": f"abc {i} abc abc", "completion": " abc abc abc abc"} for i in range(8)]
    logs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ["--clients", "1", "--threads", "1", "--max-k", "2", "--prompts", "5"]
    arguments = ["tune", str(roomy_path), *more, "--max-tokens", "8", "--from-replay", str(logs)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "logs; 5 prompts" in printed
    assert "acceptance from the recorded answers that were given" in printed


def test_an_engine_that_is_started(dummy: None, tmp_path: Path, capsys: Capture) -> None:
    file, folder = tmp_path / "tuned.json", tmp_path / "run"
    methods = ["--methods", "draft_model:model=D", "--max-k", "2", "--engine", "vllm"]
    more = [*QUICK, "--clients", "1,2", "--run-dir", str(folder), "-o", str(file)]
    arguments = ["tune", "model", *methods, *more, "--engine-args", "--told 1", "--no-color"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    found = valid(file)
    # Whatever the dummy's times seem to show.
    spec = [] if found["speculation"] is None else ["--spec", found["arguments"][1]]
    assert found["command"][:3] == ["env", f"PYTHONPATH={ROOT}", sys.executable]
    assert found["command"][-2:] == ["--told", "1"]
    assert found["arguments"] == [*spec, "--told", "1"]
    assert found["measured_with"]["clients"] == [1, 2]
    assert "for all of them: " in printed.out
    # No tokenizer of a model that is not there: said, and done without.
    assert "estimated from the engine's counts alone" in printed.err
    assert {path.name for path in folder.iterdir()} >= {"look.jsonl", "decide.jsonl", "logs"}
    # Resumed, everything is there already: nothing is started.
    before = len(list((folder / "logs").iterdir()))
    assert main([*arguments, "--resume"]) == 0
    assert len(list((folder / "logs").iterdir())) == before
    assert valid(file)["expected"] == found["expected"]
    assert main([*arguments, "--resume", "--prompts", "6"]) == 2
    assert "resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--engine", "ollama"], "tune the same GGUF file with --engine llamacpp"),
        (["--engine", "url"], "a server that runs already"),
        (["--engine", "nothing"], "must be one of own, vllm, llamacpp, sglang"),
        (["--methods", "plain"], "plain decoding is always measured"),
        (["--methods", "medusa"], "does not draft this way"),
        (["--max-k", "0"], "max-k: must be at least 1"),
        (["--prompts", "0"], "prompts: must be at least 1"),
        (["--engine", "vllm", "--start-timeout", "0"], "start-timeout: must be above 0"),
        (["--workload", "nothing"], "'nothing' is unknown"),
        (["--resume"], "resume: needs the --run-dir"),
        (["-o", "/nowhere/at/all.json"], "output: /nowhere/at/all.json"),
        (["--engine", "vllm", "--weights", "int8"], "weights: is for wager's own engine"),
        (["--check", "/nowhere.json"], "tuned: cannot read /nowhere.json"),
        (["--check", "x", "--workload", "copy"], "workload: --check measures what x says"),
        (["--time-limit", "soon"], "time-limit: must be a time"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    more: list[str], message: str, roomy_path: Path, capsys: Capture
) -> None:
    assert main(["tune", str(roomy_path), *more]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_file_of_another_engine_or_without_its_options_is_not_checked(
    roomy_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "tuned.json"
    record = {
        "schema": 1, "engine": "vllm", "version": None, "model": str(roomy_path), "command": ["x"],
        "arguments": [], "speculation": None,
    }  # fmt: skip
    file.write_text(json.dumps(record))
    assert main(["tune", str(roomy_path), "--check", str(file)]) == 2
    assert "measured on vllm" in capsys.readouterr().err
    file.write_text(json.dumps({**record, "engine": "own"}))
    assert main(["tune", str(roomy_path), "--check", str(file)]) == 2
    assert "does not say what it was measured with" in capsys.readouterr().err
