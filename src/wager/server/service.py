"""What the handlers share: the engine, the options, the figures, and who is let in."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
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
_MOST_BODIES: Final = 32
"""Bodies of the largest size whose bytes may be there at a time, unparsed."""
_MOST_SMALL: Final = 64
"""Requests for the tokenizer alone that may be there at a time."""


class Ending(Protocol):
    """A request that is being answered, as the server sees it that wants to stop."""

    bounded: bool

    def stop(self, reason: ApiError) -> None:
        """End it: with this reply, if none has begun."""


class Service:
    """One server's state: the event loop's alone, so nothing here needs a lock.

    ``names`` are those under which the model is served, ``created`` is when, in seconds since 1970.
    ``in_flight`` counts the prompts of requests that were let in and have not left.
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
        self._incoming = 0  # bytes of bodies
        self._small = 0
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

    def check_room(self) -> None:
        """Raise ApiError where `admit` would let nobody in now."""
        if self.draining:
            raise shutting_down()
        most = self.options.max_queue
        # Those that were let in but are not with the engine yet are bounded as well.
        full = most + self.llm.llm.config.max_num_seqs
        if self.llm.waiting >= most or self.in_flight >= full:
            raise self._too_many()

    @asynccontextmanager
    async def admit(self, prompts: int = 1) -> AsyncIterator[None]:
        """Let a request with so many prompts in for as long as the block runs.

        Raises ApiError: 503 while the server shuts down, 429 with Retry-After when ``max_queue``
        prompts wait.
        """
        self.check_room()
        self.in_flight += prompts
        started = time.monotonic()
        try:
            yield
        finally:
            self.in_flight -= prompts
            took = time.monotonic() - started
            usual = self._usual_s
            self._usual_s = took if usual is None else usual + 0.1 * (took - usual)

    def check_small_room(self) -> None:
        """Raise ApiError where `admit_small` would let nobody in now."""
        if self.draining:
            raise shutting_down()
        if self._small >= _MOST_SMALL:
            raise _overloaded(f"{_MOST_SMALL} requests for the tokenizer wait already", 1)

    @asynccontextmanager
    async def admit_small(self) -> AsyncIterator[None]:
        """The same for a request that needs the tokenizer alone. Raises ApiError: 429 or 503."""
        self.check_small_room()
        self._small += 1
        try:
            yield
        finally:
            self._small -= 1

    @contextmanager
    def incoming(self) -> Iterator[Callable[[int], None]]:
        """Notes bytes of a body, which is there for as long as the block runs.

        That raises ApiError (429) where the bodies of all requests take too much memory.
        """
        noted = 0

        def note(size: int) -> None:
            nonlocal noted
            noted += size
            self._incoming += size
            if self._incoming > _MOST_BODIES * self.options.max_body:
                raise _overloaded("too many large requests arrive at the same time", 1)

        try:
            yield note
        finally:
            self._incoming -= noted

    def _too_many(self) -> ApiError:
        waiting = max(self.llm.waiting, 1)
        at_once = self.llm.llm.config.max_num_seqs
        expected = (self._usual_s or 1.0) * waiting / at_once
        retry = min(max(math.ceil(expected), 1), _SLOWEST_RETRY_S)
        reason = f"{self.options.max_queue} requests wait already"
        return _overloaded(reason, retry, ", or raise --max-queue")

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


def _overloaded(reason: str, retry_s: int, hint: str = "") -> ApiError:
    message = f"{reason}; try again in {retry_s} s{hint}"
    headers = {"retry-after": str(retry_s)}
    return ApiError(429, message, kind=OVERLOADED, code="queue_full", headers=headers)


def _printable(name: str) -> str:
    """As a header can carry it: its value may not end in a blank, and a name may be one."""
    plain = name.encode("ascii", "backslashreplace").decode()
    shown = "".join(sign if sign.isprintable() else "?" for sign in plain)[:_LONGEST_NAME]
    return shown if shown and shown == shown.strip() else f'"{shown}"'
