"""vLLM's dialect: the JSON of ``--speculative-config``, and what older versions had instead."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wager.arms import SCHEDULE, Speculation
from wager.errors import ConfigError
from wager.external.dialects import llamacpp_table, vllm_table
from wager.external.dialects.base import Option, Reading, Written
from wager.external.dialects.names import GENERAL, canonical, owner
from wager.external.dialects.options import TITLES, Options, as_ngram, is_gguf, strict_json
from wager.external.dialects.reader import Scan, convert, dashes, scan, told
from wager.external.dialects.vllm_rules import RULES, WITHOUT_DRAFTER

ENGINE: Final = "vllm"
VERSION: Final = "0.32.0"

_KEYS: Final = {o.names[0] for o in vllm_table.KEYS if o.severity != "error"}
_NOTES: Final = {
    "suffix": "suffix needs the package arctic-inference==0.1.1",
    "dspark": "dspark needs the V2 runner, which needs Triton: not on a CPU",
    "custom_class": "custom_class runs on the V1 runner only",
}


def write(speculation: Speculation | None) -> Written:
    """As ``--speculative-config`` for `VERSION`; no arguments for plain decoding.

    Raises ConfigError for a method that vLLM does not have, and for missing values.
    """
    if speculation is None:
        return Written()
    options = Options(speculation, ENGINE)
    config = _config(options)
    notes = options.finish(owner)
    text = json.dumps(config, separators=(",", ":"))
    return Written(("--speculative-config", text), notes=notes)


def _config(options: Options) -> dict[str, Any]:
    method = _method(options)
    config: dict[str, Any] = {"method": method}
    if method in ("ngram", "ngram_gpu"):
        k, low, high = as_ngram(options)
        config |= {
            "num_speculative_tokens": k, "prompt_lookup_min": low, "prompt_lookup_max": high,
        }  # fmt: skip
    else:
        model = options.take("model") if method not in vllm_table.NEEDS_MODEL else options.model()
        if model is not None:
            if is_gguf(model):
                raise ConfigError(
                    f"{method}: vLLM {VERSION} reads no GGUF files, and the drafter {model!r} is "
                    "one; give a Hugging Face directory or name"
                )
            config["model"] = model
        k = options.take("num_speculative_tokens")
        optional = method == "suffix" or (model is not None and method in vllm_table.OWN_LENGTH)
        if k is not None or not optional:
            config["num_speculative_tokens"] = _length(options, k)
    if method in _NOTES:
        options.notes.append(_NOTES[method])
    # What is no key of vLLM stays for `Options.finish` to account for.
    for key in [o.names[0] for o in vllm_table.KEYS]:
        if key in _KEYS and (value := options.take(key)) is not None:
            config[key] = value
    return config


def _length(options: Options, given: Any) -> int:
    """The number of draft tokens, checked again where it was taken already."""
    return Options(Speculation(options.method, {"num_speculative_tokens": given}), ENGINE).whole(
        "num_speculative_tokens"
    )


def _method(options: Options) -> str:
    options.alone()
    method = options.method
    if method in vllm_table.MTP_ALIASES:
        options.notes.append(f"{method} is an older name of mtp")
        return "mtp"
    if method == "mlp_speculator":
        raise ConfigError(
            "mlp_speculator: vLLM accepts it in the config and then fails at start-up; train or "
            "choose an EAGLE-3 head instead"
        )
    if method in vllm_table.METHODS:
        return method
    if method in llamacpp_table.METHODS:
        return llamacpp_table.TO_CANONICAL.get(method, "ngram")
    known = ", ".join(sorted(vllm_table.METHODS))
    raise ConfigError(f"{method}: not a method of vLLM {VERSION}; it has {known}")


_ROWS: Final[dict[str, Option]] = {o.names[0]: o for o in vllm_table.KEYS}
_DOTTED: Final = re.compile(r"(?:--speculative-config|-sc)\.([\w\-]+)(?:=(.*))?", re.DOTALL)
_CLASS_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_BY_NAME: Final = (
    ("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"),
    ("medusa", "medusa"),
)  # fmt: skip
# Where a guide leaves the draft length out: something to start from.
_START: Final = 4
_NAMES_ONLY: Final = ("ngram", "[ngram]")
_MANY: Final = 512


def read(tokens: Sequence[str]) -> Reading:
    """The arguments behind ``vllm serve``, of this version or an older one."""
    flat, dotted = _undot(tokens)
    found = scan(flat, ENGINE, dashes)
    given = {k: v for k, v in found.values.items() if k not in GENERAL | {"speculative_config"}}
    text = found.values.get("speculative_config")
    config = _load(found, text) if isinstance(text, str) else {}
    config |= dotted
    for flag in ("method", "model", "num_speculative_tokens"):
        if flag in given and flag in config and found.spellings[flag].startswith("--spec-"):
            found.say(
                "error", found.spellings[flag],
                f"{found.spellings[flag]} and the key {flag} exclude each other",
            )  # fmt: skip
    values = _keys(found, config)
    _old_bounds(found, given)
    for key, value in given.items():
        values.setdefault(key, value)
    speculation = settle(found, values)
    target, rest, findings = found.reading_parts()
    return Reading(ENGINE, speculation, target, rest, findings)


def read_config(config: Mapping[str, Any]) -> Reading:
    """A speculative config by itself, as in the JSON of ``--speculative-config``."""
    found = Scan()
    speculation = settle(found, _keys(found, config))
    return Reading(ENGINE, speculation, findings=tuple(found.findings))


def taken_over(found: Scan, text: str) -> Speculation | None:
    """What the JSON of ``--speculative-config`` asks for, on another engine's command line."""
    return settle(found, _keys(found, _load(found, text)))


