"""Bodies and bytes that do harm elsewhere. Each gets its answer, and the others never notice."""

from __future__ import annotations

import json
import pkgutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.server.answers import TEXT, ask, whole
from tests.e2e.server.bodies import ROWS, Row
from tests.e2e.server.harness import (
    PATIENCE_S,
    Live,
    error_of,
    refusal,
    request_bytes,
    resident,
    serving,
    strict,
    until_closed,
    vanish,
)
from tests.recipes import ngram

MIB = 1 << 20


@pytest.fixture(scope="module")
def live(served_path: Path) -> Iterator[Live]:
    with serving(served_path, speculation=ngram(8, low=1, high=4), max_num_seqs=8) as live:
        yield live


def test_the_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len(ROWS) > 120


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_body_gets_its_answer(row: Row, live: Live) -> None:
    before = resident()
    reply = live.post(row.route, row.content)
    assert reply.status_code in row.statuses, f"{reply.status_code}: {reply.text[:500]}"
    if reply.status_code == 200:
        assert whole(strict(reply.text)).choices
    elif reply.status_code == 400:
        refusal(reply, row.field)
    else:
        error_of(reply)
    # The text of the test's own request is in the same process.
    assert resident() - before < 200 * MIB + 8 * len(row.content)
    live.survives()


def test_a_tiny_temperature_is_greedy(live: Live) -> None:
    body = {"prompt": [5, 6, 7, 8, 5, 6], "max_tokens": 12, "ignore_eos": True, "seed": 3}
    greedy = ask(live, {**body, "temperature": 0})
    for tiny in (1e-5, 1e-4, 1e-320):
        assert ask(live, {**body, "temperature": tiny}).text == greedy.text
    assert ask(live, {**body, "temperature": 1.5}).text != greedy.text
    live.survives()


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "", "multipart/form-data"])
def test_the_content_type_does_no_harm(kind: str, live: Live) -> None:
    reply = live.post(TEXT, {"prompt": [5, 6], "max_tokens": 2}, **{"content-type": kind})
    assert reply.status_code in {200, 400, 415}
    live.survives()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_other_methods_are_refused(method: str, live: Live) -> None:
    reply = live.http.request(method, live.url + TEXT)
    assert reply.status_code in {400, 404, 405}
    live.survives()


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/nothing", "/v1/models/none", "/v1/chat/completions/", "/%00", "/..%2f..%2f",
     "/v1/models/" + "m" * 5000, "//v1/models", "/dashboard/../../etc/passwd"],
)  # fmt: skip
def test_paths_that_are_none(path: str, live: Live) -> None:
    with live.connect() as connection:
        wanted = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        connection.sendall(wanted.encode())
        status = int(until_closed(connection).split(b" ", 2)[1])
    assert status < 500
    assert status != 200 or path == "/"
    live.survives()


# Bytes that are no HTTP


