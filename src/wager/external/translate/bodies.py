"""JSON that is no speculative config: requests, and the configs of engines that are only read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError
from wager.external.dialects import llamacpp, llamacpp_table, vllm_table
from wager.external.dialects.base import Finding, Reading, Severity
from wager.external.dialects.names import owner
from wager.external.dialects.ollama_table import DEFAULT_LENGTH


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request, and what an engine makes of it while it drafts."""

    name: str
    severity: Severity
    text: str


_COMPILED_OUT: Final = (
    "ignored by llama-server without a word: drafting is set when the server starts, never per "
    "request"
)
FIELDS: Final[tuple[Field, ...]] = (
    *(
        Field(f"speculative.{name}", "error", _COMPILED_OUT)
        for name in llamacpp_table.BODY_FIELDS
    ),
    Field("speculative", "error", _COMPILED_OUT),
    Field(
        "speculative_config", "error",
        "no field of a request: it belongs to the server's command line, and no server takes it "
        "per request",
    ),
    Field(
        "min_p", "warning",
        "vLLM answers 400 while it drafts (above 0); SGLang ignores it; llama.cpp and wager apply "
        "it",
    ),
    Field(
        "logit_bias", "warning",
        "vLLM answers 400 while it drafts; llama.cpp, SGLang and wager apply it",
    ),
    Field(
        "logprobs", "warning",
        "llama.cpp reports 0.0 for every token of a step with a draft; Ollama does not draft for "
        "such a request; vLLM, SGLang and wager give the target's",
    ),
    Field(
        "draft_num_predict", "warning",
        "Ollama's: it acts when the model is loaded, not per request; put it into the Modelfile",
    ),
    Field(
        "draft_model", "warning",
        "LM Studio's and MLX-LM's: the drafter of this request; LM Studio may not use it without a "
        "word (see usedDraftModelKey in its reply), MLX-LM then stops batching",
    ),
    Field("num_draft_tokens", "note", "MLX-LM's: draft tokens per step (3 if absent)"),
)  # fmt: skip

_TENSORRT: Final = {
    "Eagle3": "eagle3", "MTP": "mtp", "NGram": "ngram", "DraftTarget": "draft_model",
    "PARD": "draft_model", "DFlash": "dflash", "DSpark": "dspark", "SA": "suffix",
}  # fmt: skip
_REQUEST: Final = frozenset({"messages", "prompt", "input", "max_tokens", "stream", "temperature"})


def _flat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request with those of its ``options`` (Ollama) beside them."""
    options = body.get("options")
    return {**body, **(options if isinstance(options, Mapping) else {})}


def read_body(body: Mapping[str, Any], vllm: Callable[[Mapping[str, Any]], Reading]) -> Reading:
    """What a JSON object says; ``vllm`` reads one that is a speculative config of vLLM."""
    flat = _flat(body)
    inner = body.get("speculative_config")
    if isinstance(inner, Mapping) and not _REQUEST & set(body):
        reading = vllm(inner)
        return Reading(
            reading.engine, reading.speculation, _text(body.get("model")),
            findings=reading.findings,
        )  # fmt: skip
    if "decoding_type" in body:
        return _tensorrt(body)
    known = [field for field in FIELDS if field.name in flat]
    config = {o.names[0] for o in vllm_table.KEYS}
    if known and (
        _REQUEST & set(flat) or not {k.replace("-", "_") for k in flat} & config - {"model"}
    ):
        return _request(flat, known)
    if not any(owner(key.replace("-", "_")) for key in body):
        raise ConfigError(
            f"translate: no key of any engine's speculative config among: {', '.join(body)}"
            if body
            else "translate: the JSON is empty"
        )
    return vllm(body)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _request(flat: Mapping[str, Any], known: list[Field]) -> Reading:
    findings = [Finding(f.severity, f"{f.name}: {flat[f.name]}", f.text) for f in known]
    engine = "vllm"
    speculation: Speculation | None = None
    if any(field.name.startswith("speculative.") for field in known):
        server = llamacpp.read(_server_flags(flat))
        engine, speculation = "llamacpp", server.speculation
    if "draft_num_predict" in flat:
        engine = "ollama"
        speculation = Speculation(
            "mtp", {"num_speculative_tokens": flat["draft_num_predict"] or DEFAULT_LENGTH}
        )
    if isinstance(flat.get("draft_model"), str):
        k = flat.get("num_draft_tokens", 3)
        options = {"model": flat["draft_model"], "num_speculative_tokens": k}
        speculation = Speculation("draft_model", options)
    return Reading(engine, speculation, _text(flat.get("model")), findings=tuple(findings))


def _server_flags(flat: Mapping[str, Any]) -> list[str]:
    """The options of llama-server that say what its fields `speculative.*` meant."""
    flags = {
        "type": "--spec-type", "n_max": "--spec-draft-n-max", "n_min": "--spec-draft-n-min",
        "p_min": "--spec-draft-p-min", "ngram_size_n": "--spec-ngram-size-n",
        "ngram_size_m": "--spec-ngram-size-m", "ngram_min_hits": "--spec-ngram-min-hits",
    }  # fmt: skip
    words: list[str] = []
    for name, flag in flags.items():
        if (value := flat.get(f"speculative.{name}")) is not None:
            words += [flag, str(value)]
    return words


def _tensorrt(config: Mapping[str, Any]) -> Reading:
    """TensorRT-LLM's speculative_config: read, never written."""
    kind = str(config["decoding_type"])
    method = _TENSORRT.get(kind)
    findings = [
        Finding(
            "note", f"decoding_type: {kind}",
            f"TensorRT-LLM's; {method} elsewhere" if method else "TensorRT-LLM's, with no "
            "counterpart elsewhere",
        )
    ]  # fmt: skip
    options: dict[str, Any] = {}
    for key, name in (("max_draft_len", "num_speculative_tokens"), ("speculative_model", "model")):
        if key in config:
            options[name] = config[key]
            findings.append(Finding("note", f"{key}: {config[key]}", f"{name} elsewhere"))
    if method == "ngram" and isinstance(config.get("max_matching_ngram_size"), int):
        options["prompt_lookup_max"] = config["max_matching_ngram_size"]
        options["prompt_lookup_min"] = 1
        findings.append(
            Finding(
                "note", "max_matching_ngram_size", "longest n-gram looked up; the shortest is 1"
            )
        )
    if kind == "PARD":
        options["parallel_drafting"] = True
    if "acceptance_rate_threshold" in config:
        findings.append(
            Finding(
                "warning", "acceptance_rate_threshold",
                "below it drafting is off until the server starts again; it looks at acceptance, "
                "not at time",
            )
        )  # fmt: skip
    if config.get("use_relaxed_acceptance_for_thinking"):
        findings.append(
            Finding(
                "warning", "use_relaxed_acceptance_for_thinking",
                "changes the output: it is not the target's",
            )
        )  # fmt: skip
    speculation = Speculation(method, options) if method else None
    return Reading("tensorrt", speculation, findings=tuple(findings))
