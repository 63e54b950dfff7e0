"""Waiting with a bound."""

from __future__ import annotations

import asyncio

import pytest

from tests.recipes import PATIENCE_S
from wager.server.waiting import within


def test_what_comes_in_time() -> None:
    async def run() -> None:
        async def work() -> int:
            await asyncio.sleep(0)
            return 5

        assert await within(work(), PATIENCE_S) == 5

    asyncio.run(run())


def test_what_fails_in_time() -> None:
    async def run() -> None:
        async def work() -> int:
            raise KeyError("a")

        with pytest.raises(KeyError):
            await within(work(), PATIENCE_S)

    asyncio.run(run())


def test_what_takes_too_long_is_cancelled() -> None:
    async def run() -> None:
        work = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await within(work, 0.01)
        assert work.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_being_cancelled_as_it_comes(turns: int, fails: bool) -> None:
    """The result is there, and whoever waits has not seen it yet: he is cancelled all the same."""

    async def run() -> None:
        work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        reached = []

        async def waits() -> None:
            await within(work, PATIENCE_S)
            reached.append(True)

        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        if fails:
            work.set_exception(KeyError("a"))
        else:
            work.set_result(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = task.done()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or was_done
        assert reached == ([True] if was_done and not fails else [])

    asyncio.run(run())


def test_who_is_cancelled_cancels_the_work() -> None:
    async def run() -> None:
        work = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(within(work, PATIENCE_S))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.cancelled()

    asyncio.run(run())
