"""Streams: how events are written, and what becomes of a request whose client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.server.asgi import PATIENCE_S, Exchange
from tests.server.fakes import CHAT, NAME, TEXT, Client, FakeLLM, Say, spelled, tokenizer
from wager.models.tokenizer import Tokenizer
from wager.server import sse
from wager.server.errors import ApiError, timed_out

HI = [{"role": "user", "content": "hi"}]
BODIES = [(TEXT, {"prompt": "a"}), (TEXT, {"prompt": ["a", "b", "c"]}), (CHAT, {"messages": HI})]


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_an_event_is_one_line() -> None:
    """Also to clients for which more signs end a line than the standard says."""
    data = {"text": "a\n\nb\r 강🙂\u2028\u2029\x85\x0b\x0c\x1c\x1e", "n": None}
    written = sse.event(data)
    assert written.startswith(b"data: {")
    assert written.endswith(b"}\n\n")
    assert len(written.decode().splitlines()) == 2
    assert json.loads(written[6:]) == data


def test_events_are_json_as_the_standard_has_it() -> None:
    with pytest.raises(ValueError):
        sse.event({"x": float("nan")})


class Wire:
    """Keeps what is sent; from the ``fails_at``-th message on nobody takes any."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self._fails_at = fails_at

    async def send(self, message: Any) -> None:
        if self._fails_at is not None and len(self.sent) >= self._fails_at:
            raise OSError("gone")
        self.sent.append(dict(message))

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def _stream(wire: Wire, events: AsyncGenerator[bytes, None]) -> list[str]:
    closed: list[str] = []
    stack = AsyncExitStack()
    stack.callback(closed.append, "closed")
    response = sse.EventStream(b"first;", events, stack, "id")
    await response({"type": "http"}, wire.receive, wire.send)
    return closed


def test_a_stream_and_its_headers() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"second;"

    wire = Wire()
    assert asyncio.run(_stream(wire, events())) == ["closed"]
    headers = dict(wire.sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"cache-control"] == b"no-store"
    assert b"content-length" not in headers
    assert wire.body == b"first;second;"
    assert [message.get("more_body") for message in wire.sent[1:]] == [True, True, False]


def test_an_error_on_the_way_is_the_last_event() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"second;"
        raise ApiError(400, "n: too many", param="n")

    wire = Wire()
    assert asyncio.run(_stream(wire, events())) == ["closed"]
    assert wire.body.startswith(b"first;second;data: ")
    error = json.loads(wire.body.removeprefix(b"first;second;data: "))["error"]
    assert (error["message"], error["param"]) == ("n: too many", "n")
    assert wire.sent[-1]["more_body"] is False


def test_what_was_opened_is_closed_though_nobody_listens() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"second;"

    async def run() -> list[str]:
        closed: list[str] = []
        stack = AsyncExitStack()
        stack.callback(closed.append, "closed")
        response = sse.EventStream(b"first;", events(), stack, "id")
        wire = Wire(fails_at=1)
        with pytest.raises(OSError, match="gone"):
            await response({"type": "http"}, wire.receive, wire.send)
        return closed

    assert asyncio.run(run()) == ["closed"]


# Clients that go away


async def _leave(
    told: Client, path: str, body: dict[str, Any], end: Callable[[], None] | None = None
) -> Exchange:
    """Ask, and go away (or do something else that ends it) once the engine has been asked, and
    something came where it is a stream."""
    exchange = Exchange(**told.request(path, body))
    playing = asyncio.ensure_future(exchange.play(told.app))

    streamed = bool(body.get("stream")) and bool(told.llm.script)

    async def reached() -> None:
        # The head of a streamed reply, and the first part of its body.
        while not told.llm.asked or (streamed and len(exchange.sent) < 2):
            await asyncio.sleep(0.001)

    await asyncio.wait_for(reached(), PATIENCE_S)
    (end or exchange.leave)()
    await playing
    return exchange


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_client_that_leaves_aborts_its_request(
    spell: Tokenizer, path: str, body: dict[str, Any], said: bool, stream: bool
) -> None:
    script = [[Say("a", [70])]] if said else []
    told = Client(FakeLLM(spell, script, hang=True))
    asyncio.run(_leave(told, path, {**body, "stream": stream}))
    assert sorted(told.llm.aborted) == sorted(asked.request_id for asked in told.llm.asked)
    assert len(told.llm.aborted) == (3 if isinstance(body.get("prompt"), list) else 1)
    assert told.service.in_flight == 0
    rows = told.service.recent.rows()
    assert len(rows) == len(told.llm.aborted)
    assert {row["finish_reason"] for row in rows} == {"abort"}
    # The next one is served.
    told.llm.hang, told.llm.script = False, spelled(spell, "well")
    assert told.whole(TEXT, {"prompt": "a"})["choices"][0]["text"] == "well"


def test_a_request_that_takes_too_long(spell: Tokenizer) -> None:
    told = Client(FakeLLM(spell, [], hang=True))

    def time_is_over() -> None:
        (life,) = told.service.endings
        life.stop(timed_out(7.0))

    reply = asyncio.run(_leave(told, TEXT, {"prompt": "a"}, time_is_over))
    assert reply.status == 504
    assert len(told.llm.aborted) == 1
    told.llm.script = [[Say("a", [70])]]
    reply = asyncio.run(_leave(told, TEXT, {"prompt": "a", "stream": True}, time_is_over))
    assert reply.status == 200
    *_, last, end = reply.text.split("\n\n")
    assert end == ""
    assert "7 s" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert len(told.llm.aborted) == 2
    assert told.service.in_flight == 0


def test_nobody_is_let_in_beyond_the_queue(spell: Tokenizer) -> None:
    told = Client(FakeLLM(spell, spelled(spell, "a"), waiting=2), max_queue=2)
    reply = told.post(TEXT, {"prompt": "a", "model": NAME})
    assert reply.status == 429
    assert reply.header("retry-after") is not None
    assert told.llm.asked == []
