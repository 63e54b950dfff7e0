"""The tiny models that are compared with transformers: arguments of `tests.tiny.write_tiny_hf`.

One model per trait that a loader or a kernel can get wrong, and that only another implementation's
result can show. Sequences have 150 tokens, so that every window here ends within them.
"""

from __future__ import annotations

from typing import Any

_FULL, _LOCAL = "full_attention", "sliding_attention"
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
# Pairs of a head of 16 values of which 12 are turned.
_SHORT = [1.0, 1.05, 1.1, 1.3, 1.7, 2.0]
_LONG = [1.0, 1.3, 2.0, 4.0, 8.0, 12.0]
_LONGROPE = {"type": "longrope", "short_factor": _SHORT, "long_factor": _LONG}


def _rope(**keys: Any) -> dict[str, Any]:
    return {"config": {"rope_theta": 10000.0, "rope_scaling": keys}}


LLAMA: dict[str, dict[str, Any]] = {
    "tied_head": {"heads": 4, "kv_heads": 4, "tied": True},
    "untied_head": {"heads": 4, "kv_heads": 4, "tied": False},
    "three_heads_per_kv": {"hidden": 96, "heads": 6, "kv_heads": 2, "intermediate": 160},
    "four_heads_per_kv": {"hidden": 128, "heads": 8, "kv_heads": 2, "intermediate": 96},
    "one_kv_head": {"hidden": 64, "heads": 4, "kv_heads": 1, "layers": 3},
    "wide_heads": {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 32, "tied": False},
    "narrow_heads": {"hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 16},
    "rope_theta": {"config": {"rope_theta": 500000.0}},
    "rope_llama3": _rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "large_epsilon": {"config": {"rms_norm_eps": 0.1}},
    "bfloat16_file": {"dtype": "BF16", "shards": 2},
    "biases": {"tied": False, "config": {"attention_bias": True}},
    "rope_linear": _rope(type="linear", factor=4.0),
    "rope_yarn": _rope(**_YARN),
    "rope_yarn_attention_factor": _rope(**_YARN, attention_factor=1.1, beta_fast=16.0),
    "rope_yarn_mscale": _rope(**_YARN, mscale=1.0, mscale_all_dim=0.6, beta_slow=0.5),
    "rope_yarn_not_whole": _rope(**_YARN, truncate=False),
    "rope_yarn_of_whole_context": _rope(rope_type="yarn", factor=2.0),
    "rope_yarn_context_outside": {
        "config": {"rope_scaling": _YARN, "original_max_position_embeddings": 32}
    },
    "rope_longrope": {
        "head_dim": 12,
        **_rope(**_LONGROPE, factor=8.0, original_max_position_embeddings=32),
    },
}

FAMILIES: dict[str, dict[str, Any]] = {
    "mistral_window": {"family": "mistral", "tied": False},
    "mistral": {"family": "mistral", "head_dim": 32, "config": {"sliding_window": None}},
    "qwen2_window": {"family": "qwen2", "layers": 3},
    "qwen2": {
        "family": "qwen2", "hidden": 96, "heads": 6, "tied": False,
        "config": {"use_sliding_window": False, "rope_scaling": _YARN},
    },
    "qwen3": {"family": "qwen3", "head_dim": 32, "tied": False},
    "qwen3_window": {
        "family": "qwen3", "layers": 3, "kv_heads": 1,
        "config": {"use_sliding_window": True, "sliding_window": 24, "attention_bias": True,
                   "layer_types": [_LOCAL, _FULL, _LOCAL]},
    },
    "smollm3": {"family": "smollm3", "layers": 4},
    "smollm3_layers": {
        "family": "smollm3", "layers": 3, "tied": False,
        "config": {"no_rope_layers": [0, 1, 1], "attention_bias": True,
                   "layer_types": [_FULL] * 3},
    },
    "phi3": {"family": "phi3"},
    "phi3_all_turned": {
        "family": "phi3", "kv_heads": 4, "tied": False,
        "config": {"partial_rotary_factor": None, "sliding_window": None},
    },
    "phi3_few_turned": {"family": "phi3", "config": {"partial_rotary_factor": 0.25}},
    "phi3_short": {
        "family": "phi3", "max_context": 256,
        "config": {"original_max_position_embeddings": 256,
                   "rope_scaling": {**_LONGROPE, "factor": 4.0}},
    },
    # The first prompt is longer than the original context: transformers changes tables on the way.
    "phi3_long": {
        "family": "phi3", "tied": False,
        "config": {"original_max_position_embeddings": 32, "rope_scaling": _LONGROPE},
    },
    "phi3_attention_factor": {
        "family": "phi3",
        "config": {"rope_parameters": {**_LONGROPE, "rope_theta": 5000.0, "attention_factor": 1.2,
                                       "original_max_position_embeddings": 32},
                   "rope_scaling": None, "original_max_position_embeddings": 512},
    },
    "gemma2": {"family": "gemma2", "sharpness": 8.0, "kv_heads": 4},
    "gemma2_without_caps": {
        "family": "gemma2", "sharpness": 8.0, "layers": 3, "tied": False, "head_dim": 32,
        "config": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    },
    "gemma2_layers": {
        "family": "gemma2", "sharpness": 8.0, "layers": 3, "kv_heads": 1,
        "config": {"layer_types": [_FULL, _LOCAL, _FULL], "attn_logit_softcapping": 1.0},
    },
    "gemma3": {"family": "gemma3", "sharpness": 8.0, "layers": 4},
    "gemma3_linear": {
        "family": "gemma3", "sharpness": 8.0, "layers": 3, "head_dim": 32,
        "config": {"rope_scaling": {"rope_type": "linear", "factor": 8.0},
                   "final_logit_softcapping": 1.5},
    },
    "gemma3_rope_parameters": {
        "family": "gemma3", "sharpness": 8.0, "layers": 3, "tied": False,
        "config": {
            "layer_types": [_FULL, _LOCAL, _LOCAL], "sliding_window_pattern": None,
            "rope_theta": None, "rope_local_base_freq": None, "rope_scaling": None,
            "rope_parameters": {
                _FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0},
                _LOCAL: {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
    },
    "qwen3moe": {"family": "qwen3moe", "tied": False},
    "qwen3moe_not_normalised": {
        "family": "qwen3moe", "layers": 3, "head_dim": 32, "config": {"norm_topk_prob": False},
    },
    "mixtral": {"family": "mixtral", "tied": False},
    "mixtral_window": {"family": "mixtral", "config": {"sliding_window": 24}},
    "olmo2": {"family": "olmo2", "tied": False},
    "olmo2_wide_heads": {"family": "olmo2", "kv_heads": 1, "head_dim": 32},
    "granite": {"family": "granite"},
    "granite_biases": {
        "family": "granite", "tied": False, "kv_heads": 4, "config": {"attention_bias": True},
    },
}  # fmt: skip
