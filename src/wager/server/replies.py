"""What the two routes share: a request on its way through the engine, and how its reply goes out.

The client that goes away, the time that is over and the server that stops all end a request by
cancelling its handler (`lifetime`); whatever this module waits for then closes the streams of the
engine, which aborts the request within a step.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wager import __version__
from wager.config import SamplingParams
from wager.errors import RequestError
from wager.server import bulk
from wager.server.errors import ApiError, request_id_of
from wager.server.failures import given_up, named
from wager.server.sse import EventStream
from wager.server.usage import Progress, Unfinished, figures, speed, usage
from wager.types import CompletionOutput, DraftCounts, RequestOutput

if TYPE_CHECKING:
    from wager.server.schema import StreamOptions
    from wager.server.service import Service

FINGERPRINT = f"wager-{__version__}"


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of a reply repeats."""

    id: str
    object: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, kind: str, model: str) -> Head:
        """With an id that no other reply has."""
        return cls(f"{prefix}-{secrets.token_hex(12)}", kind, int(time.time()), model)

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A reply, or a chunk of one."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
            **more,
        }


@dataclass(frozen=True, slots=True)
class Telling:
    """What a stream tells of the usage: at its ``end``, and ``always``, in every chunk."""

    end: bool = False
    always: bool = False


def telling(stream: bool, options: StreamOptions | None) -> Telling:
    """By ``stream_options``. Raises ApiError (400)."""
    if options is None:
        return Telling()
    if not stream:
        text = "stream_options: only with stream: true"
        raise ApiError(400, text, param="stream_options")
    end, always = bool(options.include_usage), bool(options.continuous_usage_stats)
    if always and not end:
        text = "stream_options: continuous_usage_stats needs include_usage: true"
        raise ApiError(400, text, param="stream_options")
    return Telling(end, always)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the engine is asked for. ``prompt_only``: the one token that it cannot but write is
    taken away again. ``large``: the reply may be, see `bulk`. ``form``: the field that asks for
    the form of the answer, if one does."""

    prompts: list[list[int]]
    params: SamplingParams
    cache_salt: str = ""
    prompt_only: bool = False
    large: bool = False
    form: str = ""


class Run:
    """The prompts of one request in the engine. ``prompts`` is how far each of them is."""

    def __init__(self, service: Service, asked: Asked, head: Head, route: str) -> None:
        self.service = service
        self.asked = asked
        self.head = head
        self._route = route
        now = time.perf_counter()
        self.prompts = [
            Progress(f"{head.id}-{number}", ids, asked.params, now)
            for number, ids in enumerate(asked.prompts)
        ]

    async def pieces(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """What is new, with the number of its prompt. Closing it aborts what is left.

        Raises RequestError for what the engine refuses, and ApiError (500) where the engine gave
        up on a request.
        """
        streams = [
            self.service.llm.stream(
                one.prompt_ids,
                self.asked.params,
                cache_salt=self.asked.cache_salt,
                request_id=one.name,
            )
            for one in self.prompts
        ]
        for one in self.prompts:
            one.begin(self.service)
        reason: Unfinished = "abort"
        try:
            async with aclosing(_merged(streams)) as merged:
                async for number, given in merged:
                    piece = _nothing_written(given) if self.asked.prompt_only else given
                    failure = self._take(number, piece)
                    if failure is None:
                        yield number, piece
                        continue
                    # Steps with drafts bring in one piece what others bring before the end.
                    if any(choice.text or choice.token_ids for choice in piece.outputs):
                        yield number, _without_end(piece)
                    raise failure
        except RequestError as error:
            reason = "error"
            raise named(error, self.asked.form) from error
        except Exception:
            reason = "error"
            raise
        finally:
            now = time.perf_counter()
            for one in self.prompts:
                if not one.over:
                    one.abandon(self._route, self.head.model, now, reason, self.service)

    def _take(self, number: int, piece: RequestOutput) -> ApiError | None:
        """Note what is new; returns why it is the last of this request, where it failed."""
        failed = [c.stop_reason for c in piece.outputs if c.finish_reason == "abort"]
        one = self.prompts[number]
        one.take(piece, time.perf_counter(), self.service)
        if failed:
            return given_up(failed, self.asked.params, self.asked.form)
        if piece.finished:
            one.finish(self._route, self.head.model, self.service)
        return None

    def usage(self, reasoning_tokens: int | None = None, sent: int | None = None) -> dict[str, Any]:
        """So far; of the answer's tokens only those that were ``sent``, where that is given."""
        return usage(
            sum(len(one.prompt_ids) for one in self.prompts),
            sum(one.tokens for one in self.prompts) if sent is None else sent,
            sum(one.cached_tokens for one in self.prompts),
            reasoning_tokens,
        )

    def outputs(self) -> list[RequestOutput]:
        """The whole answers, in the order of the prompts."""
        return [one.whole() for one in self.prompts]

    def figures(self) -> dict[str, Any]:
        """``speculation`` and ``timings``, once all is there."""
        return figures(self.outputs(), self.service)

    def index(self, number: int, choice: CompletionOutput) -> int:
        """The index of a choice in the reply: those of the first prompt come first."""
        return number * self.asked.params.n + choice.index

    async def whole_reply(self, make: Callable[[], dict[str, Any]]) -> Response:
        """A reply in one piece, which is made when all is there."""
        headers = speed(self.outputs())
        if not self.asked.large:
            return JSONResponse(make(), headers=headers)
        content = await asyncio.to_thread(lambda: bulk.written(make()))
        return Response(content, headers=headers, media_type=JSONResponse.media_type)


