"""The application: routes, what stands before them, and what they share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from wager.errors import WagerError
from wager.server.errors import ApiError, on_http, on_known
from wager.server.health import health, version
from wager.server.lifetime import Lifetimes
from wager.server.middleware import ApiKeys, BodyLimit, OwnNames, RequestLog
from wager.server.options import ServerOptions
from wager.server.service import Service

if TYPE_CHECKING:
    from wager.engine.service import AsyncLLM

__all__ = ["Service", "create_app", "create_metrics_app"]

_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def create_app(llm: AsyncLLM, options: ServerOptions) -> Starlette:
    """The server over an engine; ``app.state.service`` is the `Service`. Who makes it closes the
    engine afterwards."""
    service = Service(llm, options)
    return _application(service, _routes(), _before(options))


def create_metrics_app(service: Service) -> Starlette:
    """For a port of its own, without keys: `/metrics` and `/health` of a server."""
    from wager.server import metrics

    routes = [_get("/metrics", metrics.page), _get("/health", health)]
    return _application(service, routes, [])


def _application(
    service: Service, routes: Sequence[BaseRoute], middleware: list[Middleware]
) -> Starlette:
    last = [Middleware(Lifetimes, service=service)]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestLog, service=service), *middleware, *last],
        exception_handlers={ApiError: on_known, WagerError: on_known, HTTPException: on_http},
    )
    # A path is right or wrong; redirecting would send clients to whatever host they named.
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _before(options: ServerOptions) -> list[Middleware]:
    found = []
    if options.allowed_origins:
        # Outside of the keys: a browser asks for permission without one.
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=options.allowed_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("x-request-id", "x-wager-warning", "x-tokens-per-second"),
            )
        )
    if options.api_keys:
        found.append(Middleware(ApiKeys, keys=options.api_keys))
    elif options.loopback:
        found.append(Middleware(OwnNames, origins=options.allowed_origins))
    found.append(Middleware(BodyLimit, most=options.max_body))
    return found


def _routes() -> list[BaseRoute]:
    # The handlers know the service, so they are loaded after it.
    from wager.server import chat, completions, dashboard, metrics, models, openapi, tokens

    return [
        _post("/v1/chat/completions", chat.chat_completions),
        _post("/v1/completions", completions.completions),
        _get("/v1/models", models.list_models),
        _get("/v1/models/{model:path}", models.get_model),
        _post("/tokenize", tokens.tokenize),
        _post("/detokenize", tokens.detokenize),
        _get("/openapi.json", openapi.document),
        _get("/metrics", metrics.page),
        _get("/health", health),
        _get("/version", version),
        *dashboard.routes(),
    ]


def _get(path: str, handler: _Handler) -> Route:
    return Route(path, handler, methods=["GET"])


def _post(path: str, handler: _Handler) -> Route:
    return Route(path, handler, methods=["POST"])
