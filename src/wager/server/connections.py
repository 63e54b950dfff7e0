"""Connections that bring nothing: nobody asks on them, their request never becomes whole, or nobody
reads what is sent. uvicorn ends only those that are idle behind a reply that was read.

Each is looked at every few seconds, so nothing is done for it while it works.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
IDLE_S: Final = 75.0
"""How long a connection may be without a request whose head is whole. Longer than the clients' own
bound, so that no client sends into a connection that is being closed."""
_UNREAD_S: Final = 30.0
"""How long a client may read nothing of a reply that is whole, or cut off."""
_MOST: Final = 4096
_BESIDE_QUEUE: Final = 1024
"""Connections beside those of requests that may wait."""
BACKLOG: Final = 1024
"""Connections that the system takes before the server does."""
_OTHER_FILES: Final = 128
_SAID_EVERY_S: Final = 60.0


class Connection(H11Protocol):
    """uvicorn's, with an end. Of more than ``most`` the one goes that is longest without a request
    that is whole; those that are being answered stay, so there is room for `/health`."""

    most: int = _MOST
    _said: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        # When it last had a whole reply, or came.
        self.since = self.loop.time()
        self._unread, self._unread_since = 0, self.since
        self._timer = self.loop.call_later(_LOOK_S, self._look)
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _dispensable(self) -> bool:
        """Whether it has no request that is whole."""
        return not self._answering or self.cycle.more_body

    def _look(self) -> None:
        now = self.loop.time()
        self._timer = self.loop.call_later(_LOOK_S, self._look)
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread != self._unread:
            self._unread, self._unread_since = unread, now
        over = self.transport.is_closing() or not self._answering
        if over and now - self._unread_since >= _UNREAD_S and unread:
            # Closing it would wait for the client.
            self.transport.abort()
        elif not self._answering and now - self.since >= IDLE_S and not unread:
            self.transport.close()

    def _make_room(self) -> None:
        others = [
            one
            for one in self.connections
            if isinstance(one, Connection) and one is not self and one._dispensable
        ]
        first = min(others, key=lambda one: one.since, default=self)
        # It counts no more, though it is told so a turn later.
        self.connections.discard(first)
        first.transport.abort()
        now = self.loop.time()
        if Connection._said is None or now - Connection._said >= _SAID_EVERY_S:
            Connection._said = now
            log.warning("more than %d connections: those without a request are cut", self.most)


def protocol(most: int) -> type[Connection]:
    """The class for a server that takes ``most`` connections."""

    class Bounded(Connection):
        pass

    Bounded.most = most
    return Bounded


def most_connections(max_queue: int) -> int:
    """How many there may be, for a queue of that length and with the files that may be open."""
    wanted = max(_MOST, max_queue + _BESIDE_QUEUE)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    # As many as the system holds ready may be taken at a time, before the first can be sent away.
    return min(wanted, max(allowed - BACKLOG - _OTHER_FILES, allowed // 2))


def allow_files(max_queue: int) -> None:
    """Have the system let this process open as many files as that needs, as far as it may."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(_MOST, max_queue + _BESIDE_QUEUE) + BACKLOG + _OTHER_FILES
    if most != resource.RLIM_INFINITY:
        needed = min(needed, most)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def cut(connections: Iterable[Any]) -> None:
    """End them all, whether somebody reads or not."""
    for one in list(connections):
        one.transport.abort()
