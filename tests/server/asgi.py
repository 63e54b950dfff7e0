"""Requests played to an application by hand, without a client library and without a port, and an
engine that only says what it is told to say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.recipes import PATIENCE_S
from wager.config import EngineConfig, SamplingParams
from wager.server.app import create_app
from wager.server.limits import read_json
from wager.server.options import ServerOptions

Headers = Iterable[tuple[str, str]]


def idle_llm(**told: Any) -> Any:
    """An AsyncLLM that never answers; ``told`` are what its properties say."""
    engine = SimpleNamespace(speculation=None, kv="f32", max_model_len=64)
    llm = SimpleNamespace(
        config=EngineConfig(max_num_seqs=2),
        engine=engine,
        model=SimpleNamespace(weights="f32"),
        default_params=lambda: SamplingParams(temperature=0.5),
    )
    state = {"waiting": 0, "running": 0, "stalled_s": None, "failed": None, "snapshot": None}
    return SimpleNamespace(llm=llm, **{**state, **told})


async def echo(request: Request) -> Response:
    """Answers with the body that it read."""
    return JSONResponse(await read_json(request))


def app_with(handler: Any = echo, path: str = "/v1/completions", **given: Any) -> Starlette:
    """The application with ``handler`` in front of its own routes. ``given``: ServerOptions, and
    ``llm``."""
    llm = given.pop("llm", None) or idle_llm()
    app = create_app(llm, ServerOptions(served_names=("tiny",), **given))
    app.router.routes.insert(0, Route(path, handler, methods=["GET", "POST"]))
    return app


@dataclass
class Exchange:
    """One request, its client, and what it has been told. ``leave`` makes the client go away.

    ``announce`` sends the body's length, ``unfinished`` says that more parts come, which never do.
    """

    method: str = "POST"
    path: str = "/v1/completions"
    body: bytes | Sequence[bytes] = b"{}"
    headers: Headers = (("content-type", "application/json"),)
    announce: bool = True
    unfinished: bool = False
    sent: list[dict[str, Any]] = field(default_factory=list)
    read: int = 0

    def __post_init__(self) -> None:
        self._parts = [self.body] if isinstance(self.body, bytes) else list(self.body)
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def play(self, app: Any) -> Exchange:
        """The whole exchange; returns itself."""
        headers = [(name.lower().encode(), value.encode()) for name, value in self.headers]
        if self.announce:
            length = sum(len(part) for part in self._parts)
            headers.append((b"content-length", str(length).encode()))
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1", "method": self.method, "scheme": "http", "path": self.path,
            "raw_path": self.path.encode(), "root_path": "", "query_string": b"",
            "headers": headers, "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9),
        }  # fmt: skip
        await asyncio.wait_for(app(scope, self._receive, self._send), PATIENCE_S)
        return self

    async def _receive(self) -> dict[str, Any]:
        if self.read < len(self._parts):
            self.read += 1
            part = self._parts[self.read - 1]
            more = self.unfinished or self.read < len(self._parts)
            return {"type": "http.request", "body": part, "more_body": more}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)
        self.sent.append(dict(message))

    # The reply

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    def header(self, name: str) -> str | None:
        found = dict(self.sent[0]["headers"]).get(name.encode())
        return None if found is None else found.decode("latin-1")

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent[1:]).decode()

    @property
    def complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", False)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a refusal, in OpenAI's form."""
        (error,) = json.loads(self.text).values()
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)


def played(app: Any, **request: Any) -> Exchange:
    """One request from start to end."""

    async def run() -> Exchange:
        return await Exchange(**request).play(app)

    return asyncio.run(run())


def get(app: Any, path: str, headers: Headers = ()) -> Exchange:
    return played(app, method="GET", path=path, body=b"", headers=headers)
