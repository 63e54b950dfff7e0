"""Whether the engine gets anywhere, and what this is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wager import __version__
from wager.server.service import Service, service_of


async def health(request: Request) -> Response:
    """``GET /health``: 200 while requests are served, else 503; ``status`` says why.

    It is the engine's progress that counts, not that this answers: ``stalled`` means that it has
    had work for ``stall_timeout`` and has not finished a step.
    """
    status = _status(service_of(request))
    headers = {"cache-control": "no-store"}
    return JSONResponse({"status": status}, 200 if status == "ok" else 503, headers)


def _status(service: Service) -> str:
    if service.llm.failed is not None:
        return "failed"
    if service.draining:
        return "shutting_down"
    stalled = service.llm.stalled_s
    if stalled is not None and stalled > service.options.stall_timeout:
        return "stalled"
    return "ok"


async def version(request: Request) -> Response:
    """``GET /version``: wager's, and what is in effect."""
    llm = service_of(request).llm.llm
    speculation = llm.engine.speculation
    told = {
        "version": __version__,
        "weights": llm.model.weights,
        "kv": llm.engine.kv,
        "max_model_len": llm.engine.max_model_len,
        "max_num_seqs": llm.config.max_num_seqs,
        "speculation": None if speculation is None else speculation.describe(),
    }
    return JSONResponse(told)
