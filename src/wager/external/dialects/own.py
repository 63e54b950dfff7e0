"""The project's own dialect: the JSON of ``-sc``, in vLLM's keys and a few more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from wager.arms import Speculation, parse_arms
from wager.config import SpeculationConfig
from wager.errors import ConfigError
from wager.external.dialects import ENGINES, dialect, llamacpp_table, vllm_table
from wager.external.dialects.base import Reading, Written
from wager.external.dialects.names import owner
from wager.external.dialects.options import Options, as_ngram, strict_json
from wager.external.dialects.reader import Scan, scan, told
from wager.registry import drafter_names

ENGINE: Final = "own"
VERSION: Final = ""

_KEYS: Final = tuple(f.name for f in fields(SpeculationConfig))
_ROWS: Final = {o.names[0]: o for o in vllm_table.KEYS if o.severity != "error"}
_OURS: Final = {
    "match": "which of several matches is taken: recent or earliest",
    "cyclic": "goes on from the start of a match that reaches the end of the text",
    "verify": "match: the plain sampler, run along the draft",
    "options": "handed through to a method of another package",
}


def read(tokens: Sequence[str]) -> Reading:
    """The arguments behind ``wager run`` and its like."""
    found = scan(tokens, ENGINE)
    speculation = _of_arms(found, found.values.get("arms"))
    text = found.values.get("speculative_config")
    other = found.values.get("kept")
    if other is not None and other not in ENGINES:
        found.say("error", f"--engine {other}", f"must be one of {', '.join(ENGINES)}")
    if text is not None:
        config = _load(text)
        for key, value in config.items():
            what = f"{key}: {value if isinstance(value, str) else json.dumps(value)}"
            if key in _ROWS:
                found.findings.append(told(_ROWS[key], what))
            elif key in _OURS:
                found.say("note", what, _OURS[key])
        method = config.pop("method", None)
        speculation = Speculation(method, config) if isinstance(method, str) else None
        if other in (None, ENGINE):
            _check_own(found, text, speculation)
        elif other in ENGINES and speculation is not None:
            _check_other(found, other, speculation)
    target, rest, findings = found.reading_parts()
    return Reading(ENGINE, speculation, target, rest, findings)


def _check_own(found: Scan, text: str, speculation: Speculation | None) -> None:
    try:
        SpeculationConfig.parse(text)
    except ConfigError as error:
        found.say("error", "-sc", str(error))
    if speculation is not None and speculation.method not in drafter_names():
        found.say("error", f"method: {speculation.method}", _unknown())


def _check_other(found: Scan, engine: str, speculation: Speculation) -> None:
    """With ``--engine`` the config is that engine's to take."""
    try:
        dialect(engine).write(speculation)
    except ConfigError as error:
        found.say("error", "-sc", str(error))


def _of_arms(found: Scan, text: str | None) -> Speculation | None:
    """The first of ``--arms`` that speculates. Raises ConfigError for what is no list of arms."""
    arms = [] if text is None else [arm for arm in parse_arms(text) if arm.speculation is not None]
    for place, arm in enumerate(arms):
        said = "written anew below" if place == 0 else "left out here: one at a time"
        found.say("note" if place == 0 else "warning", arm.name, said)
    return arms[0].speculation if arms else None


def _unknown() -> str:
    return f"wager's own engine does not draft this way yet; it has {', '.join(drafter_names())}"


def _load(text: str) -> dict[str, Any]:
    try:
        value = strict_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"speculative-config: not a JSON object: {text!r}")
    return {str(key).replace("-", "_"): v for key, v in value.items()}


def write(speculation: Speculation | None) -> Written:
    """As ``-sc`` of `wager run` and `wager bench`; no arguments for plain decoding.

    Raises ConfigError for a method that this engine does not have.
    """
    if speculation is None:
        return Written()
    options = Options(speculation, ENGINE)
    options.alone()
    method = options.method
    ngram = method == "ngram_gpu" or (
        method in llamacpp_table.METHODS and method not in llamacpp_table.TO_CANONICAL
    )
    if method != "ngram" and not ngram and method not in drafter_names():
        raise ConfigError(f"{method}: {_unknown()}")
    config: dict[str, Any] = {"method": "ngram" if ngram else method}
    if ngram or method == "ngram":
        k, low, high = as_ngram(options)
        config |= {
            "num_speculative_tokens": k, "prompt_lookup_min": low, "prompt_lookup_max": high,
        }  # fmt: skip
    for key in _KEYS:
        if key not in config and (value := options.take(key)) is not None:
            config[key] = value
    effective = SpeculationConfig.parse(config)
    notes = options.finish(owner)
    if effective is not None:
        notes = (f"in effect: {effective.describe()}", *notes)
    return Written(("-sc", json.dumps(config, separators=(",", ":"))), notes=notes)
