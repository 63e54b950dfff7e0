"""Who is let in: no more than may wait, and nobody while the server shuts down."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.asgi import idle_llm
from wager.server.errors import ApiError
from wager.server.options import ServerOptions
from wager.server.service import Service


def service_with(**told: Any) -> Service:
    return Service(idle_llm(**told), ServerOptions(served_names=("tiny",), max_queue=3))


async def refused(service: Service) -> ApiError:
    with pytest.raises(ApiError) as caught:
        async with service.admit():
            raise AssertionError("let in")
    return caught.value


def test_as_many_may_wait_as_the_option_says() -> None:
    async def run() -> None:
        async with service_with(waiting=2).admit():
            pass
        error = await refused(service_with(waiting=3))
        assert error.status == 429
        assert error.kind == "rate_limit_error"
        assert 1 <= int(error.headers["retry-after"]) <= 60
        assert "--max-queue" in error.message

    asyncio.run(run())


def test_those_on_their_way_to_the_engine_count() -> None:
    """Three may wait and two run: a sixth that comes at once is one too many."""

    async def run() -> None:
        service = service_with()
        inside = [service.admit() for _ in range(5)]
        for one in inside:
            await one.__aenter__()
        assert service.in_flight == 5
        assert (await refused(service)).status == 429
        await inside[0].__aexit__(None, None, None)
        async with service.admit():
            assert service.in_flight == 5
        for one in inside[1:]:
            await one.__aexit__(None, None, None)
        assert service.in_flight == 0

    asyncio.run(run())


def test_whoever_fails_leaves_his_place() -> None:
    async def run() -> None:
        service = service_with()
        with pytest.raises(ZeroDivisionError):
            async with service.admit():
                raise ZeroDivisionError
        assert service.in_flight == 0

    asyncio.run(run())


def test_nobody_is_let_in_while_it_shuts_down() -> None:
    async def run() -> None:
        service = service_with()
        async with service.admit():
            service.drain()
            error = await refused(service)
        assert (error.status, error.code) == (503, "shutting_down")
        assert error.headers["retry-after"]

    asyncio.run(run())


def test_prompts_are_counted() -> None:
    async def run() -> None:
        service = service_with()
        async with service.admit(4), service.admit(3):
            assert service.in_flight == 7
            assert (await refused(service)).status == 429
        assert service.in_flight == 0

    asyncio.run(run())


def test_the_service_knows_its_names_and_defaults() -> None:
    service = service_with()
    assert service.names == ("tiny",)
    assert service.default_params().temperature == 0.5
    assert service.created > 1_600_000_000
