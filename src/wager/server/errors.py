"""Refusals and failures as clients see them: OpenAI's form, and nothing of the inside.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

ApiError            raised by whoever finds the fault; its text is meant for the client
RequestError        400; names the field, which becomes ``param``
ModelError          400: the model's chat template cannot be used; which is why goes to the log only
Unavailable         503, for now: the processes of grammars, which were lost
other WagerErrors   503: the engine was closed, or cannot do what it was started for
anything else       500 "internal error"; the traceback goes to the log only
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wager.errors import ModelError, RequestError, Unavailable, WagerError

log = logging.getLogger(__name__)

INVALID: Final = "invalid_request_error"
OVERLOADED: Final = "rate_limit_error"
SERVER: Final = "server_error"

_FIELD: Final = re.compile(r"([a-z][a-z0-9_]*)(?:[.\[][\w.\[\]]*)?: ")
_LONGEST: Final = 2000


class ApiError(Exception):
    """What a client did wrong, or cannot have now. ``message`` is all that it is told.

    ``kind`` is the error's type in the reply, ``param`` the field that it is about.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        kind: str = INVALID,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.kind = kind
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON of the reply, or of an event in a stream that is under way."""
        # A lone surrogate, or a megabyte that somebody sent, is not sent back.
        message = self.message.encode("utf-8", "replace").decode("utf-8")
        if len(message) > _LONGEST:
            message = message[:_LONGEST] + "..."
        param = None if self.param is None else self.param.encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": self.kind, "param": param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The reply."""
        return JSONResponse(self.body(), self.status, self.headers)


def internal_error(request_id: str) -> ApiError:
    """What a client is told of a fault of ours; the id leads to the log."""
    message = f"internal error; the server's log has the cause under request id {request_id}"
    return ApiError(500, message, kind=SERVER, code="internal_error")


def timed_out(seconds: float) -> ApiError:
    """A request that took longer than the server allows."""
    message = f"the request took longer than the {seconds:g} s that this server allows"
    return ApiError(504, message, kind=SERVER, code="timeout")


def shutting_down() -> ApiError:
    """A request that comes, or still runs, when the server is told to stop."""
    headers = {"retry-after": "5", "connection": "close"}
    message = "the server is shutting down; try again later"
    return ApiError(503, message, kind=SERVER, code="shutting_down", headers=headers)


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """Any exception as what a client may know of it. What is not the client's is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        text = str(error)
        field = _FIELD.match(text)
        return ApiError(400, text, param=field[1] if field else None)
    if isinstance(error, ModelError):
        log.error("%s", error)
        # Not 5xx: it will be no better the next time.
        message = "messages: the model's chat template is broken; give /v1/completions a prompt"
        return ApiError(400, message, param="messages", code="broken_template")
    if isinstance(error, Unavailable):
        log.error("%s", error)
        headers = {"retry-after": "1"}
        return ApiError(503, str(error), kind=SERVER, code="unavailable", headers=headers)
    if isinstance(error, WagerError):
        log.error("%s", error)
        message = "the engine does not answer any more"
        return ApiError(503, message, kind=SERVER, code="engine_closed")
    log.error("internal error", exc_info=error)
    return internal_error(request_id)


# Starlette's handlers


async def on_known(request: Request, error: Exception) -> Response:
    """ApiError and WagerError, wherever a handler raised them."""
    return as_api_error(error, request_id_of(request)).response()


async def on_http(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, no such method."""
    if not isinstance(error, HTTPException):
        raise error
    asked = f"{request.method} {request.scope['path']}"
    if error.status_code == 404:
        refusal = ApiError(404, f"{asked}: there is no such route; see /openapi.json")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = ApiError(405, f"{asked}: must be one of {allowed}", headers=error.headers)
    else:
        refusal = ApiError(error.status_code, str(error.detail), headers=error.headers)
    return refusal.response()


def request_id_of(request: Request) -> str:
    """The id of the request, as it stands in the log and in ``x-request-id``."""
    return str(getattr(request.state, "request_id", ""))
