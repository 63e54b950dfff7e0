"""Connections that bring nothing, on a real port."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.live import (
    Flood,
    Held,
    Large,
    closed,
    connected,
    read_until,
    request_bytes,
    running,
    until,
)
from wager.server import connections, lifetime, run

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the bounds, in seconds."""

    def bounds(idle: float = 1e6, unread: float = 1e6) -> None:
        monkeypatch.setattr(connections, "_LOOK_S", 0.02)
        monkeypatch.setattr(connections, "IDLE_S", idle)
        monkeypatch.setattr(connections, "_UNREAD_S", unread)

    return bounds


@pytest.mark.parametrize("first", [b"", b"GET", HEALTH[:-2], b"POST /v1/comp"])
def test_one_that_brings_no_request_is_closed(first: bytes, impatient: Callable[..., None]) -> None:
    async def body() -> None:
        impatient(idle=0.1)
        async with running(Held()) as (server, _, _task):
            client = connected(server)
            client.sendall(first)
            assert await closed(client) == b""
            await until(lambda: not server.server_state.connections)

    asyncio.run(body())


def test_one_that_sends_a_byte_now_and_then_is_closed(impatient: Callable[..., None]) -> None:
    async def body() -> None:
        impatient(idle=0.2)
        async with running(Held()) as (server, _, _task):
            client = connected(server)
            await until(lambda: bool(server.server_state.connections))

            def gone() -> bool:
                with suppress(OSError):
                    client.send(b"x")
                return not server.server_state.connections

            client.sendall(b"GET /health HTTP/1.1\r\nx: ")
            await until(gone)
            client.close()

    asyncio.run(body())


def test_one_that_goes_on_behind_its_reply_is_closed(impatient: Callable[..., None]) -> None:
    """What it sends then is the rest of a body that nobody reads, without end."""

    async def body() -> None:
        impatient(idle=0.2)
        async with running(Held(), api_keys=("one",)) as (server, _, _task):
            client = connected(server)
            head = b"POST /v1/models HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
            client.sendall(head)
            assert b" 401 " in await asyncio.to_thread(client.recv, 100)

            def gone() -> bool:
                with suppress(OSError):
                    client.send(b"x")
                return not server.server_state.connections

            await until(gone)
            client.close()

    asyncio.run(body())


def test_one_that_waits_for_its_reply_is_not(
    impatient: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        impatient()
        looks = []
        look = connections.Connection._look

        def counted(self: Any) -> None:
            looks.append(self)
            look(self)

        monkeypatch.setattr(connections.Connection, "_look", counted)
        held = Held()
        async with running(held) as (server, _, _task):
            client = connected(server)
            client.sendall(request_bytes())
            await until(held.working.is_set)
            impatient(idle=0.0, unread=0.0)
            before = len(looks)
            await until(lambda: len(looks) > before + 3)
            assert len(server.server_state.connections) == 1
            held.go.set()
            # And then it is.
            assert (await closed(client)).endswith(b'{"done":true}')

    asyncio.run(body())


def test_who_does_not_read_a_whole_reply_is_cut(impatient: Callable[..., None]) -> None:
    async def body() -> None:
        impatient(unread=0.2)
        async with running(Large()) as (server, _, _task):
            with connected(server) as client:
                client.sendall(request_bytes())
                await until(lambda: bool(server.server_state.connections))
                await until(lambda: not server.server_state.connections)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("left", "ended"),
    [
        # Bytes that the client has not read yet, each ten seconds.
        ([9, 8, 7, 6, 5, 4, 3, 2, 1], []),
        ([9, 9, 9, 8, 8, 8, 7, 7, 7], []),
        ([9, 9, 9, 9], ["aborted"]),
        ([9, 8, 8, 8, 8], ["aborted"]),
        ([9, 0, 0, 0, 0, 0, 0, 0, 0], ["closed"]),
        ([0, 0, 0, 0, 0, 0, 0, 0], []),
    ],
)
def test_who_reads_slowly_is_not(left: list[int], ended: list[str]) -> None:
    now, found = [0.0], []
    one: Any = object.__new__(connections.Connection)
    one.loop = SimpleNamespace(time=lambda: now[0], call_later=lambda *_: None)
    one.cycle = SimpleNamespace(response_complete=True)
    one.since = 0.0
    one._unread, one._unread_since = 0, 0.0
    for size in left:
        one.transport = SimpleNamespace(
            get_write_buffer_size=lambda size=size: size,
            is_closing=lambda: bool(found),
            abort=lambda: found.append("aborted"),
            close=lambda: found.append("closed"),
        )
        one._look()
        now[0] += 10.0
    assert found[:1] == ended


