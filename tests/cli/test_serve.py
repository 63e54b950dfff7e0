"""`wager serve` as a program: what it prints, which signals it passes on, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.external.pretend import program, recorded
from tests.recipes import PATIENCE_S
from wager.cli.main import main
from wager.external import watchdog
from wager.external.process import free_port
from wager.external.tuned import Tuned

Capture = pytest.CaptureFixture[str]
ARGUMENTS = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.touch()
    return str(path)


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return program(
        tmp_path, "llama-server", recorded("llama_help.txt"), recorded("llama_ngram_simple.log"),
        slots=json.loads(recorded("llama_slots.json")),
        props=json.loads(recorded("llama_props.json")),
    )  # fmt: skip


def tuned_file(folder: Path, model: str, **other: str) -> str:
    method = {"method": "ngram-simple", "spec-ngram-simple-size-n": 3}
    told = {"engine": "llamacpp", "version": "b0-unknown", "model": model, **other}
    path = folder / "tuned.json"
    path.write_text(
        Tuned(command=(), arguments=ARGUMENTS, speculation=method, date="2026-11-30", **told)  # type: ignore[arg-type]
        .to_json()
    )  # fmt: skip
    return str(path)


def _usual_signals() -> None:
    """What the test run itself was started to ignore (nohup) is not what is tested here."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, running; killed at the end if it has not ended."""
    command = [sys.executable, "-m", "wager", "serve", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, preexec_fn=_usual_signals
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], part: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if part in line:
            return lines
    raise AssertionError(lines)


def left_of(port: int) -> list[int]:
    """Processes whose command names the port."""
    found = []
    for pid in watchdog.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(port).encode() in words and pid != os.getpid():
            found.append(pid)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_serves_what_was_tuned_until_a_signal(
    tmp_path: Path, model: str, llama: str, number: signal.Signals
) -> None:
    port = free_port()
    tuned = tuned_file(tmp_path, model)
    given = ("--engine", "llamacpp", model, "--engine-program", llama, "--port", str(port))
    with serving(*given, "--tuned", tuned, "--", "--alias", "two words") as process:
        lines = lines_until(process, "drafting")
        assert left_of(port)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        # The dummy has no handler for SIGTERM, which is what it gets.
        assert process.returncode == 128 + signal.SIGTERM
    place = f"--host 127.0.0.1 --port {port}"
    assert lines[0] == f"{llama} --model {model} {place} {' '.join(ARGUMENTS)} --alias 'two words'"
    assert lines[1] == "wager: tuned: ngram-simple:spec_ngram_simple_size_n=3, measured 2026-11-30"
    assert lines[-2].startswith("wager: llama.cpp b0-unknown is ready after ")
    assert lines[-2].endswith(f" s at http://127.0.0.1:{port}")
    assert lines[-1] == "wager: drafting is in effect (its page /slots)"
    assert out == ""
    assert recorded("llama_ngram_simple.log").strip() in err
    assert not left_of(port)


def test_a_command_of_the_users(tmp_path: Path, model: str, llama: str) -> None:
    port = free_port()
    command = f"env A=1 {llama} --host {{host}} --port {{port}} -m {{model}} {{args}} --last"
    given = ("--engine", "llamacpp", model, "--engine-command", command, "--port", str(port))
    tuned = ("--tuned", tuned_file(tmp_path, model))
    with serving(*given, *tuned, "--host", "127.0.0.1", "--", "--alias", "a") as process:
        lines = lines_until(process, "drafting")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    place = f"--host 127.0.0.1 --port {port} -m {model}"
    assert lines[0] == f"env A=1 {llama} {place} {' '.join(ARGUMENTS)} --alias a --last"
    assert lines[-1] == "wager: drafting is in effect (its page /slots)"
    assert not left_of(port)


def test_nothing_is_left_when_it_is_killed(model: str, llama: str) -> None:
    port = free_port()
    given = ("--engine", "llamacpp", model, "--engine-program", llama, "--port", str(port))
    with serving(*given) as process:
        lines_until(process, "drafting")
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    for _ in range(200):
        if not left_of(port):
            return
        signal.sigtimedwait([], 0.1)
    raise AssertionError(left_of(port))


