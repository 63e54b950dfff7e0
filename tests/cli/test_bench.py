"""`wager bench` from its options to its file, on a tiny random model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.tiny import write_tiny_hf
from wager.arms import Arm
from wager.backend import EngineError, Started
from wager.bench.backend import EngineBackend
from wager.bench.run import Executor
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
    assert [c["arm"] for c in found["cells"]] == ["ngram:k=2,min=1", "ngram:k=4,min=1"]
    assert {c["method"] for c in found["cells"]} == {"ngram"}
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
    """Counted runs; the warm-up of two arms comes before."""
    real, done = Executor._part, []

    def part(*arguments: Any) -> None:
        done.append(1)
        if len(done) > runs + 2:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(Executor, "_part", part)


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
    assert len([x for x in printed.out.splitlines() if x.startswith("random  ")]) == 2
    assert "go on with --resume" in printed.err
    assert not file.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out.json.journal"]


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


def test_a_run_that_fails_later_shows_what_it_had(
    tiny_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The second workload does not fit into the context; the first was measured."""
    prompts, file = tmp_path / "long.jsonl", tmp_path / "out.json"
    prompts.write_text(json.dumps({"prompt": "word " * 600}) + "\n")
    arguments = [*QUICK[2:], "--workload", f"random,{prompts}", "--json", str(file)]
    assert main(["bench", str(tiny_path), *arguments]) == 2
    printed = capsys.readouterr()
    assert "STOPPED EARLY" in printed.out
    assert [x.split()[0] for x in printed.out.splitlines() if x.startswith("random  ")]
    assert "wager: error: long-1: prompt: " in printed.err
    assert "go on with --resume" in printed.err
    assert not file.exists()


