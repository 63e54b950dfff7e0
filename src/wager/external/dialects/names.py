"""Which engine an option belongs to, over the tables of all of them."""

from __future__ import annotations

from typing import Final

from wager.external.dialects import llamacpp_table, vllm_table

_KEYS: Final = {
    "vllm": {o.key for o in vllm_table.KEYS if o.key},
    "llamacpp": {o.key for o in llamacpp_table.OPTIONS if o.key},
    "own": {"match", "cyclic", "verify", "controller", "loss_budget"},
}


def owner(key: str) -> str | None:
    """The engine that knows the option ``key`` of a `Speculation`; vLLM first, whose names count.

    None where no engine does.
    """
    for engine, keys in _KEYS.items():
        if key in keys:
            return engine
    return None
