"""vLLM's speculation options, of today and of older versions: what each means, what became of it.

Source: vLLM 0.32.0, `vllm.config.speculative` and `vllm.engine.arg_utils`; the removed ones from
its release notes.
"""

from __future__ import annotations

from typing import Final

from wager.external.dialects.base import Option

_GONE: Final = "removed, and the parser refuses it"
_NOT_NEEDED: Final = f"{_GONE}; nothing takes its place, leave it out"

KEYS: Final[tuple[Option, ...]] = (
    Option(("method",), "how drafts are made", "method"),
    Option(("model",), "the drafter: a draft model, head or module", "model"),
    Option(
        ("num_speculative_tokens",),
        "draft tokens per step (k)",
        "num_speculative_tokens",
        "whole",
    ),
    Option(("prompt_lookup_max",), "longest n-gram looked up", "prompt_lookup_max", "whole"),
    Option(("prompt_lookup_min",), "shortest n-gram looked up", "prompt_lookup_min", "whole"),
    Option(
        ("draft_tensor_parallel_size",),
        "GPUs that share the drafter: 1, or as many as the target",
        "draft_tensor_parallel_size",
        "whole",
    ),
    Option(
        ("tensor_parallel_size",),
        "GPUs that share the drafter",
        "draft_tensor_parallel_size",
        "whole",
        "a key that exists only to be refused; write draft_tensor_parallel_size",
        "error",
    ),
    Option(("max_model_len",), "context up to which the drafter drafts", "max_model_len", "whole"),
    Option(("enforce_eager",), "runs the drafter without graphs", "enforce_eager", "json"),
    Option(("quantization",), "quantisation of the drafter's weights", "quantization"),
    Option(("moe_backend",), "expert kernels of the drafter", "moe_backend"),
    Option(("attention_backend",), "attention kernels of the drafter", "attention_backend"),
    Option(("kv_cache_dtype",), "type of the drafter's keys and values", "kv_cache_dtype"),
    Option(("revision",), "the drafter's revision on the hub", "revision"),
    Option(("code_revision",), "revision of the drafter's code", "code_revision"),
    Option(("draft_load_config",), "how the drafter is loaded", "draft_load_config", "json"),
    Option(
        ("index_share_for_mtp_iteration",),
        "MTP steps share sparse indices; for the method mtp only",
        "index_share_for_mtp_iteration",
        "json",
    ),
    Option(
        ("disable_padded_drafter_batch",),
        "ragged batches for EAGLE on the V1 runner",
        "disable_padded_drafter_batch",
        "json",
        "V1 only, and not together with async scheduling",
        "warning",
    ),
    Option(
        ("disable_eagle_block_drop",),
        "keeps the last block of a prefix hit (experimental)",
        "disable_eagle_block_drop",
        "json",
    ),
    Option(
        ("use_local_argmax_reduction",),
        "argmax over vocabulary shards; with a greedy draft only",
        "use_local_argmax_reduction",
        "json",
    ),
    Option(
        ("use_heterogeneous_vocab",),
        "drafter and target may have different tokenizers (draft_model, greedy draft only)",
        "use_heterogeneous_vocab",
        "json",
    ),
    Option(
        ("parallel_drafting",),
        "all draft tokens in one pass of the drafter (PARD, P-EAGLE)",
        "parallel_drafting",
        "json",
    ),
    Option(
        ("num_speculative_tokens_per_batch_size",),
        "draft length by the number of running requests: [first, last, k] ranges",
        "num_speculative_tokens_per_batch_size",
        "json",
    ),
    Option(
        ("suffix_decoding_max_tree_depth",),
        "match and draft together are at most this long (24 if absent)",
        "suffix_decoding_max_tree_depth",
        "whole",
    ),
    Option(
        ("suffix_decoding_max_cached_requests",),
        "answers remembered for later requests (10000 if absent; 0: none)",
        "suffix_decoding_max_cached_requests",
        "whole",
    ),
    Option(
        ("suffix_decoding_max_spec_factor",),
        "draft length / match length, at most (1.0 if absent)",
        "suffix_decoding_max_spec_factor",
        "real",
    ),
    Option(
        ("suffix_decoding_min_token_prob",),
        "tokens less frequent than this end a draft (0.1 if absent)",
        "suffix_decoding_min_token_prob",
        "real",
    ),
    Option(("rejection_sample_method",), "how drafts are checked", "rejection_sample_method"),
    Option(
        ("synthetic_acceptance_rates",),
        "made-up acceptance by position, unconditional; the text is garbage",
        "synthetic_acceptance_rates",
        "json",
    ),
    Option(
        ("synthetic_acceptance_length",),
        "made-up acceptance length; the text is garbage",
        "synthetic_acceptance_length",
        "real",
    ),
    Option(
        ("draft_sample_method",),
        "greedy: the drafter's best token; probabilistic: a sample of its distribution",
        "draft_sample_method",
    ),
    Option(
        ("dspark_draft_topk",),
        "DSpark looks at this many candidates only (Qwen3 DSpark)",
        "dspark_draft_topk",
        "whole",
    ),
    Option(
        ("enable_adaptive_verification",),
        "how much of each draft is checked follows confidence and measured cost",
        "enable_adaptive_verification",
        "json",
        "V2 runner with full CUDA graphs only; not with LoRA or pipeline parallelism, and never "
        "on a CPU",
        "warning",
    ),
    Option(
        ("disable_by_batch_size",),
        "no drafts at or above this many requests",
        "disable_by_batch_size",
        "whole",
        f"{_GONE}; a schedule takes its place: num_speculative_tokens_per_batch_size",
        "error",
    ),
    Option(
        ("acceptance_method",),
        "how drafts are checked",
        None,
        "text",
        f"{_GONE}; the key is rejection_sample_method, and typical acceptance does not exist any "
        "more",
        "error",
    ),
    Option(
        ("speculative_token_tree",),
        "a tree of drafts",
        None,
        "text",
        "removed: vLLM drafts chains only",
        "error",
    ),
    Option(
        ("enable_adaptive_k",),
        "draft length that follows acceptance",
        None,
        "json",
        "only in the documentation of later versions; 0.32 refuses it",
        "error",
    ),
)
"""Keys of the JSON of --speculative-config."""

