"""Configs and files of models of many families, whose weights are left out or zero."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wager.models.facts.read import ModelFacts, read_facts
from wager.models.safetensors_file import BITS

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
PLAIN: Tensors = {"model.norm.weight": ("BF16", (8,))}


def write_header(path: Path, tensors: Tensors) -> None:
    """A safetensors file of zeros, of any dtypes."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_model(directory: Path, config: Mapping[str, Any], tensors: Tensors = PLAIN) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    write_header(directory / "model.safetensors", tensors)
    return directory


def facts_of(directory: Path, config: Mapping[str, Any], tensors: Tensors = PLAIN) -> ModelFacts:
    return read_facts(str(write_model(directory, config, tensors)))


def dense(**changes: Any) -> dict[str, Any]:
    """Sizes of Llama 3.1 8B."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", **changes,
    }  # fmt: skip


SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 32000,
    "speculators_config": {
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"name_or_path": "org/target"},
    },
    "transformer_layer_config": dense(num_hidden_layers=1),
}  # fmt: skip


# Packed weights: (config, tensors, name, weights that they hold)

QUANTISED: dict[str, tuple[dict[str, Any], Tensors, str, int]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"l.qweight": ("I32", (32, 256)), "l.qzeros": ("I32", (2, 32)),
         "l.scales": ("F16", (2, 256)), "l.g_idx": ("I32", (256,)), "n.weight": ("F16", (256,))},
        "gptq 4-bit", 256 * 256 + 256,
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4},
        {"l.qweight": ("I32", (256, 32)), "l.qzeros": ("I32", (2, 32)),
         "l.scales": ("F16", (2, 256))},
        "awq 4-bit", 256 * 256,
    ),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors",
         "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}},
        {"l.weight_packed": ("I32", (256, 32)), "l.weight_scale": ("BF16", (256, 2)),
         "l.weight_shape": ("I64", (2,))},
        "compressed-tensors 4-bit", 256 * 256,
    ),
    "fp8": (
        {"quant_method": "fp8", "fmt": "e4m3"},
        {"l.weight": ("F8_E4M3", (256, 256)), "l.weight_scale_inv": ("F32", (2, 2))},
        "fp8 8-bit", 256 * 256,
    ),
    "mxfp4": (
        {"quant_method": "mxfp4"},
        {"e.gate_up_proj_blocks": ("U8", (4, 64, 8, 16)),
         "e.gate_up_proj_scales": ("U8", (4, 64, 8)), "e.gate_up_proj_bias": ("BF16", (4, 64))},
        "mxfp4 4-bit", 4 * 64 * 8 * 32 + 256,
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"l.weight": ("U8", (32768, 1)), "l.weight.absmax": ("U8", (1024,)),
         "l.weight.quant_state.bitsandbytes__nf4": ("U8", (80,))},
        "bitsandbytes 4-bit", 256 * 256,
    ),
}  # fmt: skip


# What layers keep: (config, KV bytes per token in f16, bytes of 32768 tokens in f16)

MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128}
LAYERS: dict[str, tuple[dict[str, Any], int, int]] = {
    "grouped heads": (dense(), 131072, 131072 << 15),
    "one head for all": (
        dense(model_type="gpt_bigcode", num_key_value_heads=None, multi_query=True),
        32 * 2 * 128 * 2, 32 * 2 * 128 * 2 << 15,
    ),
    "every head its own": (dense(num_key_value_heads=None), 4 * 131072, 4 * 131072 << 15),
    "head size stated": (dense(head_dim=64), 65536, 65536 << 15),
    "deepseek latent": (
        dense(model_type="deepseek_v3", num_hidden_layers=61, num_attention_heads=128,
              num_key_value_heads=128, **MLA),
        61 * 576 * 2, 61 * 576 * 2 << 15,
    ),
    "deepseek sparse": (
        dense(model_type="deepseek_v32", num_hidden_layers=61, index_head_dim=128, **MLA),
        61 * (576 * 2 + 132), 61 * (576 * 2 + 132) << 15,
    ),
    "mistral window": (
        dense(model_type="mistral", sliding_window=4096), 131072, 131072 << 12,
    ),
    "qwen2 window off": (
        dense(model_type="qwen2", sliding_window=4096, use_sliding_window=False,
              max_window_layers=28),
        131072, 131072 << 15,
    ),
    "qwen2 window on": (
        dense(model_type="qwen2", sliding_window=4096, use_sliding_window=True,
              max_window_layers=28),
        131072, 4096 * (28 * 32768 + 4 * 4096),
    ),
    "gemma2": (
        dense(model_type="gemma2", sliding_window=4096, num_hidden_layers=42),
        42 * 4096, 4096 * 21 * (32768 + 4096),
    ),
    "gemma3": (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
         "text_config": dense(model_type="gemma3_text", num_hidden_layers=62, sliding_window=1024,
                              num_key_value_heads=16, head_dim=128, architectures=None)},
        62 * 8192, 8192 * (10 * 32768 + 52 * 1024),
    ),
    "layer types": (
        dense(num_hidden_layers=4, sliding_window=128,
              layer_types=["sliding_attention", "full_attention"] * 2),
        4 * 4096, 4096 * 2 * (32768 + 128),
    ),
    "shared layers": (
        dense(num_hidden_layers=4, num_kv_shared_layers=2), 2 * 4096, 2 * 4096 << 15,
    ),
    "llama4 chunks": (
        dense(num_hidden_layers=8, attention_chunk_size=8192), 8 * 4096,
        4096 * (2 * 32768 + 6 * 8192),
    ),
    "heads per layer": (
        dense(num_hidden_layers=3, num_key_value_heads=[8, 0, 2]), 10 * 512, 10 * 512 << 15,
    ),
    "windows with heads of their own": (
        dense(model_type="mimo_v2_flash", num_hidden_layers=2, hybrid_layer_pattern=[0, 1],
              sliding_window=128, head_dim=192, v_head_dim=128, num_key_value_heads=4,
              swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128),
        (4 + 8) * 320 * 2, 320 * 2 * (4 * 32768 + 8 * 128),
    ),
    "gemma4 globals": (
        dense(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
              sliding_window=512, head_dim=256, num_key_value_heads=16, global_head_dim=512,
              num_global_key_value_heads=4),
        16384 + 8192, 16384 * 512 + (8192 << 15),
    ),
    "nemotron_h": (
        dense(model_type="nemotron_h", num_hidden_layers=4, hybrid_override_pattern="M-*E",
              mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8,
              conv_kernel=4),
        4096, 4096 << 15,
    ),
}  # fmt: skip
