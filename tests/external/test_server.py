"""What all engines that are servers share, with a dummy in the engine's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.external.dummy import DEAF
from wager.arms import Arm, Speculation
from wager.backend import Counters, EngineError, Load, Prompt, Started
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external import watchdog
from wager.external.process import record_directory
from wager.external.server import ServerBackend, ServerOptions, fill

ROOT = Path(__file__).resolve().parents[2]
DUMMY = [sys.executable, "-m", "tests.external.dummy"]
PLAIN = Arm("plain")
NGRAM = Arm("ngram:k=4", Speculation("ngram", {"num_speculative_tokens": 4}))


class DummyBackend(ServerBackend):
    """``extra`` are arguments of the dummy itself."""

    name = "dummy"
    extra: tuple[str, ...] = ()
    clashing: int | None = None

    def check(self, arm: Arm) -> str:
        if arm.name == "impossible":
            raise ConfigError("dummy: no such method")
        return arm.name

    def command(self, arm: Arm, port: int) -> list[str]:
        if self.clashing is not None:
            port, self.clashing = self.clashing, None
        return [*DUMMY, "--port", str(port), *self.extra, *self.arguments(arm)]

    def arguments(self, arm: Arm) -> list[str]:
        spec = ["--spec", arm.name] if arm.speculation else []
        return [*spec, *self.options.arguments]

    def started(self, log: str) -> Started:
        return Started(effective={"said": log.strip()}, kv_tokens=100)


def options(**given: Any) -> ServerOptions:
    return ServerOptions(environment={"PYTHONPATH": str(ROOT)}, stop_timeout_s=0.5, **given)


@pytest.fixture
def backend() -> Iterator[DummyBackend]:
    made = DummyBackend("org/model", options())
    yield made
    made.close()


def prompts(number: int) -> list[Prompt]:
    return [Prompt(f"p{i}", SamplingParams(max_tokens=8), text="x") for i in range(number)]


def test_start_ask_stop(backend: DummyBackend) -> None:
    started = backend.start(NGRAM)
    assert started.command is not None
    assert started.command[-2:] == ["--spec", "ngram:k=4"]
    assert started.effective == {"said": "arguments: --spec ngram:k=4"}
    assert started.kv_tokens == 100
    assert started.startup_s is not None
    assert started.startup_s > 0.05
    answers = list(backend.stream(prompts(3), Load(clients=2)))
    assert sorted(a.prompt_id for a in answers) == ["p0", "p1", "p2"]
    assert [a.token_ids for a in answers] == [[0, 1, 2, 3]] * 3
    assert backend.counters() == Counters()
    session = backend.session
    assert session is not None
    backend.stop()
    assert not [f for f in watchdog.processes().values() if f.session == session]
    backend.stop()


def test_each_start_is_a_fresh_server(backend: DummyBackend) -> None:
    backend.start(PLAIN)
    first = backend.session
    backend.start(NGRAM)
    assert backend.session != first
    assert not [f for f in watchdog.processes().values() if f.session == first]


def test_an_arm_that_cannot_be_had_starts_nothing(backend: DummyBackend) -> None:
    with pytest.raises(ConfigError, match="no such method"):
        backend.start(Arm("impossible"))
    assert backend.session is None


def test_a_start_that_fails_shows_the_log_and_keeps_it(backend: DummyBackend) -> None:
    backend.extra = ("--fail", "out of memory: need 8 GiB")
    with pytest.raises(EngineError, match="out of memory: need 8 GiB") as raised:
        backend.start(PLAIN)
    assert backend.session is None
    log = Path(str(raised.value).split("log ", 1)[1].split(": ", 1)[0])
    backend.close()
    assert "out of memory" in log.read_text()
    log.unlink()
    log.parent.rmdir()


def test_a_port_that_a_stranger_took_is_not_the_users_problem(backend: DummyBackend) -> None:
    stranger = DummyBackend("m", options())
    try:
        stranger.start(PLAIN)
        backend.clashing = stranger.port
        backend.start(PLAIN)
        assert backend.clashing is None
        assert len(list(backend.stream(prompts(1), Load(clients=1)))) == 1
    finally:
        stranger.close()


def test_an_engine_that_dies_while_it_is_asked(tmp_path: Path) -> None:
    backend = DummyBackend("m", options(log_dir=tmp_path))
    backend.extra = ("--die-at", "1")
    backend.start(PLAIN)
    answers = backend.stream(prompts(4), Load(clients=1))
    assert next(answers).error is None
    with pytest.raises(EngineError, match=r"status 4 while it was asked.*as it was told to"):
        list(answers)
    backend.close()


ASKING = """
import sys
from tests.external import test_server as t
backend = t.DummyBackend("m", t.options())
backend.extra = ("--slow",)
backend.start(t.PLAIN)
print(backend.session, flush=True)
try:
    list(backend.stream(t.prompts(2), t.Load(clients=2)))