def test_an_arm_that_failed_is_seen_from_outside_and_can_be_tried_again(
    tiny_path: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, start = tmp_path / "out.json", EngineBackend.start

    def failing(self: EngineBackend, arm: Arm) -> Started:
        if arm.name == "ngram:k=3":
            raise EngineError("no room")
        return start(self, arm)

    arms = ["--arms", "plain,ngram:k=2,ngram:k=3", "--json", str(file)]
    with monkeypatch.context() as patch:
        patch.setattr(EngineBackend, "start", failing)
        assert main(["bench", str(tiny_path), *QUICK, *arms]) == 2
    printed = capsys.readouterr()
    assert "FAILED: ngram:k=3: no room" in printed.out
    assert "go on with --resume" in printed.err
    assert [c["arm"] for c in json.loads(file.read_text())["cells"]] == ["ngram:k=2"]
    found = bench(tiny_path, file, *arms[:2], "--resume")
    assert [c["arm"] for c in found["cells"]] == ["ngram:k=2", "ngram:k=3"]
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_an_interrupted_run_goes_on_where_it_was(
    tiny_path: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.json"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 7)
        assert main(["bench", str(tiny_path), *QUICK, "--json", str(file)]) == 130
    assert main(["bench", str(tiny_path), *QUICK, "--json", str(file)]) == 2
    assert "holds 7 finished parts" in capsys.readouterr().err
    other = ["bench", str(tiny_path), *QUICK, "--json", str(file), "--seed", "1", "--resume"]
    assert main(other) == 2
    assert "resume" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        found = bench(tiny_path, file, "--resume")
    assert found["complete"]
    assert [c["identical"] for c in found["cells"]] == [3]
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


BENCH = "import sys; from wager.cli.main import main; raise SystemExit(main(sys.argv[1:]))"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_command_goes_on_where_it_was(
    tiny_path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Killed at a moment of its own choosing: once its journal holds some parts."""
    journal, file = tmp_path / "out.json.journal", tmp_path / "out.json"
    arguments = [
        str(tiny_path), "--workload", "random", "--prompts", "40", "--max-tokens", "64",
        "--threads", "1", "--json", str(file),
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", BENCH, "bench", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not (journal.exists() and journal.read_bytes().count(b'"part"') > 5):
        assert process.poll() is None
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    before = journal.read_bytes()
    finished = before[: before.rindex(b"\n") + 1].count(b'"part"')
    assert 5 < finished < 160
    counted = []
    with pytest.MonkeyPatch.context() as patch:
        real = Executor._part

        def part(self: Executor, key: Any, arm: Any, part: Any) -> None:
            counted.append(part.kind)
            real(self, key, arm, part)

        patch.setattr(Executor, "_part", part)
        assert main(["bench", *arguments, "--resume"]) == 0
    assert counted.count("timed") == 160 - finished
    found = json.loads(file.read_text())
    assert found["complete"]
    assert found["cells"][0]["identical"] == 40
    assert not journal.exists()


def test_a_time_limit_writes_what_there_is_and_can_go_on(
    tiny_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "run"
    arguments = ["bench", str(tiny_path), *QUICK, "--run-dir", str(folder)]
    # Shorter than anything takes: nothing is measured, and that is said.
    assert main([*arguments, "--time-limit", "0.000001s"]) == 0
    assert "STOPPED EARLY" in capsys.readouterr().out
    found = json.loads((folder / "bench.json").read_text())
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert (found["complete"], found["cells"]) == (False, [])
    assert main([*arguments, "--time-limit", "1h", "--resume"]) == 0
    assert json.loads((folder / "bench.json").read_text())["complete"]
    assert (folder / "journal.jsonl").exists()


def test_arms_in_short_and_a_rate_of_arrivals(tiny_path: Path, tmp_path: Path) -> None:
    found = bench(
        tiny_path, tmp_path / "out.json", "--arms", "plain,ngram:k=2,min=1", "--rate", "200"
    )
    (cell,) = found["cells"]
    assert (cell["arm"], cell["rate"], cell["clients"]) == ("ngram:k=2,min=1", 200.0, None)
    assert cell["identical"] == 3
    assert [arm["arm"] for arm in found["arms"]] == ["plain", "ngram:k=2,min=1"]
    assert found["arms"][1]["effective"]["prompt_lookup_max"] == 1


def test_prompts_of_a_file(tiny_path: Path, tmp_path: Path, capsys: Capture) -> None:
    prompts = tmp_path / "mine.jsonl"
    lines = [{"prompt": f"say {i}", "max_tokens": 4} for i in (1, 2, 3, 1)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = bench(tiny_path, tmp_path / "out.json", "--workload", str(prompts), "--prompts", "4")
    (cell,) = found["cells"]
    assert (cell["workload"], cell["outputs"], cell["repeated_prompts"]) == ("mine", 4, True)
    assert "1 of 4 prompts repeat an earlier one" in capsys.readouterr().err


def test_nothing_learnt_outlives_a_block_and_warm_figures_are_apart(
    tiny_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    """All prompts are one and the same: its answer would be drafted from itself if it was kept."""
    prompts = tmp_path / "same.jsonl"
    line = json.dumps({"prompt": "say", "max_tokens": 8, "temperature": 0})
    prompts.write_text(f"{line}\n" * 5)
    arms = "plain,suffix:k=4,suffix+ngram:k=4,min=1,max=3"
    asked = ["--workload", str(prompts), "--arms", arms, "--warm", "2"]
    found = bench(tiny_path, tmp_path / "out.json", *asked)
    cells = {(cell["workload"], cell["arm"]): cell for cell in found["cells"]}
    names = ("suffix:k=4", "suffix+ngram:k=4,min=1,max=3")
    assert set(cells) == {(w, a) for w in ("same", "same after 2") for a in names}
    for (workload, arm), cell in cells.items():
        assert cell["identical"] == cell["outputs"] == 3
        assert cell["warm"] == (2 if workload == "same after 2" else None)
        past = cell["by_source"].get("suffix (past answers)")
        assert (past is not None) == (cell["warm"] == 2), arm
        assert cell["repeated_prompts"]
    printed = capsys.readouterr().out
    assert "after 2: behind every start of an arm 2 other prompts" in printed
    assert "drafts by source: suffix" in printed


def test_a_drafter_of_the_targets_own_weights(tiny_path: Path, tmp_path: Path) -> None:
    arm = "draft_model:model=self,quantization=int8,k=3"
    found = bench(tiny_path, tmp_path / "out.json", "--arms", f"plain,{arm}")
    (cell,) = found["cells"]
    assert (cell["arm"], cell["method"], cell["identical"]) == (arm, "draft_model", 3)
    assert cell["accepted"] > 0
    assert set(cell["by_source"]) == {"draft_model"}
    assert found["arms"][1]["effective"]["quantization"] == "int8"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--arms", "ngram:k=4", "-sc", '{"method": "ngram"}'], "arms"),
        (["--arms", "plain"], "arms"),
        (["-sc", "{"], "speculative-config"),
        (["-sc", '["ngram"]'], "speculative-config"),
        (["--arms", "ngram:controller=off"], "num_speculative_tokens"),
        (["--clients", "1", "--rate", "2"], "rate"),
        (["--rate", "0"], "rate"),
        (["--rate", "fast"], "rate"),
        (["--request-rate", "inf"], "rate"),
        (["--max-concurrency", "1.5"], "clients"),
        (["--time-limit", "soon"], "time-limit"),
        (["--time-limit", "0s"], "time-limit"),
        (["--resume"], "resume"),
        (["--identity", "-1"], "identity"),
        (["--warm", "0"], "warm"),
        (["--warm", "3", "--suite", "article"], "warm"),
        (["--arms", "plain,suffix+medusa:k=4"], "medusa"),
        (["--engine", "other"], "engine"),
        (["--engine-args", "-x"], "engine-args"),
        (["--url", "http://localhost"], "url"),
        (["--engine", "vllm", "--weights", "int8"], "weights"),
        (["--engine", "vllm", "--url", "http://localhost"], "url"),
        (["--engine", "url", "--url", "http://localhost", "--threads", "2"], "threads"),
        (["--engine", "vllm", "--engine-args", "'"], "engine-args"),
        (["--engine", "vllm", "--start-timeout", "0"], "start-timeout"),
        (["--start-timeout", "9"], "start-timeout"),
        (["--request-timeout", "9"], "request-timeout"),
        (["--engine", "vllm", "--kv-memory", "2"], "kv-memory"),
        (["--engine", "url", "--kv-memory", "2GB"], "kv-memory"),
        (["--run-dir", "/proc/nothing"], "run-dir"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_named(
    arguments: list[str], named: str, capsys: Capture
) -> None:
    assert main(["bench", "/nowhere/model", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("wager: error: ")
    assert named in printed.err
    assert printed.err.count("\n") == 1
