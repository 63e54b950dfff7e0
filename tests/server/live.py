"""The server of `wager serve` in this process, on a port of its own, with handlers that take as
long as a test wants."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.server.asgi import PATIENCE_S, app_with, idle_llm
from wager.external.process import free_port
from wager.server import run
from wager.server.limits import read_json


class Held:
    """A handler that answers when it is let go."""

    def __init__(self) -> None:
        self.working = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        await read_json(request)
        self.working.set()
        await self.go.wait()
        return JSONResponse({"done": True})


class Flood(Held):
    """A handler whose stream has no end."""

    async def __call__(self, request: Request) -> Response:
        await read_json(request)

        async def events() -> AsyncIterator[bytes]:
            while True:
                yield b"data: " + b"x" * 65536 + b"\n\n"
                await asyncio.sleep(0)

        return StreamingResponse(events(), media_type="text/event-stream")


class Large(Held):
    """A handler whose reply is whole at once, and more than the system keeps for its client."""

    async def __call__(self, request: Request) -> Response:
        await read_json(request)
        return Response(b"x" * (32 << 20))


@asynccontextmanager
async def running(
    held: Held, **given: Any
) -> AsyncIterator[tuple[run._MainServer, httpx2.AsyncClient, asyncio.Task[None]]]:
    async def handle(request: Request) -> Response:
        return await held(request)

    port = free_port()
    llm = given.pop("llm", None) or idle_llm()
    app = app_with(handle, llm=llm, port=port, **given)
    service = app.state.service
    ready = asyncio.Event()
    with ExitStack() as opened:
        sockets = run._bind("127.0.0.1", port, "port", opened)
        server = run._MainServer(run._config(app, service.options), service, ready.set)
        task = asyncio.ensure_future(server.serve(sockets=sockets))
        await asyncio.wait_for(ready.wait(), PATIENCE_S)
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(trust_env=False, base_url=url, timeout=PATIENCE_S) as http:
            yield server, http, task
        held.go.set()
        server.should_exit = True
        await asyncio.wait_for(task, PATIENCE_S)


def ask(http: httpx2.AsyncClient) -> asyncio.Task[httpx2.Response]:
    return asyncio.ensure_future(http.post("/v1/completions", json={}))


def request_bytes(more: str = "") -> bytes:
    """``more``: a header, with its end."""
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n{more}\r\n"
    return head.encode() + b"{}"


def connected(server: run._MainServer) -> socket.socket:
    """A client without a library around it, and with little room for what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", server._service.options.port))
    return client


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_S
    while not condition():
        assert loop.time() < end, "it did not come"
        await asyncio.sleep(0.005)


def read_until(client: socket.socket, wanted: bytes) -> bytes:
    """What comes up to and with ``wanted``, in however many pieces."""
    found = b""
    while wanted not in found:
        part = client.recv(4096)
        assert part, f"closed before {wanted!r} came: {found!r}"
        found += part
    return found


async def closed(client: socket.socket) -> bytes:
    """What comes until the other side closes; a reset counts as a close."""

    def rest() -> bytes:
        found = b""
        try:
            while part := client.recv(65536):
                found += part
        except ConnectionError:
            pass
        return found

    with client:
        return await asyncio.to_thread(rest)
