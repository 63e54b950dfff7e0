"""The real application on a loopback port of its own, in this process, and how it is looked after.

`serving` starts it over a model on disk, `Live.survives` is the survivor probe: whatever was done
to the server, a small good request gives the answer it gave before, `/health` is well, and nothing
is left in the queue or in the KV pool.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import uvicorn

from tests.recipes import PATIENCE_S
from wager import AsyncLLM
from wager.server import run
from wager.server.app import create_app
from wager.server.options import ServerOptions
from wager.server.service import Service
from wager.types import RequestOutput

NAME = "tiny"

PROBE: dict[str, Any] = {
    "model": NAME,
    "prompt": [40, 41, 42, 43, 40, 41, 42, 43, 40],
    "max_tokens": 8,
    "temperature": 0.7,
    "seed": 11,
    "ignore_eos": True,
    "logprobs": 2,
}


class Recorder:
    """Keeps the token ids of every answer, which replies do not show. By (seed, prompt, choice)."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.ids: dict[tuple[int | None, tuple[int, ...], int], list[int]] = {}
        self._stream = llm.stream
        llm.stream = self.stream  # type: ignore[method-assign]

    async def stream(
        self, prompt: Any, *args: Any, **named: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        params = args[0] if args else named.get("params")
        seed = params.seed if params is not None else None
        mine: dict[int, list[int]] = {}
        async with aclosing(self._stream(prompt, *args, **named)) as pieces:
            async for piece in pieces:
                for choice in piece.outputs:
                    if choice.index not in mine:
                        # Of several equal requests at a time the one that began last is kept.
                        key = (seed, tuple(piece.prompt_token_ids), choice.index)
                        self.ids[key] = mine[choice.index] = []
                    mine[choice.index].extend(choice.token_ids)
                yield piece

    def of(self, seed: int) -> dict[tuple[tuple[int, ...], int], list[int]]:
        """The answers to the requests with this seed, by prompt and choice."""
        return {(prompt, n): ids for (own, prompt, n), ids in self.ids.items() if own == seed}


class Brake:
    """Lets the engine take as many steps as a test wants, so that what the others do meanwhile
    does not depend on how fast it is."""

    def __init__(self, llm: AsyncLLM) -> None:
        engine = llm.llm.engine
        self._step = engine.step
        self._changed = threading.Condition()
        self._left: int | None = None
        self._stands = False
        engine.step = self.step  # type: ignore[method-assign]

    def step(self) -> list[RequestOutput]:
        with self._changed:
            self._stands = self._left == 0
            self._changed.notify_all()
            released = self._changed.wait_for(lambda: self._left != 0, PATIENCE_S)
            assert released, "the brake was never let go"
            self._stands = False
            if self._left is not None:
                self._left -= 1
        return self._step()

    @contextmanager
    def on(self, steps: int = 0) -> Iterator[None]:
        """The engine takes this many steps yet, and the next one when the block is over."""
        with self._changed:
            self._left = steps
        try:
            yield
        finally:
            with self._changed:
                self._left, self._stands = None, False
                self._changed.notify_all()

    def reached(self) -> None:
        """Wait until the engine stands before the step that it may not take."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._stands, PATIENCE_S), "it has no work"


@dataclass
class Live:
    """A server that runs. ``http`` is for the test's own thread."""

    llm: AsyncLLM
    service: Service
    port: int
    http: httpx2.Client
    recorder: Recorder
    brake: Brake
    name: str = NAME
    headers: dict[str, str] = field(default_factory=dict)
    first: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx2.Response:
        return self.http.get(self.url + path, headers=self.headers)

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """``body`` as JSON; bytes are sent as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **self.headers, **headers}
        return self.http.post(self.url + path, content=content, headers=sent)

    def connect(self) -> socket.socket:
        """A connection without a client library around it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def in_use(self) -> int:
        """KV blocks that belong to a request."""
        return self.llm.llm.engine.pool.in_use

    @contextmanager
    def served_with(self, **given: Any) -> Iterator[None]:
        """Other options of the server, for the requests that come while the block runs."""
        before = self.service.options
        self.service.options = replace(before, **given)
        try:
            yield
        finally:
            self.service.options = before

    def unfinished(self) -> int:
        """Requests that somebody still waits for."""
        return self.llm.running + self.llm.waiting

    def settle(self) -> None:
        """Wait until no request is left."""
        until = time.monotonic() + PATIENCE_S
        while self.unfinished() or self.in_use() or self._engine_works():
            assert time.monotonic() < until, (
                f"left over: running {self.llm.running}, waiting {self.llm.waiting}, "
                f"blocks {self.in_use()}"
            )
            time.sleep(0.005)

    def _engine_works(self) -> bool:
        return self.llm.llm.engine.has_work()

    def probe(self) -> Any:
        """The choices of the answer to a fixed small request."""
        reply = self.post("/v1/completions", {**PROBE, "model": self.name})
        assert reply.status_code == 200, reply.text
        return strict(reply.text)["choices"]

    def survives(self) -> None:
        """The survivor probe."""
        health = self.get("/health")
        assert health.status_code == 200, health.text
        assert self.probe() == self.first
        self.settle()
        assert self.llm.failed is None


def options(port: int, **given: Any) -> ServerOptions:
    """Options of a server of the tests."""
    fields: dict[str, Any] = {
        "host": "127.0.0.1", "port": port, "served_names": (NAME,), "api_keys": (),
        "metrics_alias": "", "metrics_port": None, "dashboard_show_text": False,
        "json_logs": False, "drain_timeout": 1.0, **given,
    }  # fmt: skip
    return ServerOptions(**fields)


@contextmanager
def serving(
    model: Path | str,
    *,
    speculation: Any = None,
    served: Mapping[str, Any] | None = None,
    **engine: Any,
) -> Iterator[Live]:
    """A server over ``model``. ``served`` are fields of ServerOptions, the rest is the engine's."""
    engine = {"threads": 1, "check_integrity": True, "weights": "f32", **engine}
    given = dict(served or {})
    # As the server's own: asyncio sends small pieces at once on sockets that say they are TCP's.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        settled = options(port, **given)
        llm = AsyncLLM(str(model), speculation=speculation, **engine)
        try:
            recorder, brake = Recorder(llm), Brake(llm)
            app = create_app(llm, settled)
            # With the limits of the real server, without its signals.
            server = uvicorn.Server(run._config(app, settled))
            headers = {}
            if settled.api_keys:
                headers["authorization"] = f"Bearer {settled.api_keys[0]}"
            with (
                _running(server, listening),
                httpx2.Client(trust_env=False, timeout=PATIENCE_S) as http,
            ):
                live = Live(
                    llm, app.state.service, port, http, recorder, brake,
                    settled.served_names[0], headers,
                )  # fmt: skip
                live.first = live.probe()
                yield live
        finally:
            asyncio.run(llm.close())


@contextmanager
def _running(server: uvicorn.Server, listening: socket.socket) -> Iterator[None]:
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="wager-test-server", daemon=True
    )
    thread.start()
    try:
        until = time.monotonic() + PATIENCE_S
        while not server.started:
            assert thread.is_alive(), "the server ended while it started"
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not end"


