"""What config.json, safetensors headers and GGUF metadata say about a model's size."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.families import (
    PLAIN,
    QUANTISED,
    SPECULATORS,
    Tensors,
    dense,
    facts_of,
)
from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.errors import ModelError, UnsupportedModel
from wager.models.facts.read import read_facts
from wager.models.gguf_file import SIZES, read_gguf
from wager.models.load import resolve

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


# Quantised safetensors


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
    with pytest.raises(UnsupportedModel, match=r"neither a directory .* nor a GGUF file"):
        read_facts(str(tmp_path / "file.txt"))
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_facts(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(dense()))
    with pytest.raises(ModelError, match="holds no weights"):
        read_facts(str(tmp_path))
    with pytest.raises(ModelError, match=r"revision: .* is on this machine"):
        read_facts(str(tmp_path), "main")


# Costs


def test_no_torch_and_no_extension(tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "m")
    script = (
        f"from wager.models.facts.read import read_facts\nread_facts({str(path)!r})\n"
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


@pytest.mark.parametrize("open_it", [read_facts, resolve])
def test_an_empty_name_is_not_the_directory_one_is_in(open_it: Callable[[str], object]) -> None:
    with pytest.raises(ModelError, match="model: the name is empty"):
        open_it("")
