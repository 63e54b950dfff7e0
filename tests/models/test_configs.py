"""What a config may ask for: taken, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.load import open_checkpoint
from wager.models.rope import frequencies, rope_table
from wager.shape import Rope

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "fragment"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "Qwen2MoeForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "is not supported"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "it has recurrent layers"),
        ({"architectures": None, "model_type": "mamba2"}, "it has recurrent layers"),
        ({"mlp_bias": True}, "mlp_bias is True; it must be False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it must be 'silu'"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"quantization_config": {"quant_method": "exl2"}}, "quantization_config"),
        ({"sliding_window": 4096}, "sliding_window"),
        (
            {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8},
            "sliding_window",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "recurrent"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ({"head_dim": 15}, "head size 15 is odd"),
    ],
)
def test_refused_by_name(tmp_path: Path, config: dict[str, Any], fragment: str) -> None:
    directory = write_tiny_hf(tmp_path, config=config)
    with pytest.raises(UnsupportedModel) as caught:
        open_checkpoint(str(directory))
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": "64"}, {"hidden_size": None}, {"hidden_size": -64}, {"vocab_size": 1 << 40},
        {"num_hidden_layers": 10**9}, {"num_hidden_layers": 0}, {"num_attention_heads": True},
        {"num_key_value_heads": 3}, {"rms_norm_eps": 0}, {"rms_norm_eps": "tiny"},
        {"rope_theta": -1.0}, {"head_dim": 1 << 60}, {"tie_word_embeddings": "yes"},
        {"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, {"rope_scaling": [1]},
        {"rope_scaling": {**LLAMA3, "factor": 0.0}}, {"max_position_embeddings": 1 << 40},
    ],
)  # fmt: skip
def test_nonsense(tmp_path: Path, config: dict[str, Any]) -> None:
    directory = write_tiny_hf(tmp_path, config=config)
    with pytest.raises(CorruptFile) as caught:
        open_checkpoint(str(directory))
    assert "config.json" in str(caught.value)


def test_sizes_that_lie_about_the_tensors(tmp_path: Path) -> None:
    directory = write_tiny_hf(tmp_path, config={"num_hidden_layers": 3})
    with pytest.raises(ModelError, match=r"model\.layers\.2\.input_layernorm\.weight is missing"):
        open_checkpoint(str(directory))
    directory = write_tiny_hf(tmp_path, config={"intermediate_size": 129})
    with pytest.raises(CorruptFile, match="the config asks for"):
        open_checkpoint(str(directory))


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    directory = write_tiny_hf(tmp_path, config={"tie_word_embeddings": False})
    with pytest.raises(ModelError, match=r"lm_head\.weight is missing \(tie_word_embeddings"):
        open_checkpoint(str(directory))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": None, "rope_theta": 500000.0},
        {"rope_scaling": {"rope_type": "default"}, "rope_theta": 500000.0},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": None,
            "rope_theta": 500000.0,
        },
        {"architectures": None, "rope_theta": 500000.0},
    ],
)
def test_taken(tmp_path: Path, config: dict[str, Any]) -> None:
    read = open_checkpoint(str(write_tiny_hf(tmp_path, config=config))).config
    assert read.ropes == (Rope(500000.0),)
    assert (read.num_layers, read.num_kv_heads, read.head_dim) == (2, 2, 16)


def test_llama3_frequencies(tmp_path: Path) -> None:
    directory = write_tiny_hf(
        tmp_path, head_dim=64, config={"rope_theta": 500000.0, "rope_scaling": LLAMA3}
    )
    config = open_checkpoint(str(directory)).config
    assert config.ropes[0].factors is not None
    wavelengths = 2 * np.pi / frequencies(500000.0, 64)
    scaled = frequencies(500000.0, 64) / np.array(config.ropes[0].factors)
    # Llama 3.1's rule, as its release states it, pair by pair.
    for pair, length in enumerate(wavelengths):
        rate = 2 * np.pi / length
        if length < 8192 / 4:
            expected = rate
        elif length > 8192:
            expected = rate / 32
        else:
            smooth = (8192 / length - 1) / (4 - 1)
            expected = (1 - smooth) * rate / 32 + smooth * rate
        assert scaled[pair] == pytest.approx(expected, rel=1e-12)
    assert {config.ropes[0].factors[0], config.ropes[0].factors[-1]} == {1.0, 32.0}


def test_linear_scaling(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 4.0}
    config = open_checkpoint(str(write_tiny_hf(tmp_path, config={"rope_scaling": scaling}))).config
    assert config.ropes[0].factors == (4.0,) * 8


def test_rope_table(tmp_path: Path) -> None:
    config = open_checkpoint(str(write_tiny_hf(tmp_path, head_dim=32))).config
    table = rope_table(config.ropes[0], 32, 5000)
    assert table.shape == (5000, 32)
    assert table.dtype == np.float32
    for position, pair in ((0, 0), (1, 0), (4999, 3), (4999, 15)):
        angle = position * 10000.0 ** (-2 * pair / 32)
        assert table[position, pair] == np.float32(np.cos(angle))
        assert table[position, 16 + pair] == np.float32(np.sin(angle))


def edit_gguf(path: Path, key: str, value: Any, kind: gguf.GGUFValueType) -> Path:
    """The tiny model with one more metadata entry."""
    add, written = gguf.GGUFWriter.add_vocab_size, []

    def patched(self: gguf.GGUFWriter, size: int) -> None:
        add(self, size)
        self.add_key_value(key, value, kind)
        written.append(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_vocab_size", patched)
        write_tiny_gguf(path)
    assert written
    return path


@pytest.mark.parametrize(
    ("key", "value", "kind", "fragment"),
    [
        ("llama.expert_weights_scale", 2.0, "FLOAT32", "expert_weights_scale' = 2.0"),
        ("llama.rope.scaling.type", "dynamic", "STRING", "rope scaling 'dynamic'"),
        ("llama.logit_scale", 0.5, "FLOAT32", "logit_scale"),
        ("llama.a_new_setting", 1, "UINT32", "a_new_setting"),
    ],
)
def test_gguf_settings_refused_by_name(
    tmp_path: Path, key: str, value: Any, kind: str, fragment: str
) -> None:
    path = edit_gguf(tmp_path / "m.gguf", key, value, gguf.GGUFValueType[kind])
    with pytest.raises(UnsupportedModel) as caught:
        open_checkpoint(str(path))
    assert fragment in str(caught.value)


def test_gguf_scaling(tmp_path: Path) -> None:
    path = edit_gguf(tmp_path / "a.gguf", "llama.rope.scaling.factor", 2.0,
                     gguf.GGUFValueType.FLOAT32)  # fmt: skip
    assert open_checkpoint(str(path)).config.ropes[0].factors == (2.0,) * 8
    factors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]
    path = write_tiny_gguf(tmp_path / "b.gguf", rope_factors=factors)
    assert open_checkpoint(str(path)).config.ropes[0].factors == tuple(factors)
    path = write_tiny_gguf(tmp_path / "c.gguf", rope_factors=factors[:7])
    with pytest.raises(CorruptFile, match="is not 8 F32 numbers"):
        open_checkpoint(str(path))
    path = write_tiny_gguf(tmp_path / "d.gguf", rope_factors=[0.0] * 8)
    with pytest.raises(CorruptFile, match="not a positive number"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("architecture", ["gpt2", "mixtral", "mamba"])
def test_gguf_of_another_architecture(tmp_path: Path, architecture: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", architecture=architecture)
    with pytest.raises(UnsupportedModel, match=f"architecture '{architecture}' is not supported"):
        open_checkpoint(str(path))
