"""An engine without a model, and what handlers need of a server around it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wager.engine.snapshot import Snapshot
from wager.engine.stats import EngineStats
from wager.server.options import ServerOptions
from wager.server.service import Service
from wager.types import CompletionOutput, DraftCounts, RequestOutput


def engine(
    stats: EngineStats | None = None,
    methods: Sequence[str] = ("ngram",),
    decoding: Sequence[int] = (),
    plain_ms: float | None = 10.0,
    controller: Any = None,
) -> Any:
    """``decoding`` are the contexts of the sequences that decode; ``plain_ms`` None: nothing is
    known of step times."""
    control = controller or SimpleNamespace(decisions=SimpleNamespace(reasons={}, lengths={}))
    running = [SimpleNamespace(decoding=True, computed=n) for n in decoding]
    return SimpleNamespace(
        stats=stats or EngineStats(),
        pool=SimpleNamespace(blocks=64, in_use=16, prefix_cache=True),
        scheduler=SimpleNamespace(running=running, waiting=[]),
        speculation=SimpleNamespace(methods=[SimpleNamespace(method=m) for m in methods])
        if methods
        else None,
        bets=SimpleNamespace(controller=control) if methods else None,
        times=SimpleNamespace(known=plain_ms is not None, plain=lambda requests, kv: plain_ms),
    )


def service(snapshot: Snapshot, **options: Any) -> Service:
    """A server whose engine stands still."""
    llm: Any = SimpleNamespace(snapshot=snapshot, running=2, waiting=1)
    return Service(llm, ServerOptions(served_names=("tiny", "alias"), **options))


def ask(handler: Any, of: Service, **path_params: str) -> Response:
    """What a handler replies to a GET."""
    app = SimpleNamespace(state=SimpleNamespace(service=of))
    scope = {"type": "http", "method": "GET", "headers": [], "app": app, "path_params": path_params}
    reply = asyncio.run(handler(Request(scope)))
    assert isinstance(reply, Response)
    return reply


def stepped(stats: EngineStats, ms: float, *drafts: tuple[str, int, int, int]) -> None:
    """A step of ``ms`` without prompts; ``drafts`` are (source, drafted, accepted, committed)."""
    for draft in drafts:
        stats.record_draft(*draft)
    rows = sum(drafted for _, drafted, _, _ in drafts)
    parts = {"forward": 0.8e-3 * ms, "sample": 0.1e-3 * ms, "draft": 1e-5 if rows else 0.0}
    stats.record_step(total=1e-3 * ms, **parts, prompt_rows=0, draft_rows=rows)


def output(
    tokens: int = 5,
    drafts: Sequence[tuple[int, int, int]] = ((4, 2, 3), (4, 0, 1)),
    **changes: Any,
) -> RequestOutput:
    """A whole answer; ``drafts`` are (drafted, accepted, committed) by step."""
    counts = DraftCounts()
    for draft in drafts:
        counts.record(*draft)
    choice = CompletionOutput(0, list(range(tokens)), "x" * tokens, "length", counts=counts)
    values: dict[str, Any] = {
        "request_id": "r", "prompt_token_ids": [1, 2, 3, 4], "outputs": [choice], "finished": True,
        "cached_tokens": 1, "first_token_s": 0.3, "total_s": 0.5, "queue_s": 0.1, "draft_ms": 0.2,
        "verify_ms": 150.0,
    }  # fmt: skip
    return RequestOutput(**(values | changes))
