"""What stands before every handler: ids, logs, keys, origins, sizes, and the last resort."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import re
import socket
from io import StringIO
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.server.asgi import Exchange, app_with, get, idle_llm, played
from wager.errors import ConfigError, ModelError, RequestError
from wager.server import logs
from wager.server.app import create_app
from wager.server.errors import ApiError
from wager.server.options import ServerOptions
from wager.server.service import service_of

JSON = ("content-type", "application/json")


def bearer(key: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {key}")


def basic(user: str, key: str) -> tuple[str, str]:
    return ("authorization", "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode())


# Ids and logs


@pytest.mark.parametrize("given", ["abc-1.2_X", "a" * 64])
def test_a_sound_request_id_is_kept(given: str) -> None:
    reply = played(app_with(), headers=[JSON, ("x-request-id", given)])
    assert reply.header("x-request-id") == given


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 65, "x\ny", "é"])
def test_any_other_is_replaced(given: str | None) -> None:
    headers = [JSON] if given is None else [JSON, ("x-request-id", given)]
    first, second = (played(app_with(), headers=headers) for _ in range(2))
    for reply in (first, second):
        assert re.fullmatch(r"[0-9a-f]{24}", reply.header("x-request-id") or "")
    assert first.header("x-request-id") != second.header("x-request-id")


def test_each_request_leaves_one_line(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with()
    with caplog.at_level(logging.INFO, "wager.server"):
        played(app)
        played(app, path="/v1/none\nFORGED")
        get(app, "/health")
    lines = [record.getMessage() for record in caplog.records]
    assert [re.sub(r"in [\d.]+ ms", "in T", line) for line in lines] == [
        "POST /v1/completions: 200 in T",
        "POST /v1/none%0AFORGED: 404 in T",
    ]


@pytest.mark.parametrize("json_lines", [False, True])
def test_log_lines_name_the_request(json_lines: bool) -> None:
    root = logging.getLogger()
    ours = logging.getLogger("wager")
    before, level, own_level = root.handlers[:], root.level, ours.level
    stream = StringIO()

    async def failing(request: Request) -> Response:
        raise ZeroDivisionError("secret")

    try:
        logs.configure(json_lines, stream)
        played(app_with(failing), headers=[JSON, ("x-request-id", "id-7")])
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        ours.setLevel(own_level)
    text = stream.getvalue()
    assert "ZeroDivisionError: secret" in text
    if not json_lines:
        first, last = text.splitlines()[0], text.splitlines()[-1]
        assert re.fullmatch(r"[\d-]{10} [\d:]{8} ERROR \[id-7\] internal error", first)
        assert "INFO [id-7] POST /v1/completions: 500 in " in last
        return
    cause, line = (json.loads(one) for one in text.splitlines())
    assert (cause["level"], cause["request_id"]) == ("error", "id-7")
    assert "Traceback" in cause["exception"]
    assert (line["path"], line["status"], line["method"]) == ("/v1/completions", 500, "POST")
    assert line["time"].endswith("+00:00")


# Errors


@pytest.mark.parametrize(
    ("raised", "status", "message", "param"),
    [
        (ApiError(418, "no tea", param="tea"), 418, "no tea", "tea"),
        (RequestError("top_p: must be above 0"), 400, "top_p: must be above 0", "top_p"),
        (RequestError("stop[3]: is empty"), 400, "stop[3]: is empty", "stop"),
        (RequestError("Something else: happened"), 400, "Something else: happened", None),
        (ConfigError("AsyncLLM: is closed"), 503, "the engine does not answer any more", None),
        (
            ModelError("/home/secret: the chat template is broken"),
            400,
            "messages: the model's chat template is broken",
            "messages",
        ),
        (KeyError("/home/secret"), 500, "internal error; the server's log has the cause", None),
    ],
)
def test_errors_as_clients_see_them(
    raised: Exception, status: int, message: str, param: str | None
) -> None:
    async def failing(request: Request) -> Response:
        raise raised

    reply = played(app_with(failing))
    assert reply.status == status
    assert reply.error["message"].startswith(message)
    assert reply.error["param"] == param
    assert "secret" not in reply.text
    if status == 500:
        assert (reply.header("x-request-id") or "?") in reply.text


def test_no_such_route_and_no_such_method() -> None:
    app = app_with()
    assert played(app, path="/v2").status == 404
    assert "no such route" in played(app, path="/v2").error["message"]
    wrong = get(app, "/tokenize")
    assert wrong.status == 405
    assert wrong.header("allow") == "POST"
    # Not a redirect to whatever host was named.
    assert get(app, "/health/").status == 404


def test_refusals_are_counted_where_tokens_are_asked_for() -> None:
    async def refusing(request: Request) -> Response:
        raise ApiError(400, "no")

    app = app_with(refusing)
    counted: list[int] = []
    app.state.service.metrics.refused = counted.append
    played(app)
    played(app, path="/v2")
    get(app, "/v1/completions")
    assert counted == [400]


def test_clients_that_left_are_no_refusals() -> None:
    async def waiting(request: Request) -> Response:
        await request.body()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    app = app_with(waiting)
    counted: list[int] = []
    app.state.service.metrics.refused = counted.append

    async def run() -> None:
        for unfinished in (False, True):
            exchange = Exchange(unfinished=unfinished)
            exchange.leave()
            await exchange.play(app)
            assert exchange.sent == []

    asyncio.run(run())
    assert counted == []


def test_unknown_fields_are_named_in_a_header(caplog: pytest.LogCaptureFixture) -> None:
    async def warning(request: Request) -> Response:
        service_of(request).warn(request, ["foo", "b\nar", "é", " x", ""])
        service_of(request).warn(request, [])
        return JSONResponse({})

    reply = played(app_with(warning))
    said = 'unknown field(s) ignored: foo, b?ar, \\xe9, " x", ""'
    assert reply.header("x-wager-warning") == said
    assert said in caplog.messages


# Keys


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        (bearer("one"), 200),
        (bearer("two"), 200),
        (("authorization", "bearer  two "), 200),
        (bearer("three"), 401),
        (bearer(""), 401),
        (bearer("on"), 401),
        (("authorization", "one"), 401),
        (("authorization", "Token one"), 401),
        # The basic scheme is for pages that are looked at.
        (basic("", "one"), 401),
    ],
)
def test_a_key_is_needed(header: tuple[str, str] | None, status: int) -> None:
    app = app_with(api_keys=("one", "two"))
    reply = played(app, headers=[JSON, *([header] if header else [])])
    assert reply.status == status
    if status == 401:
        assert reply.error["code"] == "invalid_api_key"
        assert reply.header("www-authenticate") == "Bearer"
        assert reply.read == 0


def test_every_route_but_health_needs_a_key() -> None:
    app = create_app(idle_llm(), ServerOptions(served_names=("tiny",), api_keys=("one",)))
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) > 10
    for route in routes:
        path = route.path.replace("{model:path}", "tiny").replace("{file}", "x")
        method = "POST" if "POST" in (route.methods or ()) else "GET"
        status = played(app, method=method, path=path).status
        assert status == (200 if path == "/health" else 401), path
    assert get(app, "/nowhere").status == 401


@pytest.mark.parametrize(
    ("given", "status"),
    [(basic("me", "one"), 200), (basic("", "one"), 200), (basic("one", ""), 401),
     (("authorization", "Basic !"), 401), (("authorization", "Basic 4pyT"), 401), (None, 401)],
)  # fmt: skip
def test_a_browser_is_asked_for_the_key(given: tuple[str, str] | None, status: int) -> None:
    async def page(request: Request) -> Response:
        return Response("page")

    app = app_with(page, "/dashboard", api_keys=("one",))
    reply = get(app, "/dashboard", [given] if given else [])
    assert reply.status == status
    if status == 401:
        assert (reply.header("www-authenticate") or "").startswith("Basic realm=")


def test_all_keys_are_compared_whatever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counting(one: Any, other: Any) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr("hmac.compare_digest", counting)
    app = app_with(api_keys=("first", "a" * 200, "last"))
    for key in ("first", "last", "x", "y" * 500):
        compared.clear()
        played(app, headers=[JSON, bearer(key)])
        assert compared == [(32, 32)] * 3


# Origins


def test_no_other_origin_is_let_in_by_default() -> None:
    reply = played(app_with(), headers=[JSON, ("origin", "http://evil.example")])
    assert reply.status == 200
    assert reply.header("access-control-allow-origin") is None


def test_origins_that_were_named() -> None:
    home = "http://localhost:3000"
    app = app_with(allowed_origins=(home,), api_keys=("one",))
    asks = ("access-control-request-method", "POST")
    names = ("access-control-request-headers", "authorization")
    first = played(app, method="OPTIONS", body=b"", headers=[("origin", home), asks, names])
    assert first.status == 200
    assert first.header("access-control-allow-origin") == home
    assert "authorization" in (first.header("access-control-allow-headers") or "")
    then = played(app, headers=[JSON, ("origin", home), bearer("one")])
    assert then.header("access-control-allow-origin") == home
    assert "x-request-id" in (then.header("access-control-expose-headers") or "")
    other = played(app, headers=[JSON, ("origin", "http://evil.example"), bearer("one")])
    assert other.header("access-control-allow-origin") is None


def test_a_page_elsewhere_cannot_post_what_needs_no_permission() -> None:
    reply = played(app_with(), headers=[("content-type", "text/plain")])
    assert reply.status == 415


# Names


@pytest.mark.parametrize(
    "host",
    ["localhost:8000", "LOCALHOST", "a.localhost", "127.0.0.1:8000", "[::1]:8000", "192.168.0.7",
     "localhost.", ""],
)  # fmt: skip
def test_names_that_nobody_else_can_have(host: str) -> None:
    assert played(app_with(), headers=[JSON, ("host", host)]).status == 200
    assert played(app_with(), headers=[JSON, ("host", socket.gethostname())]).status == 200


@pytest.mark.parametrize("host", ["evil.example:8000", "localhost.evil.example", "1.2.3.4.5", "[x"])
def test_a_page_whose_name_was_made_to_mean_this_machine_is_refused(host: str) -> None:
    for method, path in (("POST", "/v1/completions"), ("GET", "/dashboard/live")):
        reply = played(app_with(), method=method, path=path, headers=[JSON, ("host", host)])
        assert (reply.status, reply.error["code"]) == (403, "unknown_host")
        assert "--allowed-origins" in reply.error["message"]
    assert get(app_with(), "/health", headers=[("host", host)]).status == 200


def test_names_that_are_trusted() -> None:
    named = [JSON, ("host", "wager.example:80")]
    assert played(app_with(allowed_origins=("https://wager.example",)), headers=named).status == 200
    assert played(app_with(allowed_origins=("*",)), headers=named).status == 200
    assert played(app_with(host="0.0.0.0"), headers=named).status == 200
    with_key = played(app_with(api_keys=("one",)), headers=[*named, bearer("one")])
    assert with_key.status == 200


# Sizes


def test_a_body_that_says_how_large_it_is() -> None:
    app = app_with(max_body=100)
    assert played(app, body=b'{"a":"' + b"x" * 80 + b'"}').status == 200
    reply = played(app, body=[b"x" * 60, b"x" * 60])
    assert reply.status == 413
    assert "100 bytes" in reply.error["message"]
    assert reply.header("connection") == "close"
    # What was on its way is read and dropped, so that the client gets to the reply.
    assert reply.read == 2


def test_a_client_that_asks_first_is_told_before_it_sends() -> None:
    headers = [JSON, ("expect", "100-continue")]
    reply = played(app_with(max_body=100), body=b"x" * 200, headers=headers)
    assert (reply.status, reply.read) == (413, 0)


def test_a_body_that_does_not_say() -> None:
    app = app_with(max_body=100)
    parts = [b'{"a":"', *[b"x" * 30] * 3, b'"}']
    assert played(app, body=parts, announce=False).status == 200
    reply = played(app, body=[b"x" * 30] * 50, announce=False)
    assert reply.status == 413
    assert reply.read == 50