def test_who_does_not_read_a_stream_has_his_time(
    impatient: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifetime, "LAST_WORDS_S", 0.1)

    async def body() -> None:
        impatient(unread=0.0)
        async with running(Flood(), request_timeout=2.0) as (server, _, _task):
            with connected(server) as client:
                client.sendall(request_bytes())
                await until(lambda: _stuck(server))
                await until(lambda: not server.server_state.connections)
                assert not server._service.endings

    asyncio.run(body())


def _stuck(server: run._MainServer) -> bool:
    """Whether there is a client whose buffers are full."""
    found: list[Any] = list(server.server_state.connections)
    return any(one.flow.write_paused for one in found)


def _count(server: run._MainServer) -> int:
    return len(server.server_state.connections)


# The end of the server


def test_a_second_signal_waits_for_nobody_who_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifetime, "LAST_WORDS_S", 0.05)
    monkeypatch.setattr(run, "_CUT_S", 0.2)

    async def body() -> None:
        async with running(Flood(), drain_timeout=600.0) as (server, _, task):
            with connected(server) as client:
                client.sendall(request_bytes())
                await until(lambda: _stuck(server))
                server.told(signal.SIGTERM)
                server.told(signal.SIGTERM)
                await until(task.done)
                assert server.status == 128 + signal.SIGTERM

    asyncio.run(body())


def test_a_third_signal_does_not_even_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_CUT_S", 1e6)

    async def body() -> None:
        async with running(Flood(), drain_timeout=600.0) as (server, _, task):
            with connected(server) as client:
                client.sendall(request_bytes())
                await until(lambda: _stuck(server))
                for _ in range(3):
                    server.told(signal.SIGINT)
                await until(task.done)

    asyncio.run(body())


def test_what_is_over_with_the_time_to_drain_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "LAST_WORDS_S", 0.05)
    monkeypatch.setattr(run, "_CUT_S", 0.2)
    monkeypatch.setattr(run, "_MARGIN_S", 600.0)

    async def body() -> None:
        async with running(Flood(), drain_timeout=0.1) as (server, _, task):
            with connected(server) as client:
                client.sendall(request_bytes())
                await until(lambda: _stuck(server))
                server.told(signal.SIGTERM)
                await until(task.done)
                assert server.status == 0

    asyncio.run(body())


# Many


def test_the_one_that_is_idle_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda _: 3)

    async def body() -> None:
        async with running(Held()) as (server, _, _task):
            idle: list[socket.socket] = []
            for _ in range(3):
                idle.append(connected(server))
                await until(lambda: _count(server) == len(idle))
            late = connected(server)
            late.sendall(HEALTH)
            assert b" 200 " in await asyncio.to_thread(late.recv, 100)
            assert await closed(idle[0]) == b""
            assert _count(server) == 3
            # Those behind it, and it itself, are as they were.
            for client in (idle[1], idle[2], late):
                client.sendall(HEALTH)
                assert await asyncio.to_thread(client.recv, 100)
                client.close()

    asyncio.run(body())


def test_one_that_is_answered_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda _: 2)

    async def body() -> None:
        held = Held()
        async with running(held) as (server, _, _task):
            busy = [connected(server) for _ in range(2)]
            for client in busy:
                client.sendall(request_bytes())
            await until(lambda: len(server._service.endings) == 2)
            await until(held.working.is_set)
            late = connected(server)
            with suppress(OSError):
                late.sendall(HEALTH)
            assert await closed(late) == b""
            held.go.set()
            for client in busy:
                await asyncio.to_thread(read_until, client, b"done")
                client.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("before", "queue", "after", "most"),
    [
        ((1024, 1 << 20), 256, 4096 + 1024 + 128, 4096),
        ((1024, 4096), 256, 4096, 4096 - 1024 - 128),
        ((1024, 1024), 256, 1024, 512),
        ((1024, resource.RLIM_INFINITY), 8000, 8000 + 1024 + 1024 + 128, 9024),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 256, resource.RLIM_INFINITY, 4096),
        ((1 << 20, 1 << 20), 256, 1 << 20, 4096),
    ],
)
def test_files_that_may_be_open(
    before: tuple[int, int], queue: int, after: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [before]
    monkeypatch.setattr("resource.getrlimit", lambda _: now[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: now.append(limits))
    connections.allow_files(queue)
    assert now[-1] == (after, before[1])
    assert connections.most_connections(queue) == most
