"""Sends a load of streaming requests and times what comes back, in a thread of its own.

One connection per request in flight. Whatever goes wrong with a request becomes the `error` of its
answer and ends nothing else.
"""

from __future__ import annotations

import asyncio
import json
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, count, cycle
from typing import Any, Final, Protocol

import httpx2

from wager.backend import Answer, Load, Prompt
from wager.errors import ConfigError
from wager.external.openai import error_text
from wager.external.reply import Reply, ReplyError

_CONNECT_S: Final = 10.0
_ERROR_BYTES: Final = 64 * 1024
_ERROR_CHARACTERS: Final = 300
_AFTER_FAILED_FILLER_S: Final = 0.2
_LARGEST_EVENT: Final = 16 * 1024 * 1024


class Wire(Protocol):
    """How an engine is asked and how its events are read; see `wager.external.openai`."""

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        """Path and JSON body of a streaming request."""
        ...

    def salt(self, body: dict[str, Any], salt: str) -> None:
        """Set in ``body`` what keeps the request from using another salt's cached prompts.

        Nothing where the engine has no such field.
        """
        ...

    def read(self, event: dict[str, Any], reply: Reply) -> None:
        """Take one event into the reply. Raises ReplyError."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. ``timeout_s`` bounds one request from first to last byte; ``proxies``
    says whether those of the environment are used."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    proxies: bool = False


def stream(wire: Wire, target: Target, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
    """See `wager.backend.Backend.stream`. Raises ConfigError for a load that is none.

    The prompts of one call share one salt; each uncounted request has a salt of its own.
    """
    if (load.clients is None) == (load.rate is None):
        raise ConfigError("load: give the number of clients or a rate, one of the two")
    if (load.clients if load.clients is not None else load.rate or 0) <= 0:
        raise ConfigError("load: clients and rate must be above 0")
    # Made here, in the caller's thread: a prompt that cannot be asked is its error.
    bodies = [_Ask(prompt, *wire.request(prompt)) for prompt in prompts]
    return _Run(wire, target, bodies, load).answers()


def needs_certificates(url: str) -> bool:
    """Whether certificates are checked; without TLS, loading them would cost 30 ms per client."""
    return url.startswith("https:")


@dataclass(frozen=True, slots=True)
class _Ask:
    prompt: Prompt
    path: str
    body: dict[str, Any]


_runs = count()


class _Run:
    def __init__(self, wire: Wire, target: Target, asks: list[_Ask], load: Load) -> None:
        self._wire, self._target, self._load = wire, target, load
        self._waiting = deque(asks)
        self._again = cycle(asks)
        self._left = len(asks)
        self._salt = f"{time.time_ns():x}-{next(_runs)}"
        self._fillers = count()
        self._out: queue.SimpleQueue[Answer | BaseException | None] = queue.SimpleQueue()
        self._up = threading.Event()

    def answers(self) -> Iterator[Answer]:
        thread = threading.Thread(target=self._thread, name="wager-client", daemon=True)
        thread.start()
        self._up.wait()
        try:
            while (item := self._out.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._over.set)
            thread.join()

    def _thread(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._out.put(error)
        finally:
            self._up.set()
            self._out.put(None)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._up.set()
        if not self._left:
            return
        client = httpx2.AsyncClient(
            trust_env=self._target.proxies,
            verify=needs_certificates(self._target.url),
            headers={"accept-encoding": "identity", **self._target.headers},
            # The whole request has its limit (see `_asked`); a timer for each read of its own would
            # be an eighth of what a piece of a stream costs here.
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            # A connection for each request: llama-server closes its own after every stream, without
            # a word, and one that is just closing cannot be told from one that is not.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )
        async with client as self._http:
            await self._load_libraries()
            work: asyncio.Future[Any]
            if self._load.clients is not None:
                work = asyncio.gather(*(self._client() for _ in range(self._load.clients)))
            else:
                work = asyncio.gather(*self._arrivals())
            over: asyncio.Future[Any] = asyncio.ensure_future(self._over.wait())
            try:
                await asyncio.wait([work, over], return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
            finally:
                work.cancel()
                over.cancel()
                await asyncio.gather(work, over, return_exceptions=True)

    async def _load_libraries(self) -> None:
        """The first request of a process loads modules for 20 ms: not within a timed one."""
        if "anyio._backends._asyncio" not in sys.modules:
            with suppress(httpx2.HTTPError, OSError):
                await self._http.get(f"{self._target.url}/v1/models", timeout=_CONNECT_S)

    async def _client(self) -> None:
        """One client of a closed loop. Goes on with uncounted requests until it is cancelled."""
        while not self._over.is_set():
            if self._waiting:
                await self._counted(self._waiting.popleft())
                continue
            answer = await self._asked(next(self._again), f"{self._salt}-{next(self._fillers)}")
            if answer.error is not None:
                # Nothing waits for this one: do not ask a server in trouble again and again.
                await asyncio.sleep(_AFTER_FAILED_FILLER_S)

    def _arrivals(self) -> list[Awaitable[None]]:
        """Each request at its own time, whatever became of those before it."""
        times = self.arrival_times(self._left)
        return [self._later(at, ask) for at, ask in zip(times, self._waiting, strict=True)]

    def arrival_times(self, number: int) -> list[float]:
        """Seconds since the start; the gaps are those of a Poisson process."""
        gaps = random.Random(self._load.seed)
        rate = self._load.rate or 1.0
        return [0.0, *accumulate(gaps.expovariate(rate) for _ in range(number - 1))]

    async def _later(self, at: float, ask: _Ask) -> None:
        await asyncio.sleep(at)
        await self._counted(ask)

    async def _counted(self, ask: _Ask) -> None:
        self._out.put(await self._asked(ask, self._salt))
        self._left -= 1
        if not self._left:
            self._over.set()

    async def _asked(self, ask: _Ask, salt: str) -> Answer:
        body = dict(ask.body)
        self._wire.salt(body, salt)
        content = json.dumps(body).encode()
        reply = Reply(ask.prompt)
        sent = time.perf_counter()
        error: str
        try:
            await asyncio.wait_for(
                self._read(ask.path, content, reply, sent), self._target.timeout_s
            )
            return reply.answer(reply.now)
        except ReplyError as failure:
            error = str(failure)
        except (asyncio.TimeoutError, TimeoutError, httpx2.TimeoutException):
            error = f"not finished after {self._target.timeout_s:g} s"
        except (httpx2.HTTPError, OSError) as failure:
            error = f"{type(failure).__name__}: {failure}".rstrip(": ")
        return reply.failed(time.perf_counter() - sent, error)

    async def _read(self, path: str, content: bytes, reply: Reply, sent: float) -> None:
        headers = {"content-type": "application/json"}
        url = self._target.url + path
        async with self._http.stream("POST", url, content=content, headers=headers) as response:
            if response.status_code != 200:
                raise ReplyError(f"HTTP {response.status_code}: {await _error(response)}")
            kind = response.headers.get("content-type", "")
            if "text/event-stream" not in kind:
                raise ReplyError(f"answered with {kind or 'no content type'}, not with a stream")
            async for event in httpx2.EventSource(response, _LARGEST_EVENT):
                reply.now = time.perf_counter() - sent
                if event.data == "[DONE]":
                    reply.done = True
                else:
                    self._take(event.data, reply)
        if not reply.done:
            raise ReplyError("the stream ended before the reply did")

    def _take(self, data: str, reply: Reply) -> None:
        try:
            event = json.loads(data)
            if isinstance(event, dict):
                self._wire.read(event, reply)
                return
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        reply.malformed += 1


async def _error(response: httpx2.Response) -> str:
    """The message in the body of a refusal, in one line."""
    found = b""
    async for part in response.aiter_bytes():
        found += part
        if len(found) > _ERROR_BYTES:
            break
    text = found.decode(errors="replace")
    with suppress(ValueError):
        text = error_text(json.loads(text))
    return " ".join(text.split())[:_ERROR_CHARACTERS]
