"""Large replies: how many log-probabilities one may have, and how what is large is made and written
without holding up the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from wager.config import MAX_LOGPROBS, SamplingParams
from wager.errors import RequestError
from wager.server import sse
from wager.server.schema import ChatBody, CompletionBody

P = ParamSpec("P")
T = TypeVar("T")

MOST: Final = 1_000_000
"""Log-probabilities of one reply, with those of the alternatives. What one prompt and its answer
can have is given however long the context is."""
LARGE: Final = 4096
"""Entries from which on a reply is made and written in another thread."""
# What one call of the encoder writes: while it runs, no other thread does.
_SLICE: Final = 64


def is_large(
    body: ChatBody | CompletionBody,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    context: int,
) -> bool:
    """Whether the reply may have so many entries that making it takes long.

    Raises RequestError where it may have more log-probabilities than are given: what each field
    asks for is in order by itself, and their product is not.
    """
    tokens = sum(map(len, prompts))
    of_prompts, field = _of_prompts(body, params.n)
    of_answers = 0
    if params.logprobs is not None:
        longest = sum(min(params.max_tokens or context, context - len(ids)) for ids in prompts)
        of_answers = params.n * longest * (params.logprobs + 1)
    total = of_prompts * tokens + of_answers
    most = max(MOST, context * (MAX_LOGPROBS + 1))
    if total > most:
        if of_answers > of_prompts * tokens:
            field = "top_logprobs" if isinstance(body, ChatBody) else "logprobs"
        raise RequestError(
            f"{field}: with n, max_tokens and the length of the prompts the reply may have {total} "
            f"log-probabilities, and at most {most} are given; lower one of them"
        )
    text = isinstance(body, CompletionBody) and body.echo
    repeated = params.n * tokens if text or body.return_token_ids else 0
    return total + repeated > LARGE


def _of_prompts(body: ChatBody | CompletionBody, choices: int) -> tuple[int, str]:
    """Log-probabilities for each token of the prompts, and the field that asks for them."""
    each, field = 0, "prompt_logprobs"
    # The reply of a chat shows them once, each choice of a completion its own.
    shown = choices if isinstance(body, CompletionBody) else 1
    if body.prompt_logprobs is not None:
        each += shown * (body.prompt_logprobs + 1)
    if isinstance(body, CompletionBody) and body.echo and body.logprobs is not None:
        field = field if each else "logprobs"
        each += shown * (body.logprobs + 1)
    return each, field


async def apart(large: bool, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Do it in another thread where it may take long."""
    if large:
        return await asyncio.to_thread(work, *args, **named)
    return work(*args, **named)


async def event(data: Mapping[str, Any], large: bool) -> bytes:
    """One event of a stream."""
    if large:
        return b"data: " + await asyncio.to_thread(written, data) + b"\n\n"
    return sse.event(data)


def written(data: Mapping[str, Any]) -> bytes:
    """A reply as JSON, in ASCII: slower than the encoder by itself, which would let nobody else run
    until it has all of it."""
    return b"".join(part.encode("ascii") for part in _parts(data))


def _parts(value: Any, name: str = "") -> Iterator[str]:
    """JSON in parts. What is long are lists: of choices, and of the entries within them."""
    if isinstance(value, dict):
        between = "{"
        for key, inner in value.items():
            yield f"{between}{json.dumps(key)}:"
            yield from _parts(inner, key)
            between = ","
        yield "}" if value else "{}"
    elif isinstance(value, list) and value:
        size = 1 if name == "choices" else _SLICE
        for at in range(0, len(value), size):
            yield "," if at else "["
            if size == 1:
                yield from _parts(value[at])
            else:
                yield _json(value[at : at + size])[1:-1]
        yield "]"
    else:
        yield _json(value)


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
