"""How long a request may go on: until its client is gone, its time is over, or the server stops.

The handler runs as a task of its own. Once the body is read, nothing but the client's leaving can
come from it, so that is listened for while the handler works, whatever the handler waits for; what
it waits for is then cancelled, and with it the request in the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wager.server.errors import ApiError, timed_out
from wager.server.service import Service
from wager.server.waiting import within

LAST_WORDS_S: Final = 5.0
"""How long a client may take to hear why its request was ended."""


class Lifetimes:
    """Bounds the life of every request. POST requests have ``request_timeout``; others, such as
    pages that stay open, end when the server stops."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        life = _Life(scope, receive, send)
        self._service.endings.add(life)
        try:
            seconds = self._service.options.request_timeout if life.bounded else None
            await life.run(self._app, seconds)
        finally:
            self._service.endings.discard(life)


class _Life:
    """One request: ``receive`` and ``send`` are what its handler sees of the client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bounded = scope["method"] == "POST"
        self._scope = scope
        self._from_client = receive
        self._to_client = send
        self._gone = asyncio.Event()
        self._body_read = self._begun = self._ended = self._events = False
        self._task: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._reason: ApiError | None = None

    async def run(self, app: ASGIApp, seconds: float | None) -> None:
        """The handler, to its end. Raises what it raises."""
        task = self._task = asyncio.ensure_future(_call(app, self._scope, self.receive, self.send))
        timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self.stop, timed_out(seconds))
        try:
            await _until_done(task)
        finally:
            if timer is not None:
                timer.cancel()
            if self._listener is not None:
                self._listener.cancel()
        if not task.cancelled():
            task.result()
        elif self._reason is None and not self._gone.is_set():
            raise asyncio.CancelledError
        # A handler may have swallowed that it was cancelled, or have been done just before.
        if self._reason is not None and not self._ended:
            # The client may not listen any more either.
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._say(self._reason), LAST_WORDS_S)

    def stop(self, reason: ApiError | None) -> None:
        """End the request; ``reason`` is what its client is told, None where there is none."""
        if self._task is not None and not self._task.done():
            self._reason = self._reason or reason
            self._task.cancel()

    async def receive(self) -> Message:
        if self._body_read:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._from_client()
        if message["type"] == "http.disconnect":
            self._gone.set()
            self._body_read = True
        elif not message.get("more_body", False):
            self._body_read = True
            self._listener = asyncio.ensure_future(self._listen())
        return message

    async def send(self, message: Message) -> None:
        start = message["type"] == "http.response.start"
        if start:
            kinds = [value for name, value in message.get("headers", ()) if name == b"content-type"]
            self._events = any(kind.startswith(b"text/event-stream") for kind in kinds)
        elif not message.get("more_body", False):
            # Before it is sent: afterwards the server reports the end as a disconnect, too.
            self._ended = True
        await self._to_client(message)
        self._begun |= start

    async def _listen(self) -> None:
        while (await self._from_client())["type"] != "http.disconnect":
            pass
        self._gone.set()
        if not self._ended:
            self.stop(None)

    async def _say(self, reason: ApiError) -> None:
        """The reason as a reply, or as the last event of a stream that has begun."""
        if not self._begun:
            await reason.response()(self._scope, self._from_client, self._to_client)
        elif self._events:
            text = json.dumps(reason.body(), ensure_ascii=False, allow_nan=False)
            body = f"data: {text}\n\n".encode() if self.bounded else b""
            await self._to_client({"type": "http.response.body", "body": body, "more_body": False})
        # Of any other reply the rest is missing, which closing the connection says.


async def _call(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _until_done(task: asyncio.Task[None]) -> None:
    """Wait, whatever becomes of the task. Who cancels the waiting cancels the task."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
