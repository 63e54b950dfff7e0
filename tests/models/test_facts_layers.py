"""What each layer keeps of the tokens that it has seen, by families; and damaged configs."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.models.families import (
    LAYERS,
    MLA,
    QUANTISED,
    SPECULATORS,
    dense,
    facts_of,
)
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.facts.hf import build, tokenizer_hash
from wager.models.facts.read import read_facts


@pytest.mark.parametrize("name", LAYERS)
def test_what_layers_keep(tmp_path: Path, name: str) -> None:
    config, per_token, long = LAYERS[name]
    facts = facts_of(tmp_path, config)
    assert facts.kv_bytes_per_token("f16") == per_token
    assert facts.kv_bytes(1 << 15, "f16") == long
    assert len(facts.kv_layers) == facts.num_layers


def test_state_of_linear_attention(tmp_path: Path) -> None:
    config = dense(
        model_type="qwen3_next", num_hidden_layers=48, num_key_value_heads=2, head_dim=256,
        full_attention_interval=4, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    )  # fmt: skip
    facts = facts_of(tmp_path, config)
    assert facts.kv_bytes_per_token("f16") == 12 * 2 * 256 * 2 * 2
    assert [layer.kind for layer in facts.kv_layers[:4]] == ["none", "none", "none", "full"]
    # 36 layers: a convolution over 2 x 2048 + 4096 channels, and 32 matrices of 128 x 128.
    assert facts.state_bytes(2) == 36 * (3 * 8192 * 2 + 32 * 128 * 128 * 4)


# The same from GGUF metadata: (architecture, keys, KV bytes per token, bytes of 32768 tokens)

GGUF: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "grouped heads": ("qwen3", {}, 4 * 4096, 4 * 4096 << 15),
    "head sizes stated": (
        "qwen3", {"attention.key_length": 192, "attention.value_length": 64}, 4 * 4096,
        4 * 4096 << 15,
    ),
    "heads per layer": (
        "openelm", {"attention.head_count_kv": [8, 0, 2, 8]}, 18 * 512, 18 * 512 << 15,
    ),
    "window of every layer": (
        "phi3", {"attention.sliding_window": 1024}, 4 * 4096, 4 * 4096 << 10,
    ),
    "window by the family": (
        "gemma2", {"attention.sliding_window": 1024}, 4 * 4096, 2 * 4096 * (32768 + 1024),
    ),
    "window by a list": (
        "exaone4", {"attention.sliding_window": 512,
                    "attention.sliding_window_pattern": [True, True, True, False]},
        4 * 4096, 4096 * (32768 + 3 * 512),
    ),
    "chunks": ("llama4", {}, 4 * 4096, 4096 * (32768 + 3 * 8192)),
    "shared layers": (
        "gemma3n", {"attention.shared_kv_layers": 1}, 3 * 4096, 3 * 4096 << 15,
    ),
    "latent": (
        "deepseek2", {"attention.kv_lora_rank": 512, "rope.dimension_count": 64,
                      "attention.key_length_mla": 192, "attention.head_count_kv": 1},
        4 * 576 * 2, 4 * 576 * 2 << 15,
    ),
    "latent, unfolded": (
        "deepseek2", {"attention.kv_lora_rank": 512, "attention.key_length": 192,
                      "attention.value_length": 128, "attention.head_count_kv": 32},
        4 * 32 * 320 * 2, 4 * 32 * 320 * 2 << 15,
    ),
    "a layer for multi-token prediction": (
        "glm4moe", {"nextn_predict_layers": 1}, 3 * 4096, 3 * 4096 << 15,
    ),
    "linear attention": (
        "qwen3next", {"ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.conv_kernel": 4,
                      "ssm.group_count": 16}, 4096, 4096 << 15,
    ),
}  # fmt: skip


def write_metadata(path: Path, architecture: str, keys: Mapping[str, Any]) -> Path:
    """A GGUF file of four layers whose tensors are left out but one."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, architecture)
    known = {
        "block_count": 4, "context_length": 32768, "embedding_length": 4096,
        "feed_forward_length": 14336, "attention.head_count": 32, "attention.head_count_kv": 8,
    }  # fmt: skip
    for key, value in {**known, **keys}.items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((10, 4096), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", GGUF)
def test_what_layers_of_gguf_keep(tmp_path: Path, name: str) -> None:
    architecture, keys, per_token, long = GGUF[name]
    facts = read_facts(str(write_metadata(tmp_path / "m.gguf", architecture, keys)))
    assert facts.kv_bytes_per_token("f16") == per_token
    assert facts.kv_bytes(1 << 15, "f16") == long
    assert len(facts.kv_layers) == facts.num_layers
    assert (facts.vocab_size, facts.architecture, facts.source) == (10, architecture, "gguf")
    # Without tensors of its own, a layer for multi-token prediction is not there.
    assert facts.mtp_layers == 0


def test_more_of_gguf(tmp_path: Path) -> None:
    linear = GGUF["linear attention"][1]
    facts = read_facts(str(write_metadata(tmp_path / "a.gguf", "qwen3next", linear)))
    # Three of four layers: a convolution over 4096 + 2 x 16 x 128, and the state, in 32 bits.
    assert facts.state_bytes() == 3 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096) * 4
    mixture = {"expert_count": 64, "expert_used_count": 6, "expert_feed_forward_length": 1408}
    facts = read_facts(str(write_metadata(tmp_path / "b.gguf", "deepseek2", mixture)))
    assert (facts.experts, facts.experts_per_token, facts.expert_size) == (64, 6, 1408)
    head = read_facts(str(write_metadata(tmp_path / "c.gguf", "eagle3", {})))
    assert head.speculative == {"kind": "eagle3"}
    for keys, fragment in (
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": 1 << 20}, "block_count is 1048576; at most 1024"),
        ({"attention.head_count_kv": [8]}, "has 1 entries, layer 1 none"),
    ):
        with pytest.raises(CorruptFile, match=fragment):
            read_facts(str(write_metadata(tmp_path / "d.gguf", "llama", keys)))