def _undot(tokens: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes ``--speculative-config.method ngram`` out."""
    flat: list[str] = []
    config: dict[str, Any] = {}
    waiting: str | None = None
    for token in tokens:
        match = _DOTTED.fullmatch(token)
        if match:
            waiting = match[1].replace("-", "_")
            if match[2] is not None:
                config[waiting] = _json_or_text(match[2])
                waiting = None
        elif waiting is not None:
            config[waiting] = _json_or_text(token)
            waiting = None
        else:
            flat.append(token)
    return flat, config


def _json_or_text(text: str) -> Any:
    try:
        return strict_json(text)
    except ValueError:
        return text


def _load(found: Scan, text: str) -> dict[str, Any]:
    """The JSON of --speculative-config, also where quotes are wrong. Raises ConfigError."""
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        value = _mend(text)
        if value is None:
            raise ConfigError(f"speculative-config: not valid JSON: {text!r}") from None
        found.say(
            "error", "--speculative-config",
            "not JSON: keys and texts need double quotes, and the whole needs single quotes around "
            "it so that the shell keeps them",
        )  # fmt: skip
    if not isinstance(value, dict):
        raise ConfigError(f"speculative-config: must be a JSON object, got {text!r}")
    return value


def _mend(text: str) -> Any:
    """Python's notation, or JSON whose quotes a shell has removed; None for anything else."""
    try:
        # Sets, bytes and the like are no JSON either.
        return strict_json(json.dumps(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        return None
    pairs = [pair.partition(":") for pair in inner[1:-1].split(",")]
    if not all(colon and key.strip() and value.strip() for key, colon, value in pairs):
        return None
    return {key.strip(" \"'"): _json_or_text(value.strip(" '")) for key, _, value in pairs}


def _keys(found: Scan, config: Mapping[str, Any]) -> dict[str, Any]:
    """What each key of a config means; those that set something, under their current name."""
    values: dict[str, Any] = {}
    for raw, value in config.items():
        key = str(raw).replace("-", "_")
        row = _ROWS.get(key)
        if row is None:
            theirs = owner(key)
            belongs = f"an option of {TITLES[theirs]}" if theirs else "no option of any engine"
            found.say("error", f"{key}: {_show(value)}", f"{belongs}; vLLM refuses unknown keys")
            if theirs:
                values[key] = value
            continue
        value, wrong = convert(row, value)
        if key != "method":
            found.findings.append(told(row, f"{key}: {_show(value)}"))
        if wrong:
            found.say("error", key, wrong)
        elif value is not None and row.key is not None:
            values[row.key] = value
    return values


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def settle(found: Scan, values: dict[str, Any]) -> Speculation | None:
    """The speculation that the options amount to, repaired where vLLM would refuse them."""
    values = {key: value for key, value in values.items() if value is not None}
    if not values:
        return None
    method = _named(found, values)
    if method is None:
        return None
    values["method"] = method
    _complete(found, values)
    checks = [rule.finding(values) for rule in RULES]
    found.findings += [finding for finding in checks if finding is not None]
    _repair(values)
    return Speculation(values.pop("method"), values)


def _named(found: Scan, values: dict[str, Any]) -> str | None:
    """The method, named or inferred as vLLM does; None where there is none to be seen."""
    model = values.get("model")
    method: str | None = None
    given = values.pop("method", None)
    if given is not None:
        method = str(given)
        current = "ngram" if method in _NAMES_ONLY else canonical(method)
        if current != method and "method" not in found.foreign:
            said = f"not a name of vLLM {VERSION}, where it is {current}"
            found.say("error", f"method: {method}", said)
        method = current
    if model in _NAMES_ONLY:
        values.pop("model")
        method = method or "ngram"
    elif method is None and isinstance(model, str):
        method = _inferred(found, model)
    if method is None and ("prompt_lookup_max" in values or "prompt_lookup_min" in values):
        method = "ngram"
    if method is None:
        found.say(
            "error", ", ".join(values), "no method and no model is named, so nothing is drafted"
        )
        return None
    if method in vllm_table.MTP_ALIASES:
        found.say("warning", f"method: {method}", "an older name of mtp, accepted with a log line")
        method = "mtp"
    meaning = vllm_table.METHODS.get(method)
    if meaning is None:
        known = ", ".join(vllm_table.METHODS)
        found.say(
            "error", f"method: {method}", f"not a method of vLLM {VERSION}, which has {known}"
        )
    else:
        found.say("note", f"method: {method}", meaning)
    return method


def _old_bounds(found: Scan, given: dict[str, Any]) -> None:
    """The removed options took 1 for the shortest n-gram where it was left out."""
    longest = given.get("prompt_lookup_max")
    if longest is not None and given.get("prompt_lookup_min") is None:
        given["prompt_lookup_min"] = 1
        found.say(
            "warning", "prompt_lookup_min",
            f"left out: it was 1 in the versions that had --ngram-prompt-lookup-max, and would be "
            f"{longest} too by today's keys; 1 is written out (wager bench starts from 2)",
        )  # fmt: skip


def _inferred(found: Scan, model: str) -> str:
    """What vLLM takes a drafter for, by its name alone."""
    if _CLASS_PATH.fullmatch(model):
        return "custom_class"
    name = model.lower()
    method = next((m for word, m in _BY_NAME if word in name), "draft_model")
    found.say(
        "note", model,
        f"taken for {method}, as vLLM does by the name and the config of the drafter; name the "
        "method to be sure",
    )  # fmt: skip
    return method


def _complete(found: Scan, values: dict[str, Any]) -> None:
    """Fill in what the method needs and nobody gave: said, and never guessed in silence."""
    method = values["method"]
    if method in vllm_table.NEEDS_MODEL and "model" not in values:
        values["model"] = "DRAFTER"
        found.say("error", "model", f"missing: {method} needs one; DRAFTER stands for it")
    length = "num_speculative_tokens"
    if length in values or method == "suffix":
        return
    if method in vllm_table.OWN_LENGTH and "model" in values:
        found.say("note", length, "left out: taken from the drafter's config")
        return
    values[length] = 1 if method == "mtp" else _START
    found.say(
        "error", length,
        f"missing, and vLLM does not start without it; {values[length]} is written here to start "
        "from, `wager tune` finds the best",
    )  # fmt: skip


def _repair(values: dict[str, Any]) -> None:
    """What stands for keys and values that exist no longer."""
    if values.get("rejection_sample_method") not in (None, "standard", "block", "synthetic"):
        values["rejection_sample_method"] = "standard"
    if values.get("draft_sample_method") not in (None, "greedy", "probabilistic"):
        values.pop("draft_sample_method")
    if values["method"] in WITHOUT_DRAFTER:
        values.pop("draft_tensor_parallel_size", None)
    limit = values.pop("disable_by_batch_size", None)
    if isinstance(limit, int) and limit > 1:
        k = values["num_speculative_tokens"]
        schedule = [[1, limit - 1, k], [limit, max(limit, _MANY), 0]]
        values.setdefault(SCHEDULE, schedule)
    if values["method"] in ("suffix", "medusa", "extract_hidden_states"):
        values.pop(SCHEDULE, None)
