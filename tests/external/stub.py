"""A server that plays scripts: what a client makes of a stream can then be known.

    with Stub([Script([(0.2, text("a")), (0.3, usage(1)), (0.3, DONE)])]) as stub:
        ...  # ask stub.url

Times are seconds since a request was read; the standard library only.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DONE = "[DONE]"


@dataclass(frozen=True)
class Script:
    """One reply. An event is a dict (sent as JSON), a str (sent as data) or bytes (sent raw).

    ``cut`` closes the connection in the middle; ``body`` replaces the stream.
    """

    events: Sequence[tuple[float, dict[str, Any] | str | bytes]] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    body: str | None = None
    cut: bool = False


def text(piece: str, ids: Sequence[int] | None = None, finish: str | None = None) -> dict[str, Any]:
    """An event of a completions stream."""
    choice: dict[str, Any] = {"index": 0, "text": piece, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = list(ids)
    return {"choices": [choice]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """An event of a chat stream: ``role``, ``content``, ``reasoning_content``."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(completion: int, prompt: int = 1, **more: Any) -> dict[str, Any]:
    """The usage record at the end of a stream."""
    return {
        "choices": [],
        "usage": {"completion_tokens": completion, "prompt_tokens": prompt, **more},
    }


def counters(family: str = "vllm", total: str = "_total", **values: dict[str, float]) -> str:
    """A metrics page: ``drafts={'engine="0"': 5}`` and so on, labels to values."""
    lines = []
    for name, series in values.items():
        for labels, value in series.items():
            lines.append(f"{family}:{name}{total}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"


@dataclass
class Stub:
    """The server, on a port of its own while the context lasts.

    ``scripts`` are played one per POST, the last one again and again; a function gets the number
    of the POST and its body. ``pages`` are served one per GET of /metrics in the same way; None
    is a 404. ``gets`` are further paths and the JSON they give. ``bodies``, ``paths`` and
    ``headers`` keep what was posted; ``closed`` counts replies that the client left before their
    end, ``most_open`` how many were open at once. With ``one_reply_each`` a second POST on a
    connection finds it closed, as llama-server's connections are after a stream, unannounced.
    """

    scripts: Sequence[Script] | Callable[[int, dict[str, Any]], Script] = ()
    pages: Sequence[str | None] = (None,)
    models: Sequence[str] = ("stub",)
    owner: str = "stub"
    gets: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    one_reply_each: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    closed: int = 0
    most_open: int = 0
    _open: int = 0
    _pages_read: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> _Server:
        """The server, listening; `serve_forever` of it serves."""
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.stub = self
        self.port = self._server.server_address[1]
        return self._server

    def __enter__(self) -> Stub:
        serve = self.open().serve_forever
        self._thread = threading.Thread(target=serve, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def posted(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Script:
        """Write down a POST; the script for it."""
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.paths.append(path)
            self.headers.append(headers)
            if callable(self.scripts):
                return self.scripts(number, body)
            return self.scripts[min(number, len(self.scripts) - 1)]

    def play(self, script: Script, client: socket.socket) -> None:
        """Send a stream's events, each at its time, until the end or until the client leaves."""
        with self._lock:
            self._open += 1
            self.most_open = max(self.most_open, self._open)
        began = time.perf_counter()
        try:
            for at, event in script.events:
                if self._left_before(began + at, client):
                    self.closed += 1
                    return
                data = _encoded(event)
                client.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            if not script.cut:
                client.sendall(b"0\r\n\r\n")
        except ConnectionError:
            self.closed += 1
        finally:
            with self._lock:
                self._open -= 1

    def _left_before(self, due: float, client: socket.socket) -> bool:
        """Wait until ``due``; True if the client leaves, or the stub ends, before."""
        while (left := due - time.perf_counter()) > 0:
            # Between two events of a stream a client sends nothing but its end.
            if select.select([client], [], [], min(left, 0.05))[0] or self._end.is_set():
                return True
        return False

    def got(self, path: str) -> tuple[int, str, str]:
        """Status, body and type of what a GET gives."""
        if path == "/metrics":
            with self._lock:
                page = self.pages[min(self._pages_read, len(self.pages) - 1)]
                self._pages_read += 1
            return (200, page, "text/plain") if page is not None else (404, "", "text/plain")
        if path == "/health":
            return 200, "", "text/plain"
        found = self.gets.get(path)
        if path == "/v1/models" and found is None:
            found = {"data": [{"id": name, "owned_by": self.owner} for name in self.models]}
        if found is None:
            return 404, "", "text/plain"
        return 200, json.dumps(found), "application/json"


class _Server(ThreadingHTTPServer):
    stub: Stub

    def handle_error(self, *_: object) -> None:
        """A client that went away is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Events are small: each must leave at once.
    disable_nagle_algorithm = True
    server: _Server
    posts = 0

    def do_GET(self) -> None:
        self._whole(*self.server.stub.got(self.path))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.posts += 1
        if self.server.stub.one_reply_each and self.posts > 1:
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        script = self.server.stub.posted(self.path, headers, json.loads(content))
        if script.body is not None or script.status != 200:
            self._whole(script.status, script.body or "", script.content_type)
            return
        self.send_response(200)
        self.send_header("content-type", script.content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.server.stub.play(script, self.connection)
        self.close_connection = script.cut or self.close_connection

    def _whole(self, status: int, body: str, kind: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing: the log of an engine is something that tests read."""


def _encoded(event: dict[str, Any] | str | bytes) -> bytes:
    if isinstance(event, bytes):
        return event
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
