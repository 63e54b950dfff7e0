"""``GET /openapi.json``: the document of what is served, from the models of bodies and replies."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wager import __version__
from wager.server import answers, fields, schema
from wager.server.service import service_of

_REF: Final = "#/components/schemas/{model}"
_STREAM: Final = "text/event-stream"
_REFUSALS: Final = {
    "400": "The body cannot be served; the message names the field.",
    "401": "No key, or none that is known.",
    "403": "A name that is not this machine's, where there is no key.",
    "404": "No such route or model.",
    "408": "The body took too long to arrive.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "429": "Too many requests wait; Retry-After says when to come again.",
    "500": "A fault of the server; its log has the cause.",
    "503": "The server is shutting down, or its engine is closed.",
    "504": "The request took longer than the server allows.",
}

_BODIES: Final[tuple[type[BaseModel], ...]] = (
    schema.ChatBody, schema.CompletionBody, schema.TokenizeBody, schema.DetokenizeBody,
)  # fmt: skip
_REPLIES: Final[tuple[type[BaseModel], ...]] = (
    answers.ChatAnswer, answers.ChatChunk, answers.TextAnswer, answers.Models,
    answers.ServedModel, answers.Tokenized, answers.Detokenized, answers.Refusal,
)  # fmt: skip


async def document(request: Request) -> Response:
    """The handler."""
    keys = bool(service_of(request).options.api_keys)
    return JSONResponse(build(keys))


@lru_cache(maxsize=2)
def _built(keys: bool) -> dict[str, Any]:
    pairs: list[tuple[type[BaseModel], Any]] = [(one, "validation") for one in _BODIES + _REPLIES]
    _, definitions = models_json_schema(pairs, ref_template=_REF)
    schemas: dict[str, Any] = definitions["$defs"]
    schemas["ChatBody"].update(_beside("chat"))
    schemas["CompletionBody"].update(_beside("completions"))
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "wager",
            "version": __version__,
            "description": "Speculative decoding behind the API of OpenAI. Unknown fields are "
            "ignored; the header x-wager-warning names them.",
        },
        "paths": _paths(),
        "components": {"schemas": schemas},
    }
    if keys:
        scheme = {"type": "http", "scheme": "bearer"}
        found["components"]["securitySchemes"] = {"key": scheme}
        found["security"] = [{"key": []}]
        found["paths"]["/health"]["get"]["security"] = []
    return found


def build(keys: bool) -> dict[str, Any]:
    """The document; ``keys``: of a server that asks for one."""
    return deepcopy(_built(keys))


def _beside(route: fields.Route) -> dict[str, Any]:
    """What is known of fields that are not served."""
    here = {name: field for name, field in fields.TABLE.items() if route in field.routes}
    return {
        "x-refused": {name: field.reason for name, field in here.items() if field.reason},
        "x-without-effect": [name for name, field in here.items() if field.silent],
    }


def _paths() -> dict[str, Any]:
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": _post("Answer a conversation.", "ChatBody", "ChatAnswer",
                                      "ChatChunk"),
        "/v1/completions": _post("Go on with a prompt.", "CompletionBody", "TextAnswer",
                                 "TextAnswer"),
        "/v1/models": _get("The names of the model.", _json("Models")),
        "/v1/models/{model}": {
            **_get("One of them.", _json("ServedModel"), "404"), "parameters": [model],
        },
        "/tokenize": _post("Token ids of a text or a conversation.", "TokenizeBody", "Tokenized"),
        "/detokenize": _post("The text of token ids.", "DetokenizeBody", "Detokenized"),
        "/health": _health(),
        "/version": _get("The version of the program.", {"application/json": {}}),
        "/metrics": _get("Figures for Prometheus.", {"text/plain": {}}),
        "/openapi.json": _get("This document.", {"application/json": {}}),
    }  # fmt: skip


def _health() -> dict[str, Any]:
    """It says how it is in both cases, and takes no key."""
    content = {"application/json": {"schema": {"type": "object"}}}
    told = {
        "200": {"description": "The engine makes progress.", "content": content},
        "503": {"description": "It does not, or the server is shutting down.", "content": content},
    }
    return {"get": {"summary": "Whether the engine makes progress.", "responses": told}}


def _get(summary: str, content: dict[str, Any], *refusals: str) -> dict[str, Any]:
    return {
        "get": {"summary": summary, "responses": _responses(content, ("401", "403", *refusals))}
    }


def _post(summary: str, body: str, reply: str, chunk: str | None = None) -> dict[str, Any]:
    content = _json(reply)
    if chunk is not None:
        # One event; the last is [DONE].
        content[_STREAM] = {"schema": {"type": "string", "x-event": {"$ref": _ref(chunk)}}}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": _json(body)},
            "responses": _responses(content, tuple(_REFUSALS)),
        }
    }


def _responses(content: dict[str, Any], refusals: tuple[str, ...]) -> dict[str, Any]:
    told = {
        status: {"description": _REFUSALS[status], "content": _json("Refusal")}
        for status in refusals
    }
    return {"200": {"description": "The reply.", "content": content}, **told}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _ref(name)}}}


def _ref(name: str) -> str:
    return _REF.format(model=name)