# Replies


def _refuse(name: str) -> NoReturn:
    raise AssertionError(f"{name} in JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), f"a key twice: {[key for key, _ in pairs]}"
    return found


def strict(text: str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity, no key twice."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_pairs)


def error_of(reply: httpx2.Response) -> dict[str, Any]:
    """The error of a refusal, whose body has OpenAI's form and tells nothing of the inside."""
    body = strict(reply.text)
    assert set(body) == {"error"}, body
    error = body["error"]
    assert {"message", "type", "param", "code"} <= set(error), error
    assert isinstance(error["message"], str)
    assert error["message"]
    for inner in ("Traceback", "site-packages", 'File "', ".py", "object at 0x"):
        assert inner not in error["message"], error["message"]
    return dict(error)


def refusal(reply: httpx2.Response, field_name: str | None = None) -> dict[str, Any]:
    """A 400 whose ``param`` or message names the field."""
    assert reply.status_code == 400, f"{reply.status_code}: {reply.text[:500]}"
    error = error_of(reply)
    if field_name:
        named = error["param"] == field_name or field_name in error["message"]
        assert named, f"{field_name} is not named: {error}"
    return error


def events(lines: list[str]) -> list[dict[str, Any]]:
    """The events of a stream, which ends with ``[DONE]``."""
    found: list[dict[str, Any]] = []
    done = False
    for line in lines:
        if not line or line.startswith(":"):
            continue
        assert line.startswith("data: "), line
        assert not done, f"after [DONE]: {line}"
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            done = True
        else:
            found.append(strict(data))
    assert done, "the stream ended without [DONE]"
    return found


# Raw sockets


def request_bytes(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """An HTTP request as bytes."""
    lines = [
        f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json",
        f"content-length: {len(body)}", *headers,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def until_closed(connection: socket.socket, at_most: int = 1 << 22) -> bytes:
    """What comes until the other side closes; a reset counts as a close."""
    found = b""
    try:
        while len(found) < at_most and (part := connection.recv(65536)):
            found += part
    except TimeoutError:
        raise
    except OSError:
        pass
    return found


def vanish(connection: socket.socket) -> None:
    """Close with a reset: as a client that was killed, or whose machine went away."""
    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
