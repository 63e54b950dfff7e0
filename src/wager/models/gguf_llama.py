"""A GGUF file of the llama architecture as a `Checkpoint`.

Rows of q and k are stored with rotary pairs as neighbours (2i, 2i + 1); they are put back into
Hugging Face order (i, i + D/2) as they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from wager.config import ModelConfig
from wager.errors import CorruptFile, UnsupportedModel
from wager.models import generation, gguf_tokenizer
from wager.models.checkpoint import (
    STORED_DTYPES,
    WHAT_WORKS,
    Checkpoint,
    StoredTensor,
    check_config,
    check_tensors,
    finite,
    quoted,
    read_block,
    widen,
)
from wager.models.gguf_file import BLOCKS, GgufFile, TensorInfo, read_gguf
from wager.ops.base import F32

_STEMS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FREQS: Final = "rope_freqs.weight"

# Settings of the llama architecture in GGUF that change nothing here: known by name, so that one
# that is not known is refused instead of being overlooked.
_HARMLESS: Final = frozenset(
    {
        "block_count", "context_length", "embedding_length", "embedding_length_out",
        "feed_forward_length", "vocab_size", "tensor_data_layout", "attention.head_count",
        "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length",
        "attention.value_length", "rope.freq_base", "rope.dimension_count", "rope.scale_linear",
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)  # fmt: skip
_MUST_BE: Final[dict[str, Any]] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "use_parallel_residual": False,
    "rope.scaling.attn_factor": 1.0,
}


def open_gguf(path: Path, name: str) -> Checkpoint:
    """Check a GGUF file. Raises ModelError, CorruptFile or UnsupportedModel."""
    file = read_gguf(path)
    config = read_config(file)
    tensors = _tensors(file, config)
    matrices = [info for key, info in file.tensors.items() if key.startswith("blk.")]
    status = path.stat()
    identity = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{file.digest}"
    return Checkpoint(
        name=name,
        path=path,
        config=config,
        tensors=tensors,
        quantised=any(BLOCKS[info.type][0] > 1 for info in matrices),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        tokenizer=lambda: gguf_tokenizer.from_gguf(file),
        generation=lambda tokenizer: generation.of_gguf(file.path, file.metadata, tokenizer),
    )


def read_config(file: GgufFile) -> ModelConfig:
    """The shape of the model, from metadata and tensor list."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CorruptFile(f"{file.path}: general.architecture is missing")
    if architecture != "llama":
        raise UnsupportedModel(
            f"{file.path}: architecture {quoted(architecture)} is not supported; {WHAT_WORKS}"
        )
    settings = _Settings(file)
    settings.refuse_unknown()
    heads, hidden = settings.integer("attention.head_count"), settings.integer("embedding_length")
    head_dim = settings.integer("attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.integer(key, head_dim) != head_dim:
            raise UnsupportedModel(
                f"{file.path}: llama.{key} {settings.integer(key)} differs from the head size "
                f"{head_dim}; only equal sizes work"
            )
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CorruptFile(f"{file.path}: tensor token_embd.weight is missing or no matrix")
    config = ModelConfig(
        architecture="llama",
        # The rows of the table count: llama.vocab_size may know of fewer.
        vocab_size=table.shape[0],
        hidden_size=hidden,
        intermediate_size=settings.integer("feed_forward_length"),
        num_layers=settings.integer("block_count"),
        num_heads=heads,
        num_kv_heads=settings.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_context=settings.integer("context_length"),
        norm_eps=settings.number("attention.layer_norm_rms_epsilon"),
        rope_theta=settings.number("rope.freq_base", 10000.0),
        tied_head="output.weight" not in file.tensors,
    )
    check_config(file.path, config)
    # Only now is the head size known to be sane enough to make a list of that length.
    config = replace(config, rope_factors=_rope_factors(file, settings, head_dim))
    check_config(file.path, config)
    return config


class _Settings:
    """Typed access to the ``llama.*`` metadata."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def get(self, key: str) -> Any:
        return self._file.metadata.get(f"llama.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise CorruptFile(
                f"{self._file.path}: llama.{key} is not one whole number: {quoted(value)}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        number = finite(value)
        if number is None:
            raise CorruptFile(f"{self._file.path}: llama.{key} is not a number: {quoted(value)}")
        return number

    def refuse_unknown(self) -> None:
        for full, value in self._file.metadata.items():
            key = full.removeprefix("llama.")
            if key == full or key in _HARMLESS:
                continue
            if key not in _MUST_BE or value != _MUST_BE[key]:
                raise UnsupportedModel(
                    f"{self._file.path}: setting {quoted(full)} = {quoted(value)} is not "
                    f"supported; {WHAT_WORKS}"
                )


def _rope_factors(file: GgufFile, settings: _Settings, head_dim: int) -> tuple[float, ...] | None:
    kind = settings.get("rope.scaling.type")
    scale = settings.number("rope.scaling.factor", settings.number("rope.scale_linear", 1.0))
    if kind not in (None, "none", "linear", "llama3"):
        raise UnsupportedModel(
            f"{file.path}: rope scaling {quoted(kind)} is not supported; what works: none, linear, "
            "llama3 (as rope_freqs)"
        )
    info = file.tensors.get(_ROPE_FREQS)
    if info is not None:
        if info.type != "F32" or len(info.shape) != 1 or info.shape[0] != head_dim // 2:
            raise CorruptFile(f"{file.path}: {_ROPE_FREQS} is not {head_dim // 2} F32 numbers")
        stored = read_block(file.path, STORED_DTYPES["F32"], info.offset, info.shape[0])
        return tuple(stored.astype(np.float64).tolist())
    if kind == "llama3":
        raise UnsupportedModel(f"{file.path}: rope scaling 'llama3' without {_ROPE_FREQS}")
    if kind == "none" or scale in (0.0, 1.0):
        return None
    return (scale,) * (head_dim // 2)


def _tensors(file: GgufFile, config: ModelConfig) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for stored_name, info in file.tensors.items():
        if stored_name == _ROPE_FREQS:
            continue
        name = _hf_name(stored_name)
        read = _reader(file.path, info)
        if name.endswith(("q_proj.weight", "k_proj.weight")) and len(info.shape) == 2:
            read = _in_halves(read, info.shape[0], config.head_dim)
        found[name] = StoredTensor(info.shape, read)
    check_tensors(file.path, config, {name: tensor.shape for name, tensor in found.items()})
    return found


def _hf_name(name: str) -> str:
    """The Hugging Face name; a name that is not known is kept, and refused by who checks."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, index, part = [*stem.split(".", 2), "", ""][:3]
        return f"model.layers.{index}.{_STEMS[part]}.{kind}" if part in _STEMS else name
    return f"{_STEMS[stem]}.{kind}" if stem in _STEMS else name


def _reader(path: Path, info: TensorInfo) -> Callable[[int, int], F32]:
    items, width = BLOCKS[info.type]
    columns = info.shape[1] if len(info.shape) == 2 else 1

    def read(first: int, count: int) -> F32:
        rows: F32
        if items == 1:
            data = read_block(
                path,
                STORED_DTYPES[info.type],
                info.offset + first * columns * width,
                count * columns,
            )
            rows = widen(data, info.type)
        else:
            # Imported when needed: a start from packed weights needs no dequantiser.
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize

            stride = columns // items * width
            data = read_block(path, np.dtype("u1"), info.offset + first * stride, count * stride)
            rows = dequantize(data.reshape(count, stride), GGMLQuantizationType[info.type])
        return rows.reshape(count, columns) if len(info.shape) == 2 else rows

    return read


def _in_halves(
    read: Callable[[int, int], F32], rows: int, head_dim: int
) -> Callable[[int, int], F32]:
    """Rows in Hugging Face order over a reader of rows in neighbour order."""

    def read_halves(first: int, count: int) -> F32:
        low = first // head_dim * head_dim
        high = min(-(-(first + count) // head_dim) * head_dim, rows)
        whole = read(low, high - low)
        columns = whole.shape[1]
        heads = whole.reshape(-1, head_dim // 2, 2, columns).swapaxes(1, 2)
        ordered: F32 = heads.reshape(high - low, columns)
        return ordered[first - low : first - low + count]

    return read_halves