@pytest.mark.parametrize(
    ("config", "state"),
    [
        (dense(model_type="nemotron_h", num_hidden_layers=1, hybrid_override_pattern="M",
               mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8,
               conv_kernel=4), 3 * (8192 + 2 * 8 * 128) * 2 + 8192 * 128 * 4),
        (dense(model_type="jamba", num_hidden_layers=8, attn_layer_period=8, attn_layer_offset=4,
               mamba_d_state=16, mamba_d_conv=4, mamba_expand=2),
         7 * (3 * 8192 * 2 + 8192 * 16 * 4)),
        (dense(model_type="lfm2", num_hidden_layers=2, conv_L_cache=3,
               layer_types=["conv", "full_attention"]), 2 * 4096 * 2),
        (dense(model_type="falcon_h1", num_hidden_layers=2, mamba_n_heads=24, mamba_d_head=128,
               mamba_d_state=256, mamba_n_groups=1, mamba_d_conv=4),
         2 * (3 * (3072 + 512) * 2 + 3072 * 256 * 4)),
        (dense(model_type="kimi_linear", num_hidden_layers=2, **MLA,
               linear_attn_config={"full_attn_layers": [2], "kda_layers": [1], "num_heads": 32,
                                   "head_dim": 128, "short_conv_kernel_size": 4}),
         3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4),
        (dense(model_type="minimax", num_hidden_layers=2, attn_type_list=[0, 1]),
         32 * 128 * 128 * 4),
    ],
    ids=["mamba2", "mamba", "convolution", "both", "kimi", "lightning"],
)  # fmt: skip
def test_other_state(tmp_path: Path, config: dict[str, Any], state: int) -> None:
    assert facts_of(tmp_path, config).state_bytes(2) == state


