"""Clients that go away: while they wait, while their prompt is read, while their answer is written.

Their requests end within a step, nobody else notices, and nothing of them is left.
"""

from __future__ import annotations

import asyncio
import json
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server.answers import CHAT, TEXT, ask_all
from tests.e2e.server.harness import (
    PATIENCE_S,
    Live,
    request_bytes,
    serving,
    strict,
    until_closed,
    vanish,
)
from tests.recipes import ngram

LONG = {"prompt": [5, 6, 7, 8], "max_tokens": 1900, "ignore_eos": True, "temperature": 1.0,
        "seed": 1, "speculation": {"enabled": False}}  # fmt: skip


@pytest.fixture(scope="module")
def live(served_path: Path) -> Iterator[Live]:
    with serving(
        served_path, speculation=ngram(4, low=1), max_num_seqs=4, max_batch_tokens=32
    ) as live:
        yield live


@pytest.fixture(scope="module")
def single(served_path: Path) -> Iterator[Live]:
    """One request at a time."""
    with serving(served_path, speculation=ngram(4, low=1), max_num_seqs=1) as live:
        yield live


def sent(live: Live, body: dict[str, Any], route: str = TEXT) -> socket.socket:
    """A connection on which a request was sent; nothing is read yet."""
    connection = live.connect()
    connection.sendall(request_bytes(route, json.dumps(body).encode(), "connection: close"))
    return connection


def status_and_body(connection: socket.socket) -> tuple[int, bytes]:
    """The whole reply."""
    with connection:
        head, _, body = until_closed(connection).partition(b"\r\n\r\n")
    assert head, "closed without an answer"
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(_chunks(body))
    return int(head.split(b" ", 2)[1]), body


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        yield rest[:length]
        body = rest[length + 2 :]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.002)


def leave(
    live: Live, connection: socket.socket, close: Callable[[socket.socket], None] = vanish
) -> None:
    """Go away when the engine stands still, and wait until the server knows."""
    live.brake.reached()
    close(connection)
    wait_for(lambda: not live.unfinished(), "nobody noticed that the client is gone")


def aborted(live: Live) -> int:
    return live.llm.llm.engine.stats.aborted


@pytest.mark.parametrize("close", [socket.socket.close, vanish], ids=["closed", "reset"])
@pytest.mark.parametrize("route", [TEXT, CHAT])
def test_twenty_streams_left_at_a_random_token(
    route: str, close: Callable[[socket.socket], None], live: Live
) -> None:
    rng = random.Random(84)
    # With log-probabilities every token is told, also one whose text is kept back.
    body: dict[str, Any] = {**LONG, "stream": True, "logprobs": 0}
    if route == CHAT:
        body.update(messages=[{"role": "user", "content": "river river"}], logprobs=True)
        del body["prompt"]
    before = aborted(live)
    for number in range(20):
        with live.brake.on(rng.randrange(20, 60)):
            connection = sent(live, {**body, "seed": number}, route)
            wanted, seen = rng.randrange(1, 4000), 0
            while seen < wanted:
                part = connection.recv(wanted - seen)
                assert part, "the stream ended before it was left"
                seen += len(part)
            leave(live, connection, close)
        if number % 5 == 0:
            live.survives()
    live.survives()
    assert aborted(live) - before == 20


def test_a_reply_that_is_not_streamed_is_given_up_too(live: Live) -> None:
    before = aborted(live)
    for steps in (0, 1, 40):
        with live.brake.on(steps):
            leave(live, sent(live, LONG))
        live.settle()
    assert aborted(live) - before == 3
    live.survives()


def test_going_away_while_the_prompt_is_read(live: Live) -> None:
    """32 tokens of a step: a prompt of 2,000 takes 63 of them."""
    before = aborted(live)
    for number in range(10):
        prompt = [3 + (number + i * 7) % 200 for i in range(2000)]
        body = {**LONG, "prompt": prompt, "stream": number < 5}
        with live.brake.on(1 + 12 * (number % 5)):
            leave(live, sent(live, body))
            (request,) = live.llm.llm.engine.scheduler.running
            assert request.computed < len(prompt)
        live.settle()
    assert aborted(live) - before == 10
    live.survives()


def test_a_long_prompt_stalls_no_other_route(served_path: Path) -> None:
    """A pass of 2,000 rows lets the interpreter go, so that the rest of the server goes on."""
    with serving(served_path, max_batch_tokens=2048) as live:
        target = live.llm.llm.engine.target
        forward, marks = target.forward, [0]  # odd while a pass goes on

        def marked(*asked: Any) -> Any:
            marks[0] += 1
            passed = forward(*asked)
            marks[0] += 1
            return passed

        target.forward = marked  # type: ignore[method-assign]
        # Asked and answered within one and the same pass; a short one may be over before.
        within: set[str] = set()
        for number in range(64):
            prompt = [3 + (number + i) % 200 for i in range(2000)]
            begun = marks[0]
            with sent(live, {**LONG, "prompt": prompt, "max_tokens": 1}) as waiting:
                wait_for(lambda begun=begun: marks[0] > begun, "nothing has begun")
                while live.unfinished():
                    for path in ("/health", "/metrics"):
                        before = marks[0]
                        assert live.get(path).status_code == 200
                        if before % 2 and marks[0] == before:
                            within.add(path)
                assert until_closed(waiting).startswith(b"HTTP/1.1 200")
            if len(within) == 2:
                break
        assert within == {"/health", "/metrics"}
        live.survives()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_half_of_a_queue_goes_away(stream: bool, single: Live) -> None:
    """50 requests for one place, 25 connections dropped while they wait."""
    rng = random.Random(46)
    body = {"prompt": [5, 6, 7, 5, 6], "max_tokens": 3, "ignore_eos": True, "temperature": 0}
    expected = ask_all(single, [body])[0].text
    for round_number in range(20):
        doomed = set(rng.sample(range(50), 25))
        blocker = sent(single, {**LONG, "stream": True})
        assert blocker.recv(1)
        # Every other time they are known to wait; else they go and come as it happens.
        with single.brake.on() if round_number % 2 else nullcontext():
            waiting = [sent(single, {**body, "stream": stream}) for _ in range(50)]
            if round_number % 2:
                wait_for(lambda: single.llm.waiting == 50, "they do not wait")
            for number in sorted(doomed, key=lambda _: rng.random()):
                vanish(waiting[number])
            vanish(blocker)
            if round_number % 2:
                wait_for(lambda: single.unfinished() == 25, "nobody noticed who is gone")
        completed = 0
        for number, connection in enumerate(waiting):
            if number in doomed:
                continue
            status, reply = status_and_body(connection)
            assert status == 200, reply[:300]
            if not stream:
                assert strict(reply.decode())["choices"][0]["text"] == expected
            completed += reply.count(b"[DONE]") if stream else 1
        assert completed == 25
        single.settle()
    single.survives()


