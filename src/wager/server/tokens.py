"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's form."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
    ids = await asyncio.to_thread(_ids, raw, body, service)
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


async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    _, body = await _read(request, DetokenizeBody, service)
    size = service.llm.llm.engine.vocab_size
    for token in body.tokens:
        if not 0 <= token < size:
            raise RequestError(f"tokens: token {token} is outside the vocabulary of {size}")
    tokenizer = service.llm.llm.tokenizer
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special=False)
    return JSONResponse({"prompt": text})


async def _read(request: Request, kind: type[B], service: Service) -> tuple[dict[str, Any], B]:
    raw = await read_json(request)
    service.warn(request, fields.check_small(raw, _names(kind)))
    body = parse(kind, raw)
    check_model(body.model, service)
    return raw, body


def _names(kind: type[BaseModel]) -> frozenset[str]:
    return frozenset(kind.model_fields)


def _ids(raw: Mapping[str, Any], body: TokenizeBody, service: Service) -> list[int]:
    """Raises RequestError."""
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages")
    if body.prompt is None:
        return encoded(render(raw, service)[0], body.add_special_tokens, service)
    special = body.add_special_tokens is not False
    return service.llm.llm.tokenizer.encode(body.prompt, add_special=special)
