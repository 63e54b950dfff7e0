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
from typing import Any, Final, Literal, TypeAlias

SILU: Final = ("silu", "swish")
MAX_EXPERTS: Final = 1024
GELU: Final = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
Windows: TypeAlias = Literal["none", "all", "used", "last", "pattern"]
"""Which layers see only the last ``sliding_window`` positions: none; all; with
``use_sliding_window`` all, or those from ``max_window_layers`` on; all but each
``sliding_window_pattern``-th."""

# What some other family computes, or some other code of this one: left out, or as if it were.
# () stands for left out.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": SILU, "hidden_activation": SILU, "attention_bias": (False,), "mlp_bias": (False,),
    "pretraining_tp": (1,), "num_local_experts": (0, 1), "num_experts": (0, 1),
    "n_routed_experts": (0, 1), "clip_qkv": (), "is_causal": (True,),
    "use_bidirectional_attention": (False,), "rope_interleave": (False,),
    "partial_rotary_factor": (1.0,), "attn_temperature_tuning": (False,), "per_layer_config": (),
    "attention_chunk_size": (), "kv_lora_rank": (), "num_kv_shared_layers": (0,),
    "sliding_window": (), "use_sliding_window": (False,), "sliding_window_pattern": (),
    "no_rope_layers": (), "no_rope_layer_interval": (), "qk_layernorm": (False,),
    "use_qk_norm": (False,), "attn_logit_softcapping": (), "final_logit_softcapping": (),
    "query_pre_attn_scalar": (), "attention_multiplier": (), "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,), "logits_scaling": (1.0,), "logit_scale": (1.0,),
    "scale_emb": (1.0,), "scale_depth": (), "dim_model_base": (),
}  # fmt: skip
_BOTH: Final = (False, True)


