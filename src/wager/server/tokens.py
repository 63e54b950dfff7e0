"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wager.errors import RequestError
from wager.server import fields
from wager.server.convert import check_model
from wager.server.limits import read_json
from wager.server.schema import DetokenizeBody, TokenizeBody, parse
from wager.server.service import Service, service_of
from wager.server.talk import encoded, render

B = TypeVar("B", TokenizeBody, DetokenizeBody)


async def tokenize(request: Request) -> Response:
    """Token ids of a prompt, or of messages as the chat route reads them: prompts that are too
    long for the context, too."""
    service = service_of(request)
    raw, body = await _read(request, TokenizeBody, service)
    return await _answered(service, lambda: _tokenized(raw, body, service))


async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    _, body = await _read(request, DetokenizeBody, service)
    return await _answered(service, lambda: _detokenized(body, service))


async def _read(request: Request, kind: type[B], service: Service) -> tuple[dict[str, Any], B]:
    raw = await read_json(request, service.check_small_room)
    names = _names(kind)
    service.warn(request, fields.check_small(raw, names))
    body = parse(kind, raw)
    check_model(body.model, service)
    return {name: raw[name] for name in names if name in raw}, body


def _names(kind: type[BaseModel]) -> frozenset[str]:
    return frozenset(kind.model_fields)


async def _answered(service: Service, work: Callable[[], Response]) -> Response:
    async with service.admit_small():
        return await asyncio.get_running_loop().run_in_executor(_workers(), work)


@lru_cache(maxsize=1)
def _workers() -> ThreadPoolExecutor:
    # Apart from the threads that read prompts: many of these hold up no request for tokens.
    return ThreadPoolExecutor(2, thread_name_prefix="wager-tokenize")


def _tokenized(raw: Mapping[str, Any], body: TokenizeBody, service: Service) -> Response:
    """Raises ApiError or RequestError."""
    ids = _ids(raw, body, service)
    tokenizer = service.llm.llm.tokenizer
    shown = None
    if body.return_token_strs:
        shown = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
    return JSONResponse(
        {
            "count": len(ids),
            "max_model_len": service.llm.llm.engine.max_model_len,
            "tokens": ids,
            "token_strs": shown,
        }
    )


def _detokenized(body: DetokenizeBody, service: Service) -> Response:
    """Raises RequestError."""
    size = service.llm.llm.engine.vocab_size
    for token in body.tokens:
        if not 0 <= token < size:
            raise RequestError(f"tokens: token {token} is outside the vocabulary of {size}")
    text = service.llm.llm.tokenizer.decode(body.tokens, skip_special=False)
    return JSONResponse({"prompt": text})


def _ids(raw: Mapping[str, Any], body: TokenizeBody, service: Service) -> list[int]:
    """Raises RequestError."""
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages")
    if body.prompt is None:
        return encoded(render(raw, service)[0], body.add_special_tokens, service)
    special = body.add_special_tokens is not False
    return service.llm.llm.tokenizer.encode(body.prompt, add_special=special)
