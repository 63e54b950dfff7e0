"""The server as a program and as a task: the port, the ready line, signals, and a graceful end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.recipes import ngram
from tests.server.asgi import PATIENCE_S, app_with, idle_llm
from tests.server.fakes import FakeLLM, tokenizer
from tests.server.live import Held, ask, running
from wager.errors import ConfigError
from wager.external.process import free_port
from wager.server import run
from wager.server.options import ServerOptions

GREEDY: dict[str, Any] = {
    "model": "tiny", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True,
}  # fmt: skip


# The program


def _usual_signals() -> None:
    """What the test run itself was started to ignore is not what is tested here."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def started(path: Path, port: int, *more: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """`wager serve` over the tiny model; killed at the end if it has not ended."""
    command = [
        sys.executable, "-m", "wager", "serve", str(path), "--port", str(port), "--threads", "1",
        "--weights", "f32", "--served-model-name", "tiny", *more,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **env},
        preexec_fn=_usual_signals,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if "is ready" not in line:
        _, err = process.communicate(timeout=PATIENCE_S)
        raise AssertionError(f"{line!r}, and on standard error: {err}")
    return line.rstrip("\n")


def ended(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    """Standard error of a server that was told to stop, and did in good order."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(tiny_path: Path, number: signal.Signals) -> None:
    port = free_port()
    with started(tiny_path, port, "-sc", json.dumps(ngram(4))) as process:
        line = ready_line(process)
        url = f"http://127.0.0.1:{port}"
        assert line.startswith("wager: tiny is ready after ")
        assert f" s at {url}; drafting: ngram, at most 4 draft tokens" in line
        assert line.endswith("weights f32, keys and values f32, 512 tokens of context, 32 at once")
        with httpx2.Client(trust_env=False, base_url=url, timeout=PATIENCE_S) as http:
            assert http.get("/health").json() == {"status": "ok"}
            reply = http.post("/v1/completions", json=GREEDY)
            assert reply.status_code == 200
            assert reply.json()["usage"]["completion_tokens"] == 8
            assert reply.headers["x-request-id"]
            assert "server" not in reply.headers
        err = ended(process, number)
    assert "POST /v1/completions: 200 in " in err
    assert reply.headers["x-request-id"] in err
    assert "told to stop" in err


def test_keys_json_logs_and_a_port_for_metrics(tiny_path: Path) -> None:
    port, side = free_port(), free_port()
    more = ("--json-logs", "--metrics-port", str(side), "--metrics-alias", "vllm")
    with started(tiny_path, port, *more, WAGER_API_KEY="first-key, second-key") as process:
        assert "plain decoding" in ready_line(process)
        assert process.stdout is not None
        assert f"127.0.0.1:{side}/metrics" in process.stdout.readline()
        with httpx2.Client(trust_env=False, timeout=PATIENCE_S) as http:
            url, beside = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{side}"
            assert http.get(f"{url}/health").status_code == 200
            assert http.get(f"{url}/metrics").status_code == 401
            keyed = {"authorization": "Bearer second-key"}
            assert http.get(f"{url}/metrics", headers=keyed).status_code == 200
            page = http.get(f"{beside}/metrics")
            assert page.status_code == 200
            assert "vllm:num_requests_running" in page.text
            assert http.get(f"{beside}/health").status_code == 200
            assert http.get(f"{beside}/v1/models").status_code == 404
        err = ended(process)
    lines = [json.loads(line) for line in err.splitlines()]
    refused = next(line for line in lines if line.get("status") == 401)
    assert (refused["path"], refused["level"]) == ("/metrics", "info")
    assert refused["request_id"]
    assert "second-key" not in err


def test_a_server_that_others_can_reach_says_so(tiny_path: Path) -> None:
    with started(tiny_path, free_port(), "--host", "0.0.0.0") as process:
        ready_line(process)
        err = ended(process)
    assert "can be reached from other machines, and there is no --api-key" in err


