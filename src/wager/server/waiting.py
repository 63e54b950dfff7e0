"""Waiting with a bound, for handlers that are ended by being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(work: Awaitable[T], seconds: float) -> T:
    """What ``work`` gives. Raises asyncio.TimeoutError, and cancels it, if that takes longer.

    Unlike `asyncio.wait_for` before Python 3.12, which gives the result and forgets that it was
    cancelled where both come in the same turn of the loop. A handler would go on for a client that
    is gone.
    """
    running = asyncio.ensure_future(work)
    running.add_done_callback(_looked_at)
    try:
        done, _ = await asyncio.wait({running}, timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return running.result()
    finally:
        running.cancel()


def _looked_at(done: asyncio.Future[Any]) -> None:
    """What nobody waits for any more may fail without a line in the log."""
    if not done.cancelled():
        done.exception()
