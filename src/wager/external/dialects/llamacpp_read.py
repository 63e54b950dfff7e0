"""Reads llama-server's options: what they amount to, and what it does not say about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wager.arms import Speculation
from wager.external.dialects import llamacpp_table as table
from wager.external.dialects.base import Reading
from wager.external.dialects.names import GENERAL, canonical
from wager.external.dialects.options import CACHE_DRAFT
from wager.external.dialects.reader import Rule, Scan, dashes, scan
from wager.external.dialects.vllm import taken_over

ENGINE: Final = "llamacpp"

_K: Final = "num_speculative_tokens"
_DRAFT_MAX: Final = 3
_MAPS: Final = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
_OLD_NGRAM: Final = ("spec_ngram_size_n", "spec_ngram_size_m", "spec_ngram_min_hits")


def _has(name: str, values: Any) -> bool:
    return name in str(values["method"]).split(",")


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "warning", "--spec-draft-p-min",
        lambda v: _has("draft-simple", v) and "spec_draft_p_min" not in v,
        "left out: it was 0.75 in older builds and is 0.00 now, so drafts no longer end early; the "
        "value is written out",
    ),
    Rule(
        "error", "--spec-draft-n-min",
        lambda v: v.get("spec_draft_n_min", 0) > v.get(_K, _DRAFT_MAX),
        "longer than the longest draft, so every draft is thrown away",
    ),
    Rule(
        "warning", "-md", lambda v: _has("draft-simple", v),
        "where the vocabularies of target and drafter do not match, the server logs an error and "
        "goes on without drafting: look for draft_n in a reply",
    ),
    Rule(
        "warning", "-lcs, -lcd",
        lambda v: _has("ngram-cache", v) and ("lookup_cache_static" in v
                                              or "lookup_cache_dynamic" in v),
        "a file that is missing ends the server; one made with another tokenizer loads, and drafts "
        "nonsense without a word",
    ),
    Rule(
        "note", "ngram-cache", lambda v: _has("ngram-cache", v),
        f"drafts are {CACHE_DRAFT} tokens long, whatever is asked for",
    ),
    Rule(
        "note", "--spec-type", lambda v: "," in v["method"],
        "the types are asked in a fixed order, n-grams first, and the first that drafts wins",
    ),
    Rule(
        "warning", "ngram-mod", lambda v: _has("ngram-mod", v),
        "one table for all slots, so a repeated prompt looks better than a new one: measure with "
        "prompts that differ",
    ),
    Rule(
        "warning", "--spec-draft-sampling",
        lambda v: v.get("spec_draft_sampling") == "probabilistic",
        "the target then checks by rejection: a seed no longer gives the tokens of plain decoding",
    ),
    Rule(
        "warning", "--spec-synth-len, --spec-synth-rates",
        lambda v: "spec_synth_len" in v or "spec_synth_rates" in v,
        "accepts by dice: for benchmarks only",
    ),
)  # fmt: skip


def read(tokens: Sequence[str]) -> Reading:
    """The arguments behind ``llama-server``, of this build or an older one."""
    found = scan(tokens, ENGINE, dashes, swallows=True, positional=False)
    values = {k: v for k, v in found.values.items() if k not in GENERAL}
    speculation = _settle(found, values)
    if "port" not in found.values and tokens:
        found.say(
            "warning", "--port",
            "left out: llama-server announces that its port will change from 8080 to 9931; write "
            "host and port out",
        )  # fmt: skip
    target, rest, findings = found.reading_parts()
    return Reading(ENGINE, speculation, target, rest, findings)


def _settle(found: Scan, values: dict[str, Any]) -> Speculation | None:
    if not values:
        return None
    config = values.pop("speculative_config", None)
    if config is not None:
        return taken_over(found, config)
    _old_draft(found, values)
    types = _types(found, values)
    if not types:
        return None
    _old_ngram(found, values, types)
    _idle(found, values, types)
    _complete(found, values, types)
    values = {key: value for key, value in values.items() if value is not None}
    checked = {**values, "method": ",".join(types)}
    found.findings += [f for rule in RULES if (f := rule.finding(checked)) is not None]
    method = canonical(types[0]) if len(types) == 1 else ",".join(types)
    return Speculation(method, values)


def _old_draft(found: Scan, values: dict[str, Any]) -> None:
    """``--draft`` took a number; guides put the words ngram or a file behind it."""
    given = values.get(_K)
    if not isinstance(given, str):
        return
    name = found.spellings[_K]
    what = f"{name} {given}" if name.startswith("-") else f"{name}={given}"
    values.pop(_K)
    if given.isdecimal():
        values[_K] = int(given)
        return
    found.findings = [finding for finding in found.findings if finding.what != what]
    if given in table.MEANT or given in table.METHODS:
        lookup = "lookup_cache_static" in values or "lookup_cache_dynamic" in values
        meant = "ngram-cache" if lookup and given == "ngram" else table.MEANT.get(given, given)
        values.setdefault("method", meant)
        text = f"a number, never a method: that is --spec-type {meant}"
    elif "." in given or "/" in given:
        values.setdefault("model", given)
        text = "a number, never a file: a drafter is -md FILE --spec-type draft-simple"
    else:
        text = "a number"
    found.say("error", what, f"removed, and the server ends at once with an error; it took {text}")


def _types(found: Scan, values: dict[str, Any]) -> list[str]:
    """The types that are meant, by name or by the other options."""
    named = values.pop("method", None)
    default = values.pop("spec_default", None)
    if named is None and default:
        return ["ngram-mod"]
    if named is not None:
        return _named(found, str(named))
    if "lookup_cache_static" in values or "lookup_cache_dynamic" in values:
        found.say(
            "error", "-lcs, -lcd",
            "without --spec-type ngram-cache the files are accepted and silently ignored",
        )  # fmt: skip
        return ["ngram-cache"]
    implied = [m for m in table.METHODS if any(k.startswith(_stem(m)) for k in values)]
    if "model" in values or (not implied and _K in values):
        implied = ["draft-simple"]
        loaded = ", so that the drafter is loaded and never drafts" if "model" in values else ""
        found.say("error", "--spec-type", f"left out{loaded}: draft-simple is meant")
        return implied
    if not implied and any(key in values for key in _OLD_NGRAM):
        implied = ["ngram-simple"]
    if implied:
        found.say(
            "error", "--spec-type",
            f"left out, and without it nothing is drafted: {implied[0]} is meant",
        )  # fmt: skip
    elif values:
        found.say("error", ", ".join(values), "without --spec-type nothing is drafted")
    return implied[:1]


def _stem(method: str) -> str:
    return f"spec_{method.replace('-', '_')}_"


def _named(found: Scan, text: str) -> list[str]:
    types: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if name == "none":
            found.say("note", "--spec-type none", "plain decoding; what follows it is discarded")
            break
        real = table.MEANT.get(name, name)
        real = _TYPE_OF.get(real, real)
        if real not in table.METHODS:
            known = ", ".join(table.METHODS)
            found.say("error", f"--spec-type {name}", f"unknown type: there are {known}")
            continue
        if real != name:
            found.say("error", f"--spec-type {name}", f"no type of llama.cpp; {real} is meant")
        found.say("note", f"--spec-type {real}", table.METHODS[real])
        types.append(real)
    return types


_TYPE_OF: Final = {canonical: name for name, canonical in table.TO_CANONICAL.items()}


def _old_ngram(found: Scan, values: dict[str, Any], types: list[str]) -> None:
    """The three options that were split by type."""
    name = next((t for t in types if t in _MAPS), None)
    for key in _OLD_NGRAM:
        value = values.pop(key, None)
        if value is None:
            continue
        if name is not None:
            values.setdefault(f"{_stem(name)}{key.removeprefix('spec_ngram_')}", value)
        elif key == "spec_ngram_size_n" and "ngram-mod" in types:
            values.setdefault("spec_ngram_mod_n_match", value)


def _idle(found: Scan, values: dict[str, Any], types: list[str]) -> None:
    """Options of types that are not asked for: accepted, and without effect."""
    drafts = any(name.startswith("draft-") for name in types)
    for key in list(values):
        theirs = next((m for m in table.METHODS if key.startswith(_stem(m))), None)
        lookup = key.startswith("lookup_cache_") and "ngram-cache" not in types
        needs_draft = key.startswith(("spec_draft_", "no_spec_draft_")) or key in ("model",)
        if lookup:
            why = "without ngram-cache among the types it is accepted and silently ignored"
        elif theirs is not None and theirs not in types:
            why = f"without {theirs} among the types it does nothing"
        elif needs_draft and not drafts:
            why = "without a type draft-... it does nothing"
        else:
            continue
        found.say("warning", found.spellings.get(key, key), f"{why}; left out")
        values.pop(key)
    if _K in values and not drafts:
        found.say(
            "warning", found.spellings.get(_K, _K),
            f"does nothing for {types[0]}, which has a length of its own; taken as that length",
        )  # fmt: skip
        if types[0] == "ngram-cache":
            values.pop(_K)


def _complete(found: Scan, values: dict[str, Any], types: list[str]) -> None:
    """Stand-ins for files that nobody named, and the length that the server would take."""
    drafts = [name for name in types if name.startswith("draft-")]
    if "lookup_cache_static" in values and values["lookup_cache_static"] is None:
        values["lookup_cache_static"] = "FILE"
        found.say("note", "FILE", "stands for the file, made by llama-lookup-create")
    if drafts and drafts != ["draft-mtp"] and values.get("model") is None:
        values["model"] = "DRAFTER.gguf"
        found.say("error", "-md", f"missing: {drafts[0]} needs one; DRAFTER.gguf stands for it")
    if drafts and values.get(_K) is None:
        values[_K] = _DRAFT_MAX
        found.say("note", "--spec-draft-n-max", f"left out: {_DRAFT_MAX} (older builds: 16)")