def test_a_kind_of_layer_that_is_not_known_is_refused(tmp_path: Path) -> None:
    config = dense(num_hidden_layers=2, layer_types=["full_attention", "quantum_attention"])
    with pytest.raises(UnsupportedModel, match="layer_types names 'quantum_attention'"):
        facts_of(tmp_path, config)
    with pytest.raises(UnsupportedModel, match=r"recurrent layers whose sizes.*'new'"):
        facts_of(tmp_path, dense(model_type="new", layer_types=["mamba"] * 32))
    with pytest.raises(CorruptFile, match="layer_types has 1 entries for 32 layers"):
        facts_of(tmp_path, dense(layer_types=["full_attention"]))
    with pytest.raises(CorruptFile, match="no sliding_window"):
        facts_of(tmp_path, dense(layer_types=["sliding_attention"] * 32))


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824; at most 1024"),
        ({"num_hidden_layers": "many"}, "not a whole number: 'many'"),
        ({"num_attention_heads": -1}, "not a whole number: -1"),
        ({"vocab_size": 1 << 60}, "not a whole number"),
        ({"rope_scaling": [1]}, "rope_scaling is not an object"),
        ({"num_key_value_heads": [8]}, "has 1 entries for 32 layers"),
    ],
)
def test_configs_that_cannot_be(tmp_path: Path, change: dict[str, Any], fragment: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        facts_of(tmp_path, dense(**change))
    assert fragment in str(caught.value)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "context"),
    [
        ({}, 131072),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 262144),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        # Already counted in max_position_embeddings (transformers, vLLM 0.32).
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 131072),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": None}, 2048),
    ],
)
def test_longest_context(tmp_path: Path, change: dict[str, Any], context: int) -> None:
    assert facts_of(tmp_path, dense(**change)).max_context == context


def test_experts(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, dense(num_local_experts=8, num_experts_per_tok=2))
    assert (facts.experts, facts.experts_per_token, facts.expert_size) == (8, 2, 14336)
    fine = dense(n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048)
    assert facts_of(tmp_path, fine).expert_size == 2048
    assert facts_of(tmp_path, dense()).experts is None


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2.5, 1e300, 1 << 62, "", "text", [], [1], ["x"], [[]], {},
    {"a": 1}, [None] * 40,
)  # fmt: skip


def test_damaged_configs_end_in_facts_or_in_a_clear_error(tmp_path: Path) -> None:
    rng = random.Random(5)
    configs = [config for config, _, _ in LAYERS.values()]
    configs += [dense(quantization_config=config) for config, *_ in QUANTISED.values()]
    configs += [SPECULATORS, dense(rope_scaling={"rope_type": "linear", "factor": 2.0}),
                dense(num_local_experts=8, num_experts_per_tok=2)]  # fmt: skip
    outcomes: Counter[str] = Counter()
    for _ in range(4000):
        config = json.loads(json.dumps(rng.choice(configs)))
        for _ in range(rng.choice((1, 1, 2, 4))):
            inner = [value for value in config.values() if isinstance(value, dict) and value]
            place = rng.choice([config, *inner])
            place[rng.choice(list(place))] = rng.choice(ODD)
        try:
            facts = build(name="m", source="directory", location="m", raw=config, path=tmp_path,
                          tensors=[], tokenizer_hash=None)  # fmt: skip
        except ModelError as error:
            outcomes["error" if "\n" not in str(error) else "long error"] += 1
        else:
            assert len(facts.kv_layers) == facts.num_layers
            assert facts.kv_bytes(1000, "f16") >= 0
            outcomes["facts"] += 1
    assert set(outcomes) == {"error", "facts"}
    assert min(outcomes.values()) > 500


def test_damaged_tokenizers() -> None:
    for damaged in (
        {"model": 5},
        {"model": {"vocab": {"a": "b"}}},
        {"added_tokens": [{"id": 0.5}]},
    ):
        with pytest.raises(CorruptFile, match=r"^t: "):
            tokenizer_hash(damaged, "t")
    nothing = tokenizer_hash({}, "t")
    assert tokenizer_hash({"added_tokens": 7}, "t") == nothing
    assert tokenizer_hash({"added_tokens": [5]}, "t") == nothing
    unigram = {"model": {"vocab": [[], 7, ["a", 0.1]]}}
    assert tokenizer_hash(unigram, "t") == tokenizer_hash({"model": {"vocab": {"a": 2}}}, "t")
