"""What the handlers share: the engine, the options, the figures, and who is let in."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.requests import Request

from wager.config import SamplingParams
from wager.server.errors import OVERLOADED, ApiError, shutting_down
from wager.server.options import ServerOptions

if TYPE_CHECKING:
    from wager.engine.service import AsyncLLM

log = logging.getLogger(__name__)

WARNINGS: Final = "wager_warnings"
"""The name under ``request.state`` of what goes into the header ``x-wager-warning``."""
_MOST_NAMES: Final = 16
_LONGEST_NAME: Final = 96
_SLOWEST_RETRY_S: Final = 60


class Ending(Protocol):
    """A request that is being answered, as the server sees it that wants to stop."""

    bounded: bool

    def stop(self, reason: ApiError) -> None:
        """End it: with this reply, if none has begun."""


class Service:
    """One server's state: the event loop's alone, so nothing here needs a lock.

    ``names`` are those under which the model is served, ``created`` is when, in seconds since 1970.
    ``in_flight`` counts the requests that were let in and have not left.
    """

    def __init__(self, llm: AsyncLLM, options: ServerOptions) -> None:
        # The figures know the service, so they are asked for when there is one.
        from wager.server.metrics import ServerMetrics
        from wager.server.truth import RecentRequests

        self.llm = llm
        self.options = options
        self.names = options.served_names
        self.created = int(time.time())
        self.in_flight = 0
        self.draining = False
        self.endings: set[Ending] = set()
        self._usual_s: float | None = None  # that a request takes, of late
        self.metrics = ServerMetrics(self)
        self.recent = RecentRequests(options.dashboard_show_text)

    def default_params(self) -> SamplingParams:
        """The model's own sampling defaults."""
        return self.llm.llm.default_params()

    def warn(self, request: Request, fields: Sequence[str]) -> None:
        """Say in the log and in the reply's header that unknown fields were ignored."""
        if not fields:
            return
        shown = [_printable(name) for name in fields[:_MOST_NAMES]]
        if len(fields) > _MOST_NAMES:
            shown.append(f"{len(fields) - _MOST_NAMES} more")
        self.say(request, f"unknown field(s) ignored: {', '.join(shown)}")

    def say(self, request: Request, warning: str) -> None:
        """Put a warning into the log and into the reply's header."""
        log.warning("%s", warning)
        known: list[str] = getattr(request.state, WARNINGS, [])
        setattr(request.state, WARNINGS, [*known, warning])

    # Admission

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Let a request in for as long as the block runs.

        Raises ApiError: 503 while the server shuts down, 429 with Retry-After when ``max_queue``
        requests wait.
        """
        if self.draining:
            raise shutting_down()
        most = self.options.max_queue
        # Those that were let in but are not with the engine yet are bounded as well.
        full = most + self.llm.llm.config.max_num_seqs
        if self.llm.waiting >= most or self.in_flight >= full:
            raise self._too_many()
        self.in_flight += 1
        started = time.monotonic()
        try:
            yield
        finally:
            self.in_flight -= 1
            took = time.monotonic() - started
            usual = self._usual_s
            self._usual_s = took if usual is None else usual + 0.1 * (took - usual)

    def _too_many(self) -> ApiError:
        waiting = max(self.llm.waiting, 1)
        at_once = self.llm.llm.config.max_num_seqs
        expected = (self._usual_s or 1.0) * waiting / at_once
        retry = min(max(math.ceil(expected), 1), _SLOWEST_RETRY_S)
        message = (
            f"{self.options.max_queue} requests wait already; try again in {retry} s, or raise "
            "--max-queue"
        )
        headers = {"retry-after": str(retry)}
        return ApiError(429, message, kind=OVERLOADED, code="queue_full", headers=headers)

    # Shutting down

    def drain(self) -> None:
        """Let nobody in any more. What would go on for ever, as a live page does, ends now."""
        self.draining = True
        self._stop(bounded=False)

    def expire(self) -> None:
        """End all that still runs."""
        self.draining = True
        self._stop(bounded=False)
        self._stop(bounded=True)

    def _stop(self, *, bounded: bool) -> None:
        for ending in [one for one in self.endings if one.bounded is bounded]:
            ending.stop(shutting_down())


def service_of(request: Request) -> Service:
    """The service that a handler works for."""
    service: Any = request.app.state.service
    if not isinstance(service, Service):
        raise TypeError("the application was not made by create_app")
    return service


def _printable(name: str) -> str:
    """As a header can carry it: its value may not end in a blank, and a name may be one."""
    plain = name.encode("ascii", "backslashreplace").decode()
    shown = "".join(sign if sign.isprintable() else "?" for sign in plain)[:_LONGEST_NAME]
    return shown if shown and shown == shown.strip() else f'"{shown}"'
