"""The engine for asyncio: it steps in a thread of its own, and no event loop waits for a step.

Whatever is asked of it goes through one queue that its thread empties before every step, so that
an abort takes effect within a step in every phase of a request: queued, its prompt being read, or
decoding.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from wager.config import SamplingParams
from wager.engine.llm import LLM, Collector, Prompt
from wager.engine.snapshot import Snapshot
from wager.errors import ConfigError, RequestError
from wager.sampling.grammar import Hold, known
from wager.types import RequestOutput

log = logging.getLogger(__name__)

_Item: TypeAlias = RequestOutput | BaseException

_PUBLISH_S: Final = 0.05
"""Between two snapshots of an engine that has work: nobody looks more often."""
_LONG_TEXT: Final = 4096
"""Characters from which on reading a prompt is left to another thread."""
_PLACE_S: Final = 0.02
"""Between two looks whether the process of a grammar may be kept."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """Where what is new of one request goes. ``done``: nothing more comes. ``key`` is the engine's
    name of the request, once it has it."""

    name: str
    loop: asyncio.AbstractEventLoop
    inbox: asyncio.Queue[_Item] = field(default_factory=asyncio.Queue)
    done: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Add:
    ticket: _Ticket
    ids: list[int]
    params: SamplingParams
    cache_salt: str
    hold: Hold | None


@dataclass(frozen=True, slots=True)
class _Abort:
    """Of the request that has a name when this is read, or of one whose consumer has left."""

    of: str | _Ticket


class AsyncLLM:
    """The same as `LLM` for asyncio: requests that run at the same time share the steps.

        async with AsyncLLM("smollm2-135m") as llm:
            async for piece in llm.stream("Once upon a time"):
                print(piece.outputs[0].text, end="")

    ``model`` and the options are those of `LLM`; a loaded `LLM` will do too, and then belongs to
    the engine's thread, which closes it. Cancelling the consumer of a stream, or closing the
    stream, aborts its request.
    """

    def __init__(self, model: str | LLM, **options: Any) -> None:
        if isinstance(model, LLM):
            if options:
                raise ConfigError(f"{next(iter(options))}: the model is loaded already")
            self.llm = model
        else:
            self.llm = LLM(model, **options)
        self._numbers = itertools.count()
        self._commands: queue.SimpleQueue[_Add | _Abort | None] = queue.SimpleQueue()
        self._open: dict[str, _Ticket] = {}  # of consumers that are there
        # Of requests in the engine, by its own names and by those given: its thread's alone.
        self._taken: dict[str, _Ticket] = {}
        self._named: dict[str, _Ticket] = {}
        self._in_steps = 0
        self._busy = False
        self._beat = time.monotonic()
        self._failed: BaseException | None = None
        self._snapshot = Snapshot.of(self.llm.engine)
        self._published = 0.0
        self._closed = False
        # Nothing is put in behind the last command that the engine's thread looks at.
        self._door = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="wager-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort what runs and stop the engine."""
        with self._door:
            self._closed = True
            self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    # What goes on, from any thread

    @property
    def running(self) -> int:
        """Requests that take part in steps."""
        return min(self._in_steps, self._unfinished())

    @property
    def waiting(self) -> int:
        """Requests that were accepted and take no part in steps yet, or not now."""
        unfinished = self._unfinished()
        return unfinished - min(self._in_steps, unfinished)

    @property
    def snapshot(self) -> Snapshot:
        """The engine's figures as they were after one of its last steps; while it has nothing to
        do, after the last one."""
        return self._snapshot

    @property
    def stalled_s(self) -> float | None:
        """Seconds since the engine's last sign of progress; None while it has nothing to do."""
        return time.monotonic() - self._beat if self._busy else None

    @property
    def failed(self) -> BaseException | None:
        """Why the engine's thread ended; None while it runs, or if it was closed."""
        return self._failed

    def _unfinished(self) -> int:
        return sum(not ticket.done for ticket in list(self._open.values()))

    # Requests

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        request_id: str | None = None,
    ) -> RequestOutput:
        """Answer one prompt; run several at once with ``asyncio.gather``."""
        collector = Collector()
        pieces = self.stream(prompt, params, cache_salt=cache_salt, request_id=request_id)
        # Closed at once where this is cancelled, not when somebody collects the garbage.
        async with aclosing(pieces):
            async for piece in pieces:
                collector.add(piece)
        return collector.output()

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one prompt piece by piece: each item holds what is new.

        ``request_id`` must be in use by no other stream. A grammar is compiled before the request
        is queued, and waits for that while the running and the queued ones have as many others as
        may have processes. Raises RequestError for what cannot be served, Unavailable where the
        processes of grammars are lost, ConfigError once the engine is closed.
        """
        ids = await self._ids(prompt)
        name = request_id if request_id is not None else f"async-{next(self._numbers)}"
        ticket = _Ticket(name, asyncio.get_running_loop())
        asked = params or self.llm.default_params()
        # Handed over, not kept: once the engine has the request it holds the grammar itself.
        self._accept(_Add(ticket, ids, asked, cache_salt, await self._hold(asked)))
        try:
            while True:
                item = await ticket.inbox.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if item.finished:
                    return
        finally:
            del self._open[name]
            if not ticket.done:
                ticket.done = True
                # Not by its name, which another request may have by then.
                self._commands.put(_Abort(ticket))

    def abort(self, request_id: str) -> None:
        """End a request before the next step; its stream ends with the reason ``abort``. From any
        thread. Unknown ids are ignored: the request may have ended meanwhile."""
        self._commands.put(_Abort(request_id))

    async def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str) and len(prompt) > _LONG_TEXT:
            return await asyncio.to_thread(self.llm.prompt_ids, prompt)
        return self.llm.prompt_ids(prompt)

    async def _hold(self, params: SamplingParams) -> Hold | None:
        """The compiled grammar's, so that nothing is compiled in the engine's thread."""
        if params.structured is None:
            return None
        model = self.llm.model
        grammar = await asyncio.to_thread(
            known, model.tokenizer, model.generation.eos_ids, params.structured
        )
        hold = grammar.hold()
        while hold is None:
            if self._closed:
                raise ConfigError("AsyncLLM: is closed")
            await asyncio.sleep(_PLACE_S)
            hold = grammar.hold()
        await asyncio.to_thread(grammar.link)
        return hold

    def _accept(self, command: _Add) -> None:
        name = command.ticket.name
        with self._door:
            if self._closed:
                raise ConfigError("AsyncLLM: is closed")
            if name in self._open:
                raise RequestError(f"request_id: {name!r} is in use already")
            self._open[name] = command.ticket
            self._commands.put(command)

    # In the engine's thread

    def _run(self) -> None:
        engine = self.llm.engine
        reason = "AsyncLLM: closed while the request was running"
        try:
            while self._take_commands(wait=not engine.has_work()):
                if engine.has_work():
                    outputs = engine.step()
                    self._publish()
                    self._deliver(outputs)
        except BaseException as caught:
            log.critical("the engine failed, and nothing more is answered", exc_info=caught)
            self._failed = caught
            reason = "AsyncLLM: the engine failed"
        self._end(reason)

    def _take_commands(self, wait: bool) -> bool:
        """Act on what was asked for; False when it is time to stop."""
        while True:
            self._busy = not wait
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                self._beat = time.monotonic()
                return True
            self._beat = time.monotonic()
            self._busy = True
            wait = False
            if command is None:
                return False
            if isinstance(command, _Abort):
                self._abort(command.of)
            else:
                self._add(command)

    def _abort(self, of: str | _Ticket) -> None:
        ticket = self._named.get(of) if isinstance(of, str) else of
        # It may have ended meanwhile, and its name be another's.
        if ticket is not None and self._taken.get(ticket.key) is ticket:
            self.llm.engine.abort(ticket.key)

    def _add(self, command: _Add) -> None:
        ticket = command.ticket
        # A name is free for the next request as soon as its stream was left, but the engine has
        # the aborted one until it has told its end.
        name = None if ticket.name in self._taken else ticket.name
        try:
            ticket.key = self.llm.engine.add_request(
                command.ids, command.params, name, cache_salt=command.cache_salt
            )
        except Exception as error:
            # Whatever is wrong with it, one request never ends the others.
            ticket.done = True
            _hand_out(ticket.loop, [(ticket.inbox, error)])
            return
        self._taken[ticket.key] = self._named[ticket.name] = ticket

    def _publish(self) -> None:
        engine = self.llm.engine
        self._beat = time.monotonic()
        self._in_steps = len({s.request.request_id for s in engine.scheduler.running})
        if self._beat - self._published >= _PUBLISH_S or not engine.has_work():
            self._published = self._beat
            self._snapshot = Snapshot.of(engine, self._snapshot)

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Hand a step's outputs over, with one call for each event loop: a call wakes it up."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[_Item], _Item]]] = {}
        for output in outputs:
            ticket = self._taken.get(output.request_id)
            if ticket is None:
                continue
            if output.finished:
                ticket.done = True
                del self._taken[ticket.key]
                if self._named.get(ticket.name) is ticket:
                    del self._named[ticket.name]
            output.request_id = ticket.name
            batches.setdefault(ticket.loop, []).append((ticket.inbox, output))
        for loop, batch in batches.items():
            _hand_out(loop, batch)

    def _end(self, reason: str) -> None:
        """Tell everybody who still waits, and close the model."""
        with self._door:
            self._closed = True
        left = list(self._taken.values())
        # Before anybody is told: whoever is looks how it stands.
        self._taken.clear()
        self._named.clear()
        self._in_steps = 0
        self._busy = False
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Add):
                left.append(command.ticket)
        for ticket in left:
            ticket.done = True
            # One for each: what is raised in several tasks gathers the lines of all of them.
            error = ConfigError(reason)
            error.__cause__ = self._failed
            _hand_out(ticket.loop, [(ticket.inbox, error)])
        self.llm.close()


def _hand_out(
    loop: asyncio.AbstractEventLoop, batch: list[tuple[asyncio.Queue[_Item], _Item]]
) -> None:
    # A loop that was closed has no consumers left.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_put, batch)


def _put(batch: list[tuple[asyncio.Queue[_Item], _Item]]) -> None:
    for inbox, item in batch:
        inbox.put_nowait(item)
