"""Bodies read strictly: bounded, UTF-8, JSON as the standard has it, no deeper than allowed.

The nesting is measured before the parser sees the text, without recursion and in time that grows
with the length alone, so that no body can exhaust the stack of the parser.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from typing import Any, Final, NoReturn

from starlette.requests import Request

from wager.server.errors import ApiError

_BODY_TIMEOUT_S: Final = 60.0
"""How long a client may take to send a body."""
_LARGE: Final = 64 << 10
"""Bytes from which on a body is parsed in another thread, so that no one else waits."""
_SHOWN: Final = 64

_DIGITS: Final = re.compile(rb"[0-9]{400}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# Both kinds of bracket as one: which closes which is for the parser to say.
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHER: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPEN: Final = ord("[")


async def read_json(request: Request) -> dict[str, Any]:
    """The body, which must be one JSON object. Raises ApiError: 400, 408, 413 or 415.

    Refused are other encodings than UTF-8, NaN and Infinity, numbers too large for a float, keys
    given twice in one object, lone surrogates, and nesting deeper than ``max_depth``.
    """
    _check_kind(request)
    try:
        body = await asyncio.wait_for(request.body(), _BODY_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body did not arrive within {_BODY_TIMEOUT_S:g} s") from None
    depth = request.app.state.service.options.max_depth
    if len(body) > _LARGE:
        return await asyncio.to_thread(parse, body, depth)
    return parse(body, depth)


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
    """A page of another site can post text/plain without asking first, but not JSON."""
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, f"content-type: must be application/json; got {kind[:_SHOWN]!r}")


def _check_shape(body: bytes, max_depth: int) -> None:
    # Escapes first, then every second part between quotes is inside of a string.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    outside = b"".join(plain.split(b'"')[::2])
    if _DIGITS.search(outside):
        raise ApiError(400, "the body has a number of more than 400 digits")
    brackets = outside.translate(_BRACKETS, _OTHER)
    if deeper_than(brackets, max_depth):
        raise ApiError(400, f"the body is nested deeper than {max_depth} levels")


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
