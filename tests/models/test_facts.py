"""What config.json, safetensors headers and GGUF metadata say about a model's size."""

from __future__ import annotations

import json
import math
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hub import COMMIT, Hub, fake_hub, point_library_at
from tests.tiny import write_tiny_gguf, write_tiny_hf
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.facts import ModelFacts, read_facts
from wager.models.facts_gguf import part_names
from wager.models.facts_hf import build, tokenizer_hash
from wager.models.gguf_file import SIZES, read_gguf
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


# Layouts


@pytest.mark.parametrize("shards", [1, 3])
def test_a_directory_adds_up(tmp_path: Path, shards: int) -> None:
    path = write_tiny_hf(tmp_path / "m", shards=shards, dtype="BF16")
    facts = read_facts(str(path))
    files = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert (facts.num_layers, facts.num_heads, facts.num_kv_heads, facts.head_dim) == (2, 4, 2, 16)
    assert (facts.vocab_size, facts.max_context, facts.tied_head) == (288, 512, True)
    assert (facts.dtype, facts.model_dtype, facts.quantisation) == ("BF16", "bfloat16", None)
    assert facts.weight_bytes == 2 * facts.parameters == sum(t.nbytes for t in facts.tensors)
    assert facts.weight_bytes < files < facts.weight_bytes + 8192 * shards
    # 2 layers x 2 heads x 16 x (keys and values)
    assert facts.kv_bytes_per_token("f16") == 2 * 2 * 16 * 2 * 2
    assert facts.kv_bytes_per_token("f32") == 2 * facts.kv_bytes_per_token("bf16")
    assert facts.kv_bytes(100, "q8_0") == 100 * 128 * 34 / 32
    assert facts.state_bytes() == 0
    assert facts.speculative is None


def test_gguf_says_the_same(tmp_path: Path) -> None:
    one = read_facts(str(write_tiny_hf(tmp_path / "hf")))
    other = read_facts(str(write_tiny_gguf(tmp_path / "m.gguf")))
    for field in ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
                  "head_dim", "vocab_size", "max_context", "tied_head", "parameters",
                  "weight_bytes", "kv_layers", "tokenizer_hash", "experts"):  # fmt: skip
        assert getattr(one, field) == getattr(other, field), field
    assert other.source == "gguf"


def test_quantised_gguf_counts_blocks(tmp_path: Path) -> None:
    import gguf

    facts = read_facts(str(write_tiny_gguf(tmp_path / "m.gguf", tensor_type="Q4_0")))
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert facts.weight_bytes == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert facts.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert (facts.dtype, facts.quantisation) == ("Q4_0", "Q4_0")
    assert facts.bytes_in(2) == facts.weight_bytes


def test_block_sizes_are_those_of_the_format() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    assert {kind.name: size for kind, size in GGML_QUANT_SIZES.items()} == SIZES


def test_parts_of_a_gguf_are_added(tmp_path: Path) -> None:
    whole = read_facts(str(write_tiny_gguf(tmp_path / "m.gguf")))
    write_tiny_gguf(tmp_path / "p-00001-of-00002.gguf", layers=2)
    assert part_names("p-00002-of-00002.gguf")[0] == "p-00001-of-00002.gguf"
    with pytest.raises(ModelError, match=r"p-00002-of-00002\.gguf: is missing"):
        read_facts(str(tmp_path / "p-00001-of-00002.gguf"))
    _extra_part(tmp_path / "p-00002-of-00002.gguf")
    for name in part_names("p-00002-of-00002.gguf"):
        facts = read_facts(str(tmp_path / name))
        assert facts.parameters == whole.parameters + 64
        assert facts.num_layers == 2


def _extra_part(path: Path) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.1.extra.weight", np.zeros(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    table = ("BF16", (100, 8))
    tensors: Tensors = {"model.embed_tokens.weight": table, "lm_head.weight": table}
    tied = facts_of(tmp_path / "a", dense(tie_word_embeddings=True), tensors)
    untied = facts_of(tmp_path / "b", dense(), tensors)
    assert (tied.weight_bytes, untied.weight_bytes) == (1600, 3200)
    # A config that leaves it out: the tensors say it.
    silent = dense()
    del silent["tie_word_embeddings"]
    assert not facts_of(tmp_path / "c", silent, tensors).tied_head
    assert facts_of(tmp_path / "d", silent, {"model.embed_tokens.weight": table}).tied_head


def test_pickles_are_measured_not_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dense(torch_dtype="float16")))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02" + bytes(998))
    (tmp_path / "training_args.bin").write_bytes(bytes(50))
    facts = read_facts(str(tmp_path))
    assert (facts.weight_bytes, facts.parameters, facts.dtype) == (1000, 500, "F16")
    assert "pickles" in facts.notes[0]
    assert facts.tensors == ()


