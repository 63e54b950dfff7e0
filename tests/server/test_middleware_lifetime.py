"""How requests end before their time: the client leaves, the time is over, the server stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.server.asgi import PATIENCE_S, Exchange, app_with
from wager.server.errors import timed_out
from wager.server.limits import read_json
from wager.server.service import Service, service_of


class Slow:
    """A handler that reads its request and then waits to be let go. Counts what becomes of it."""

    def __init__(self) -> None:
        self.working = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0
        self.done = 0

    async def __call__(self, request: Request) -> Response:
        await self.work(request)
        return JSONResponse({"done": True})

    async def work(self, request: Request) -> None:
        if request.method == "POST":
            await read_json(request)
        async with service_of(request).admit():
            self.working.set()
            try:
                await self.go.wait()
                self.done += 1
            except asyncio.CancelledError:
                self.cancelled += 1
                raise


class Streaming(Slow):
    """The same with two events, one before it waits."""

    kind = "text/event-stream"

    async def __call__(self, request: Request) -> Response:
        body = await read_json(request) if request.method == "POST" else {}
        return StreamingResponse(self.events(request, body), media_type=self.kind)

    async def events(self, request: Request, body: Any) -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        try:
            self.working.set()
            await self.go.wait()
            self.done += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        yield b"data: 2\n\n"


class Plain(Streaming):
    """The same with a reply that is no stream of events."""

    kind = "application/json"


def the_service(app: Any) -> Service:
    service = app.state.service
    assert isinstance(service, Service)
    return service


async def begin(handler: Slow, **given: Any) -> tuple[Any, Exchange, asyncio.Task[Exchange]]:
    """A request whose handler works."""
    method = given.pop("method", "POST")

    async def handle(request: Request) -> Response:
        return await handler(request)

    app = app_with(handle, **given)
    exchange = Exchange(method=method)
    task = asyncio.ensure_future(exchange.play(app))
    await asyncio.wait_for(handler.working.wait(), PATIENCE_S)
    return app, exchange, task


@pytest.mark.parametrize("kind", [Slow, Streaming, Plain])
def test_nothing_is_in_the_way_of_an_ordinary_request(kind: type[Slow]) -> None:
    async def run() -> None:
        handler = kind()
        app, exchange, task = await begin(handler)
        assert len(the_service(app).endings) == 1
        handler.go.set()
        await task
        assert exchange.status == 200
        assert exchange.complete
        assert (handler.done, handler.cancelled) == (1, 0)
        assert not the_service(app).endings
        assert the_service(app).in_flight == 0

    asyncio.run(run())


@pytest.mark.parametrize("kind", [Slow, Streaming, Plain])
def test_a_client_that_leaves_ends_its_request(kind: type[Slow]) -> None:
    async def run() -> None:
        handler = kind()
        app, exchange, task = await begin(handler)
        exchange.leave()
        await task
        assert (handler.done, handler.cancelled) == (0, 1)
        assert not exchange.complete
        assert the_service(app).in_flight == 0
        assert not the_service(app).endings

    asyncio.run(run())


def test_a_client_that_leaves_behind_the_last_byte_of_its_body() -> None:
    """It is gone in the turn of the loop in which its body is whole."""
    reached = []

    async def run() -> None:
        async def handle(request: Request) -> Response:
            await read_json(request)
            reached.append(True)
            return JSONResponse({})

        class Hasty(Exchange):
            async def _receive(self) -> dict[str, Any]:
                message = await super()._receive()
                self.leave()
                return message

        exchange = Hasty(body=[b"{", b"}"])
        await exchange.play(app_with(handle))
        assert exchange.read == 2
        assert exchange.sent == []

    asyncio.run(run())
    assert reached == []


def test_the_end_of_a_reply_is_not_taken_for_a_client_that_left() -> None:
    finished = []

    async def run() -> None:
        async def handle(request: Request) -> Response:
            await read_json(request)
            return Afterwards({"ok": True})

        class Afterwards(JSONResponse):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                await super().__call__(scope, receive, send)
                exchange.leave()
                await asyncio.sleep(0.01)
                finished.append(True)

        exchange = Exchange()
        await exchange.play(app_with(handle))
        assert exchange.complete

    asyncio.run(run())
    assert finished == [True]


def over(app: Any) -> None:
    """What the clock does when a request has had its time."""
    (life,) = the_service(app).endings
    life.stop(timed_out(7.0))


def test_the_time_of_a_request_is_bounded() -> None:
    async def run() -> None:
        handler = Slow()

        async def handle(request: Request) -> Response:
            return await handler(request)

        app = app_with(handle, request_timeout=0.05)
        exchange = await Exchange().play(app)
        assert handler.done == 0
        assert exchange.status == 504
        assert "0.05 s" in exchange.error["message"]
        assert the_service(app).in_flight == 0

    asyncio.run(run())


def test_a_stream_whose_time_is_over_says_so() -> None:
    async def run() -> None:
        app, exchange, task = await begin(Streaming())
        over(app)
        await task
        assert exchange.complete
        first, last, rest = exchange.text.split("\n\n")
        assert (first, rest) == ("data: 1", "")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"

    asyncio.run(run())


def test_any_other_reply_whose_time_is_over_is_cut_off() -> None:
    async def run() -> None:
        app, exchange, task = await begin(Plain())
        over(app)
        await task
        # The server closes a connection whose reply is not complete.
        assert not exchange.complete

    asyncio.run(run())


def test_pages_that_stay_open_have_no_such_bound() -> None:
    async def run() -> None:
        handler = Streaming()
        _, exchange, task = await begin(handler, method="GET", request_timeout=0.05)
        await asyncio.sleep(0.2)
        assert not task.done()
        handler.go.set()
        await task
        assert exchange.text == "data: 1\n\ndata: 2\n\n"

    asyncio.run(run())


def test_a_server_that_drains_lets_requests_end_and_closes_pages() -> None:
    async def run() -> None:
        page, request = Streaming(), Slow()
        app, open_page, first = await begin(page, method="GET")
        app.router.routes.insert(0, _route(request, "/v1/chat/completions"))
        asked = Exchange(path="/v1/chat/completions")
        second = asyncio.ensure_future(asked.play(app))
        await asyncio.wait_for(request.working.wait(), PATIENCE_S)
        the_service(app).drain()
        await first
        assert open_page.complete
        assert open_page.text == "data: 1\n\n"
        await asyncio.sleep(0.02)
        assert not second.done()
        late = await Exchange(path="/v1/chat/completions").play(app)
        assert late.status == 503
        assert late.error["code"] == "shutting_down"
        request.go.set()
        await second
        assert asked.status == 200

    asyncio.run(run())


@pytest.mark.parametrize("kind", [Slow, Streaming])
def test_what_runs_too_long_after_that_is_ended(kind: type[Slow]) -> None:
    async def run() -> None:
        handler = kind()
        app, exchange, task = await begin(handler)
        the_service(app).drain()
        the_service(app).expire()
        await task
        assert handler.cancelled == 1
        assert exchange.complete
        assert "shutting down" in exchange.text
        assert exchange.status == (503 if kind is Slow else 200)

    asyncio.run(run())


def test_who_cancels_the_server_cancels_the_handler() -> None:
    async def run() -> None:
        handler = Slow()
        _, exchange, task = await begin(handler)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert handler.cancelled == 1
        assert exchange.sent == []

    asyncio.run(run())


def _route(handler: Slow, path: str) -> Any:
    from starlette.routing import Route

    async def handle(request: Request) -> Response:
        return await handler(request)

    return Route(path, handle, methods=["GET", "POST"])
