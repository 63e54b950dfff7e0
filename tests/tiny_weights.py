"""Random weights and config keys of tiny models of every family, by their Hugging Face names.

Stated here and not taken from wager, so that both are not wrong in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """Sizes of a tiny model; see `tests.tiny.write_tiny_hf`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool


@dataclass(frozen=True)
class TinyFamily:
    """What a family has beside, or in place of, the tensors and keys of llama.

    ``before`` and ``after`` are the norms at the input and the output of attention and MLP.
    ``qk_norm`` is of one head, or of all heads together. ``norm_offset`` is what norm weights are
    stored less by. ``experts`` are the names of the router and of an expert's gate, up and down,
    in place of the MLP's. ``config`` makes everything the family has take part in a short text.
    """

    architecture: str
    model_type: str
    before: tuple[str, str] | None = ("input_layernorm", "post_attention_layernorm")
    after: tuple[str, str] | None = None
    qk_norm: Literal["none", "head", "width"] = "none"
    qkv_bias: bool = False
    fused: bool = False
    norm_offset: float = 0.0
    embed_gain: float = 2.0
    experts: tuple[str, str, str, str] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


# Left out, it is for transformers a token that these vocabularies do not have.
_PAD: Mapping[str, Any] = {"pad_token_id": 0}
_GEMMA: Mapping[str, Any] = {
    "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24,
    "sliding_window": 20,
}  # fmt: skip
_GEMMA_NORMS: Mapping[str, Any] = {
    "before": ("input_layernorm", "pre_feedforward_layernorm"),
    "after": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "norm_offset": 1.0,
    # The embedding is multiplied by the root of the width.
    "embed_gain": 0.12,
}

