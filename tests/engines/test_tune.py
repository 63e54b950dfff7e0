"""`wager tune` over the real engines: what it writes, they run.

How fast the arms are is the machine's affair; nothing here depends on it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from benchmarks.peers import Peers

from tests.engines.conftest import require
from wager.arms import PLAIN
from wager.bench.tune.space import Family, scheduled
from wager.cli.main import main
from wager.external.dialects import dialect
from wager.external.process import free_port
from wager.external.serve import tuned_arm
from wager.external.tuned import read_tuned

pytestmark = pytest.mark.engines

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "tuned.schema.json").read_text())
SCRIPT = Path(__file__).with_name("vllm_parser.py")
START_S = 240.0
Capture = pytest.CaptureFixture[str]
QUICK = ["--workload", "copy", "--prompts", "5", "--max-tokens", "16", "--max-model-len", "1024"]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except OSError:
        return 0, ""


@contextmanager
def pasted(line: str) -> Iterator[str]:
    """What a shell makes of a printed command, on a port that is free here; its address."""
    words = shlex.split(line)
    port = free_port("127.0.0.1")
    assert words.count("8000") == 1
    text = shlex.join(str(port) if word == "8000" else word for word in words)
    process = subprocess.Popen(
        text, shell=True, start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START_S
        while get(f"{url}/health")[0] != 200:
            assert process.poll() is None, f"it ended: {text}"
            assert time.monotonic() < end, f"not ready: {text}"
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def tuned(arguments: list[str], file: Path, capsys: Capture) -> tuple[Any, str]:
    """What was written, and the command as it was printed."""
    assert main(["tune", *arguments, "-o", str(file), "--no-color"]) == 0
    found = json.loads(file.read_text())
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    lines = capsys.readouterr().out.splitlines()
    command = lines[lines.index("Command:") + 1]
    assert shlex.split(command) == found["command"]
    return found, command


def checked(arguments: list[str], file: Path, capsys: Capture) -> None:
    """Measured again; whether it comes out is the machine's affair."""
    status = main(["tune", *arguments, "--check", str(file), "--no-color"])
    said = capsys.readouterr().out
    if json.loads(file.read_text())["speculation"] is None:
        assert (status, "no speed-up to check" in said) == (0, True)
    else:
        assert status in (0, 1)
        assert "expectations hold" in said


def test_llama_server(peers: Peers, tmp_path: Path, capsys: Capture) -> None:
    require(peers, "llama")
    file = tmp_path / "tuned.json"
    model = [peers.gguf("q8_0"), "--engine", "llamacpp"]
    program = ["--engine-program", peers.llama("llama-server")]
    more = ["--clients", "1,2", "--methods", "ngram-simple", "--max-k", "4", "--threads", "2"]
    found, command = tuned([*model, *program, *QUICK, *more], file, capsys)
    assert found["engine"] == "llamacpp"
    assert found["version"].startswith("b")
    record = read_tuned(file)
    arm = tuned_arm(record)
    assert (arm.name == PLAIN) == (found["speculation"] is None)
    with pasted(command) as url:
        slots = json.loads(get(f"{url}/slots")[1])
        assert [slot["n_ctx"] for slot in slots] == [1024, 1024]
        assert {slot["speculative"] for slot in slots} == {arm.name != PLAIN}
    checked([*model], file, capsys)


def test_vllm(peers: Peers, tmp_path: Path, capsys: Capture) -> None:
    require(peers, "vllm")
    file = tmp_path / "tuned.json"
    program = str(peers.root / "vllm" / "serve")
    model = [peers.directory, "--engine", "vllm", "--engine-program", program]
    more = ["--clients", "1", "--methods", "ngram:k=4,min=2,max=5"]
    found, command = tuned([*model, *QUICK, *more], file, capsys)
    assert found["version"].startswith("0.")
    with pasted(command) as url:
        # It does not start with a config that it cannot make sense of.
        assert get(f"{url}/v1/models")[0] == 200
    assert ("--speculative-config" in command) == (found["speculation"] is not None)


def test_vllm_takes_a_schedule(peers: Peers) -> None:
    require(peers, "vllm")
    family = Family("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 5}, (2, 8))
    arguments = dialect("vllm").write(scheduled(family, [(1, 8), (8, 2), (32, 0)]).speculation)
    run = subprocess.run(
        [str(peers.root / "vllm" / "bin" / "python"), str(SCRIPT), peers.directory],
        input=json.dumps([["serve", peers.directory, *arguments.arguments]]),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    (said,) = (json.loads(s[5:]) for s in run.stdout.splitlines() if s.startswith("SAID "))
    assert (said["error"], said["checked"]) == (None, "whole")
    schedule = said["num_speculative_tokens_per_batch_size"]
    assert [list(row) for row in schedule] == [[1, 2, 8], [3, 16, 2], [17, 1024, 0]]
    assert said["num_speculative_tokens"] == 8
