"""Reads the engines that are never written: transformers' generate() and MLX-LM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wager.arms import Speculation
from wager.external.dialects.base import Reading
from wager.external.dialects.names import GENERAL
from wager.external.dialects.reader import Rule, scan

ENGINES: Final = ("transformers", "mlx")

_K: Final = "num_speculative_tokens"
_DEFAULT_K: Final = {"transformers": 20, "mlx": 3}
_WINDOW: Final = 2

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "warning", "batch", lambda v: v["engine"] == "transformers",
        "one sequence at a time: assisted generation refuses a batch, a static cache and a "
        "compiled model; compare it with compiled plain generation, not with eager",
    ),
    Rule(
        "warning", "counters", lambda v: v["engine"] == "transformers",
        "nothing says how many tokens were drafted or accepted",
    ),
    Rule(
        "warning", "batch", lambda v: v["engine"] == "mlx",
        "with a draft model the server stops batching; different vocabularies are only warned of",
    ),
)  # fmt: skip


def read(engine: str, tokens: Sequence[str]) -> Reading:
    """The options of ``engine``, one of `ENGINES`."""
    found = scan(tokens, engine, positional=False)
    values = {k: v for k, v in found.values.items() if k not in GENERAL and v is not None}
    speculation = _settle(engine, values)
    if speculation is not None:
        seen = {"engine": engine}
        found.findings += [f for rule in RULES if (f := rule.finding(seen)) is not None]
    target, rest, findings = found.reading_parts()
    return Reading(engine, speculation, target, rest, findings)


def _settle(engine: str, values: dict[str, Any]) -> Speculation | None:
    lookup = values.pop("prompt_lookup_num_tokens", None)
    window = values.pop("prompt_lookup_max", _WINDOW)
    if lookup is not None:
        bounds = {"prompt_lookup_min": 1, "prompt_lookup_max": window}
        return Speculation("ngram", {_K: lookup, **bounds})
    if values.pop("use_mtp", None):
        return Speculation("mtp", {_K: values.get(_K, 1)})
    if "model" not in values:
        return None
    values.setdefault(_K, _DEFAULT_K[engine])
    if "use_heterogeneous_vocab" in values:
        values["use_heterogeneous_vocab"] = True
    return Speculation("draft_model", values)