TINY_FAMILIES: Mapping[str, TinyFamily] = {
    "llama": TinyFamily("LlamaForCausalLM", "llama"),
    "mistral": TinyFamily("MistralForCausalLM", "mistral", config={"sliding_window": 24}),
    "qwen2": TinyFamily(
        "Qwen2ForCausalLM", "qwen2", qkv_bias=True,
        config={"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": TinyFamily("Qwen3ForCausalLM", "qwen3", qk_norm="head"),
    "smollm3": TinyFamily(
        "SmolLM3ForCausalLM", "smollm3",
        config={"no_rope_layer_interval": 2, **_PAD},
    ),
    "phi3": TinyFamily(
        "Phi3ForCausalLM", "phi3", fused=True,
        config={"partial_rotary_factor": 0.75, "sliding_window": 40, **_PAD},
    ),
    "gemma2": TinyFamily(
        "Gemma2ForCausalLM", "gemma2", **_GEMMA_NORMS,
        config={**_GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 1.5},
    ),
    "gemma3": TinyFamily(
        "Gemma3ForCausalLM", "gemma3_text", **_GEMMA_NORMS, qk_norm="head",
        config={**_GEMMA, "sliding_window_pattern": 2, "rope_theta": 1000000.0,
                "rope_local_base_freq": 10000.0},
    ),
    "qwen3moe": TinyFamily(
        "Qwen3MoeForCausalLM", "qwen3_moe", qk_norm="head",
        experts=("mlp.gate", "mlp.experts.#.gate_proj", "mlp.experts.#.up_proj",
                 "mlp.experts.#.down_proj"),
        config={"num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True,
                "moe_intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "mixtral": TinyFamily(
        "MixtralForCausalLM", "mixtral",
        experts=("block_sparse_moe.gate", "block_sparse_moe.experts.#.w1",
                 "block_sparse_moe.experts.#.w3", "block_sparse_moe.experts.#.w2"),
        config={"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "olmo2": TinyFamily(
        "Olmo2ForCausalLM", "olmo2", before=None, qk_norm="width", embed_gain=0.5,
        after=("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    "granite": TinyFamily(
        "GraniteForCausalLM", "granite", embed_gain=0.5,
        config={"embedding_multiplier": 3.0, "attention_multiplier": 0.4,
                "residual_multiplier": 0.75, "logits_scaling": 0.5},
    ),
}  # fmt: skip


def random_weights(
    shape: Shape, seed: int, family: str = "llama", attention_bias: bool = False
) -> dict[str, F32]:
    """Weights by their Hugging Face names, float32, matrices [out, in].

    Layer outputs are large beside the embedding: a random model whose residual stream is mostly
    its last token would only repeat that token. ``attention_bias`` adds biases to q, k, v and o.
    """
    made, rng = TINY_FAMILIES[family], np.random.default_rng(seed)
    weights: dict[str, F32] = {}

    def matrix(n: int, k: int, gain: float = 1.0) -> F32:
        return (rng.standard_normal((n, k)) * gain / np.sqrt(k)).astype(np.float32)

    def norm(name: str, size: int = shape.hidden) -> None:
        drawn = 1 - made.norm_offset + 0.1 * rng.standard_normal(size)
        weights[f"{name}.weight"] = drawn.astype(np.float32)

    def joint(n: int, k: int, biased: bool = False) -> tuple[F32, F32 | None]:
        weight = matrix(n, k, 1.5)
        return weight, (0.5 * rng.standard_normal(n)).astype(np.float32) if biased else None

    def put(name: str, *parts: tuple[F32, F32 | None]) -> None:
        weights[f"{name}.weight"] = np.concatenate([weight for weight, _ in parts])
        biases = [bias for _, bias in parts if bias is not None]
        if biases:
            weights[f"{name}.bias"] = np.concatenate(biases)

    def attention(layer: str) -> None:
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        biased = made.qkv_bias or attention_bias
        q, k, v = (joint(rows, shape.hidden, biased) for rows in (queries, keys, keys))
        if made.fused:
            put(f"{layer}.qkv_proj", q, k, v)
        else:
            for letter, part in zip("qkv", (q, k, v), strict=True):
                put(f"{layer}.{letter}_proj", part)
        if made.qk_norm != "none":
            whole = made.qk_norm == "width"
            norm(f"{layer}.q_norm", queries if whole else shape.head_dim)
            norm(f"{layer}.k_norm", keys if whole else shape.head_dim)
        put(f"{layer}.o_proj", joint(shape.hidden, queries, attention_bias))

    def mlp(layer: str) -> None:
        if made.experts is not None:
            mixture(layer.removesuffix("mlp"), *made.experts)
            return
        gate, up = (joint(shape.intermediate, shape.hidden) for _ in range(2))
        if made.fused:
            put(f"{layer}.gate_up_proj", gate, up)
        else:
            put(f"{layer}.gate_proj", gate)
            put(f"{layer}.up_proj", up)
        put(f"{layer}.down_proj", joint(shape.hidden, shape.intermediate))

    def mixture(layer: str, router: str, gate: str, up: str, down: str) -> None:
        count = made.config.get("num_experts") or made.config["num_local_experts"]
        inner = made.config.get("moe_intermediate_size", shape.intermediate)
        # Scores far enough apart that rounding does not choose.
        weights[f"{layer}{router}.weight"] = matrix(count, shape.hidden, 3.0)
        for number in range(count):
            for name, n, k in ((gate, inner, shape.hidden), (up, inner, shape.hidden),
                               (down, shape.hidden, inner)):  # fmt: skip
                stem = layer + name.replace("#", str(number))
                weights[f"{stem}.weight"] = matrix(n, k, 1.5)

    weights["model.embed_tokens.weight"] = matrix(shape.vocab, shape.hidden, made.embed_gain)
    for i in range(shape.layers):
        for block, part in enumerate((attention, mlp)):
            if made.before is not None:
                norm(f"model.layers.{i}.{made.before[block]}")
            part(f"model.layers.{i}.{('self_attn', 'mlp')[block]}")
            if made.after is not None:
                norm(f"model.layers.{i}.{made.after[block]}")
    norm("model.norm")
    if not shape.tied:
        weights["lm_head.weight"] = matrix(shape.vocab, shape.hidden, 2.0)
    return weights