def test_a_second_signal_does_not_wait(tmp_path: Path, model: str) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\ntrap '' TERM INT HUP\necho deaf >&2\nwhile :; do sleep 1; done\n")
    path.chmod(0o755)
    port = free_port()
    given = ("--engine", "llamacpp", model, "--engine-program", str(path), "--port", str(port))
    with serving(*given) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "deaf\n"
        process.send_signal(signal.SIGINT)
        signal.sigtimedwait([], 0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + signal.SIGKILL
    assert not left_of(port)


def test_a_signal_that_nohup_ignores_stays_ignored(model: str, llama: str) -> None:
    port = free_port()
    given = ("--engine", "llamacpp", model, "--engine-program", llama, "--port", str(port))
    command = ["nohup", sys.executable, "-m", "wager", "serve", *given]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            lines_until(process, "drafting")
            process.send_signal(signal.SIGHUP)
            signal.sigtimedwait([], 0.5)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM


def test_the_engines_own_exit_status(tmp_path: Path, model: str, capsys: Capture) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 3\n")
    path.chmod(0o755)
    given = ["serve", "--engine", "llamacpp", model, "--engine-program", str(path)]
    assert main([*given, "--port", str(free_port()), "--", "--nonsense"]) == 3
    assert "ended with exit status 3 before it was ready" in capsys.readouterr().out


def test_another_version_is_refused_unless_forced(tmp_path: Path, model: str, llama: str) -> None:
    tuned = tuned_file(tmp_path, model, version="b9")
    given = ["--engine", "llamacpp", model, "--engine-program", llama, "--tuned", tuned]
    port = str(free_port())
    with serving(*given, "--port", port) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    said = (
        "measured on llama.cpp b9, and this is b0-unknown; run `wager tune` again, or say --force"
    )
    assert said in err.splitlines()[-1]
    assert "ready" not in out
    with serving(*given, "--port", port, "--force") as process:
        assert "in effect" in lines_until(process, "drafting")[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--threads", "2"], "threads: is an option of wager's own engine"),
        (["--engine", "ollama"], "engine: Ollama runs as a service of its own and has no n-gram"),
        (["--engine", "tgi"], "engine: must be one of own, vllm, sglang, llamacpp; got"),
        (["--arm", "plain,ngram:k=4"], "arm: a server runs one arm, and these are 2: plain, ngram"),
        (["--arm", "ngram:k=4", "-sc", "{}"], "arm: give one of --tuned, --arm and"),
        (["-sc", "[]"], "speculative-config: must be a JSON object"),
        (["--arm", "medusa:k=4,model=h"], "medusa"),
        (["--force"], "force: there is no --tuned FILE"),
        (["--tuned", "no.json"], "tuned: cannot read no.json"),
        (["--port", "0"], "Invalid value for '--port'"),
        (["--engine-program", "no-such"], "engine-program: 'no-such' is not a program"),
        (["--engine-command", "x {args}"], "engine-command: {port} is missing"),
        (["--engine-command", "x", "--engine-program", "y"], "give either --engine-program or"),
        (["--arm", "ngram:k=4", "--", "--spec-type", "none"], "--spec-type: given twice"),
        (["--", "--port", "9"], "--port: give --port to `wager serve` itself"),
        (["stray"], "'stray' is no option of llama.cpp"),
    ],
)
def test_what_is_refused(
    model: str, llama: str, capsys: Capture, arguments: list[str], said: str
) -> None:
    if arguments and "--engine" not in arguments:
        arguments = ["--engine", "llamacpp", *arguments]
    if not any("--engine-" in word for word in arguments):
        arguments = ["--engine-program", llama, *arguments]
    assert main(["serve", model, *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.startswith("wager: error: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_tuned_file_of_another_model(
    tmp_path: Path, model: str, llama: str, capsys: Capture
) -> None:
    given = ["serve", "--engine", "llamacpp", model, "--engine-program", llama]
    assert main([*given, "--tuned", tuned_file(tmp_path, "org/other")]) == 2
    assert "measured with the model org/other, not " in capsys.readouterr().err
    assert main([*given, "--tuned", tuned_file(tmp_path, model, engine="vllm")]) == 2
    assert "was measured on vllm; serve with --engine vllm" in capsys.readouterr().err
