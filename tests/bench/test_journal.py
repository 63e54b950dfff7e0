"""Nothing finished is lost: the journal on disk, and runs that are ended at every moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.scripted import ARMS, ON, OTHER, ScriptedBackend, plan, planned, reply
from wager.backend import Answer, Counters, EngineError, SourceCounts, Started
from wager.bench.journal import Journal, PartRecord, journal_path
from wager.bench.run import Executor, Run
from wager.errors import ConfigError
from wager.types import TokenLogprob

FULL = PartRecord(
    [
        replace(
            reply("a", chunks=[(0.1, 1), (0.5, None)]),
            logprobs=[TokenLogprob(3, -0.5, ((3, -0.5), (4, -1.5)))],
            notes=["odd"],
        ),
        Answer("b", "é", None, 0.1, None, error="gone"),
    ],
    Counters(drafted=4, accepted_at=(2, 1), by_source={"suffix": SourceCounts(2, 4, 3)}),
    1.5,
)


def reopen(path: Path, digest: str = "d", *, resume: bool = True) -> Journal:
    return Journal(path, digest, resume=resume)


def test_what_was_written_is_read_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    started = Started(["serve"], "1.0", 2.0, True, 100, {"k": 4}, ["slow"])
    with reopen(path) as journal:
        journal.started(0, started)
        journal.part((0, 1), FULL)
    with reopen(path) as journal:
        assert journal.finished.parts == {(0, 1): FULL}
        assert journal.finished.started == {0: started}


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_line_that_was_being_written_is_dropped_and_written_anew(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "x.journal"
    with reopen(path) as journal:
        journal.part((0, 1), FULL)
        whole = path.stat().st_size
        journal.part((1, 0), FULL)
    os.truncate(path, path.stat().st_size - cut)
    with reopen(path) as journal:
        assert list(journal.finished.parts) == [(0, 1)]
        assert path.stat().st_size == whole
        journal.part((1, 0), FULL)
    with reopen(path) as journal:
        assert list(journal.finished.parts) == [(0, 1), (1, 0)]


def test_finished_parts_are_not_overwritten_by_mistake(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    with reopen(path) as journal:
        journal.part((0, 1), FULL)
    with pytest.raises(ConfigError, match=r"holds 1 finished parts.*--resume"):
        reopen(path, resume=False)
    with pytest.raises(ConfigError, match=r"resume: .* other options"):
        reopen(path, "another")


def test_two_runs_do_not_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    with reopen(path) as journal:
        journal.part((0, 1), FULL)
        for resume in (True, False):
            with pytest.raises(ConfigError, match="belongs to a run that is going on"):
                reopen(path, resume=resume)
        journal.part((1, 0), FULL)
    with reopen(path) as journal:
        assert list(journal.finished.parts) == [(0, 1), (1, 0)]


def test_a_journal_without_a_finished_part_is_no_hindrance_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    with reopen(path) as journal:
        journal.started(0, Started())
        assert path.exists()
    assert not path.exists()
    path.write_text('{"journal": 1, "plan": "another"}\n')
    with reopen(path, resume=False) as journal:
        journal.part((0, 0), FULL)
    assert json.loads(path.read_text().splitlines()[0])["plan"] == "d"


@pytest.mark.parametrize("text", ["nothing\n", "[]\n", '{"journal": 99, "plan": "d"}\n'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.journal"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not the journal"):
        reopen(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "line", ['{"part": [0]}', '{"part": [0, 1], "answers": [{}]}', '{"block": 1}', '{"x": 1}']
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.journal"
    with reopen(path) as journal:
        journal.part((0, 1), FULL)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match="line 3 is damaged"):
        reopen(path)


def test_where_the_journal_is(tmp_path: Path) -> None:
    assert journal_path(None, None) is None
    assert journal_path(tmp_path / "a.json", None) == tmp_path / "a.json.journal"
    assert journal_path(tmp_path / "a.json", tmp_path / "d") == tmp_path / "d" / "journal.jsonl"
    with pytest.raises(ConfigError, match="cannot write"):
        reopen(tmp_path / "missing" / "x")


def wanted() -> Any:
    return plan(planned(3, clients=1, name="a"), planned(4, clients=2, name="b"))


def run_with(path: Path, scripted: ScriptedBackend) -> Run:
    run = Run.of(wanted())
    with Journal(path, run.plan.digest(), resume=True) as journal:
        Executor(scripted, run, journal).execute()
    return run


@pytest.mark.parametrize("cheap", [True, False])
def test_a_run_broken_at_every_part_ends_as_an_unbroken_one(tmp_path: Path, cheap: bool) -> None:
    """Broken again and again, each time one part further: everything is measured exactly once."""
    whole = run_with(tmp_path / "whole", ScriptedBackend(fresh_start_is_cheap=cheap))
    path = tmp_path / "broken"
    asked: dict[tuple[str, str], int] = {}
    for _ in range(200):
        warm = 2 if cheap else 1
        scripted = ScriptedBackend(
            fresh_start_is_cheap=cheap, fail_at_run=warm + 2, error=KeyboardInterrupt
        )
        try:
            found = run_with(path, scripted)
            break
        except KeyboardInterrupt:
            assert scripted.events[-1] == "stop"
        finally:
            for key, times in scripted.seen.items():
                if not key[0].startswith("warm"):
                    asked[key] = asked.get(key, 0) + times
    else:
        raise AssertionError("it never came to an end")
    assert set(asked.values()) == {2}
    assert found.complete
    assert [asdict(c) for c in found.cells()] == [asdict(c) for c in whole.cells()]


def test_a_finished_run_is_told_again_without_an_engine(tmp_path: Path) -> None:
    for cheap in (True, False):
        path = tmp_path / str(cheap)
        first = run_with(path, ScriptedBackend(fresh_start_is_cheap=cheap))
        idle = ScriptedBackend(fresh_start_is_cheap=cheap)
        again = run_with(path, idle)
        assert idle.events == []
        assert again.complete
        assert [asdict(c) for c in again.cells()] == [asdict(c) for c in first.cells()]
        assert again.started == first.started


def test_an_arm_that_failed_is_tried_again_and_nothing_else(tmp_path: Path) -> None:
    """Its cause may be mended by then; the others are finished."""
    three = plan(planned(2), arms=(*ARMS, OTHER))
    first = ScriptedBackend(
        fresh_start_is_cheap=False, fail_start_of=ON.name, error=EngineError("no")
    )
    second = ScriptedBackend(fresh_start_is_cheap=False)
    for scripted, failed in ((first, {ON.name: "no"}), (second, {})):
        run = Run.of(three)
        with Journal(tmp_path / "x", three.digest(), resume=True) as journal:
            Executor(scripted, run, journal).execute()
        assert run.failed == failed
    assert [e for e in second.events if e.startswith("start")] == [f"start {ON.name}"] * 2
    assert [cell.arm for cell in run.cells()] == [ON.name, OTHER.name]
    assert run.complete


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.bench.scripted import ScriptedBackend, reply
from tests.bench.test_journal import run_with

runs = 0
def script(name, arm, times):
    global runs
    runs += not name.startswith("warm")
    if runs == {after}:
        os.kill(os.getpid(), {number})
    return reply(name)

run_with(Path({path!r}), ScriptedBackend(script, fresh_start_is_cheap={cheap}))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("cheap", [True, False])
def test_a_killed_process_loses_no_finished_part(
    tmp_path: Path, number: signal.Signals, cheap: bool
) -> None:
    path = tmp_path / "x.journal"
    root = str(Path(__file__).parents[2])
    code = KILLED.format(root=root, after=12, number=int(number), path=str(path), cheap=cheap)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode in (-number, 1, 130), done.stderr
    before = path.read_bytes()
    parts = before.count(b'"part"')
    # 12 prompts were asked: 11 parts of one prompt, or 3 parts of 3, 4 and 3 prompts.
    assert parts == (11 if cheap else 3)
    scripted = ScriptedBackend(fresh_start_is_cheap=cheap)
    run = run_with(path, scripted)
    assert run.complete
    assert path.read_bytes().startswith(before)
    asked = sum(times for key, times in scripted.seen.items() if not key[0].startswith("warm"))
    assert asked == 28 - (11 if cheap else 10)
