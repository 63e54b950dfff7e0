"""Whatever happens to the process that measures, no engine goes on running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wager.backend import EngineError
from wager.external import watchdog
from wager.external.process import EngineProcess, end_leftovers, free_port

ROOT = Path(__file__).resolve().parents[2]
DUMMY = [sys.executable, "-m", "tests.external.dummy"]
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}
PATIENCE_S = 30.0

# Starts the dummy as a measurement would, says when it is up, and then waits for its end.
MEASURING = """
import sys, time
from pathlib import Path
from wager.external.process import EngineProcess, free_port
folder = Path(sys.argv[1])
engine = EngineProcess(
    "dummy", sys.argv[2:] + ["--port", str(free_port())],
    log=folder / "log", record=folder / "dummy.running.json", grace_s=0.3,
)
engine.wait_ready((folder / "children").exists, 30)
print(engine.session, flush=True)
"""


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def living(pids: list[int]) -> list[int]:
    every = watchdog.processes()
    return [pid for pid in pids if pid in every and every[pid].state not in "ZX"]


def children(folder: Path) -> list[int]:
    """The dummy and its two deaf children, once all are written down."""
    file = folder / "children"
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 3)
    return [int(pid) for pid in file.read_text().split()]


def start(folder: Path, *arguments: str, grace_s: float = 0.3) -> EngineProcess:
    return EngineProcess(
        "dummy",
        [*DUMMY, "--port", str(free_port()), *arguments],
        log=folder / "log",
        record=folder / "dummy.running.json",
        environment=ENVIRONMENT,
        grace_s=grace_s,
    )


def measuring(folder: Path, tail: str) -> subprocess.Popen[str]:
    """Another process that has started the dummy; ``tail`` is what it does then."""
    dummy = [*DUMMY, "--children", str(folder / "children")]
    return subprocess.Popen(
        [sys.executable, "-c", MEASURING + tail, str(folder), *dummy],
        stdout=subprocess.PIPE,
        env={**os.environ, **ENVIRONMENT},
        text=True,
    )


def test_all_processes_end_with_the_context(tmp_path: Path) -> None:
    with start(tmp_path, "--children", str(tmp_path / "children"), "--deaf") as engine:
        pids = children(tmp_path)
        assert living(pids) == pids
        assert engine.exit_status() is None
        assert (tmp_path / "dummy.running.json").exists()
    assert living(pids) == []
    assert not (tmp_path / "dummy.running.json").exists()
    engine.stop()


def test_an_engine_is_asked_before_it_is_killed(tmp_path: Path) -> None:
    say = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('bye'))\n"
    engine = EngineProcess(
        "polite",
        [sys.executable, "-c", say + "print('up', flush=True)\ntime.sleep(600)"],
        log=tmp_path / "log",
        grace_s=PATIENCE_S,
    )
    engine.wait_ready(lambda: "up" in engine.log_text(), PATIENCE_S)
    engine.stop()
    assert engine.log_text() == "up\nbye\n"
    assert engine.exit_status() == 1


def test_an_engine_that_ends_early_is_noticed_and_quoted(tmp_path: Path) -> None:
    with (
        start(tmp_path, "--fail", "the model is too large") as engine,
        pytest.raises(EngineError) as raised,
    ):
        engine.wait_ready(lambda: False, PATIENCE_S)
    assert "dummy ended with exit status 3 before it was ready" in str(raised.value)
    assert str(raised.value).endswith("arguments: | the model is too large")
    assert str(tmp_path / "log") in str(raised.value)


def test_the_children_of_an_engine_that_ended_are_ended_too(tmp_path: Path) -> None:
    engine = start(tmp_path, "--children", str(tmp_path / "children"))
    pids = children(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: engine.exit_status() is not None)
    assert engine.exit_status() == 128 + signal.SIGKILL
    assert living(pids) == []
    engine.stop()


def test_the_line_that_names_the_cause_is_quoted_from_further_up(tmp_path: Path) -> None:
    lines = [
        "WARNING: errors like `OSError: [Errno 24]` may follow",
        "ValueError: no such method",
        *(f"later {i}" for i in range(30)),
    ]
    engine = EngineProcess(
        "x", [sys.executable, "-c", f"print({chr(10).join(lines)!r})"], log=tmp_path / "log"
    )
    wait_until(lambda: engine.exit_status() is not None)
    error = str(engine.failure("ended"))
    assert "ValueError: no such method | ... | later 22 | later 23 |" in error
    assert error.endswith("later 29")
    engine.stop()


def test_an_engine_that_never_gets_ready(tmp_path: Path) -> None:
    with start(tmp_path) as engine, pytest.raises(EngineError, match=r"not ready after 0\.2 s"):
        engine.wait_ready(lambda: False, 0.2)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    engine = EngineProcess("x", ["/nowhere/engine", "--port", "1"], log=tmp_path / "log")
    with pytest.raises(EngineError, match=r"127 .*/nowhere/engine: No such file or directory"):
        engine.wait_ready(lambda: False, PATIENCE_S)
    engine.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_engine_outlives_a_measurement_that_is_ended_by(
    number: signal.Signals, tmp_path: Path
) -> None:
    with measuring(tmp_path, "time.sleep(600)") as process:
        assert process.stdout is not None
        session = int(process.stdout.readline())
        pids = [session, *children(tmp_path)]
        assert living(pids) == pids
        process.send_signal(number)
        process.wait(PATIENCE_S)
        wait_until(lambda: living(pids) == [])


@pytest.mark.parametrize("tail", ["raise RuntimeError", "sys.exit(0)", "import os; os._exit(0)"])
def test_no_engine_outlives_a_measurement_that_ends_by_itself(tail: str, tmp_path: Path) -> None:
    with measuring(tmp_path, tail) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()), *children(tmp_path)]
        process.wait(PATIENCE_S)
        wait_until(lambda: living(pids) == [])


def test_leftovers_of_a_killed_measurement_whose_watchdog_died_too(tmp_path: Path) -> None:
    with measuring(tmp_path, "time.sleep(600)") as process:
        assert process.stdout is not None
        session = int(process.stdout.readline())
        pids = children(tmp_path)
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(session, signal.SIGKILL)
        process.kill()
        process.wait(PATIENCE_S)
    # The engine itself dies with its watchdog; the deaf child in its group does not.
    wait_until(lambda: not living(pids[:1]))
    assert living(pids[1:2]) == pids[1:2]
    try:
        assert end_leftovers(tmp_path) == ["dummy"]
        wait_until(lambda: not living(pids[1:2]))
        assert end_leftovers(tmp_path) == []
    finally:
        watchdog.send(living(pids), signal.SIGKILL)


def test_what_a_living_measurement_runs_is_no_leftover(tmp_path: Path) -> None:
    with start(tmp_path) as engine:
        assert end_leftovers(tmp_path) == []
        assert engine.exit_status() is None
        assert (tmp_path / "dummy.running.json").exists()


def test_a_record_cut_short_is_removed(tmp_path: Path) -> None:
    record = tmp_path / "x.running.json"
    record.write_text('{"name": "x", "ses')
    assert end_leftovers(tmp_path) == []
    assert not record.exists()
