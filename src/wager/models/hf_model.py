"""A directory in Hugging Face layout as a `Checkpoint`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from wager.errors import ModelError, UnsupportedModel
from wager.models import generation, hf_tokenizer
from wager.models.checkpoint import (
    STORED_DTYPES,
    WHAT_WORKS,
    Checkpoint,
    StoredTensor,
    read_block,
    weights_of,
    widen,
)
from wager.models.families import Family
from wager.models.hf_config import read_config, text_part
from wager.models.prequantised import INTEGERS, read_scheme, unpacked
from wager.models.safetensors_file import (
    MAX_CONFIG,
    READABLE,
    TensorInfo,
    read_directory,
    read_json,
)
from wager.models.tensors import Naming, collect, in_head_order, partial_halves, shifted
from wager.ops.base import F32
from wager.shape import GATE_UP, QKV, ModelConfig

_TOP: Final = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
_PARTS: Final = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "out": "self_attn.o_proj.weight",
    "out_bias": "self_attn.o_proj.bias",
    "attn_post_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}
_FUSED: Final = ((QKV, "self_attn.qkv_proj.weight"), (GATE_UP, "mlp.gate_up_proj.weight"))
# Buffers that old checkpoints carry and that follow from the config.
_DERIVED: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
# Where models of text and images keep the text model, and what they have beside it.
_TEXT: Final = (("language_model.", ""), ("model.language_model.", "model."))
_BESIDE_TEXT: Final = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.")


def open_directory(path: Path, name: str) -> Checkpoint:
    """Check a model directory. Raises ModelError, CorruptFile or UnsupportedModel."""
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise UnsupportedModel(
            f"{path}: is an adapter, not a model; merge it into its base first (peft's "
            "merge_and_unload) and save both as one"
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: has no config.json, so it is no model directory; {WHAT_WORKS}")
    raw = read_json(path / "config.json", MAX_CONFIG)
    config, family = read_config(path / "config.json", raw)
    scheme = read_scheme(path / "config.json", raw)
    infos, digest = read_directory(path, (*READABLE, *INTEGERS) if scheme else READABLE)
    whole = text_part(path / "config.json", raw) is raw
    named = infos if whole else _text_only(infos)
    rounded, named = unpacked(scheme, named) if scheme else ({}, named)
    stored = rounded | {
        key: _stored(key, info) for key, info in named.items() if not _DERIVED.fullmatch(key)
    }
    _drop_tied_head(path, config, stored)
    hint = "" if config.tied_head else " (tie_word_embeddings is false)"
    tensors = collect(path, config, stored, _naming(config, family), hint)
    identity = f"{path.resolve()}\0{sorted(raw.items(), key=lambda item: item[0])}\0{digest}"
    settings = path / "generation_config.json"
    sampling = read_json(settings, MAX_CONFIG) if settings.is_file() else {}
    return Checkpoint(
        name=name,
        path=path,
        config=config,
        tensors=_as_computed(tensors, config, family.norm_offset),
        weights="int8"
        if rounded
        else weights_of(info.dtype for info in infos.values() if len(info.shape) > 1),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        tokenizer=lambda: hf_tokenizer.from_directory(path),
        generation=lambda tokenizer: generation.of_directory(path, raw, sampling, tokenizer),
    )


def _text_only(infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors of the text model, as it names them itself; text needs no others."""
    found = {}
    for name, info in infos.items():
        if not _BESIDE_TEXT.match(name):
            outer, inner = next((pair for pair in _TEXT if name.startswith(pair[0])), ("", ""))
            found[inner + name.removeprefix(outer)] = info
    return found


def _naming(config: ModelConfig, family: Family) -> Naming:
    # What llama's files call by its place after the attention is the norm before the MLP.
    before = "post_attention" if config.norms == "before" else "pre_feedforward"
    parts = {**_PARTS, "mlp_norm": f"{before}_layernorm.weight"}
    fused = _FUSED if family.fused else ()
    return Naming(_TOP, "model.layers.{}.", parts, family.experts or {}, fused)


def _as_computed(
    tensors: dict[str, StoredTensor], config: ModelConfig, norm_offset: float
) -> dict[str, StoredTensor]:
    """Norms as what multiplies, and rows of partly turned heads in pairs of halves."""
    if norm_offset:
        tensors = {
            name: shifted(tensor, norm_offset) if name.endswith("norm") else tensor
            for name, tensor in tensors.items()
        }
    dims = config.ropes[0].dims
    return in_head_order(tensors, partial_halves(config.head_dim, dims)) if dims else tensors


def _stored(name: str, info: TensorInfo) -> StoredTensor:
    columns = math.prod(info.shape[1:])
    dtype = STORED_DTYPES[info.dtype]

    def read(first: int, count: int) -> F32:
        offset = info.offset + first * columns * dtype.itemsize
        data = widen(read_block(info.path, dtype, offset, count * columns), info.dtype)
        return data.reshape(count, *info.shape[1:])

    return StoredTensor(name, info.shape, read)


def _drop_tied_head(path: Path, config: ModelConfig, stored: dict[str, StoredTensor]) -> None:
    """Some files carry the tied head once more. It may go only if it is the embedding."""
    head, table = stored.get("lm_head.weight"), stored.get("model.embed_tokens.weight")
    if not config.tied_head or head is None or table is None:
        return
    expected = (config.vocab_size, config.hidden_size)
    if head.shape != expected or table.shape != expected:
        return
    rows = max(1, (1 << 22) // config.hidden_size)
    for first in range(0, config.vocab_size, rows):
        count = min(rows, config.vocab_size - first)
        if not _same(head.read, table.read, first, count):
            raise UnsupportedModel(
                f"{path}: lm_head.weight differs from the embedding although "
                "tie_word_embeddings is true"
            )
    del stored["lm_head.weight"]


def _same(
    left: Callable[[int, int], F32], right: Callable[[int, int], F32], first: int, count: int
) -> bool:
    return bool(np.array_equal(left(first, count), right(first, count), equal_nan=True))
