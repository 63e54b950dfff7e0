"""SGLang's dialect: the ``--speculative-*`` options of its server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError
from wager.external.dialects import llamacpp_table, vllm_table
from wager.external.dialects import sglang_table as table
from wager.external.dialects.base import Reading, Written
from wager.external.dialects.names import GENERAL, owner
from wager.external.dialects.options import Options, as_ngram, is_gguf
from wager.external.dialects.reader import Rule, Scan, dashes, scan
from wager.external.dialects.vllm import taken_over

ENGINE: Final = "sglang"
VERSION: Final = "of August 2026"

_K: Final = "num_speculative_tokens"
_ROWS: Final = "speculative_num_draft_tokens"
_TOPK: Final = "speculative_eagle_topk"
_HEADS: Final = ("eagle", "eagle3", "mtp", "draft_model")
_START: Final = 3
_NGRAM_ROWS: Final = 8
_BOUNDS: Final = (2, 5)
_SPELLINGS: Final = {
    "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "EAGLE", "draft_model": "STANDALONE",
    "ngram": "NGRAM", "dflash": "DFLASH", "dspark": "DSPARK",
}  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "warning", "temperature", lambda v: True,
        "on CPU, XPU and ROCm drafts are checked greedily: a request with a temperature is then "
        "decoded by argmax, without a word",
    ),
    Rule(
        "warning", "min_p", lambda v: v["method"] in (*_HEADS, "ngram"),
        "ignored in requests while drafting; penalties count one history for a whole draft",
    ),
    Rule("note", "ngram", lambda v: v["method"] == "ngram", "on CUDA only"),
    Rule(
        "note", "tree", lambda v: v.get(_TOPK, 1) > 1,
        "topk {speculative_eagle_topk} drafts a tree; the other engines draft chains, so the same "
        "number of passes is written for them. A topk of 1 goes together with the overlap "
        "scheduler",
    ),
    Rule(
        "error", "--speculative-num-draft-tokens",
        lambda v: v["method"] in _HEADS and v.get(_TOPK) == 1 and _ROWS in v
        and v[_ROWS] != v.get(_K, v[_ROWS] - 1) + 1,
        "with topk 1 it is always the number of steps and one more; what is given is replaced",
    ),
)  # fmt: skip


def read(tokens: Sequence[str]) -> Reading:
    """The arguments behind ``python -m sglang.launch_server``."""
    found = scan(tokens, ENGINE, dashes, positional=False)
    values = {k: v for k, v in found.values.items() if k not in GENERAL and v is not None}
    speculation = _settle(found, values)
    if speculation is not None and "--max-running-requests" not in found.rest:
        found.say(
            "warning", "--max-running-requests",
            "left out: with speculation it falls to 48 without a word, and mixed chunks are "
            "switched off; give the same number to the plain server, or the comparison is not fair",
        )  # fmt: skip
    target, rest, findings = found.reading_parts()
    return Reading(ENGINE, speculation, target, rest, findings)


def _settle(found: Scan, values: dict[str, Any]) -> Speculation | None:
    name = values.pop("method", None)
    config = values.pop("speculative_config", None)
    if config is not None:
        return taken_over(found, config)
    if name is None:
        if values:
            found.say("error", ", ".join(values), "without --speculative-algorithm nothing drafts")
        return None
    method = _method(found, str(name), values)
    if method is None:
        return None
    _lengths(found, method, values)
    checked = {**values, "method": method}
    found.findings += [f for rule in RULES if (f := rule.finding(checked)) is not None]
    if values.get(_TOPK, 1) == 1:
        # A chain has one length; the other two numbers follow from it.
        values.pop(_TOPK, None)
        values.pop(_ROWS, None)
    return Speculation(method, values)


def _method(found: Scan, name: str, values: dict[str, Any]) -> str | None:
    what = f"--speculative-algorithm {name}"
    known = table.ALGORITHMS.get(name.upper())
    if known is None:
        extra = "only in unmerged changes; " if name.upper() == "SUFFIX" else ""
        names = ", ".join(table.ALGORITHMS)
        found.say("error", what, f"{extra}SGLang has {names}")
        return None
    method, meaning = known
    found.say("note", what, meaning)
    if method == "eagle" and "model" not in values:
        found.say("note", what, "no drafter is named, so the target's MTP layers draft")
        return "mtp"
    if method == "mtp" and "model" in values:
        found.say("note", "--speculative-draft-model-path", "the MTP layers, kept apart")
    if method in ("eagle3", "draft_model", "dflash") and "model" not in values:
        values["model"] = "DRAFTER"
        found.say(
            "error", "--speculative-draft-model-path",
            f"missing: {name} needs one; DRAFTER stands for it",
        )  # fmt: skip
    return method


def _lengths(found: Scan, method: str, values: dict[str, Any]) -> None:
    """Settle k, the length of a chain, from the three numbers that SGLang has."""
    if method in _HEADS:
        if _K not in values:
            rows = values.get(_ROWS)
            values[_K] = _START
            if rows is not None and values.get(_TOPK, 1) == 1:
                values[_K] = max(rows - 1, 1)
            found.say(
                "warning", "--speculative-num-steps",
                "left out: SGLang chooses steps, topk and draft tokens itself (5, 4, 8 for Llama "
                f"models, 3, 1, 4 for others); written out, with {values[_K]} steps",
            )  # fmt: skip
        elif _TOPK not in values:
            found.say(
                "warning", "--speculative-eagle-topk",
                "left out: SGLang chooses it itself; 1, a chain, is written out",
            )  # fmt: skip
        return
    block = {"dflash": "speculative_dflash_block_size", "dspark": "speculative_dspark_block_size"}
    rows = values.pop(_ROWS, None)
    if method == "ngram":
        steps = values.pop(_K, None)
        if steps is not None:
            found.say("warning", "--speculative-num-steps", "does nothing for NGRAM")
        if rows is None:
            rows = _NGRAM_ROWS
            found.say(
                "warning", "--speculative-num-draft-tokens", f"left out; {rows} is written out"
            )
        values[_K] = max(rows - 1, 1)
        values["prompt_lookup_min"], values["prompt_lookup_max"] = _BOUNDS
        found.say("note", "lookup bounds", "none in SGLang; 2 to 5 for the engines that have them")
    elif (size := values.pop(block[method], rows)) is not None:
        values[_K] = max(size - (method == "dflash"), 1)
    else:
        found.say("note", "block size", "left out: taken from the drafter's config")


def write(speculation: Speculation | None) -> Written:
    """As arguments of SGLang's server; none for plain decoding.

    Every length is written out, since SGLang chooses by the model otherwise. Raises ConfigError
    for a method that SGLang does not have, and for missing values.
    """
    if speculation is None:
        return Written()
    options = Options(speculation, ENGINE)
    method = _known(options)
    arguments = ["--speculative-algorithm", _SPELLINGS[method]]
    model = options.model() if method not in ("ngram", "mtp", "dspark") else options.take("model")
    if model is not None and method != "ngram":
        if is_gguf(model):
            raise ConfigError(
                f"{method}: the drafter {model!r} is a GGUF file; give SGLang a Hugging Face "
                "directory or name"
            )
        arguments += ["--speculative-draft-model-path", model]
    arguments += _numbers(method, options)
    for option in table.OPTIONS:
        key = option.key
        if key is None or key in GENERAL or key in ("method", "model", _K):
            continue
        value = options.take(key)
        if option.kind == "flag":
            arguments += [option.names[0]] if value else []
        elif value is not None:
            arguments += [option.names[0], str(value)]
    options.notes.append(
        "SGLang lowers --max-running-requests to 48 with speculation: set it for both arms"
    )
    return Written(tuple(arguments), notes=options.finish(owner))


def _known(options: Options) -> str:
    options.alone()
    method = options.method
    if method in vllm_table.MTP_ALIASES:
        return "mtp"
    if method == "ngram_gpu" or method in llamacpp_table.METHODS:
        return llamacpp_table.TO_CANONICAL.get(method, "ngram")
    if method not in _SPELLINGS:
        raise ConfigError(
            f"{method}: SGLang has no such method; it has {', '.join(table.ALGORITHMS)}"
        )
    return method


def _numbers(method: str, options: Options) -> list[str]:
    """The lengths. SGLang counts the last committed token among the rows that it checks."""
    if method == "ngram":
        k, low, high = as_ngram(options)
        options.notes.append(f"NGRAM has no lookup bounds; {low} to {high} is left out")
        return ["--speculative-num-draft-tokens", str(k + 1)]
    if method in _HEADS:
        k = options.whole(_K)
        topk = options.whole(_TOPK, 1)
        rows = options.whole(_ROWS, k + 1)
        return [
            "--speculative-num-steps", str(k), "--speculative-eagle-topk", str(topk),
            "--speculative-num-draft-tokens", str(k + 1 if topk == 1 else rows),
        ]  # fmt: skip
    given = options.take(_K)
    if given is None:
        return []
    size = given + 1 if method == "dflash" else given
    return [f"--speculative-{method}-block-size", str(size)]
