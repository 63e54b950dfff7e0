"""The fixtures themselves, against the reference readers of both formats."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_weights import TINY_FAMILIES
from wager.models.load import open_checkpoint


def test_both_layouts_hold_the_same_weights(tmp_path: Path) -> None:
    hf = load_file(write_tiny_hf(tmp_path / "hf", tied=False) / "model.safetensors")
    reader = gguf.GGUFReader(write_tiny_gguf(tmp_path / "m.gguf", tied=False))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == len(hf) == 21
    stored = np.asarray(tensors["blk.1.attn_v.weight"].data)
    assert np.array_equal(stored, hf["model.layers.1.self_attn.v_proj.weight"])
    query = np.asarray(tensors["blk.0.attn_q.weight"].data)
    source = hf["model.layers.0.self_attn.q_proj.weight"]
    # Head of 16: the second stored row is the partner, half a head further down in the source.
    assert np.array_equal(query[1], source[8])
    assert np.array_equal(query[2], source[1])


@pytest.mark.parametrize("vocab", [16, 100, 259, 288, 400])
def test_tokenizer_has_the_asked_size_or_all_it_knows(tmp_path: Path, vocab: int) -> None:
    write_tiny_hf(tmp_path, vocab=vocab)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == min(vocab, 298)
    assert tokenizer.encode("<|im_end|>").ids == [2]
    if vocab >= 259:
        text = "the thing, <|im_start|> über 12\n\t"
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_gguf_tensor_types(tmp_path: Path, kind: str) -> None:
    reader = gguf.GGUFReader(write_tiny_gguf(tmp_path / "m.gguf", tensor_type=kind))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["blk.0.ffn_down.weight"] == kind
    assert kinds["blk.0.ffn_norm.weight"] == "F32"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_family_has_the_tensors_that_are_asked_for(
    tmp_path: Path, family: str, tied: bool
) -> None:
    directory = write_tiny_hf(tmp_path, family=family, tied=tied, head_dim=32, kv_heads=1)
    config = open_checkpoint(str(directory)).config
    assert (config.tied_head, config.head_dim, config.num_kv_heads) == (tied, 32, 1)
