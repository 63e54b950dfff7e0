"""`wager serve` as a program: started, killed, started again, told to stop, and refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.server.answers import TEXT
from tests.e2e.server.harness import PATIENCE_S, events, strict, until_closed
from tests.recipes import ngram
from tests.tiny import write_tiny_hf
from wager.external.process import free_port

DRAFTING = json.dumps(ngram(8, low=1, high=4))
BODY: dict[str, Any] = {"prompt": [40, 41, 42, 40, 41], "max_tokens": 12, "seed": 5,
                        "temperature": 0.8, "ignore_eos": True}  # fmt: skip
LONG: dict[str, Any] = {**BODY, "max_tokens": 1900, "stream": True,
                        "speculation": {"enabled": False}}  # fmt: skip


def _usual_signals() -> None:
    """What the test run itself was started to ignore (nohup) is not what is tested here."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "wager", "serve", *arguments]


@contextmanager
def started(
    log: Path, *arguments: str, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, ready, and the line that says so; killed at the end if it has not ended."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, **environ}, preexec_fn=_usual_signals,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " is ready after " in line, (line, log.read_text())
            yield process, line.rstrip("\n")
        finally:
            process.kill()


def served(path: Path, port: int) -> tuple[str, ...]:
    return (
        str(path), "--port", str(port), "--weights", "f32", "--threads", "1", "-sc", DRAFTING,
        "--served-model-name", "tiny", "--drain-timeout", str(PATIENCE_S),
    )  # fmt: skip


def ask(port: int, body: dict[str, Any] = BODY) -> Any:
    with httpx2.Client(trust_env=False, timeout=PATIENCE_S) as http:
        reply = http.post(f"http://127.0.0.1:{port}{TEXT}", json=body)
    assert reply.status_code == 200, reply.text
    return strict(reply.text)["choices"]


def opened(port: int, body: dict[str, Any]) -> socket.socket:
    """A stream of which the first bytes came."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    content = json.dumps(body).encode()
    head = (
        f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    assert connection.recv(16)
    return connection


def test_killed_and_started_again(served_path: Path, tmp_path: Path) -> None:
    """Clients see their connection close, and the next start serves at once, on the same port."""
    port = free_port()
    given = served(served_path, port)
    with started(tmp_path / "first.log", *given) as (process, _):
        expected = ask(port)
        # 128 answers, 32 at a time: none of the replies is whole by then.
        clients = [opened(port, {**LONG, "seed": n, "n": 16}) for n in range(8)]
        process.kill()
        for connection in clients:
            with connection:
                assert b"[DONE]" not in until_closed(connection)
        process.wait(PATIENCE_S)
        assert process.returncode == -signal.SIGKILL
    with pytest.raises(httpx2.ConnectError):
        ask(port)
    with started(tmp_path / "second.log", *given):
        assert ask(port) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_may_end_when_it_is_told_to_stop(
    number: signal.Signals, served_path: Path, tmp_path: Path
) -> None:
    port = free_port()
    with started(tmp_path / "log", *served(served_path, port)) as (process, _):
        connection = opened(port, {**LONG, "max_tokens": 800})
        process.send_signal(number)
        with connection:
            answer = until_closed(connection)
        assert b"[DONE]" in answer
        assert process.wait(PATIENCE_S) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_port_in_use_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(str(tmp_path / "no-model"), "--port", str(port))
    assert done.returncode == 2
    assert "--port" in done.stderr


# 47, 49: what cannot work is refused at the start


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def other_tokens(path: Path, into: Path) -> Path:
    """The same model, with two tokens of its vocabulary exchanged."""
    shutil.copytree(path, into)
    file = into / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    by_id = {token: word for word, token in words.items()}
    words[by_id[100]], words[by_id[101]] = 101, 100
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return into


BAD_PAIRS = [
    ({"method": "eagle3"}, "eagle3"),
    ({"method": "draft_model"}, "model"),
    ({"method": "draft_model", "model": "self"}, "self"),
    ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 2}, "prompt_lookup_min"),
    ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max"),
    ({"method": "ngram", "prompt_lookup_min": -1}, "prompt_lookup_min"),
    ({"method": "ngram", "num_speculative_tokens": 10**9}, "num_speculative_tokens"),
    ({"method": "ngram", "tokens": 4}, "tokens"),
    ({"method": "tests.nowhere:Drafter"}, "tests.nowhere"),
]


@pytest.mark.parametrize(("config", "named"), BAD_PAIRS, ids=lambda v: str(v)[:60])
def test_a_method_that_cannot_work(config: dict[str, Any], named: str, served_path: Path) -> None:
    done = run(str(served_path), "--port", str(free_port()), "-sc", json.dumps(config))
    assert done.returncode == 2
    assert " is ready " not in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("wager: error:")]
    assert named in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("as_draft", [False, True], ids=["target", "draft"])
def test_a_model_whose_cache_is_not_of_blocks(
    as_draft: bool, served_path: Path, tmp_path: Path
) -> None:
    """Layers that keep a state instead of keys and values, which no refused draft can leave."""
    config = {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
    recurrent = str(write_tiny_hf(tmp_path / "recurrent", config=config))
    drafting = {"method": "draft_model", "model": recurrent, "num_speculative_tokens": 4}
    given = (str(served_path), "-sc", json.dumps(drafting)) if as_draft else (recurrent,)
    done = run(*given, "--port", str(free_port()))
    assert done.returncode == 2
    assert " is ready " not in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("wager: error:")
    assert "Qwen3NextForCausalLM" in line


def test_a_draft_model_of_other_tokens(served_path: Path, tmp_path: Path) -> None:
    other = other_tokens(served_path, tmp_path / "other")
    config = {"method": "draft_model", "model": str(other), "num_speculative_tokens": 4}
    done = run(str(served_path), "--port", str(free_port()), "-sc", json.dumps(config))
    assert done.returncode == 2
    assert " is ready " not in done.stdout
    assert "token" in done.stderr


@pytest.mark.parametrize(
    ("config", "bounds"),
    [
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 4}, "lookup 1 to 4"),
        ({"prompt_lookup_max": 4}, "lookup 4 to 4"),
        ({"prompt_lookup_min": 2}, "lookup 2 to 2"),
        ({}, "lookup 5 to 5"),
    ],
)
def test_the_values_in_effect_are_told(
    config: dict[str, Any], bounds: str, served_path: Path, tmp_path: Path
) -> None:
    port = free_port()
    method = {"method": "ngram", "num_speculative_tokens": 4, **config}
    with started(
        tmp_path / "log", str(served_path), "--port", str(port), "-sc", json.dumps(method)
    ) as (_, line):
        assert bounds in line
        assert "at most 4 draft tokens" in line
        with httpx2.Client(trust_env=False, timeout=PATIENCE_S) as http:
            models = http.get(f"http://127.0.0.1:{port}/v1/models").text
            version = http.get(f"http://127.0.0.1:{port}/version").text
        assert bounds in models
        assert bounds in version


def test_what_the_log_says(served_path: Path, tmp_path: Path) -> None:
    """JSON lines with the request's id, and no key, prompt or answer among them."""
    port = free_port()
    given = (*served(served_path, port), "--json-logs", "--api-key", "a-secret-key")
    with started(tmp_path / "log", *given) as (process, line):
        with httpx2.Client(trust_env=False, timeout=PATIENCE_S) as http:
            headers = {"authorization": "Bearer a-secret-key", "x-request-id": "my-request"}
            body = {"prompt": "a word of the prompt", "max_tokens": 4, "seed": 1}
            reply = http.post(f"http://127.0.0.1:{port}{TEXT}", json=body, headers=headers)
            assert reply.headers["x-request-id"] == "my-request"
            wrong = {"authorization": "Bearer another-secret"}
            assert http.get(f"http://127.0.0.1:{port}/v1/models", headers=wrong).status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    lines = [strict(one) for one in (tmp_path / "log").read_text().splitlines()]
    assert any("my-request" in json.dumps(one) for one in lines)
    for secret in ("a-secret-key", "another-secret", "a word of the prompt"):
        assert secret not in (tmp_path / "log").read_text() + line


def test_a_stream_over_the_program(served_path: Path, tmp_path: Path) -> None:
    """The program as a whole gives what the application gives in the process of the tests."""
    port = free_port()
    with (
        started(tmp_path / "log", *served(served_path, port)),
        httpx2.Client(trust_env=False, timeout=PATIENCE_S) as http,
    ):
        text = http.post(f"http://127.0.0.1:{port}{TEXT}", json={**BODY, "stream": True}).text
        pieces = [choice["text"] for chunk in events(text.split("\n")) for choice in
                  chunk["choices"]]  # fmt: skip
        assert "".join(pieces) == ask(port)[0]["text"]
