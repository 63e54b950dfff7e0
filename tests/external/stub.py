"""A server that plays scripts (recipe R6): what a client makes of a stream can then be known.

    with Stub([Script([(0.2, text("a")), (0.3, usage(1)), (0.3, DONE)])]) as stub:
        ...  # ask stub.url

Times are seconds since a request was read; the standard library only.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    is a 404. ``bodies`` and ``headers`` keep what was asked; ``closed`` counts replies that the
    client left before their end.
    """

    scripts: Sequence[Script] | Callable[[int, dict[str, Any]], Script] = ()
    pages: Sequence[str | None] = (None,)
    models: Sequence[str] = ("stub",)
    gets: dict[str, Any] = field(default_factory=dict)
    port: int = 0
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

    def __enter__(self) -> Stub:
        up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(up)), daemon=True)
        self._thread.start()
        assert up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def serve(self, up: threading.Event) -> None:
        """Serve until the context ends."""
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        up.set()
        await self._end.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.readline()
        if not first.strip():
            return False
        method, path, _ = first.decode().split()
        headers = {}
        while (line := (await reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "GET":
            status, body, kind = self._get(path)
            _whole(writer, status, body, kind)
            await writer.drain()
            return True
        number = len(self.bodies)
        self.bodies.append(json.loads(content))
        self.paths.append(path)
        self.headers.append(headers)
        script = self._script(number)
        if script.body is not None or script.status != 200:
            _whole(writer, script.status, script.body or "", script.content_type)
            return True
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        try:
            return await self._play(script, reader, writer)
        finally:
            self._open -= 1

    def _script(self, number: int) -> Script:
        if callable(self.scripts):
            return self.scripts(number, self.bodies[number])
        return self.scripts[min(number, len(self.scripts) - 1)]

    async def _play(
        self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        began = self._loop.time()
        gone = asyncio.ensure_future(reader.read(1))
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {script.content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        for at, event in script.events:
            await asyncio.wait([gone], timeout=max(0.0, began + at - self._loop.time()))
            if gone.done():
                self.closed += 1
                return False
            data = _encoded(event)
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        if script.cut:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        # The next request's first byte may have been taken: end the connection after each stream.
        gone.cancel()
        return False

    def _get(self, path: str) -> tuple[int, str, str]:
        if path == "/metrics":
            page = self.pages[min(self._pages_read, len(self.pages) - 1)]
            self._pages_read += 1
            return (200, page, "text/plain") if page is not None else (404, "", "text/plain")
        if path == "/health":
            return 200, "", "text/plain"
        if path == "/v1/models":
            models = [{"id": name} for name in self.models]
            return 200, json.dumps({"data": models}), "application/json"
        if path in self.gets:
            return 200, json.dumps(self.gets[path]), "application/json"
        return 404, "", "text/plain"


def _encoded(event: dict[str, Any] | str | bytes) -> bytes:
    if isinstance(event, bytes):
        return event
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()


def _whole(writer: asyncio.StreamWriter, status: int, body: str, kind: str) -> None:
    data = body.encode()
    writer.write(
        f"HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(data)}\r\n\r\n".encode()
        + data
    )