def test_a_port_in_use_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with started(tmp_path / "no-such-model", port) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert out == ""
    assert err.startswith(f"wager: error: port: cannot listen on 127.0.0.1:{port}: ")
    assert err.count("\n") == 1


def test_a_model_that_cannot_be_served_ends_it(tmp_path: Path) -> None:
    with started(tmp_path / "no-such-model", free_port()) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert out == ""
    assert "no-such-model" in err


def test_a_server_that_was_killed_starts_again_at_once(tiny_path: Path) -> None:
    port = free_port()
    body = json.dumps({**GREEDY, "max_tokens": 400, "stream": True})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    for _ in range(2):
        with started(tiny_path, port) as process:
            ready_line(process)
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
                client.sendall((head + body).encode())
                assert client.recv(15) == b"HTTP/1.1 200 OK"
                process.send_signal(signal.SIGKILL)
                process.wait(PATIENCE_S)
                # Not left hanging: what was on its way comes, and then the end.
                with suppress(ConnectionError):
                    while client.recv(65536):
                        pass


# In this process, with handlers that take as long as the test wants


def test_what_runs_may_end_and_nothing_new_is_taken() -> None:
    async def body() -> None:
        held = Held()
        async with running(held) as (server, http, task):
            asked = ask(http)
            await asyncio.wait_for(held.working.wait(), PATIENCE_S)
            server.told(signal.SIGTERM)
            while not server._service.draining:
                await asyncio.sleep(0.01)
            async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as other:
                with pytest.raises(httpx2.ConnectError):
                    await other.get(f"{http.base_url}/health")
            assert not task.done()
            held.go.set()
            assert (await asked).json() == {"done": True}
            await asyncio.wait_for(task, PATIENCE_S)
            assert server.status == 0

    asyncio.run(body())


def test_what_runs_too_long_is_told_so() -> None:
    async def body() -> None:
        held = Held()
        async with running(held, drain_timeout=0.2) as (server, http, task):
            asked = ask(http)
            await asyncio.wait_for(held.working.wait(), PATIENCE_S)
            server.told(signal.SIGTERM)
            reply = await asked
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] == "shutting_down"
            assert reply.headers["connection"] == "close"
            await asyncio.wait_for(task, PATIENCE_S)
            assert server.status == 0

    asyncio.run(body())


def test_a_second_signal_does_not_wait() -> None:
    async def body() -> None:
        held = Held()
        async with running(held, drain_timeout=600.0) as (server, http, task):
            asked = ask(http)
            await asyncio.wait_for(held.working.wait(), PATIENCE_S)
            server.told(signal.SIGTERM)
            server.told(signal.SIGINT)
            assert (await asked).status_code == 503
            await asyncio.wait_for(task, PATIENCE_S)
            assert server.status == 128 + signal.SIGINT

    asyncio.run(body())


def test_a_failed_engine_ends_the_server() -> None:
    async def body() -> None:
        llm = idle_llm()
        async with running(Held(), llm=llm) as (server, http, task):
            assert (await http.get("/health")).status_code == 200
            llm.failed = RuntimeError("the step broke")
            await asyncio.wait_for(task, PATIENCE_S)
            assert server.status == run.FAILED

    asyncio.run(body())


def test_a_client_that_hangs_up_ends_its_request() -> None:
    async def body() -> None:
        held = Held()
        async with running(held) as (server, _, _task):
            port = server._service.options.port
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
            writer.write(head.encode())
            await asyncio.wait_for(held.working.wait(), PATIENCE_S)
            assert len(server._service.endings) == 1
            writer.close()
            until = asyncio.get_running_loop().time() + PATIENCE_S
            while server._service.endings:
                assert asyncio.get_running_loop().time() < until
                await asyncio.sleep(0.005)
            assert not held.go.is_set()

    asyncio.run(body())


# The port