except KeyboardInterrupt:
    backend.close()
    sys.exit(130)
"""


def test_an_interrupt_ends_a_run_in_the_middle_of_a_reply() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKING],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    ) as process:
        assert process.stdout is not None
        session = int(process.stdout.readline())
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert not [f for f in watchdog.processes().values() if f.session == session]


def test_the_next_start_ends_what_a_killed_measurement_left(
    backend: DummyBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    backend.extra = ("--deaf",)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", ASKING], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        session = int(process.stdout.readline())
        (record,) = record_directory().glob("dummy-*.running.json")
        # As if the watchdog had been killed too, and an orphan of the engine's were left.
        orphan = subprocess.Popen([sys.executable, "-I", "-S", "-c", DEAF], start_new_session=True)
        content = json.loads(record.read_text())
        process.kill()
    end = time.monotonic() + 30
    while any(f.session == session for f in watchdog.processes().values()):
        assert time.monotonic() < end
        time.sleep(0.02)
    content["session"] = orphan.pid
    content["started"] = watchdog.processes()[orphan.pid].started
    record.write_text(json.dumps(content))
    started = backend.start(PLAIN)
    assert started.warnings == ["ended dummy, left over from a measurement that died"]
    assert orphan.wait(30) == -signal.SIGKILL
    assert not record.exists()
    assert len(list(record_directory().glob("*.running.json"))) == 1
    backend.stop()
    assert not list(record_directory().glob("*.running.json"))


def test_logs_go_where_they_are_wanted(tmp_path: Path) -> None:
    logs = tmp_path / "deep" / "logs"
    made = DummyBackend("m", options(log_dir=logs))
    made.start(PLAIN)
    made.close()
    (log,) = logs.glob("dummy-*.log")
    assert log.read_text() == "arguments:\n"


def test_the_scratch_logs_are_gone_after_a_run_without_errors(backend: DummyBackend) -> None:
    backend.start(PLAIN)
    scratch = backend.log_path
    assert scratch is not None
    assert scratch.exists()
    backend.close()
    assert not scratch.parent.exists()


def test_a_command_of_the_users() -> None:
    made = DummyBackend(
        "org/model",
        options(
            engine_command=f"{sys.executable} -m tests.external.dummy --port={{port}} "
            "-m {model} {args} --last",
            arguments=("--user", "two words"),
        ),
    )
    try:
        started = made.start(NGRAM)
        expected = "-m org/model --spec ngram:k=4 --user two words --last"
        assert started.effective == {"said": f"arguments: {expected}"}
    finally:
        made.close()


def test_places_of_a_command_are_filled() -> None:
    values = {"port": "81", "host": "h", "model": "/m x"}
    arguments = ["-s", '{"a": 1}']
    assert fill("run -p {port}:{port} {model} {args}", values, arguments) == [
        "run", "-p", "81:81", "/m x", "-s", '{"a": 1}',
    ]  # fmt: skip
    assert fill("sh -c 'serve {args}'", values, arguments) == ["sh", "-c", "serve -s '{\"a\": 1}'"]
    assert fill("a {port} {args}", values, []) == ["a", "81"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("docker run image {args}", r"engine-command: \{port\} is missing"),
        ("docker run image {port}", r"engine-command: \{args\} is missing"),
        ("serve '{port} {args}", "engine-command: No closing quotation"),
    ],
)
def test_a_command_without_its_places_is_refused(command: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DummyBackend("m", ServerOptions(engine_command=command))


def test_a_model_file_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert DummyBackend("m.gguf", options()).model == str(tmp_path / "m.gguf")
    assert DummyBackend("org/model", options()).model == "org/model"
