"""``GET /v1/models``: the names that the model is served under, and how it is run."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wager.server.convert import check_model
from wager.server.service import Service, service_of


async def list_models(request: Request) -> Response:
    """All names, the first one first."""
    service = service_of(request)
    data = [model(name, service) for name in service.names]
    return JSONResponse({"object": "list", "data": data})


async def get_model(request: Request) -> Response:
    """One of them. Raises ApiError (404)."""
    service = service_of(request)
    name = check_model(request.path_params["model"], service)
    return JSONResponse(model(name, service))


def model(name: str, service: Service) -> dict[str, Any]:
    """OpenAI's form, with vLLM's ``max_model_len``, and what is drafted with."""
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "wager",
        "root": service.names[0],
        "parent": None,
        "max_model_len": service.llm.llm.engine.max_model_len,
        "speculation": speculation(service),
    }


def speculation(service: Service) -> dict[str, Any] | None:
    """The settings in effect, whatever was left out when they were given; null without any."""
    config = service.llm.llm.engine.speculation
    if config is None:
        return None
    return {
        "methods": [
            {
                "method": one.method,
                "num_speculative_tokens": one.num_speculative_tokens,
                "options": one.describe(),
            }
            for one in config.methods
        ],
        "num_speculative_tokens": config.num_speculative_tokens,
        "controller": config.controller,
        "verify": config.verify,
    }