def _must_be(*read: str, **allowed: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """`_NEUTRAL` without the keys that a family reads, and with others of its own."""
    return {key: values for key, values in _NEUTRAL.items() if key not in read} | allowed


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of one family share.

    ``name`` is GGUF's. ``windows`` follow the config's keys, and its ``layer_types`` where the
    family ``names_layers``. ``fused`` says that q, k and v are one tensor, and so are gate and up.
    ``norm_offset`` is what norm weights are stored less by in Hugging Face files. ``neighbours``
    says that GGUF stores rotary pairs as rows 2i and 2i + 1. ``experts`` are the names, in Hugging
    Face files, of what stands in place of an MLP; ``#`` is the number of an expert.
    """

    name: str
    model_type: str
    classes: tuple[str, ...]
    traits: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    must_be: Mapping[str, tuple[Any, ...]] = field(default_factory=_must_be)
    windows: Windows = "none"
    names_layers: bool = False
    fused: bool = False
    norm_offset: float = 0.0
    neighbours: bool = False
    experts: Mapping[str, str] | None = None


_QWEN_DEFAULTS: Final = {
    "max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096,
    "max_window_layers": 28,
}  # fmt: skip
_EXPERTS: Final = ("num_local_experts", "num_experts")
_QWEN_READS: Final = ("sliding_window", "use_sliding_window")
_GEMMA: Final = {"norms": "both", "activation": "gelu_tanh"}
_GEMMA_DEFAULTS: Final = {
    "tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip
_GEMMA_READS: Final = ("sliding_window", "query_pre_attn_scalar", "final_logit_softcapping")
_GEMMA_MUST_BE: Final = {
    "hidden_act": GELU, "hidden_activation": GELU, "use_sliding_window": (True,),
}  # fmt: skip

FAMILIES: Final = (
    Family("llama", "llama", ("LlamaForCausalLM",), neighbours=True,
           must_be=_must_be(attention_bias=_BOTH)),
    # In GGUF a mistral is a llama with, perhaps, a window.
    Family("llama", "mistral", ("MistralForCausalLM",), neighbours=True, windows="all",
           defaults={"sliding_window": 4096, "max_position_embeddings": 131072,
                     "num_key_value_heads": 8},
           must_be=_must_be("sliding_window", use_sliding_window=(True,))),
    Family("qwen2", "qwen2", ("Qwen2ForCausalLM",), traits={"qkv_bias": True},
           defaults=_QWEN_DEFAULTS, windows="last", names_layers=True,
           must_be=_must_be(*_QWEN_READS, attention_bias=_BOTH)),
    Family("qwen3", "qwen3", ("Qwen3ForCausalLM",), traits={"qk_norm": "head"},
           defaults={**_QWEN_DEFAULTS, "head_dim": 128}, windows="last", names_layers=True,
           must_be=_must_be(*_QWEN_READS, "use_qk_norm", attention_bias=_BOTH)),
    Family("smollm3", "smollm3", ("SmolLM3ForCausalLM",), neighbours=True, names_layers=True,
           defaults={"max_position_embeddings": 32768, "num_key_value_heads": 4,
                     "tie_word_embeddings": True, "rope_theta": 2000000.0,
                     "no_rope_layer_interval": 4},
           must_be=_must_be("sliding_window", "no_rope_layers", "no_rope_layer_interval",
                            attention_bias=_BOTH)),
    Family("phi3", "phi3", ("Phi3ForCausalLM",), fused=True, windows="all",
           defaults={"max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
                     "rms_norm_eps": 1e-5},
           must_be=_must_be("sliding_window", "partial_rotary_factor",
                            use_sliding_window=(True,))),
    Family("gemma2", "gemma2", ("Gemma2ForCausalLM",), traits=_GEMMA, norm_offset=1.0,
           defaults={**_GEMMA_DEFAULTS, "max_position_embeddings": 8192,
                     "sliding_window_pattern": 2, "final_logit_softcapping": 30.0,
                     "attn_logit_softcapping": 50.0},
           windows="pattern", names_layers=True,
           must_be=_must_be(*_GEMMA_READS, "attn_logit_softcapping", **_GEMMA_MUST_BE,
                            sliding_window_pattern=(2,))),
    # As transformers reads it, that is without a cap of the scores.
    Family("gemma3", "gemma3_text", ("Gemma3ForCausalLM",),
           traits={**_GEMMA, "qk_norm": "head"}, norm_offset=1.0,
           defaults={**_GEMMA_DEFAULTS, "vocab_size": 262208, "hidden_size": 2304,
                     "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
                     "max_position_embeddings": 131072, "sliding_window_pattern": 6,
                     "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
           windows="pattern", names_layers=True,
           must_be=_must_be(*_GEMMA_READS, "sliding_window_pattern", "use_qk_norm",
                            **_GEMMA_MUST_BE)),
    Family("qwen3moe", "qwen3_moe", ("Qwen3MoeForCausalLM",), traits={"qk_norm": "head"},
           defaults={"max_position_embeddings": 32768, "num_key_value_heads": 4,
                     "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                     "norm_topk_prob": False, "sliding_window": 4096},
           windows="used",
           must_be=_must_be(*_QWEN_READS, *_EXPERTS, "use_qk_norm", attention_bias=_BOTH,
                            decoder_sparse_step=(1,), mlp_only_layers=([],)),
           experts={"router": "mlp.gate.weight", "gate": "mlp.experts.#.gate_proj.weight",
                    "up": "mlp.experts.#.up_proj.weight",
                    "down": "mlp.experts.#.down_proj.weight"}),
    # In GGUF a mixtral is a llama with experts.
    Family("llama", "mixtral", ("MixtralForCausalLM",), neighbours=True, windows="all",
           defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8,
                     "num_local_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
                     "rms_norm_eps": 1e-5, "rope_theta": 1000000.0},
           must_be=_must_be(*_EXPERTS, "sliding_window", use_sliding_window=(True,),
                            norm_topk_prob=(True,)),
           experts={"router": "block_sparse_moe.gate.weight",
                    "gate": "block_sparse_moe.experts.#.w1.weight",
                    "up": "block_sparse_moe.experts.#.w3.weight",
                    "down": "block_sparse_moe.experts.#.w2.weight"}),
    Family("olmo2", "olmo2", ("Olmo2ForCausalLM",),
           traits={"norms": "after", "qk_norm": "width"}, defaults={"rms_norm_eps": 1e-5},
           must_be=_must_be("use_qk_norm")),
    Family("granite", "granite", ("GraniteForCausalLM",), neighbours=True,
           defaults={"embedding_multiplier": 1.0, "attention_multiplier": 1.0,
                     "residual_multiplier": 1.0, "logits_scaling": 1.0},
           must_be=_must_be("embedding_multiplier", "attention_multiplier", "residual_multiplier",
                            "logits_scaling", attention_bias=_BOTH)),
)  # fmt: skip

TEXT_WITHIN: Final = (("Gemma3ForConditionalGeneration", "gemma3", "gemma3_text"),)
"""Models of text and images: class, ``model_type``, and the ``model_type`` of their text model."""

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


def runs(architecture: str, *, gguf: bool) -> bool:
    """Whether models of a class, or of a GGUF architecture, are of one of the families."""
    if gguf:
        return of_gguf(architecture) is not None
    return of_class(architecture) is not None or any(
        architecture == outer for outer, _, _ in TEXT_WITHIN
    )


def recurrent(name: str) -> bool:
    """Whether a model type, a class or a GGUF architecture has recurrent layers."""
    plain = name.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    plain = plain.replace("_", "").replace("-", "").replace(".", "").lower()
    return plain in {known.replace("_", "") for known in _RECURRENT}
