"""`wager replay` from the outside."""

from __future__ import annotations

import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wager.bench.logs import read as logs
from wager.bench.logs.read import read_log
from wager.bench.logs.records import Entry
from wager.cli.main import main

COPY = "the cat sat on the mat and the rat ran to the hat "


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    lines: list[Any] = [
        {"prompt": COPY, "completion": COPY * 2, "finish_reason": "length", "task": "copy"}
        for _ in range(6)
    ]
    lines += [{"prompt": "Q", "completion": "0123456789", "task": "free"}, "broken"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_text_and_json(
    log: Path, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["replay", str(log), "--tokenizer", str(tiny_path), "--group", "task",
                 "--arms", "ngram:k=4,min=2,max=5", "--steps", "plain=5.7,9=7.8",
                 "--clients", "1,8", "--json", str(out)]  # fmt: skip
    assert main(arguments) == 0
    said = capsys.readouterr()
    found = json.loads(out.read_text())
    (arm,) = found["arms"]
    total = arm["total"]
    assert (found["kind"], found["answers"], total["answers"]) == ("replayed", 7, 7)
    assert [g["group"] for g in arm["groups"]] == ["copy", "free"]
    # The figures on the screen are those of the file.
    assert f"{total['tokens_per_step']:.2f}" in said.out
    assert f"{100 * total['acceptance_by_position_conditional'][1]:.1f} %" in said.out
    alone, eight = total["speed_up"]
    assert (alone["clients"], alone["kind"]) == (1, "estimated")
    assert f"{alone['value']:.2f}x" in said.out
    assert not alone["extrapolated"]
    assert eight["extrapolated"]
    assert "ESTIMATED" in said.out
    assert "LEFT OUT: 1 line (8): is not a JSON object" in said.out
    assert said.err == ""
    assert main([*arguments[:-1], "-"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_what_an_option_cannot_do_is_said(
    log: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["replay", str(log), "--tokenizer", str(tiny_path), "--arms", "ngram:k=4"]
    assert main([*line, "--group", "nosuch", "--max-model-len", "9"]) == 0
    said = capsys.readouterr().out
    assert "no line has the field 'nosuch'" in said
    assert "7 answers end behind the context of --max-model-len" in said
    assert main([*line, "--steps", "plain=5,9=6", "--clients", "1000000000"]) == 2
    assert "clients: must be at most 4096" in capsys.readouterr().err
    assert main([*line, "--clients", "1,8"]) == 2
    assert "add --steps" in capsys.readouterr().err
    assert main(["replay", str(log), "--tokenizer", "nosuch"]) == 2
    assert "error: tokenizer: there is no file" in capsys.readouterr().err
    assert main([*line[:-1], "suffix:k=8", "--engine", "vllm"]) == 2
    assert "vLLM's suffix is not replayed" in capsys.readouterr().err


def test_suffix_and_lists(log: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = ["--arms", "suffix:k=8,suffix+ngram:k=8,min=2,max=5"]
    assert main(["replay", str(log), "--tokenizer", str(tiny_path), *arms]) == 0
    said = capsys.readouterr().out
    assert "suffix+ngram:k=8,min=2,max=5" in said
    # The same answer six times: from the second on it is a past answer.
    assert "  suffix (past answers)" in said


def test_a_loss_is_called_one(
    tmp_path: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(json.dumps({"prompt": "abababab", "completion": "acacadad"}) + "\n")
    assert main(["replay", str(log), "--tokenizer", str(tiny_path), "--steps", "plain=5,2=10",
                 "--arms", "ngram:k=4,min=1,max=2", "--clients", "1"]) == 0  # fmt: skip
    assert "a loss" in capsys.readouterr().out


def test_pairs_of_directories(
    tmp_path: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("old", COPY * 3), ("new", COPY * 3 + "now")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(content)
    pair = [str(tmp_path / "old"), str(tmp_path / "new")]
    assert main(["replay", "--pairs", *pair, "--tokenizer", str(tiny_path), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shapes"] == {"old and edited text": 1}
    assert [a["total"]["tokens_per_step"] > 2 for a in found["arms"]] == [True, True]


def test_an_interrupt_shows_what_was_replayed(
    log: Path,
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(path: Path, *more: Any) -> Iterator[Entry]:
        yield from itertools.islice(read_log(path), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "read_log", interrupted)
    out = tmp_path / "out.json"
    arguments = ["replay", str(log), "--tokenizer", str(tiny_path), "--json", str(out)]
    assert main(arguments) == 130
    said = capsys.readouterr().out
    assert "INTERRUPTED" in said
    assert ": 3 answers" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "replay: give either"),
        (["x.jsonl", "--pairs", "a", "b"], "replay: give either"),
        (["--pairs", "a", "b", "--group", "g"], "group: "),
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["nowhere.jsonl", "--steps", "9=7"], "plain=MS"),
        (["nowhere.jsonl", "--clients", "0"], "clients: "),
        (["nowhere.jsonl", "--limit", "0"], "limit: "),
        (["nowhere.jsonl", "--arms", "eagle3:k=4"], "with a model"),
        (["nowhere.jsonl", "--engine", "sglang"], "engine: "),
        (["nowhere.jsonl", "--json", "/nowhere/x.json"], "json: "),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], says: str, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *arguments, "--tokenizer", str(tiny_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error


BLOCKED = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from wager.bench.logs import read as logs
from wager.bench.logs.read import read_log
from wager.bench.logs.records import Entry
from wager.cli.main import main
status = main({arguments!r})
print(*sorted(m for m in sys.modules if sys.modules[m] is not None), file=sys.stderr)
sys.exit(status)
"""


def test_neither_torch_nor_the_extension_is_needed(log: Path, tiny_path: Path) -> None:
    arguments = ["replay", str(log), "--tokenizer", str(tiny_path), "--json", "-"]

    def run(blocked: list[str]) -> tuple[str, set[str]]:
        code = BLOCKED.format(blocked=blocked, arguments=arguments)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return done.stdout, set(done.stderr.split())

    with_it, loaded = run([])
    assert not loaded & {"torch", "transformers", "httpx2", "huggingface_hub", "wager.engine.llm"}
    without, loaded = run(["wager._native", "torch"])
    assert "wager._native" not in loaded
    assert without == with_it
    assert json.loads(with_it)["arms"][0]["total"]["accepted"] > 0


def test_gzip(log: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.with_suffix(".gz").write_bytes(gzip.compress(log.read_bytes()))
    outs = []
    for path in (log, log.with_suffix(".gz")):
        assert main(["replay", str(path), "--tokenizer", str(tiny_path), "--json", "-"]) == 0
        found = json.loads(capsys.readouterr().out)
        outs.append({key: value for key, value in found.items() if key != "source"})
    assert outs[0] == outs[1]


def test_a_pipe_is_read(log: Path, tiny_path: Path) -> None:
    line = [sys.executable, "-m", "wager", "replay", "-", "--tokenizer", str(tiny_path),
            "--arms", "ngram:k=4", "--json", "-"]  # fmt: skip
    run = subprocess.run(line, input=log.read_bytes(), capture_output=True, check=True)
    assert json.loads(run.stdout)["answers"] == 7


def test_a_log_is_never_written_over(
    log: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = log.read_bytes()
    assert main(["replay", str(log), "--tokenizer", str(tiny_path), "--json", str(log)]) == 2
    assert "is the log itself; name another file" in capsys.readouterr().err
    assert log.read_bytes() == before