async def _merged(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The items of all streams as they come, with the stream's number."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    inbox: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

    async def pour(number: int) -> None:
        end: Exception | None = None
        try:
            async with aclosing(streams[number]) as stream:
                async for item in stream:
                    inbox.put_nowait((number, item))
        except Exception as error:
            end = error
        inbox.put_nowait((number, end))

    tasks = [asyncio.create_task(pour(number)) for number in range(len(streams))]
    left = len(tasks)
    try:
        while left:
            number, came = await inbox.get()
            if isinstance(came, RequestOutput):
                yield number, came
            elif came is None:
                left -= 1
            else:
                raise came
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _nothing_written(piece: RequestOutput) -> RequestOutput:
    """The same without the tokens of the answer."""
    return replace(piece, outputs=[_emptied(choice) for choice in piece.outputs])


def _without_end(piece: RequestOutput) -> RequestOutput:
    """The same where a choice that failed goes on: its end is told by the failure."""
    outputs = [
        replace(choice, finish_reason=None, stop_reason=None)
        if choice.finish_reason == "abort"
        else choice
        for choice in piece.outputs
    ]
    return replace(piece, outputs=outputs)


def _emptied(choice: CompletionOutput) -> CompletionOutput:
    ended = choice.finish_reason
    return CompletionOutput(
        index=choice.index,
        token_ids=[],
        text="",
        finish_reason="length" if ended in ("stop", "length") else ended,
        # Of an end that was none: why the token could not be written either.
        stop_reason=choice.stop_reason if ended == "abort" else None,
        logprobs=None if choice.logprobs is None else [],
        counts=DraftCounts(),
    )


class Reply(Protocol):
    """A reply of one of the routes, before anything was computed for it."""

    @property
    def stream(self) -> bool:
        """Whether it goes out while it is made."""
        ...

    async def whole(self) -> Response:
        """It in one piece."""
        ...

    def events(self) -> AsyncGenerator[bytes, None]:
        """It as the events of a stream; the first comes when nothing is refused any more."""
        ...


async def respond(
    request: Request, service: Service, prepare: Callable[[], Awaitable[Reply]], prompts: int = 1
) -> Response:
    """Let the request in, prepare it, and answer it. Raises what the handlers may raise."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(service.admit(prompts))
        reply = await prepare()
        if not reply.stream:
            return await reply.whole()
        events = await stack.enter_async_context(aclosing(reply.events()))
        first = await events.__anext__()
        return EventStream(first, events, stack.pop_all(), request_id_of(request))
    raise AssertionError("an exit stack that swallows exceptions")