def test_a_second_server_that_cannot_listen_is_not_silently_missing() -> None:
    """Two may have bound a port at the same time; whoever is late to listen on it is refused."""

    async def body() -> None:
        port = free_port()
        with ExitStack() as opened:
            (first,) = run._bind("127.0.0.1", port, "metrics_port", opened)
            second = run._bind("127.0.0.1", port, "metrics_port", opened)
            first.listen()
            app = app_with()
            config = run._config(app, app.state.service.options)
            server = run._Server(config, "metrics_port", port)
            with pytest.raises(ConfigError, match=f"metrics_port: cannot listen on port {port}"):
                async with run._running(server, second):
                    raise AssertionError("it runs")

    asyncio.run(body())


def test_a_port_for_metrics_that_others_can_reach(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"host": "0.0.0.0", "metrics_port": 9000}
    run._warn_of_strangers(ServerOptions(**given))
    assert "9000" not in caplog.text
    run._warn_of_strangers(ServerOptions(**given, api_keys=("one",)))
    assert "port 9000 can be reached from other machines" in caplog.text


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "chat template is broken"),
        ("{{ raise_exception('system first') }}", ""),
        ("{{ messages[0].content }}", ""),
    ],
)
def test_a_broken_chat_template_is_told_at_the_start(
    template: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm: Any = FakeLLM(tokenizer(tmp_path, template))
    with caplog.at_level(logging.WARNING):
        run._warn_of_template(llm)
    assert bool(caplog.records) is bool(said)
    assert said in caplog.text


def test_a_host_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with ExitStack() as opened, pytest.raises(ConfigError, match=r"host: 'no-such\.invalid'"):
        run._bind("no-such.invalid", 8000, "port", opened)


def test_a_name_that_stands_for_several_addresses() -> None:
    with ExitStack() as opened:
        bound = run._bind("localhost", free_port(), "port", opened)
        assert {one.getsockname()[0] for one in bound} <= {"127.0.0.1", "::1"}
        assert bound


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"host": ""}, "host: "),
        ({"host": "a b"}, "host: "),
        ({"port": 0}, "port: "),
        ({"port": 65536}, "port: "),
        ({"metrics_port": 8000}, "metrics_port: 8000 is --port too"),
        ({"metrics_alias": "sglang"}, "metrics_alias: must be vllm"),
        ({"served_names": ()}, "served_model_name: "),
        ({"served_names": ("a", "")}, "served_model_name: "),
        ({"api_keys": ("",)}, "api_key: key 1 of 1 is empty"),
        ({"api_keys": ("good", "ü")}, "api_key: key 2 of 2"),
        ({"allowed_origins": ("localhost",)}, "allowed_origins: 'localhost' is no origin"),
        ({"allowed_origins": ("http://a/b",)}, "allowed_origins: "),
        ({"max_queue": 0}, "max_queue: "),
        ({"max_body": True}, "max_body: "),
        ({"max_depth": 1000}, "max_depth: "),
        ({"max_choices": 1.5}, "max_choices: "),
        ({"request_timeout": 0.0}, "request_timeout: "),
        ({"drain_timeout": float("inf")}, "drain_timeout: "),
        ({"json_logs": "yes"}, "json_logs: must be true or false"),
    ],
)
def test_options_that_cannot_work(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerOptions(**given)
    assert str(caught.value).startswith(message)
    assert "good" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:8000"),
        ("127.8.8.8", True, "http://127.8.8.8:8000"),
        ("::1", True, "http://[::1]:8000"),
        ("localhost", True, "http://localhost:8000"),
        ("0.0.0.0", False, "http://0.0.0.0:8000"),
        ("::", False, "http://[::]:8000"),
        ("10.0.0.1", False, "http://10.0.0.1:8000"),
        ("example.org", False, "http://example.org:8000"),
    ],
)
def test_who_can_reach_it(host: str, loopback: bool, url: str) -> None:
    options = ServerOptions(host=host)
    assert options.loopback is loopback
    assert options.url == url


def test_small_pieces_are_sent_at_once() -> None:
    """asyncio goes by the number of the protocol; with 0 each reply would wait 40 ms for the
    client's acknowledgement of its head."""
    with ExitStack() as opened:
        for one in run._bind("localhost", free_port(), "port", opened):
            assert one.proto == socket.IPPROTO_TCP
