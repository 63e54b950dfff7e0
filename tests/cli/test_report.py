"""`wager report` from files to a page or to Markdown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import report_samples as samples
from wager.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    file = tmp_path / "run.json"
    file.write_text(samples.full().to_json(), encoding="utf-8")
    return file


def test_the_page_lies_beside_the_file(run: Path, capsys: Capture) -> None:
    assert main(["report", str(run)]) == 0
    page = run.with_suffix(".html")
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_output_can_be_named_and_holds_several_runs(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "own.json"
    other.write_text(samples.one_load().to_json(), encoding="utf-8")
    page = tmp_path / "page.html"
    assert main(["report", str(run), str(other), "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8").count("<article") == 2
    assert not run.with_suffix(".html").exists()


def test_a_directory_of_a_run_will_do(run: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.json").write_bytes(run.read_bytes())
    assert main(["report", str(tmp_path / "first"), str(tmp_path / "second")]) == 0
    page = (tmp_path / "first" / "bench.html").read_text(encoding="utf-8")
    assert "vllm (first)" in page
    assert "vllm (second)" in page
    assert main(["report", str(tmp_path)]) == 2
    assert f"cannot read {tmp_path / 'bench.json'}" in capsys.readouterr().err


def test_markdown_goes_to_standard_output(run: Path, capsys: Capture, tmp_path: Path) -> None:
    assert main(["report", str(run), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Does speculation pay?")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json"]
    ticket = tmp_path / "ticket.md"
    assert main(["report", str(run), "--markdown", "-o", str(ticket)]) == 0
    assert ticket.read_text(encoding="utf-8") == out
    assert main(["report", str(run), "-o", "-"]) == 0
    assert "<!DOCTYPE html>" in capsys.readouterr().out


def test_a_file_of_an_older_version_is_refused(run: Path, capsys: Capture) -> None:
    run.write_text(json.dumps({"schema": 1, "cells": []}))
    assert main(["report", str(run)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "has schema 1, this version reads 2: measure again" in printed.err
    assert not run.with_suffix(".html").exists()


def test_bad_paths_are_named(run: Path, tmp_path: Path, capsys: Capture) -> None:
    for arguments, says in (
        ([tmp_path / "absent.json"], "cannot read"),
        ([run, "-o", tmp_path / "no" / "page.html"], "is not a file in an existing directory"),
        ([run, "-o", tmp_path], "is not a file in an existing directory"),
        ([run, "-o", run], "is the measurement itself"),
    ):
        assert main(["report", *map(str, arguments)]) == 2
        assert says in capsys.readouterr().err
    assert json.loads(run.read_text())["schema"] == 2