# Quantised safetensors: (config, tensors, name, weights, bytes)

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


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_safetensors(tmp_path: Path, name: str) -> None:
    config, tensors, label, parameters = QUANTISED[name]
    facts = facts_of(tmp_path, dense(quantization_config=config), tensors)
    assert facts.quantisation == label
    assert facts.parameters == parameters
    stored = (tmp_path / "model.safetensors").stat().st_size
    (header,) = struct.unpack("<Q", (tmp_path / "model.safetensors").read_bytes()[:8])
    assert facts.weight_bytes == stored - 8 - header
    assert facts.bytes_in(4) == facts.weight_bytes


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


# Layers for multi-token prediction


def test_mtp_layers_are_those_with_tensors(tmp_path: Path) -> None:
    block = ("BF16", (4, 4))
    own: Tensors = {"model.layers.31.mlp.up_proj.weight": block}
    deepseek: Tensors = {**own, "model.layers.32.eh_proj.weight": block,
                         "model.layers.32.mlp.up_proj.weight": block}  # fmt: skip
    facts = facts_of(tmp_path / "a", dense(num_nextn_predict_layers=1), deepseek)
    assert (facts.mtp_layers, facts.mtp_bytes, facts.weight_bytes) == (1, 64, 96)
    stripped = facts_of(tmp_path / "b", dense(num_nextn_predict_layers=1), own)
    assert (stripped.mtp_layers, stripped.mtp_bytes) == (0, 0)
    assert "hold no tensors of them" in stripped.notes[0]
    qwen: Tensors = {**own, "mtp.fc.weight": block, "mtp.layers.0.mlp.up_proj.weight": block}
    assert facts_of(tmp_path / "c", dense(), qwen).mtp_layers == 1
    assert facts_of(tmp_path / "d", dense(mtp_num_hidden_layers=1), qwen).mtp_bytes == 64


# Draft heads


@pytest.mark.parametrize(
    ("config", "tensors", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}, PLAIN, "eagle3"),
        ({}, {"fc.weight": ("F16", (8, 16)), "d2t": ("I64", (8,))}, "eagle3"),
        ({}, {"fc.weight": ("F16", (8, 16))}, "eagle"),
        ({"architectures": ["DFlashDraftModel"], "block_size": 16}, PLAIN, "dflash"),
        ({"architectures": ["Qwen3DSparkModel"], "markov_rank": 256}, PLAIN, "dspark"),
        ({"medusa_num_heads": 4, "num_hidden_layers": None}, PLAIN, "medusa"),
    ],
)
def test_heads_are_recognised(
    tmp_path: Path, config: dict[str, Any], tensors: Tensors, kind: str
) -> None:
    facts = facts_of(tmp_path, dense(num_hidden_layers=1) | config, tensors)
    assert facts.speculative is not None
    assert facts.speculative["kind"] == kind
    assert facts.kv_bytes_per_token("f16") == (0 if kind == "medusa" else 4096)


SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 32000,
    "speculators_config": {
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"name_or_path": "org/target"},
    },
    "transformer_layer_config": dense(num_hidden_layers=1),
}  # fmt: skip


def test_the_speculators_format(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, SPECULATORS)
    assert facts.speculative == {
        "kind": "eagle3", "draft_vocab_size": 32000, "format": "speculators",
        "target": "org/target", "num_speculative_tokens": 5,
    }  # fmt: skip
    assert (facts.num_layers, facts.hidden_size) == (1, 4096)


# Names


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no file or directory 'nonsense'.*org/name"):
        read_facts("nonsense")
    with pytest.raises(ModelError, match="there is no such file"):
        read_facts(str(tmp_path / "absent"))
    (tmp_path / "file.txt").touch()
    with pytest.raises(UnsupportedModel, match=r"neither a directory nor a \.gguf"):
        read_facts(str(tmp_path / "file.txt"))
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_facts(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(dense()))
    with pytest.raises(ModelError, match="holds no weights"):
        read_facts(str(tmp_path))
    with pytest.raises(ModelError, match=r"revision: .* is on this machine"):
        read_facts(str(tmp_path), "main")


# The hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    root = tmp_path / "repos"
    write_tiny_hf(root / "org/tiny", intermediate=4096)
    write_tiny_hf(root / "org/shards", shards=3)
    for kind in ("Q8_0", "F16"):
        write_tiny_gguf(root / f"org/ggufs/tiny-{kind}.gguf", tensor_type=kind, intermediate=12288)
    (root / "org/empty").mkdir()
    (root / "org/empty/README.md").write_text("nothing")
    with fake_hub(root) as served:
        point_library_at(monkeypatch, served.endpoint, tmp_path / "cache")
        yield served


