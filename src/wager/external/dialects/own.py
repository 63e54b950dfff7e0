"""The project's own dialect: the JSON of ``-sc``, in vLLM's keys and a few more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from wager.arms import Speculation, parse_arms, speculation_of
from wager.errors import ConfigError
from wager.external.dialects import ENGINES, dialect, llamacpp_table, vllm_table
from wager.external.dialects.base import Reading, Written
from wager.external.dialects.names import owner
from wager.external.dialects.options import Options, as_ngram, strict_json
from wager.external.dialects.reader import Scan, scan, told
from wager.registry import drafter_class, drafter_names
from wager.speculation import AUTO, AUTO_METHODS, SpeculationConfig

ENGINE: Final = "own"
VERSION: Final = ""

_K: Final = "num_speculative_tokens"
_DEPTH: Final = "suffix_decoding_max_tree_depth"
# What vLLM takes for suffix where neither is given.
_DEPTH_DEFAULT: Final = 24
_CONTROL: Final = ("controller", "loss_budget", "objective")
_RULE: Final = ("verify", "block_verification", *_CONTROL)
_ROWS: Final = {o.names[0]: o for o in vllm_table.KEYS if o.severity != "error"}
_OURS: Final = {
    "controller": "on: drafts only where it pays, any length up to num_speculative_tokens; off: "
    "always that many",
    "loss_budget": "share of time that the controller may lose on trying",
    "objective": "whose time counts for the controller: throughput or latency",
    "match": "which of several matches is taken: recent or earliest",
    "cyclic": "goes on from the start of a match that reaches the end of the text",
    "verify": "match: the plain sampler, run along the draft; rejection: keeps the distribution, "
    "not the tokens of a seed",
    "block_verification": "accepts a draft as a whole rather than token by token",
    "suffix_decoding_max_spec_offset": "tokens that a draft may have beyond factor times match",
    "suffix_decoding_max_bytes": "memory of past answers",
    "draft_min_token_prob": "a draft ends before a token less likely than this",
    "draft_memory": "a file that keeps what was learnt",
    "draft_memory_size": "the most bytes of that file",
    "draft_memory_read_only": "the file is read and never written",
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
        speculation = _speculation(config)
        if other in (None, ENGINE):
            _check_own(found, text, speculation)
        elif other in ENGINES and speculation is not None:
            _check_other(found, other, speculation)
    target, rest, findings = found.reading_parts()
    return Reading(ENGINE, speculation, target, rest, findings)


def _speculation(config: dict[str, Any]) -> Speculation | None:
    """None without a method, which is an error of its own."""
    try:
        return speculation_of(config)
    except ConfigError:
        return None


def _check_own(found: Scan, text: str, speculation: Speculation | None) -> None:
    methods = () if speculation is None else speculation.methods
    unknown = [method for method in methods if method not in (AUTO, *drafter_names())]
    for method in unknown:
        found.say("error", f"method: {method}", _unknown())
    if unknown:
        return
    try:
        SpeculationConfig.parse(text)
    except ConfigError as error:
        found.say("error", "-sc", str(error))


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
    methods = _methods(options, speculation)
    config: dict[str, Any] = {"method": methods[0] if len(methods) == 1 else methods}
    config |= _lengths(options, methods) | _rule(options)
    if "draft_model" in methods:
        config |= _ends(options)
    drafters = AUTO_METHODS if methods == [AUTO] else methods
    declared = [getattr(drafter_class(method), "Options", None) for method in drafters]
    known = [field.name for record in declared if record is not None for field in fields(record)]
    if None in declared:
        known.append("options")
    for key in (*known, *_RULE):
        if (value := options.take(key)) is not None:
            config[key] = value
    effective = SpeculationConfig.parse(config)
    notes = options.finish(owner)
    if effective is not None:
        notes = (f"in effect: {effective.describe()}", *notes)
    return Written(("-sc", json.dumps(config, separators=(",", ":"))), notes=notes)


def _methods(options: Options, speculation: Speculation) -> list[str]:
    """The methods by wager's names. Raises ConfigError for one that it does not have."""
    if "," in options.method:
        raise ConfigError(
            f"{options.method}: a list of llama.cpp's; wager's own is suffix+ngram, in JSON "
            '["suffix", "ngram"], asked in that order and with one draft length for all'
        )
    if speculation.methods == (AUTO,):
        return [AUTO]
    if len(speculation.methods) == 1 and _is_lookup(options.method):
        return ["ngram"]
    found = [llamacpp_table.TO_CANONICAL.get(name, name) for name in speculation.methods]
    for name in found:
        if name not in drafter_names():
            raise ConfigError(f"{name}: {_unknown()}")
    return found


def _is_lookup(method: str) -> bool:
    """An n-gram lookup, whatever its engine calls it."""
    others = method in llamacpp_table.METHODS and method not in llamacpp_table.TO_CANONICAL
    return others or method in ("ngram", "ngram_gpu")


def _lengths(options: Options, methods: Sequence[str]) -> dict[str, Any]:
    """The draft length, and the bounds of a lookup. A length that was left out stays so: the
    controller finds it."""
    found: dict[str, Any] = {}
    if methods == [AUTO]:
        # Its lookup bounds are others than those of vLLM's ngram, and no concern of ours.
        return {_K: options.whole(_K)} if options.has(_K) else found
    if methods == ["ngram"] and (options.has(_K) or options.method not in ("ngram", "ngram_gpu")):
        k, low, high = as_ngram(options)
        return {_K: k, "prompt_lookup_min": low, "prompt_lookup_max": high}
    if methods == ["suffix"]:
        k, depth = options.take(_K), options.take(_DEPTH)
        if k is None:
            k = _DEPTH_DEFAULT if depth is None else depth
            options.notes.append(f"{_K} left out: {k}, the depth of the tree, as in vLLM")
        return {_K: k} if depth is None else {_K: k, _DEPTH: depth}
    if options.has(_K):
        found[_K] = options.whole(_K)
    if "ngram" in methods:
        low, high = options.lookup()
        found |= {"prompt_lookup_min": low, "prompt_lookup_max": high}
    return found


def _rule(options: Options) -> dict[str, Any]:
    """The rule of acceptance, from the words of vLLM and llama.cpp."""
    rule = options.take("rejection_sample_method")
    given = {key: options.take(key) for key in ("draft_sample_method", "spec_draft_sampling")}
    found: dict[str, Any] = {}
    if rule in ("standard", "block") or "probabilistic" in given.values():
        found["verify"] = "rejection"
        options.notes.append(
            "verify rejection keeps the distribution; without it even the tokens of a seed stay "
            "those of plain decoding"
        )
    elif rule is not None:
        options.notes.append(f"rejection_sample_method {rule!r} is left out: no rule of wager")
    if rule == "block":
        found["block_verification"] = True
    for key, value in given.items():
        if value not in (None, "probabilistic"):
            options.notes.append(
                f"{key} {value!r} is left out: a drafter picks with the noise of the request"
            )
    return found


def _ends(options: Options) -> dict[str, Any]:
    """Where the drafts of a model end, from the words of llama.cpp."""
    least = options.take("spec_draft_n_min")
    if least:
        options.notes.append(f"spec_draft_n_min {least} is left out: wager keeps short drafts")
    probability = options.take("spec_draft_p_min")
    return {"draft_min_token_prob": probability} if probability else {}
