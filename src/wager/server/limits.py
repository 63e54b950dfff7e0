"""Bodies read strictly: bounded, UTF-8, JSON as the standard has it, no deeper than allowed.

The nesting is measured before the parser sees the text, without recursion and in time that grows
with the length alone, so that no body can exhaust the stack of the parser.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NoReturn

from starlette.requests import Request
from starlette.types import Receive

from wager.server.errors import ApiError
from wager.server.waiting import within

_BODY_TIMEOUT_S: Final = 60.0
"""How long a client may take to send a body."""
_LARGE: Final = 64 << 10
"""Bytes from which on a body is parsed in another thread, so that no one else waits."""
_DISCARD_S: Final = 5.0
"""How long the rest of a body that is refused is read, so that the client gets to the reply."""
_MOST_NODES: Final = 200_000
"""Objects, arrays and keys of a body: each takes a hundred times its text in memory."""
_FORM: Final = "application/x-www-form-urlencoded"
_SHOWN: Final = 64

_DIGITS: Final = re.compile(rb"[0-9]{400}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# Both kinds of bracket as one: which closes which is for the parser to say.
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHER: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPEN: Final = ord("[")


async def read_json(request: Request, room: Callable[[], None] | None = None) -> dict[str, Any]:
    """The body, which must be one JSON object. Raises ApiError: 400, 408, 413, 415 or 429.

    ``room`` raises ApiError where there is none for the request, before its body is read. Refused
    are other encodings than UTF-8, NaN and Infinity, numbers too large for a float, keys given
    twice in one object, lone surrogates, nesting deeper than ``max_depth``, and more objects than
    memory should be given for.
    """
    if room is not None:
        await _check_room(request, room)
    _check_kind(request)
    service = request.app.state.service
    depth = service.options.max_depth
    with service.incoming() as note:
        try:
            body = await within(_body(request, note), _BODY_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise ApiError(408, f"the body did not arrive within {_BODY_TIMEOUT_S:g} s") from None
        if len(body) > _LARGE:
            return await asyncio.to_thread(parse, body, depth)
        return parse(body, depth)


async def discard(receive: Receive) -> None:
    """Read on without keeping anything, to the end of the body or for a while."""

    async def rest() -> None:
        while True:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return

    with contextlib.suppress(asyncio.TimeoutError):
        await within(rest(), _DISCARD_S)


async def _check_room(request: Request, room: Callable[[], None]) -> None:
    try:
        room()
    except ApiError as refusal:
        # The server reads on behind a reply, but not behind one that closes the connection; and
        # what is closed with something unread may lose the reply.
        if refusal.headers.get("connection") == "close" and "expect" not in request.headers:
            await discard(request.receive)
        raise


async def _body(request: Request, note: Callable[[int], None]) -> bytes:
    """Unlike ``request.body`` it is kept nowhere, so that it goes once it was parsed."""
    parts = []
    async for part in request.stream():
        note(len(part))
        parts.append(part)
    return b"".join(parts)


def parse(body: bytes, max_depth: int) -> dict[str, Any]:
    """What `read_json` does with the bytes. Raises ApiError (400)."""
    if not body.strip():
        raise ApiError(400, "the body is empty; send a JSON object")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start} is wrong") from None
    if text.startswith("\ufeff"):
        raise ApiError(400, "the body starts with a byte order mark; send UTF-8 without one")
    _check_shape(body, max_depth)
    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_float, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ApiError(400, f"the body is not valid JSON at {where}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    if _SURROGATE.search(body):
        _check_characters(value)
    return value


def _check_kind(request: Request) -> None:
    """A page of another site can post without asking first, but not what says that it is JSON.

    Programs that say nothing, or what `curl -d` says by itself, are taken at their word. A browser
    can be made to send either, but then names the page's origin beside it; of what a form sends
    only text/plain, which some send without one, can be JSON.
    """
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return
    browser = "origin" in headers or "sec-fetch-site" in headers
    if browser or kind not in ("", _FORM):
        shown = repr(kind[:_SHOWN]) if kind else "none"
        raise ApiError(415, f"content-type: must be application/json; got {shown}")


def _check_shape(body: bytes, max_depth: int) -> None:
    # Escapes first, then every second part between quotes is inside of a string.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    outside = b"".join(plain.split(b'"')[::2])
    if _DIGITS.search(outside):
        raise ApiError(400, "the body has a number of more than 400 digits")
    brackets = outside.translate(_BRACKETS, _OTHER)
    if deeper_than(brackets, max_depth):
        raise ApiError(400, f"the body is nested deeper than {max_depth} levels")
    if brackets.count(b"[") + outside.count(b":") > _MOST_NODES:
        raise ApiError(400, f"the body has more than {_MOST_NODES} objects, arrays and keys")


def deeper_than(brackets: bytes, most: int) -> bool:
    """Whether a text of nothing but ``[`` and ``]`` opens more than ``most`` levels.

    Of a text whose brackets do not match it may say no up to twice that depth: the parser refuses
    it, and stands that much.
    """
    for _ in range(most):
        if not brackets:
            return False
        # The innermost pairs: one level less.
        brackets = brackets.replace(b"[]", b"")
    depth = 0
    for sign in brackets:
        depth += 1 if sign == _OPEN else -1
        if depth < 0:
            return False
        if depth > most:
            return True
    # What is left of matching brackets is deeper, however shallow the rest looks.
    return depth == 0 and bool(brackets)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        shown = twice.encode("ascii", "backslashreplace").decode()[:_SHOWN]
        raise ApiError(400, f"{shown}: is given twice in one object", param=shown)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ApiError(400, f"the body has {name}, which is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ApiError(400, f"the body has {text[:_SHOWN]}, which is larger than any float")
    return value


def _check_characters(value: dict[str, Any]) -> None:
    """Half of a surrogate pair is no character: nothing could encode it again."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ApiError(400, "the body has a lone surrogate (\\ud800 to \\udfff)") from None