def test_the_hub_says_the_same_as_the_directory(hub: Hub) -> None:
    for repo in ("org/tiny", "org/shards"):
        here, there = read_facts(str(hub.root / repo)), read_facts(repo)
        assert there.location == f"{repo}@{COMMIT}"
        assert there.source == "hub"
        for field in ModelFacts.__dataclass_fields__:
            if field not in ("name", "source", "location", "tensors"):
                assert getattr(here, field) == getattr(there, field), field
        assert set(here.tensors) == set(there.tensors)


def test_weights_stay_on_the_hub(hub: Hub) -> None:
    facts = read_facts("org/tiny")
    size = (hub.root / "org/tiny/model.safetensors").stat().st_size
    assert size > 6 << 20
    assert 0 < hub.served["org/tiny/model.safetensors"] <= 1 << 18
    facts = read_facts("org/ggufs:F16")
    assert facts.dtype == "F16"
    assert (
        hub.served["org/ggufs/tiny-F16.gguf"]
        < (hub.root / "org/ggufs/tiny-F16.gguf").stat().st_size
    )
    assert not hub.served["org/ggufs/tiny-Q8_0.gguf"]
    hub.served.clear()
    assert read_facts("org/shards", tokenizer=False).tokenizer_hash is None
    assert not hub.served["org/shards/tokenizer.json"]


def test_gguf_files_of_the_hub(hub: Hub) -> None:
    assert read_facts("org/ggufs:q8_0").dtype == "Q8_0"
    assert read_facts("org/ggufs/tiny-F16.gguf").name == "org/ggufs/tiny-F16.gguf"
    with pytest.raises(ModelError, match=r"2 GGUF files; name one.*tiny-F16\.gguf, tiny-Q8_0"):
        read_facts("org/ggufs")
    with pytest.raises(ModelError, match="no file of quantisation Q4_0"):
        read_facts("org/ggufs:Q4_0")
    with pytest.raises(ModelError, match=r"has no file tiny\.gguf"):
        read_facts("org/ggufs/tiny.gguf")


def test_what_the_hub_refuses(hub: Hub) -> None:
    with pytest.raises(ModelError, match="no such model on the hub"):
        read_facts("org/absent")
    with pytest.raises(ModelError, match="has no revision 'dev'"):
        read_facts("org/tiny@dev")
    with pytest.raises(ModelError, match="has no revision 'dev'"):
        read_facts("org/tiny", "dev")
    with pytest.raises(ModelError, match="neither safetensors with a config"):
        read_facts("org/empty")
    hub.gated.add("org/tiny")
    with pytest.raises(ModelError, match=r"is gated.*HF_TOKEN"):
        read_facts("org/tiny")


def test_a_damaged_shard_on_the_hub(hub: Hub) -> None:
    file = hub.root / "org/tiny/model.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 40) + file.read_bytes()[8:])
    with pytest.raises(CorruptFile, match="the header claims"):
        read_facts("org/tiny")


def test_offline_the_cache_is_read(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    online = read_facts("org/tiny")
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache2", offline=True)
    with pytest.raises(ModelError, match=r"not in the cache.*HF_HUB_OFFLINE"):
        read_facts("org/tiny")
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache")
    snapshot_download("org/tiny")
    hub.requests.clear()
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache", offline=True)
    assert set(read_facts("org/tiny").tensors) == set(online.tensors)
    assert hub.requests == []


def test_a_hub_that_is_away(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/tiny")
    nowhere = "http://127.0.0.1:9"
    point_library_at(monkeypatch, nowhere, tmp_path / "cache")
    assert read_facts("org/tiny").num_layers == 2
    with pytest.raises(ModelError, match=r"org/shards: the hub .* cannot be reached"):
        read_facts("org/shards")


# Costs


def test_no_torch_and_no_extension(tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "m")
    script = (
        f"from wager.models.facts import read_facts\nread_facts({str(path)!r})\n"
        "import sys\nprint(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & {"torch", "transformers", "wager._native", "huggingface_hub", "tokenizers"}


@pytest.mark.model
def test_a_real_file() -> None:
    facts = read_facts("smollm2-135m")
    assert (facts.num_layers, facts.num_kv_heads, facts.head_dim) == (30, 3, 64)
    assert facts.parameters == 134_515_008
    assert facts.dtype == "Q4_1"
    path = Path(facts.location)
    file = read_gguf(path)
    data = path.stat().st_size - len(file.header)
    assert 0.99 * data < facts.weight_bytes <= data
