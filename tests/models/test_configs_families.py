"""What is read from the config.json of each family, and what is refused there, by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import write_tiny_hf
from tests.tiny_weights import TINY_FAMILIES
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.checkpoint import Checkpoint
from wager.models.hf_config import read_config
from wager.models.load import open_checkpoint
from wager.models.rope import frequencies, rope_table
from wager.models.safetensors_file import read_directory
from wager.shape import LayerKind, ModelConfig, Rope

FULL, LOCAL = "full_attention", "sliding_attention"
SIZES = {"vocab_size": 320, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 4,
         "num_attention_heads": 32}  # fmt: skip
LONG = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def bare(family: str, **keys: Any) -> ModelConfig:
    """A config that says nothing but sizes and what ``keys`` say."""
    made = TINY_FAMILIES[family]
    raw = {"architectures": [made.architecture], "model_type": made.model_type, **SIZES, **keys}
    return read_config(Path("config.json"), raw)[0]


def read(directory: Path, family: str, **keys: Any) -> Checkpoint:
    return open_checkpoint(str(write_tiny_hf(directory, family=family, config=keys)))


DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"num_kv_heads": 32, "head_dim": 4, "max_context": 2048, "norm_eps": 1e-6},
    "mistral": {"num_kv_heads": 8, "max_context": 131072, "kinds": (LayerKind(4096),) * 4},
    "qwen2": {"num_kv_heads": 32, "max_context": 32768, "qkv_bias": True, "out_bias": False},
    "qwen3": {"num_kv_heads": 32, "head_dim": 128, "qk_norm": "head", "qkv_bias": False},
    "smollm3": {
        "num_kv_heads": 4, "tied_head": True, "ropes": (Rope(2e6),),
        "kinds": (LayerKind(),) * 3 + (LayerKind(rope=None),),
    },
    "phi3": {"num_kv_heads": 32, "max_context": 4096, "norm_eps": 1e-5, "kinds": ()},
    "gemma2": {
        "num_kv_heads": 4, "head_dim": 256, "max_context": 8192, "tied_head": True,
        "norms": "both", "activation": "gelu_tanh", "attention_cap": 50.0, "logit_cap": 30.0,
        "attention_scale": 1 / 16, "embed_scale": math.sqrt(128),
        "kinds": (LayerKind(4096), LayerKind()) * 2,
    },
    "gemma3": {
        "num_kv_heads": 4, "head_dim": 256, "max_context": 131072, "qk_norm": "head",
        "attention_cap": 0.0, "logit_cap": 0.0, "ropes": (Rope(1e6), Rope(1e4)),
        "kinds": (LayerKind(4096, 1),) * 4,
    },
    "olmo2": {"num_kv_heads": 32, "norm_eps": 1e-5, "norms": "after", "qk_norm": "width"},
    "granite": {"attention_scale": 1.0, "embed_scale": 1.0, "logit_scale": 1.0},
    "qwen3moe": {"num_kv_heads": 4, "qk_norm": "head", "kinds": ()},
    "mixtral": {"num_kv_heads": 8, "ropes": (Rope(1e6),), "kinds": (), "norm_eps": 1e-5},
}  # fmt: skip


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_keys_that_are_left_out_are_as_in_transformers(family: str) -> None:
    found, expected = bare(family), DEFAULTS[family]
    assert {key: getattr(found, key) for key in expected} == expected


def test_sizes_that_a_gemma3_text_config_leaves_out() -> None:
    made = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
                            "num_hidden_layers": 34, "sliding_window": 1024}}  # fmt: skip
    config, _ = read_config(Path("config.json"), made)
    assert (config.vocab_size, config.num_heads, config.intermediate_size) == (262208, 8, 9216)
    assert [i for i, kind in enumerate(config.kinds) if not kind.window] == [5, 11, 17, 23, 29]
    assert config.tied_head


@pytest.mark.parametrize(
    ("family", "keys", "windows"),
    [
        ("mistral", {"sliding_window": 8}, [8] * 4),
        ("mistral", {"sliding_window": None}, [0] * 4),
        ("mistral", {"sliding_window": 4096, "max_position_embeddings": 4096}, [0] * 4),
        ("phi3", {"sliding_window": 8}, [8] * 4),
        ("mixtral", {"sliding_window": 8}, [8] * 4),
        ("qwen2", {"sliding_window": 8}, [0] * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True}, [0] * 4),
        (
            "qwen3",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            [0, 0, 0, 8],
        ),
        (
            "qwen3",
            {"sliding_window": 8, "use_sliding_window": True, "layer_types": [LOCAL, FULL] * 2},
            [8, 0, 8, 0],
        ),
        (
            "qwen3moe",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            [8] * 4,
        ),
        ("gemma2", {"sliding_window": 8}, [8, 0, 8, 0]),
        ("gemma2", {"sliding_window": 8, "layer_types": [FULL] * 3 + [LOCAL]}, [0, 0, 0, 8]),
        ("gemma3", {"sliding_window": 8, "sliding_window_pattern": 3}, [8, 8, 0, 8]),
        ("smollm3", {"sliding_window": 8}, [0] * 4),
        ("llama", {"layer_types": [FULL] * 4}, [0] * 4),
    ],
)
def test_windows(family: str, keys: dict[str, Any], windows: list[int]) -> None:
    config = bare(family, head_dim=4, **keys)
    assert [config.kind(index).window for index in range(4)] == windows


def test_layers_without_rope() -> None:
    found = bare("smollm3", head_dim=4, no_rope_layers=[0, 1, 1, 0, 1])
    assert [found.kind(i).rope for i in range(4)] == [None, 0, 0, None]
    found = bare("smollm3", head_dim=4, no_rope_layer_interval=2)
    assert [found.kind(i).rope for i in range(4)] == [0, None, 0, None]


def test_granite_scales() -> None:
    found = bare("granite", head_dim=4, embedding_multiplier=12, attention_multiplier=0.015625,
                 residual_multiplier=0.22, logits_scaling=8.0)  # fmt: skip
    assert (found.embed_scale, found.attention_scale) == (12.0, 0.015625)
    assert (found.residual_scale, found.logit_scale) == (0.22, 0.125)


def test_biases(tmp_path: Path) -> None:
    for family, out in (("llama", True), ("qwen3", True), ("qwen2", False), ("granite", True)):
        config = read(tmp_path / family, family, attention_bias=True).config
        assert (config.qkv_bias, config.out_bias) == (True, out)


def test_yarn() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    (rope,) = bare("qwen2", head_dim=128, rope_theta=1e6, rope_scaling=yarn).ropes
    assert rope.factors is not None
    assert rope.scale == pytest.approx(0.1 * math.log(4) + 1)
    turns = 32768 * frequencies(1e6, 128) / (2 * math.pi)
    for turned, factor in zip(turns, rope.factors, strict=True):
        if turned > 40:
            assert factor == 1.0
        elif turned < 0.8:
            assert factor == pytest.approx(4.0)
        else:
            assert 1.0 <= factor <= 4.0
    scaled = bare("qwen2", head_dim=128, rope_scaling={**yarn, "attention_factor": 1.5}).ropes
    assert scaled[0].scale == 1.5


@pytest.mark.parametrize(("context", "factor"), [(64, 1.0), (65, 4.0)])
def test_longrope_follows_the_context_a_model_is_loaded_with(context: int, factor: float) -> None:
    """A table cannot change under keys that are cached."""
    (rope,) = bare("phi3", head_dim=16, rope_scaling=LONG, max_position_embeddings=4096,
                   original_max_position_embeddings=64).ropes  # fmt: skip
    assert rope.scale == math.sqrt(1 + math.log(64) / math.log(64))
    rates = frequencies(10000.0, 16) / factor
    expected = (np.cos(3 * rates) * rope.scale).astype(np.float32)
    assert np.array_equal(rope_table(rope, 16, context)[3, :8], expected)


def test_gemma3_has_two_tables() -> None:
    old = bare("gemma3", rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert old.ropes == (Rope(1e6, factors=(8.0,) * 128), Rope(1e4))
    new = bare("gemma3", rope_parameters={FULL: {"rope_type": "default", "rope_theta": 5e5},
                                          LOCAL: {"rope_type": "default"}})  # fmt: skip
    assert new.ropes == (Rope(5e5), Rope(1e4))


REFUSED = [
    ("llama", {"attention_chunk_size": 8}, "attention_chunk_size"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("llama", {"logits_scaling": 8.0}, "logits_scaling"),
    ("llama", {"rope_interleave": True}, "rope_interleave"),
    ("llama", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("llama", {"is_causal": False}, "is_causal"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("llama", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta"),
    ("llama", {"rope_parameters": {FULL: {"rope_type": "default"}}}, FULL),
    ("llama", {"rope_scaling": LONG, "rope_parameters": {"rope_theta": 5e5}}, "leave one out"),
    ("llama", {"model_type": "mistral"}, "model_type is 'mistral'; it must be 'llama'"),
    ("llama", {"layer_types": [FULL, "chunked_attention"] * 2}, "chunked_attention"),
    ("mistral", {"layer_types": [FULL, LOCAL] * 2}, "layer_types"),
    ("mistral", {"use_sliding_window": False}, "use_sliding_window"),
    ("qwen2", {"mlp_bias": True}, "mlp_bias"),
    ("qwen3", {"clip_qkv": 8.0}, "clip_qkv"),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window"),
    ("phi3", {"attention_bias": True}, "attention_bias"),
    ("phi3", {"layer_types": [LOCAL] * 4}, "layer_types"),
    ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation"),
    ("gemma2", {"sliding_window_pattern": 3}, "sliding_window_pattern"),
    ("gemma2", {"layer_types": [FULL, "mamba"] * 2}, "recurrent"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_type"),
    ("olmo2", {"sliding_window": 8}, "sliding_window"),
    ("granite", {"num_local_experts": 8}, "num_local_experts"),
    ("qwen3moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    ("mixtral", {"norm_topk_prob": False}, "norm_topk_prob"),
]


@pytest.mark.parametrize(("family", "keys", "fragment"), REFUSED)
def test_refused_by_name(family: str, keys: dict[str, Any], fragment: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        bare(family, **{"head_dim": 16, **keys})
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


NAN = float("nan")
YARN = {"rope_type": "yarn", "factor": 4.0}
NONSENSE = [
    ("mistral", {"sliding_window": 0}), ("mistral", {"sliding_window": -8}),
    ("mistral", {"sliding_window": "8"}), ("mistral", {"sliding_window": 1 << 60}),
    ("mistral", {"num_key_value_heads": 5}), ("mistral", {"layer_types": "full_attention"}),
    ("qwen2", {"use_sliding_window": "yes"}), ("qwen2", {"layer_types": [FULL]}),
    ("qwen2", {"layer_types": [FULL] * 5}), ("qwen3", {"layer_types": [LOCAL] * 4}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": -1}),
    ("qwen3", {"attention_bias": 1}),
    ("smollm3", {"no_rope_layers": [1]}), ("smollm3", {"no_rope_layers": "1111"}),
    ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}), ("smollm3", {"no_rope_layer_interval": 0}),
    ("smollm3", {"no_rope_layers": [1, -1, 1, 1]}),
    ("phi3", {"partial_rotary_factor": 0.0}), ("phi3", {"partial_rotary_factor": 2.0}),
    ("phi3", {"partial_rotary_factor": 0.2}), ("phi3", {"partial_rotary_factor": "half"}),
    ("phi3", {"rope_scaling": {**LONG, "short_factor": [1.0] * 7}}),
    ("phi3", {"rope_scaling": {**LONG, "short_factor": [NAN] * 8}}),
    ("phi3", {"rope_scaling": {**LONG, "long_factor": [-1.0] * 8}}),
    ("phi3", {"rope_scaling": {**LONG, "long_factor": [1e300] * 8}}),
    ("phi3", {"rope_scaling": {**LONG, "long_factor": 4.0}}),
    ("phi3", {"rope_scaling": {**LONG, "attention_factor": 0.0}}),
    ("phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 1}),
    ("llama", {"rope_scaling": {**YARN, "factor": 0.5}}),
    ("llama", {"rope_scaling": {**YARN, "factor": 1e300}}),
    ("llama", {"rope_scaling": {**YARN, "factor": "4"}}),
    ("llama", {"rope_scaling": {**YARN, "beta_fast": 0.5}}),
    ("llama", {"rope_scaling": {**YARN, "beta_fast": 1e308}}),
    ("llama", {"rope_scaling": {**YARN, "beta_slow": 1e-320}}),
    ("llama", {"rope_scaling": {**YARN, "mscale": -1.0, "mscale_all_dim": 1.0}}),
    ("llama", {"rope_scaling": YARN, "rope_theta": 0.5}),
    ("llama", {"rope_scaling": {**YARN, "truncate": 1}}), ("llama", {"rope_theta": 1e-300}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 1e300}}),
    ("gemma2", {"query_pre_attn_scalar": 0}), ("gemma2", {"query_pre_attn_scalar": -16}),
    ("gemma2", {"attn_logit_softcapping": -1.0}), ("gemma2", {"final_logit_softcapping": 0.0}),
    ("gemma2", {"final_logit_softcapping": 1e300}), ("gemma2", {"sliding_window": None}),
    ("gemma3", {"sliding_window_pattern": 0}), ("gemma3", {"rope_local_base_freq": "small"}),
    ("gemma3", {"rope_parameters": {FULL: 8.0}}),
    ("granite", {"logits_scaling": 0.0}), ("granite", {"logits_scaling": 1e-320}),
    ("granite", {"attention_multiplier": -1.0}), ("granite", {"residual_multiplier": "0.2"}),
    ("granite", {"embedding_multiplier": 1e300}),
    ("qwen3moe", {"num_experts_per_tok": 200}), ("qwen3moe", {"num_experts": 1 << 20}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "keys"), NONSENSE)
def test_nonsense(family: str, keys: dict[str, Any]) -> None:
    with pytest.raises(CorruptFile) as caught:
        bare(family, **{"head_dim": 16, **keys})
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


def wrapped(directory: Path, prefix: str, head: str) -> Path:
    """A tiny Gemma 3 as the text part of a model of text and images."""
    write_tiny_hf(directory, family="gemma3", tied=False)
    text = json.loads((directory / "config.json").read_text())
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
             "tie_word_embeddings": False, "eos_token_id": [2],
             "vision_config": {"hidden_size": 8}, "text_config": text}  # fmt: skip
    del text["architectures"], text["tie_word_embeddings"]
    (directory / "config.json").write_text(json.dumps(outer))
    path = directory / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    names = {name: head if name == "lm_head.weight" else prefix + name.removeprefix("model.")
             for name in header if name != "__metadata__"}  # fmt: skip
    header = {names[name]: header[name] for name in names}
    end = len(raw) - 8 - length
    vision = f"{'model.' if prefix.startswith('model.') else ''}vision_tower.patch.weight"
    header[vision] = {"dtype": "F32", "shape": [4], "data_offsets": [end, end + 16]}
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + raw[8 + length :] + bytes(16))
    return directory


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("language_model.model.", "language_model.lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
    ],
)
def test_the_text_model_of_a_gemma3_with_images(tmp_path: Path, prefix: str, head: str) -> None:
    found = open_checkpoint(str(wrapped(tmp_path / "whole", prefix, head)))
    alone = open_checkpoint(str(write_tiny_hf(tmp_path / "text", family="gemma3", tied=False)))
    assert found.config == alone.config
    assert found.tensors.keys() == alone.tensors.keys()
    for name, tensor in alone.tensors.items():
        rows = tensor.shape[0]
        assert np.array_equal(found.tensors[name].read(0, rows), tensor.read(0, rows)), name


def test_what_else_is_beside_a_text_model_is_refused(tmp_path: Path) -> None:
    directory = wrapped(tmp_path, "model.language_model.", "lm_head.weight")
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"model.vision_tower.", b"model.another_part."))
    assert "model.another_part.patch.weight" in read_directory(directory)[0]
    with pytest.raises(ModelError, match=r"model\.another_part\.patch\.weight"):
        open_checkpoint(str(directory))
