"""What clients are told of an answer that the engine gave up, by its stop reason."""

from __future__ import annotations

from collections.abc import Iterable

from wager.config import SamplingParams
from wager.errors import RequestError
from wager.server.errors import SERVER, ApiError
from wager.types import FORM_FAULT, FORM_LOST, NO_TOKEN_LEFT


def given_up(reasons: Iterable[object], params: SamplingParams, form: str) -> ApiError:
    """``reasons`` are those of the request's choices, ``form`` is the field that asks for the form
    of the answer, "" where none does."""
    for why in map(str, reasons):
        kind, _, reason = why.partition(": ")
        if kind == FORM_FAULT:
            field = form or "structured_outputs"
            return ApiError(400, f"{field}: {reason}", param=field, code="no_token_left")
        if kind == NO_TOKEN_LEFT:
            fields = _excluding(params, form)
            # Where several do, the first one stands for all of them.
            message = f"{fields[0]}: {NO_TOKEN_LEFT} to go on with; look at {', '.join(fields)}"
            return ApiError(400, message, param=fields[0], code="no_token_left")
        if kind == FORM_LOST:
            headers = {"retry-after": "1"}
            return ApiError(503, why, kind=SERVER, code="unavailable", headers=headers)
    message = "the model gave no usable result; the request was ended"
    return ApiError(500, message, kind=SERVER, code="request_failed")


def named(error: RequestError, form: str) -> RequestError:
    """The same of the field that clients have, where it is of the library's ``structured``."""
    field, colon, reason = str(error).partition(": ")
    return RequestError(f"{form}: {reason}") if colon and form and field == "structured" else error


def _excluding(params: SamplingParams, form: str) -> list[str]:
    """The fields of a request that exclude tokens."""
    given = {
        form: params.structured is not None,
        "bad_words": bool(params.bad_words),
        "allowed_token_ids": params.allowed_token_ids is not None,
        "min_tokens": bool(params.min_tokens),
    }
    return [name for name, is_given in given.items() if name and is_given] or ["logit_bias"]
