"""``/dashboard``: one page that draws what one JSON object says, asked for each second.

The page, its style and its scripts are files of the package and hold no data. All times in the JSON
say their unit; what is estimated says so in its name; what is not known is null.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wager import __version__
from wager.engine.control.decisions import Decision
from wager.engine.snapshot import ControlState, Snapshot
from wager.server.errors import ApiError
from wager.server.metrics import by_method
from wager.server.service import Service, service_of
from wager.server.truth import rounded
from wager.types import DraftCounts

if TYPE_CHECKING:
    from starlette.requests import Request

    from wager.server.window import Change

NOW_S: Final = 5.0
"""Seconds that "now" means."""
RECENT_S: Final = 60.0
"""Seconds that acceptance and draft lengths are of, where so much was seen."""

_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_PAGE: Final = "dashboard.html"
_FILES: Final = ("dashboard.css", "dashboard.js", "charts.js")
_SAFE: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_FRESH: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


async def page(request: Request) -> Response:
    """``GET /dashboard``."""
    return Response(_read(_PAGE), headers={**_SAFE, "content-type": "text/html; charset=utf-8"})


async def static(request: Request) -> Response:
    """``GET /dashboard/{file}``: the page's style and scripts."""
    name = request.path_params["file"]
    if name not in _FILES:
        raise ApiError(404, f"there is no file {name[:40]!r} of the dashboard")
    kind = _TYPES[name.rpartition(".")[2]]
    return Response(_read(name), headers={**_SAFE, "content-type": kind})


@cache
def _read(name: str) -> bytes:
    return (files("wager.server") / "static" / name).read_bytes()


async def live(request: Request) -> Response:
    """``GET /dashboard/live``: what the page shows."""
    return JSONResponse(state(service_of(request)), headers=_FRESH)


async def controller(request: Request) -> Response:
    """``GET /debug/controller``: what the controller decided, and its last decisions in full."""
    snapshot = service_of(request).llm.snapshot
    told: dict[str, Any] = {"methods": list(snapshot.methods), "controller": None, "last": []}
    if snapshot.control is not None:
        told["controller"] = _control(snapshot.control)
        told["plain_step"] = asdict(snapshot.plain) if snapshot.plain is not None else None
        told["last"] = [_decision(one) for one in snapshot.control.last]
    return JSONResponse(told, headers=_FRESH)


def routes() -> list[Route]:
    """Where the handlers of this file belong."""
    return [
        Route("/dashboard", page, methods=["GET"]),
        Route("/dashboard/live", live, methods=["GET"]),
        Route("/dashboard/{file}", static, methods=["GET"]),
        Route("/debug/controller", controller, methods=["GET"]),
    ]


def state(service: Service) -> dict[str, Any]:
    """The whole JSON of the page."""
    snapshot = service.llm.snapshot
    window = service.metrics.window
    now, recent = window.change(snapshot, NOW_S), window.change(snapshot, RECENT_S)
    window.add(snapshot)
    return {
        "version": __version__,
        "model": service.names[0],
        "time": round(time.time(), 3),
        "uptime_s": round(time.time() - service.created, 1),
        "methods": list(snapshot.methods),
        "running": service.llm.running,
        "waiting": service.llm.waiting,
        "kv": {"used": snapshot.kv_used, "blocks": snapshot.kv_blocks},
        "prefix": {"hits": snapshot.prefix_hits, "queries": snapshot.prefix_queries},
        "now": _now(now, snapshot),
        "drafts": _drafts(recent, snapshot),
        "totals": _totals(snapshot),
        "controller": _control(snapshot.control) if snapshot.control is not None else None,
        "recent": service.recent.rows(),
        "shows_text": service.recent.show_text,
    }


def _now(change: Change | None, snapshot: Snapshot) -> dict[str, Any]:
    """Rates of the last seconds; all null until there is something to tell them by."""
    told: dict[str, Any] = {"plain_step_ms_estimated": rounded(snapshot.plain_ms)}
    if change is None:
        names = (
            "seconds", "tokens_per_second", "decode_tokens_per_second", "tokens_per_step",
            "plain_tokens_per_second_estimated", "speedup_estimated", "step_ms", "draft_ms",
        )  # fmt: skip
        return dict.fromkeys(names) | told
    return told | {
        "seconds": rounded(change.seconds),
        "tokens_per_second": rounded(change.tokens_per_second),
        "decode_tokens_per_second": rounded(change.decode_tokens_per_second),
        "tokens_per_step": rounded(change.counts.tokens_per_step),
        "plain_tokens_per_second_estimated": rounded(change.plain_tokens_per_second),
        "speedup_estimated": rounded(change.speedup),
        "step_ms": rounded(change.step_ms),
        "draft_ms": rounded(change.draft_ms),
    }


def _drafts(change: Change | None, snapshot: Snapshot) -> dict[str, Any] | None:
    """Acceptance and draft lengths; ``over_s`` null: since the start. None where nothing can
    draft."""
    if not snapshot.methods:
        return None
    counts = change.counts if change is not None else snapshot.counts
    control = snapshot.control.reasons if snapshot.control is not None else {}
    return {
        "over_s": rounded(change.seconds) if change is not None else None,
        **_counts(counts),
        "lengths": _lengths(counts),
        "reasons": change.reasons if change is not None else dict(control),
    }


def _lengths(counts: DraftCounts) -> list[int]:
    """Entry n: steps of a request with a draft of n tokens, as it was verified; 0 is none."""
    reached = [counts.steps, *counts.drafted_at, 0]
    return [more - fewer for more, fewer in itertools.pairwise(reached)]


def _counts(counts: DraftCounts) -> dict[str, Any]:
    shares = counts.acceptance_by_position_unconditional if counts.drafted_steps else []
    return {
        "steps": counts.steps,
        "drafts": counts.drafted_steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "acceptance_rate": rounded(counts.acceptance_rate),
        "acceptance_length": rounded(counts.acceptance_length),
        "coverage": rounded(counts.coverage),
        "tokens_per_step": rounded(counts.tokens_per_step),
        "acceptance_by_position_unconditional": [rounded(share) for share in shares],
    }


def _totals(snapshot: Snapshot) -> dict[str, Any]:
    speedup = None
    if snapshot.compared_ms > 0.0:
        speedup = snapshot.estimated_plain_ms / snapshot.compared_ms
    return {
        "requests": snapshot.finished,
        "aborted": snapshot.aborted,
        "preemptions": snapshot.preemptions,
        "drafter_failures": snapshot.drafter_failures,
        "tokens": snapshot.counts.committed,
        "speedup_estimated": rounded(speedup),
        "by_method": {name: _counts(found) for name, found in by_method(snapshot).items()},
    }


def _control(control: ControlState) -> dict[str, Any]:
    return {
        "kind": control.kind,
        "reasons": dict(control.reasons),
        "lengths": {str(length): control.lengths[length] for length in sorted(control.lengths)},
        "balance_steps": rounded(control.balance),
        "cap_steps": rounded(control.cap),
        "lost_steps": rounded(control.lost),
        "gained_steps": rounded(control.gained),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    told = {name: _plain(value) for name, value in asdict(decision).items()}
    return told | {"said": decision.describe()}


def _plain(value: Any) -> Any:
    return rounded(value) if isinstance(value, float) else value
