"""What every request passes before its handler, from the outside in: `RequestLog`, CORS where
origins are allowed, `ApiKeys` where there are keys, else `OwnNames` on the loopback, `BodyLimit`;
then `lifetime.Lifetimes`.

Plain ASGI, without a task or a queue per request: what goes through is passed on as it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import socket
import time
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wager.server import logs
from wager.server.errors import ApiError, as_api_error
from wager.server.limits import discard
from wager.server.service import WARNINGS, Service

log = logging.getLogger("wager.server")

COUNTED: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Routes whose refusals are counted: those that answer with tokens."""
_OFTEN: Final = frozenset({"/health", "/metrics", "/dashboard/live"})
"""Asked for by machines, again and again: logged only where it goes wrong."""
_LEFT: Final = 499
"""What the log calls a request whose client went away, as nginx does."""

_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9._\-]{1,64}")
_LONGEST_PATH: Final = 200


class RequestLog:
    """Gives each request an id (the client's ``x-request-id``, where it is a sound one), writes one
    line when it is over, and turns what nobody foresaw into a 500 that tells nothing."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        token = logs.REQUEST_ID.set(request_id)
        started = time.perf_counter()
        status = 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_marks(scope)]}
            await send(message)

        try:
            await self._app(scope, receive, reply)
        except ClientDisconnect:
            # While its body was being read.
            pass
        except Exception as error:
            refusal = as_api_error(error, request_id)
            if not status:
                await refusal.response()(scope, receive, reply)
        finally:
            self._note(scope, status or _LEFT, time.perf_counter() - started)
            logs.REQUEST_ID.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"]
        answered = status >= 400 and status != _LEFT
        if path in COUNTED and scope["method"] == "POST" and answered:
            self._service.metrics.refused(status)
        level = logging.DEBUG if path in _OFTEN and status < 400 else logging.INFO
        if not log.isEnabledFor(level):
            return
        # Quoted: a path with a line feed must not look like a line of the log.
        shown = quote(path, safe="/:@!$&'()*+,;=-._~")[:_LONGEST_PATH]
        asked = f"{scope['method']} {shown}"
        ms = round(1e3 * seconds, 1)
        known = logs.fields(method=scope["method"], path=shown, status=status, ms=ms)
        log.log(level, "%s: %d in %s ms", asked, status, ms, extra=known)


class _Gate:
    """Refuses with ``refusal`` whom `lets` does not let in, on every path but ``open_paths``."""

    def __init__(self, app: ASGIApp, open_paths: frozenset[str] = frozenset({"/health"})) -> None:
        self._app = app
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open and not self.lets(scope):
            await self.refusal(scope).response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def lets(self, scope: Scope) -> bool:
        raise NotImplementedError

    def refusal(self, scope: Scope) -> ApiError:
        raise NotImplementedError


class ApiKeys(_Gate):
    """401 for who has none of the keys.

    A key is given as ``Authorization: Bearer KEY``. Browsers that open a page of ``/dashboard``
    ask for it themselves, as the password (of any user name) of HTTP's basic scheme.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        super().__init__(app)
        self._digests = [_digest(key) for key in keys]

    def lets(self, scope: Scope) -> bool:
        given = _digest(_key(scope))
        found = False
        # All of them, whatever is found: the time tells nothing about the keys.
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found

    def refusal(self, scope: Scope) -> ApiError:
        page = scope["path"].startswith("/dashboard") and scope["method"] in ("GET", "HEAD")
        basic = 'Basic realm="wager: any user name, the API key as the password"'
        return ApiError(
            401,
            "a valid API key is needed: send the header `Authorization: Bearer KEY`",
            code="invalid_api_key",
            headers={"www-authenticate": basic if page else "Bearer"},
        )


class OwnNames(_Gate):
    """403 for who calls this machine by a name that is not its own.

    The name of a page elsewhere can be made to mean this machine (DNS rebinding), and a browser
    then lets that page read what is answered. Addresses, localhost and the machine's own name
    cannot be had by others; the hosts of ``origins`` are trusted, and ``*`` among them trusts all.
    """

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        super().__init__(app)
        trusted = list(origins)
        self._all = "*" in trusted
        self._names = {"", "localhost", socket.gethostname().lower()}
        self._names.update(urlsplit(origin).hostname or "" for origin in trusted)

    def lets(self, scope: Scope) -> bool:
        try:
            name = urlsplit("//" + Headers(scope=scope).get("host", "")).hostname or ""
        except ValueError:
            return self._all
        name = name.rstrip(".")
        return self._all or name in self._names or name.endswith(".localhost") or _address(name)

    def refusal(self, scope: Scope) -> ApiError:
        return ApiError(
            403,
            "this server has no API key and goes by the names of its own machine only; call "
            "it by its address, or start it with --api-key, or with the page's origin "
            "(http://NAME) in --allowed-origins",
            code="unknown_host",
        )


class BodyLimit:
    """Refuses with 413 a body of more than ``most`` bytes: before reading it where its length is
    announced, else when it turns out."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._most:
            # A client that asks first is told before it sends anything.
            if "expect" not in headers:
                await discard(receive)
            await self._too_large().response()(scope, receive, send)
            return
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > self._most:
                    if message.get("more_body", False):
                        await discard(receive)
                    raise self._too_large()
            return message

        await self._app(scope, bounded, send)

    def _too_large(self) -> ApiError:
        message = f"the body is larger than the {self._most} bytes that this server takes"
        return ApiError(413, message, code="body_too_large", headers={"connection": "close"})


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(12)


def _marks(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The headers that every reply gets."""
    state = scope["state"]
    found = [(b"x-request-id", state["request_id"].encode("ascii"))]
    for warning in state.get(WARNINGS, ()):
        found.append((b"x-wager-warning", warning.encode("latin-1", "replace")))
    return found


def _address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(key: str) -> bytes:
    # Of equal length, so that comparing does not tell how long a key is.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _key(scope: Scope) -> str:
    """The key that a request gives; "" without one."""
    scheme, _, value = Headers(scope=scope).get("authorization", "").partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    # A page elsewhere can make a browser use what it remembers, but not read the reply to a GET.
    if scheme.lower() != "basic" or scope["method"] not in ("GET", "HEAD"):
        return ""
    try:
        return base64.b64decode(value, validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
