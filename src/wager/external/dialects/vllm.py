"""vLLM's dialect: the JSON of ``--speculative-config``, and what older versions had instead."""

from __future__ import annotations

import json
from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError
from wager.external.dialects import llamacpp_table, vllm_table
from wager.external.dialects.base import Written
from wager.external.dialects.names import owner
from wager.external.dialects.options import Options, as_ngram, is_gguf

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
        if k is not None or method not in vllm_table.OWN_LENGTH:
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
    names = [part.strip() for part in method.split(",")]
    if len(names) > 1 and all(name in llamacpp_table.METHODS for name in names):
        raise ConfigError(
            f"{method}: vLLM runs one method at a time, only llama.cpp takes a list; choose one"
        )
    if method in llamacpp_table.METHODS:
        return llamacpp_table.TO_CANONICAL.get(method, "ngram")
    known = ", ".join(sorted(vllm_table.METHODS))
    raise ConfigError(f"{method}: not a method of vLLM {VERSION}; it has {known}")