FLAGS: Final[tuple[Option, ...]] = (
    Option(("--speculative-config", "-sc"), "", "speculative_config", "json"),
    Option(("--spec-method",), "how drafts are made", "method"),
    Option(("--spec-model",), "the drafter", "model"),
    Option(("--spec-tokens",), "draft tokens per step (k)", "num_speculative_tokens", "whole"),
    Option(
        ("--speculative-model",),
        "the drafter, or ngram",
        "model",
        "text",
        f"{_GONE}; now the keys method and model of --speculative-config",
        "error",
    ),
    Option(
        ("--num-speculative-tokens",),
        "draft tokens per step (k)",
        "num_speculative_tokens",
        "whole",
        f"{_GONE}; now the key num_speculative_tokens, or --spec-tokens",
        "error",
    ),
    Option(
        ("--ngram-prompt-lookup-max",),
        "longest n-gram looked up",
        "prompt_lookup_max",
        "whole",
        f"{_GONE}; now the key prompt_lookup_max",
        "error",
    ),
    Option(
        ("--ngram-prompt-lookup-min",),
        "shortest n-gram looked up",
        "prompt_lookup_min",
        "whole",
        f"{_GONE}; now the key prompt_lookup_min",
        "error",
    ),
    Option(
        ("--speculative-draft-tensor-parallel-size", "-spec-draft-tp"),
        "GPUs that share the drafter",
        "draft_tensor_parallel_size",
        "whole",
        f"{_GONE}; now the key draft_tensor_parallel_size (1, or as many as the target)",
        "error",
    ),
    Option(
        ("--speculative-max-model-len",),
        "context up to which the drafter drafts",
        "max_model_len",
        "whole",
        f"{_GONE}; now the key max_model_len",
        "error",
    ),
    Option(
        ("--speculative-model-quantization",),
        "quantisation of the drafter's weights",
        "quantization",
        "text",
        f"{_GONE}; now the key quantization",
        "error",
    ),
    Option(
        ("--speculative-disable-by-batch-size",),
        "no drafts at or above this many requests",
        "disable_by_batch_size",
        "whole",
        f"{_GONE}; a schedule takes its place: num_speculative_tokens_per_batch_size",
        "error",
    ),
    Option(
        ("--speculative-disable-mqa-scorer",),
        "an older way of scoring",
        None,
        "flag",
        _NOT_NEEDED,
        "error",
    ),
    Option(("--num-lookahead-slots",), "room for drafts", None, "whole", _NOT_NEEDED, "error"),
    Option(
        ("--use-v2-block-manager",),
        "an older switch of the KV cache",
        None,
        "flag",
        _NOT_NEEDED,
        "error",
    ),
    Option(
        ("--disable-logprobs-during-spec-decoding",),
        "no logprobs while drafting",
        None,
        "json",
        f"{_NOT_NEEDED}: logprobs work",
        "error",
    ),
    Option(
        ("--spec-decoding-acceptance-method",),
        "how drafts are checked",
        None,
        "text",
        f"{_GONE}; the key is rejection_sample_method (standard, block), and typical acceptance "
        "does not exist any more",
        "error",
    ),
    Option(
        (
            "--typical-acceptance-sampler-posterior-threshold",
            "--typical-acceptance-sampler-posterior-alpha",
        ),
        "how loosely drafts were accepted",
        None,
        "real",
        f"{_GONE}: typical acceptance changed the output, and does not exist any more",
        "error",
    ),
    Option(
        ("--disable-log-stats",),
        "no statistics",
        "kept",
        "flag",
        "it stops the counters of speculation too: acceptance cannot be read",
        "warning",
    ),
    Option(
        ("--per-request-spec-decode-metrics",),
        "what speculation did, in each reply (null for n above 1)",
        "kept",
    ),
    Option(
        ("--enable-lora",),
        "adapters",
        "kept",
        "flag",
        "while drafting, max_num_batched_tokens must be at least max_num_seqs * (k + 1)",
        "warning",
    ),
    Option(("--model",), "the target", "target"),
    Option(("--host",), "", "host"),
    Option(("--port",), "", "port"),
)
"""Options of the command line; those without a meaning belong to no finding."""

