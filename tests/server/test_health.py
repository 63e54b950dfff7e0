"""`/health` follows the engine, not the event loop; `/version` says what is in effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

import wager
from tests.server.asgi import get, idle_llm
from wager.server.app import create_app
from wager.server.options import ServerOptions


def app_of(**told: Any) -> Any:
    return create_app(idle_llm(**told), ServerOptions(served_names=("tiny",), stall_timeout=5.0))


@pytest.mark.parametrize(
    ("told", "status", "said"),
    [
        ({}, 200, "ok"),
        ({"stalled_s": 4.9, "running": 3}, 200, "ok"),
        ({"stalled_s": 5.1}, 503, "stalled"),
        ({"failed": RuntimeError("secret")}, 503, "failed"),
        ({"failed": RuntimeError("secret"), "stalled_s": 9.0}, 503, "failed"),
    ],
)
def test_health(told: dict[str, Any], status: int, said: str) -> None:
    reply = get(app_of(**told), "/health")
    assert reply.status == status
    assert json.loads(reply.text) == {"status": said}
    assert reply.header("cache-control") == "no-store"


def test_a_server_that_shuts_down_is_not_ready() -> None:
    app = app_of()
    app.state.service.drain()
    reply = get(app, "/health")
    assert (reply.status, json.loads(reply.text)) == (503, {"status": "shutting_down"})


def test_version() -> None:
    found = json.loads(get(app_of(), "/version").text)
    assert found == {
        "version": wager.__version__, "weights": "f32", "kv": "f32", "max_model_len": 64,
        "max_num_seqs": 2, "speculation": None,
    }  # fmt: skip
