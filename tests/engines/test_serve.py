"""`wager serve` with the real engines: started, read back, asked, ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from benchmarks.peers import Peers

from tests.cli.test_serve import left_of, lines_until
from tests.engines.conftest import require
from wager.external.process import free_port
from wager.external.tuned import Tuned

pytestmark = [pytest.mark.engines]

NGRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":2,"prompt_lookup_max":5}'
SIMPLE = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3")


def command(peers: Peers, engine: str, port: int) -> list[str]:
    programs = {"llamacpp": peers.llama("llama-server"), "vllm": str(peers.root / "vllm" / "serve")}
    model = {"llamacpp": peers.gguf("q8_0"), "vllm": peers.directory}[engine]
    given = ["--engine", engine, model, "--engine-program", programs[engine], "--port", str(port)]
    return [sys.executable, "-m", "wager", "serve", *given]


def served(arguments: list[str], port: int, log: Path) -> list[str]:
    """What it says until it is ready, after a request and a Ctrl-C that leave nothing behind."""
    with (
        log.open("w") as err,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=err, text=True) as process,
    ):
        try:
            # What is said of drafting is the last line.
            lines = [*lines_until(process, " is ready after "), *lines_until(process, "")]
            body = {"model": "m", "prompt": "one two three one two", "max_tokens": 8}
            url = f"http://127.0.0.1:{port}/v1/completions"
            assert httpx2.post(url, json=body, timeout=120).status_code == 200
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.terminate()
    assert not left_of(port)
    return lines


def test_llama_server_with_a_tuned_file(peers: Peers, tmp_path: Path) -> None:
    require(peers, "llama")
    port = free_port()
    tuned = tmp_path / "tuned.json"
    method = {"method": "ngram-simple", "spec-ngram-simple-size-n": 3}
    found = Tuned("llamacpp", None, peers.gguf("q8_0"), (), SIMPLE, method)
    tuned.write_text(found.to_json())
    options = ["--tuned", str(tuned), "--", "--ctx-size", "1024", "-np", "1", "--threads", "1"]
    lines = served([*command(peers, "llamacpp", port), *options], port, tmp_path / "log")
    assert lines[0].endswith(" ".join([*SIMPLE, *options[3:]]))
    assert lines[-1] == "wager: drafting is in effect (its page /slots)"
    assert "n_ctx_slot = 1024" in (tmp_path / "log").read_text()


def test_a_plain_llama_server_is_called_so(peers: Peers, tmp_path: Path) -> None:
    require(peers, "llama")
    port = free_port()
    options = ["--", "--ctx-size", "512", "-np", "1", "--threads", "1"]
    lines = served([*command(peers, "llamacpp", port), *options], port, tmp_path / "log")
    assert lines[-1] == "wager: plain decoding, nothing is drafted (its page /slots)"


def test_vllm_with_an_arm(peers: Peers, tmp_path: Path) -> None:
    require(peers, "vllm")
    port = free_port()
    options = ["-sc", NGRAM, "--", "--max-model-len", "512", "--served-model-name", "m"]
    lines = served([*command(peers, "vllm", port), *options], port, tmp_path / "log")
    assert lines[0].startswith("env ")
    assert "--no-enable-prefix-caching" not in lines[0]
    assert lines[-2].startswith("wager: vLLM 0.32.0 is ready after ")
    said = "wager: drafting is in effect (its log: SpeculativeConfig(method='ngram'"
    assert lines[-1].startswith(said)