METHODS: Final = {
    "ngram": "copies what followed the last tokens where they occurred before; no model",
    "ngram_gpu": "n-gram lookup on the GPU; the V2 runner does ngram there too",
    "suffix": "suffix trees over this request and earlier answers; needs arctic-inference==0.1.1",
    "draft_model": "a smaller model with the same tokenizer",
    "eagle": "an EAGLE head trained for the target",
    "eagle3": "an EAGLE-3 head trained for the target",
    "mtp": "the target's own multi-token prediction layers",
    "dflash": "a DFlash head: a whole block in one pass",
    "dspark": "a DSpark head: a block in one pass, then a small sequential head",
    "medusa": "Medusa heads, one per draft token",
    "custom_class": "a Python class of yours; V1 runner only",
    "mlp_speculator": "an MLP speculator",
    "extract_hidden_states": "no drafter: writes hidden states out for training",
}

MTP_ALIASES: Final = frozenset(
    f"{name}_mtp"
    for name in (
        "deepseek", "dots3_note", "mimo", "mimo_v2", "glm4_moe", "glm4_moe_lite", "glm_ocr",
        "ernie", "nemotron_h", "exaone_moe", "exaone4_5", "qwen3_next", "qwen4_exp", "qwen3_5",
        "longcat_flash", "bailing_hybrid_v3", "minimax_m3", "bailing_hybrid", "kimi_k3",
        "pangu_ultra_moe", "step3p5", "hy_v3", "hy_v4", "gemma4", "inkling", "glm5_next",
    )
)  # fmt: skip
"""Older names of the method mtp, still accepted with a line in the log."""

NEEDS_MODEL: Final = frozenset(
    {"draft_model", "eagle", "eagle3", "dflash", "medusa", "custom_class"}
)
"""Methods that do not start without `model`."""

OWN_LENGTH: Final = frozenset({"mtp", "dspark"})
"""Methods that take the draft length from the drafter's config, where `model` names one."""