def test_aborts_that_meet_their_end(live: Live) -> None:
    """Requests of a few tokens, left at the moment at which they finish."""
    for number in range(150):
        connection = sent(live, {**LONG, "max_tokens": 1 + number % 3, "stream": True})
        if number % 2:
            connection.recv(64)
        vanish(connection)
    live.survives()


def test_those_that_leave_behind_their_request(live: Live) -> None:
    """Gone so many turns of the server's loop after the whole request came: also while it is known
    to be whole and not taken up yet. The engine stands still, so that no request ends by itself."""
    with live.brake.on():
        blocker = sent(live, LONG)
        wait_for(lambda: bool(live.service.endings), "it did not come")
        life: Any = next(iter(live.service.endings))
        loop = life._task.get_loop()
        content = request_bytes(TEXT, json.dumps(LONG).encode())
        for close in (socket.socket.close, vanish):
            for turns in range(16):
                connection = live.connect()
                connection.sendall(request_bytes("/version", b"", method="GET"))
                assert connection.recv(1 << 16)
                loop.call_soon_threadsafe(_ask_and_leave, loop, connection, content, turns, close)
                wait_for(partial(_closed, connection), "it did not leave")
        wait_for(lambda: len(live.service.endings) == 1, "one is left")
        wait_for(lambda: live.unfinished() == 1, "one is left")
        vanish(blocker)
        wait_for(lambda: not live.unfinished(), "the first one is left")
    live.survives()


def _closed(connection: socket.socket) -> bool:
    return connection.fileno() < 0


def _ask_and_leave(
    loop: asyncio.AbstractEventLoop,
    connection: socket.socket,
    content: bytes,
    turns: int,
    close: Callable[[socket.socket], None],
) -> None:
    """In the thread of the server's loop."""
    if content:
        connection.sendall(content)
    if turns:
        loop.call_soon(_ask_and_leave, loop, connection, b"", turns - 1, close)
    else:
        close(connection)


def test_a_client_that_does_not_read(live: Live) -> None:
    """Its buffers fill; the others go on, and so does the engine."""
    slow = [sent(live, {**LONG, "stream": True, "logprobs": 5, "seed": n}) for n in range(3)]
    try:
        for _ in range(3):
            assert live.probe() == live.first
    finally:
        for connection in slow:
            vanish(connection)
    live.survives()


# More than it can take


def test_two_hundred_open_streams(served_path: Path) -> None:
    """/health and /metrics answer all the same; what is too much is told so at once."""
    with serving(
        served_path, served={"max_queue": 64}, speculation=ngram(4, low=1), max_num_seqs=8
    ) as live:
        running = [sent(live, {**LONG, "stream": True, "seed": n}) for n in range(8)]
        for connection in running:
            assert connection.recv(1)
        with live.brake.on():
            streams = [sent(live, {**LONG, "stream": True, "seed": n}) for n in range(200)]
            # Nothing runs, so what can be read is refusals.
            wait_for(lambda: len(_readable(streams)) == 200 - 64, "they were not told")
            for path in ("/health", "/metrics", "/version"):
                assert live.get(path).status_code == 200
            assert live.llm.waiting == 64
            for connection in _readable(streams):
                head = connection.recv(4096)
                assert b" 429 " in head.split(b"\r\n", 1)[0], head[:200]
                assert b"retry-after: " in head.lower()
        for connection in (*running, *streams):
            vanish(connection)
        live.survives()


def _readable(connections: list[socket.socket]) -> list[socket.socket]:
    return select.select(connections, [], [], 0)[0]


def test_a_full_queue_takes_the_next_one_when_it_has_room(served_path: Path) -> None:
    with serving(served_path, served={"max_queue": 2}, max_num_seqs=1) as live:
        body = {**LONG, "stream": True}
        del body["speculation"]
        held = [sent(live, body)]
        assert held[0].recv(1)
        with live.brake.on():
            held += [sent(live, body) for _ in range(2)]
            wait_for(lambda: live.llm.waiting == 2, "the queue did not fill")
            reply = live.post(TEXT, {"prompt": [5], "max_tokens": 1})
            assert reply.status_code == 429
            assert int(reply.headers["retry-after"]) >= 1
            assert strict(reply.text)["error"]["message"]
            for connection in held:
                vanish(connection)
        live.survives()
