"""Server-Sent Events: replies that go out while they are made."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wager.server.errors import as_api_error

DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream that is whole; one that failed ends with an error instead."""
MEDIA_TYPE: Final = "text/event-stream"
# No line breaks to the standard, but to clients that read line by line as Python does.
_BREAKS: Final = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def event(data: Mapping[str, Any]) -> bytes:
    """One event. Its JSON has no line breaks, whoever counts them, so it takes one line."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if not text.isascii():
        for sign, escape in _BREAKS.items():
            text = text.replace(sign, escape)
    return f"data: {text}\n\n".encode()


class EventStream(Response):
    """A reply whose first event is there already: what can be refused was refused before.

    ``cleanup`` is closed when the stream is over, however that comes. A failure on the way is told
    as the last event, an ``error``, with no ``[DONE]`` behind it.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        cleanup: AsyncExitStack,
        request_id: str,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._first = first
        self._events = events
        self._cleanup = cleanup
        self._request_id = request_id
        # Proxies hold back what may be cached or compressed.
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._cleanup:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            await _send(send, self._first)
            try:
                async for one in self._events:
                    await _send(send, one)
            except Exception as error:
                await _send(send, event(as_api_error(error, self._request_id).body()))
            await _send(send, b"", more=False)


async def _send(send: Send, body: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