HOST = b"host: localhost\r\n"
BROKEN: dict[str, bytes] = {
    "noise": bytes(range(256)) * 4,
    "a handshake of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "no version": b"POST /v1/completions\r\n\r\n",
    "another version": b"POST /v1/completions HTTP/9.9\r\n" + HOST + b"\r\n",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"content-length: 5\r\n"
    b"content-length: 6\r\n\r\n{}   ",
    "a negative length": b"POST /v1/completions HTTP/1.1\r\n"
    + HOST
    + b"content-length: -1\r\n\r\n",
    "a length that is none": b"POST /v1/models HTTP/1.1\r\n" + HOST + b"content-length: x\r\n\r\n",
    "length and chunks": b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"content-length: 4\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a broken chunk": b"POST /v1/completions HTTP/1.1\r\n"
    + HOST
    + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a header of 1 MB": b"GET /health HTTP/1.1\r\n" + HOST + b"x: " + b"y" * MIB + b"\r\n\r\n",
    "10,000 headers": b"GET /health HTTP/1.1\r\n" + HOST + b"x: y\r\n" * 10_000 + b"\r\n",
    "a path of 1 MB": b"GET /" + b"p" * MIB + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "a header cut in two": b"GET /health HTTP/1.1\r\n" + HOST + b"x\x00y: \xff\xfe\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_bytes_that_are_no_http(name: str, live: Live) -> None:
    with live.connect() as connection:
        try:
            connection.sendall(BROKEN[name])
            connection.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            pass  # it has seen enough, and may be gone before this side says that it is done
        answer = until_closed(connection)
    if answer:
        assert int(answer.split(b" ", 2)[1]) < 600
        assert b"Traceback" not in answer
    live.survives()


def test_a_request_that_never_comes_keeps_nobody_waiting(live: Live) -> None:
    body = json.dumps({"prompt": [5, 6], "max_tokens": 2}).encode()
    half = request_bytes(TEXT, body)
    slow = [live.connect() for _ in range(30)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall(half[: number * len(half) // 31])
        live.survives()
    finally:
        for connection in slow:
            connection.close()
    live.survives()


def test_health_says_that_nothing_goes_on(live: Live) -> None:
    body = json.dumps({"prompt": [5, 6], "max_tokens": 2}).encode()
    with live.served_with(stall_timeout=0.05):
        with live.brake.on(), live.connect() as waiting:
            waiting.sendall(request_bytes(TEXT, body))
            live.brake.reached()
            until = time.monotonic() + PATIENCE_S
            while (health := live.get("/health")).status_code == 200:
                assert time.monotonic() < until
                time.sleep(0.01)
            assert health.status_code == 503
            assert strict(health.text)["status"] == "stalled"
        live.settle()
        assert live.get("/health").status_code == 200
    live.survives()


def test_a_body_that_is_shorter_than_it_says(live: Live) -> None:
    whole_request = request_bytes(TEXT, json.dumps({"prompt": "a", "max_tokens": 2}).encode())
    for cut in (1, 10, 30):
        connection = live.connect()
        connection.sendall(whole_request[:-cut])
        vanish(connection)
    live.survives()


@pytest.mark.parametrize("chunked", [False, True], ids=["a stated length", "chunks"])
def test_200_mb_are_refused_before_they_are_read(chunked: bool, live: Live) -> None:
    """As many as the server takes; it has to stop at its limit and not keep them."""
    size, piece = 200 * MIB, b" " * (MIB // 4)
    before = resident()
    kind = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
    head = (
        f"POST {TEXT} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\n{kind}\r\n\r\n"
    )
    sent = 0
    with live.connect() as connection:
        try:
            connection.sendall(head.encode())
            while sent < size:
                if chunked:
                    connection.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
                else:
                    connection.sendall(piece)
                sent += len(piece)
        except ConnectionError:
            pass
        answer = until_closed(connection, MIB)
    # What is behind a reset may be lost, the answer with it.
    if answer:
        assert answer.split(b" ", 2)[1] == b"413", answer[:200]
    else:
        assert sent < size
    assert resident() - before < 64 * MIB
    live.survives()


# What others do meanwhile


SLOW = (
    "alternatives 30 deep", "stars within stars", "a large repetition", "prompt of 10^6 letters",
    "10,000 brackets", "10^5 choices", "a schema of 200 kB",
)  # fmt: skip


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in SLOW], ids=str)
def test_others_are_answered_beside_a_slow_one(row: Row, live: Live) -> None:
    with live.connect() as connection:
        connection.sendall(request_bytes(row.route, row.content, "connection: close"))
        for _ in range(3):
            assert live.get("/health").status_code == 200
            assert live.probe() == live.first
        status = int(until_closed(connection).split(b" ", 2)[1])
    assert status in row.statuses, row
    live.survives()


WORK: dict[str, tuple[str, dict[str, object]]] = {
    "a grammar": (
        "wager.sampling.grammar.prepare",
        {"prompt": [5], "structured_outputs": {"regex": "ab{3}"}},
    ),
    "a template": (
        "wager.models.tokenizer.Tokenizer.chat", {"messages": [{"role": "user", "content": "a"}]},
    ),
    "a prompt": ("wager.models.tokenizer.Tokenizer.encode", {"prompt": "a long text"}),
}  # fmt: skip
"""What may take long for one request: what does it, and a request that needs it."""


@pytest.mark.parametrize("name", WORK)
def test_long_work_for_one_request_stalls_nobody(
    name: str, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held up until the others, whose requests do not need it, have their answers."""
    place, asked = WORK[name]
    working, go = threading.Event(), threading.Event()
    module, _, function = place.rpartition(".")
    owner = pkgutil.resolve_name(module)
    known = getattr(owner, function)

    def held(*given: object, **named: object) -> object:
        working.set()
        assert go.wait(PATIENCE_S)
        return known(*given, **named)

    body = {"max_tokens": 4, "seed": 1, **asked}
    expected = ask(live, body)
    monkeypatch.setattr(owner, function, held)
    with ThreadPoolExecutor(1) as beside:
        slow = beside.submit(ask, live, body)
        try:
            assert working.wait(PATIENCE_S)
            assert live.get("/health").status_code == 200
            assert live.probe() == live.first
            assert not slow.done()
        finally:
            go.set()
        assert slow.result(PATIENCE_S) == expected
    live.survives()


def test_a_time_limit_for_each_request(live: Live) -> None:
    """The engine stands still, so that no request has an end of its own."""
    body = {"prompt": [5, 6, 7], "max_tokens": 2000, "ignore_eos": True, "n": 8}
    with live.brake.on(3), live.served_with(request_timeout=0.2):
        reply = live.post(TEXT, body)
    assert reply.status_code == 504
    assert error_of(reply)["code"] == "timeout"
    live.survives()
    with live.brake.on(3), live.served_with(request_timeout=0.2):
        text = live.post(TEXT, {**body, "stream": True}).text
    *_, last = [line for line in text.split("\n") if line]
    assert strict(last.removeprefix("data: "))["error"]["code"] == "timeout"
    live.survives()


def test_unknown_fields_are_told(live: Live) -> None:
    good = {"prompt": [5, 6, 7], "max_tokens": 3, "seed": 4}
    expected = ask(live, good)
    for wrong in ({"foo": 1}, {"top_logrpobs": 5}, {"foo": None, "bar": [1]}):
        reply = live.post(TEXT, {**good, **wrong})
        assert reply.status_code == 200
        assert whole(strict(reply.text)) == expected
        warning = reply.headers["x-wager-warning"]
        assert all(name in warning for name in wrong)
    named = live.post(TEXT, {**good, "line\r\nbreak: x": 1, "강": 2})
    assert named.status_code in {200, 400}
    assert "break" not in named.headers
    live.survives()


def test_keys(served_path: Path) -> None:
    """On every route but /health; wrong ones are all refused in the same way."""
    with serving(served_path, served={"api_keys": ("first-key", "second-key")}) as live:
        paths = ["/v1/models", "/metrics", "/version", "/dashboard", "/openapi.json"]
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "first-key"},
                      {"authorization": "Bearer"}, {"authorization": "Bearer \u00e9"},
                      {"authorization": "Basic Zmlyc3Qta2V5"}):  # fmt: skip
            encoded = {name: value.encode("latin-1") for name, value in given.items()}
            for path in paths:
                reply = live.http.get(live.url + path, headers=encoded)
                assert reply.status_code == 401, path
                assert "first-key" not in reply.text
            body = json.dumps({"prompt": [5], "max_tokens": 1}).encode()
            reply = live.http.post(live.url + TEXT, content=body, headers=encoded)
            assert reply.status_code == 401
            error_of(reply)
            assert live.http.get(live.url + "/health", headers=encoded).status_code == 200
        for key in ("first-key", "second-key"):
            headers = {"authorization": f"Bearer {key}"}
            assert live.http.get(live.url + "/v1/models", headers=headers).status_code == 200
        live.survives()


def test_large_bodies_for_a_full_queue_are_not_even_read(served_path: Path) -> None:
    """Nor do those that came before keep what nobody needs of them."""
    with serving(served_path, served={"max_queue": 20}, max_num_seqs=1) as live:
        good: dict[str, object] = {"prompt": [5], "max_tokens": 1}
        large = json.dumps({**good, "x": [{} for _ in range(150_000)], "y": "y" * MIB}).encode()
        assert live.post(TEXT, large).status_code == 200
        before = resident()
        held = []
        with live.brake.on():
            for number in range(20):
                held.append(live.connect())
                held[-1].sendall(request_bytes(TEXT, large, "connection: close"))
                while live.llm.waiting <= number:
                    assert live.get("/health").status_code == 200
            with live.connect() as connection:
                head = request_bytes(TEXT, large)[: -len(large)]
                connection.sendall(head)
                # Nothing of its body was sent.
                assert connection.recv(4096).split(b" ", 2)[1] == b"429"
            for _ in range(20):
                assert live.post(TEXT, large).status_code == 429
            # One such body is some 15 MB once it is parsed.
            assert resident() - before < 100 * MIB
        for connection in held:
            assert until_closed(connection).split(b" ", 2)[1] == b"200"
            connection.close()
        live.survives()


def test_an_engine_that_fails_is_said_to_have_failed(served_path: Path) -> None:
    with serving(served_path) as live:

        def broken() -> None:
            raise RuntimeError("secret")

        live.llm.llm.engine.step = broken  # type: ignore[method-assign, assignment]
        with ThreadPoolExecutor(1) as beside:
            body = {"prompt": [5], "max_tokens": 4}
            other = beside.submit(live.post, TEXT, {**body, "prompt": [6]})
            for reply in (live.post(TEXT, {**body, "stream": True}), other.result()):
                assert reply.status_code == 503
                assert error_of(reply)["code"] == "engine_closed"
                assert "secret" not in reply.text
        assert live.get("/health").json() == {"status": "failed"}


def test_a_flood_leaves_memory_flat(live: Live) -> None:
    """Thousands of refused requests are forgotten."""
    bad = [row for row in ROWS if row.statuses == (400,) and len(row.content) < 2000]
    for row in bad:
        live.post(row.route, row.content)
    before = resident()
    for number in range(1500):
        row = bad[number % len(bad)]
        assert live.post(row.route, row.content).status_code == 400
    assert resident() - before < 16 * MIB
    live.survives()
