"""What vLLM makes of several keys together: refusals, silent changes, catches.

Source: vLLM 0.32.0, `vllm.config.speculative`, `vllm.v1.spec_decode` and the request validator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from wager.arms import SCHEDULE
from wager.external.dialects.reader import Rule

_Values: TypeAlias = Mapping[str, Any]
_V1_LIMIT: Final = 128


def _method(*names: str) -> Callable[[_Values], bool]:
    return lambda values: values["method"] in names


def _both(first: Callable[[_Values], bool], key: str) -> Callable[[_Values], bool]:
    return lambda values: first(values) and bool(values.get(key))


def _is(key: str, *wanted: object) -> Callable[[_Values], bool]:
    return lambda values: values.get(key) in wanted and key in values


_NGRAM: Final = _method("ngram", "ngram_gpu")

WITHOUT_DRAFTER: Final = ("ngram", "ngram_gpu", "suffix")

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "warning", "prompt_lookup_min",
        lambda v: _NGRAM(v) and "prompt_lookup_max" in v and "prompt_lookup_min" not in v,
        "left out, so it is {prompt_lookup_max} too (not 1): only repeats of exactly "
        "{prompt_lookup_max} tokens are found; 2 finds more",
    ),
    Rule(
        "warning", "prompt_lookup_max",
        lambda v: _NGRAM(v) and "prompt_lookup_min" in v and "prompt_lookup_max" not in v,
        "left out, so it is {prompt_lookup_min} too: only repeats of exactly "
        "{prompt_lookup_min} tokens are looked up",
    ),
    Rule(
        "warning", "prompt_lookup_min, prompt_lookup_max",
        lambda v: _NGRAM(v) and not {"prompt_lookup_min", "prompt_lookup_max"} & set(v),
        "left out, so both are 5: only repeats of exactly 5 tokens are found; 2 to 5 finds more",
    ),
    Rule(
        "error", "prompt_lookup_min",
        lambda v: _NGRAM(v) and v.get("prompt_lookup_min", 0) > v.get("prompt_lookup_max", 1 << 31),
        "larger than prompt_lookup_max: refused",
    ),
    Rule(
        "note", "runner", _NGRAM,
        "the V1 runner (any CPU without Triton) drafts from the earliest match, V2 from the most "
        "recent one",
    ),
    Rule(
        "warning", "async scheduling", _method("ngram", "suffix", "medusa", "custom_class"),
        "{method} switches async scheduling off: compare with a plain server that has it on",
    ),
    Rule(
        "warning", "ngram_gpu", _method("ngram_gpu"),
        "always drafts k tokens: slots without a match are filled up and count as drafted, so the "
        "acceptance rate reads too low; pointless on a CPU",
    ),
    Rule(
        "warning", "suffix", _method("suffix"),
        "needs the package arctic-inference==0.1.1, runs on the V1 runner only, and forgets all "
        "at exit",
    ),
    Rule(
        "warning", "dspark", _method("dspark"),
        "the V2 runner only, which needs Triton: on a CPU vLLM refuses it; a drafter inside "
        "the target's checkpoint needs no model key",
    ),
    Rule(
        "note", "draft_sample_method", _is("draft_sample_method", "probabilistic"),
        "the drafter samples, and its whole distribution is kept for the check: k times the "
        "vocabulary per request in GPU memory",
    ),
    Rule(
        "error", "draft_sample_method",
        lambda v: v.get("draft_sample_method", "greedy") not in ("greedy", "probabilistic"),
        "{draft_sample_method!r} is not a way of drafting: greedy or probabilistic",
    ),
    Rule(
        "note", "draft_model", _method("draft_model"),
        "target and drafter must have the same vocab_size in their configs (0.5B and 14B of one "
        "family may differ); the V2 runner drafts without CUDA graphs",
    ),
    Rule(
        "warning", "max_model_len", lambda v: "max_model_len" in v,
        "no effect on the V2 runner; on V1 one request beyond it ends drafting for the whole batch",
    ),
    Rule(
        "warning", "draft_tensor_parallel_size",
        lambda v: v["method"] in WITHOUT_DRAFTER and "draft_tensor_parallel_size" in v,
        "{method} has no drafter to share: left out",
    ),
    Rule(
        "warning", "mtp", lambda v: _method("mtp")(v) and v.get("num_speculative_tokens", 1) > 1,
        "more draft tokens than the target has MTP layers reuse the last one, and are accepted "
        "less",
    ),
    Rule(
        "warning", "medusa", _method("medusa"),
        "num_speculative_tokens must be the number of heads; V1 runner only",
    ),
    Rule("warning", "custom_class", _method("custom_class"), "V1 runner only, and experimental"),
    Rule(
        "error", "mlp_speculator", _method("mlp_speculator"),
        "accepted by the config, then the server fails at start-up",
    ),
    Rule(
        "warning", "extract_hidden_states", _method("extract_hidden_states"),
        "no drafter: it writes hidden states out for training",
    ),
    Rule(
        "warning", "rejection_sample_method", _is("rejection_sample_method", "block"),
        "the V1 runner (any CPU without Triton) never looks at it and does standard; with "
        "probabilistic drafts it then drafts greedily too",
    ),
    Rule(
        "error", "rejection_sample_method",
        _is("rejection_sample_method", "strict", "probabilistic"),
        "{rejection_sample_method!r} is in an old README only: the values are standard, block and "
        "synthetic, and how drafts are sampled is draft_sample_method",
    ),
    Rule(
        "error", "rejection_sample_method",
        lambda v: v.get("rejection_sample_method", "standard")
        not in ("standard", "block", "synthetic", "strict", "probabilistic"),
        "{rejection_sample_method!r} does not exist: standard, block or synthetic",
    ),
    Rule(
        "warning", "rejection_sample_method", _is("rejection_sample_method", "synthetic"),
        "accepts by dice: the text is garbage, for benchmarks only; not on a CPU",
    ),
    Rule(
        "error", "synthetic_acceptance_rates, synthetic_acceptance_length",
        lambda v: v.get("rejection_sample_method") == "synthetic"
        and ("synthetic_acceptance_rates" in v) == ("synthetic_acceptance_length" in v),
        "synthetic needs exactly one of the two",
    ),
    Rule(
        "error", "num_speculative_tokens",
        lambda v: v.get("num_speculative_tokens", 1) < 1,
        "must be above 0; to decode plainly leave the speculative config out",
    ),
    Rule(
        "warning", "num_speculative_tokens",
        lambda v: v.get("num_speculative_tokens", 1) > _V1_LIMIT,
        f"the V1 runner ends with an assertion above {_V1_LIMIT}",
    ),
    Rule(
        "error", SCHEDULE,
        _both(_method("suffix", "medusa", "extract_hidden_states"), SCHEDULE),
        "{method} asserts a fixed draft length and ends the server once the schedule gives another",
    ),
    Rule(
        "warning", SCHEDULE, _both(_method("custom_class"), SCHEDULE),
        "custom_class is never told the draft length",
    ),
    Rule(
        "warning", SCHEDULE, lambda v: bool(v.get(SCHEDULE)),
        "a k of 0 still runs the drafter's prefill and is not the same as no speculation; measure "
        "it against a plain server",
    ),
    Rule(
        "error", "use_heterogeneous_vocab",
        lambda v: bool(v.get("use_heterogeneous_vocab")) and v["method"] != "draft_model",
        "only with the method draft_model",
    ),
    Rule(
        "error", "use_heterogeneous_vocab",
        lambda v: bool(v.get("use_heterogeneous_vocab"))
        and v.get("draft_sample_method") == "probabilistic",
        "only with a greedy draft",
    ),
    Rule(
        "error", "use_local_argmax_reduction",
        lambda v: bool(v.get("use_local_argmax_reduction"))
        and v.get("draft_sample_method") == "probabilistic",
        "only with a greedy draft",
    ),
    Rule(
        "error", "index_share_for_mtp_iteration",
        lambda v: v.get("index_share_for_mtp_iteration") is not None and v["method"] != "mtp",
        "only with the method mtp",
    ),
    Rule(
        "warning", "parallel_drafting",
        lambda v: bool(v.get("parallel_drafting")) and v["method"] in ("draft_model", "eagle3"),
        "needs a drafter trained for it (PARD, P-EAGLE) and falls back to the V1 runner",
    ),
)  # fmt: skip
"""Over the options as given, with the method settled."""
