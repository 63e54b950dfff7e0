"""The families of models that run: what each computes, in the terms of `wager.shape`.

A family is data. ``traits`` are fields of `ModelConfig` that every model of the family has;
``defaults`` are the values of a config.json that its authors' code assumes where a key is left out
(https://github.com/huggingface/transformers, the configuration file of each family); ``must_be``
names keys of which only some values can be run. Names and rules of GGUF follow llama.cpp's
``llama-arch.cpp`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SILU: Final = ("silu", "swish")
MAX_EXPERTS: Final = 1024
GELU: Final = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
_PLAIN: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": SILU, "mlp_bias": (False,), "attention_bias": (False,), "pretraining_tp": (1,),
    "num_local_experts": (0, 1), "num_experts": (0, 1), "clip_qkv": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of one family share.

    ``name`` is GGUF's. ``fused`` says that q, k and v are one tensor, and so are gate and up.
    ``norm_offset`` is what norm weights are stored less by in Hugging Face files. ``neighbours``
    says that GGUF stores rotary pairs as rows 2i and 2i + 1. ``experts`` are the names, in Hugging
    Face files, of what stands in place of an MLP; ``#`` is the number of an expert.
    """

    name: str
    model_type: str
    classes: tuple[str, ...]
    traits: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    must_be: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: _PLAIN)
    fused: bool = False
    norm_offset: float = 0.0
    neighbours: bool = False
    experts: Mapping[str, str] | None = None


_GEMMA_MUST_BE: Final = {
    "hidden_activation": GELU, "hidden_act": GELU, "attention_bias": (False,),
    "use_bidirectional_attention": (False,),
}  # fmt: skip
_MIXTURE: Final = {
    key: allowed
    for key, allowed in _PLAIN.items()
    if key not in ("num_local_experts", "num_experts")
}
_GEMMA: Final = {"norms": "both", "activation": "gelu_tanh"}
_GEMMA_DEFAULTS: Final = {
    "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip

FAMILIES: Final = (
    Family(
        "llama", "llama", ("LlamaForCausalLM",), neighbours=True,
        must_be={**_PLAIN, "attention_bias": (False, True), "sliding_window": ()},
    ),
    # In GGUF a mistral is a llama with, perhaps, a window.
    Family("llama", "mistral", ("MistralForCausalLM",), neighbours=True,
           defaults={"sliding_window": 4096, "max_position_embeddings": 131072}),
    Family("qwen2", "qwen2", ("Qwen2ForCausalLM",), traits={"qkv_bias": True},
           defaults={"max_position_embeddings": 32768, "sliding_window": 4096,
                     "max_window_layers": 28},
           must_be={**_PLAIN, "attention_bias": (True, False)}),
    Family("qwen3", "qwen3", ("Qwen3ForCausalLM",), traits={"qk_norm": "head"},
           defaults={"max_position_embeddings": 32768, "head_dim": 128, "sliding_window": 4096,
                     "max_window_layers": 28},
           must_be={**_PLAIN, "attention_bias": (False, True)}),
    Family("smollm3", "smollm3", ("SmolLM3ForCausalLM",), neighbours=True,
           defaults={"max_position_embeddings": 32768, "tie_word_embeddings": True,
                     "rope_theta": 2000000.0, "no_rope_layer_interval": 4},
           must_be={**_PLAIN, "attention_bias": (False, True), "use_sliding_window": (False,)}),
    Family("phi3", "phi3", ("Phi3ForCausalLM",), fused=True,
           defaults={"max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
                     "rms_norm_eps": 1e-5}),
    Family("gemma2", "gemma2", ("Gemma2ForCausalLM",), traits=_GEMMA, norm_offset=1.0,
           defaults={**_GEMMA_DEFAULTS, "max_position_embeddings": 8192,
                     "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
           must_be=_GEMMA_MUST_BE),
    Family("gemma3", "gemma3_text", ("Gemma3ForCausalLM",),
           traits={**_GEMMA, "qk_norm": "head"}, norm_offset=1.0,
           defaults={**_GEMMA_DEFAULTS, "max_position_embeddings": 131072,
                     "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
           must_be=_GEMMA_MUST_BE),
    Family("qwen3moe", "qwen3_moe", ("Qwen3MoeForCausalLM",), traits={"qk_norm": "head"},
           defaults={"max_position_embeddings": 32768, "moe_intermediate_size": 768,
                     "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": False,
                     "sliding_window": 4096, "max_window_layers": 28},
           must_be={**_MIXTURE, "attention_bias": (False, True),
                    "decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
           experts={"router": "mlp.gate.weight", "gate": "mlp.experts.#.gate_proj.weight",
                    "up": "mlp.experts.#.up_proj.weight",
                    "down": "mlp.experts.#.down_proj.weight"}),
    # In GGUF a mixtral is a llama with experts.
    Family("llama", "mixtral", ("MixtralForCausalLM",), neighbours=True,
           defaults={"max_position_embeddings": 131072, "num_local_experts": 8,
                     "num_experts_per_tok": 2, "norm_topk_prob": True, "rms_norm_eps": 1e-5,
                     "rope_theta": 1000000.0},
           must_be=_MIXTURE,
           experts={"router": "block_sparse_moe.gate.weight",
                    "gate": "block_sparse_moe.experts.#.w1.weight",
                    "up": "block_sparse_moe.experts.#.w3.weight",
                    "down": "block_sparse_moe.experts.#.w2.weight"}),
    Family("olmo2", "olmo2", ("Olmo2ForCausalLM",),
           traits={"norms": "after", "qk_norm": "width"},
           defaults={"rms_norm_eps": 1e-5}),
    Family("granite", "granite", ("GraniteForCausalLM",), neighbours=True,
           defaults={"embedding_multiplier": 1.0, "attention_multiplier": 1.0,
                     "residual_multiplier": 1.0, "logits_scaling": 1.0},
           must_be={**_PLAIN, "attention_bias": (False, True)}),
)  # fmt: skip

_RECURRENT: Final = (
    "mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "rwkv", "rwkv6", "rwkv7",
    "recurrent_gemma", "qwen3_next", "qwen3_5", "qwen3_5_text", "nemotron_h", "lfm2", "zamba2",
    "granitemoehybrid", "plamo2", "minimax", "kimi_linear",
)  # fmt: skip
RECURRENT_REASON: Final = (
    "it has recurrent layers: their state cannot be taken back when draft tokens are refused"
)


def of_class(name: str) -> Family | None:
    """The family of an entry of ``architectures``."""
    return next((family for family in FAMILIES if name in family.classes), None)


def of_model_type(name: str) -> Family | None:
    """The family of a ``model_type``."""
    return next((family for family in FAMILIES if family.model_type == name), None)


def of_gguf(name: str) -> Family | None:
    """The family of a ``general.architecture``."""
    return next((family for family in FAMILIES if family.name == name), None)


def recurrent(name: str) -> bool:
    """Whether a model type, a class or a GGUF architecture has recurrent layers."""
    plain = name.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    plain = plain.replace("_", "").replace("-", "").replace(".", "").lower()
    return plain in {known.replace("_", "") for known in _RECURRENT}
