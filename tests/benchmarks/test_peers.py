"""The client of the real engines, against servers that say what those say."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers import LlamaServer, PeerError, Peers, VllmServer
from benchmarks.replies import Ask, Reply, rates

from benchmarks import peers

Serve = Callable[[list[Any]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that answers every POST with these events; returns its port."""
    servers: list[ThreadingHTTPServer] = []

    def start(events: list[Any]) -> int:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                for event in events:
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def client(kind: type[Any], port: int) -> Any:
    return kind("peer", port, None, Path())


def test_llama_counts_tokens_that_the_stream_left_out(serve: Serve) -> None:
    port = serve(
        [
            {"tokens": [5], "stop": False},
            {"tokens": [6, 7], "stop": False},
            {
                "tokens": [],
                "stop": True,
                "timings": {"predicted_n": 5, "prompt_n": 3, "draft_n": 4, "draft_n_accepted": 2},
            },
        ]
    )
    reply = client(LlamaServer, port).ask(Ask([1, 2, 3], 5))
    assert reply.tokens == [5, 6, 7]
    assert (reply.count, reply.first_count) == (5, 1)
    assert (reply.prompt_tokens, reply.drafted, reply.accepted) == (3, 4, 2)


def test_vllm_counts_by_usage(serve: Serve) -> None:
    port = serve(
        [
            {"choices": [{"token_ids": [5]}]},
            {"choices": [{"token_ids": [6, 7]}]},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}},
        ]
    )
    replies = client(VllmServer, port).ask_all([Ask([1, 2, 3], 3)] * 2)
    assert [reply.tokens for reply in replies] == [[5, 6, 7]] * 2
    assert [reply.count for reply in replies] == [3, 3]


@pytest.mark.parametrize("events", [[{"error": {"message": "no"}}], [{"choices": []}]])
def test_an_answer_without_tokens_is_an_error(serve: Serve, events: list[Any]) -> None:
    with pytest.raises(PeerError):
        client(VllmServer, serve(events)).ask_all([Ask([1], 1)])


def test_rates() -> None:
    """Two clients: 9 tokens after the first in 3 s, 4 in 2 s; all of them in 6 s."""
    fast = Reply(started=0.0, tokens=[0] * 10, count=10, first_count=1, first=1.0, last=4.0)
    slow = Reply(started=1.0, tokens=[0] * 5, count=5, first_count=1, first=4.0, last=6.0)
    found = rates([fast, slow])
    assert found.decode == pytest.approx(2.5)
    assert found.total == pytest.approx(15 / 6)
    assert found.tokens == 15


def test_one_arrival_has_no_decode_rate() -> None:
    reply = Reply(started=0.0)
    reply.take([1, 2, 3], 1.0)
    assert reply.decode_rate is None
    assert rates([reply]).decode is None


def test_a_peer_that_ends_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "START_TIMEOUT_S", 30.0)
    command = [sys.executable, "-c", "print('wrong option'); raise SystemExit(3)"]
    with (
        pytest.raises(PeerError, match="wrong option"),
        peers._running(LlamaServer, "peer", command, peers.free_port()),
    ):
        pass


def test_a_server_is_stopped_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also when it does not heed SIGTERM."""
    code = (
        "import signal, subprocess, sys, pathlib, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(peers, "STOP_TIMEOUT_S", 0.5)
    monkeypatch.setattr(LlamaServer, "wait_ready", lambda _: None)
    command = [sys.executable, "-c", code]
    with peers._running(LlamaServer, "peer", command, peers.free_port()) as server:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert server.process.poll() is None
    assert server.process.poll() is not None
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", (tmp_path / "pid").read_text()],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert state.strip()[:1] in {"", "Z"}


def test_a_part_is_there_when_it_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_PEERS", str(tmp_path))
    (tmp_path / "llama").mkdir()
    assert not Peers.find().has("llama")
    (tmp_path / "llama" / ".ready").touch()
    assert Peers.find().has("llama")
