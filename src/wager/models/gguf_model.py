"""A GGUF file as a `Checkpoint`.

Some families store rows of q and k with rotary pairs as neighbours (2i, 2i + 1); they are put into
halves (i, i + D/2) as they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from wager.models import generation, gguf_tokenizer
from wager.models.checkpoint import (
    STORED_DTYPES,
    Checkpoint,
    StoredTensor,
    read_block,
    weights_of,
    widen,
)
from wager.models.gguf_config import ROPE_TENSORS, read_config
from wager.models.gguf_file import BLOCKS, GgufFile, TensorInfo
from wager.models.gguf_parts import parts, read_whole, title
from wager.models.tensors import Naming, collect, in_head_order, neighbours, partial_halves
from wager.ops.base import F32
from wager.shape import GATE_UP, QKV, ModelConfig

_TOP: Final = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
}
_PARTS: Final = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "out": "attn_output.weight",
    "out_bias": "attn_output.bias",
    "attn_post_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "mlp_post_norm": "post_ffw_norm.weight",
}
_EXPERTS: Final = {
    "router": "ffn_gate_inp.weight",
    "gate": "ffn_gate_exps.weight",
    "up": "ffn_up_exps.weight",
    "down": "ffn_down_exps.weight",
}
_FUSED: Final = ((QKV, "attn_qkv.weight"), (GATE_UP, "ffn_up.weight"))


def open_gguf(path: Path, name: str | None = None) -> Checkpoint:
    """Check a GGUF file, or all parts of one. Raises ModelError, CorruptFile or UnsupportedModel.

    ``name`` is the model's, if it has another than its file.
    """
    file = read_whole(path)
    config, family = read_config(file)
    matrices = [info for key, info in file.tensors.items() if key.startswith("blk.")]
    identity = "\0".join([*map(_state, parts(path)), file.digest])
    return Checkpoint(
        name=name or title(path),
        path=file.path,
        config=config,
        tensors=_tensors(file, config, family.fused, family.neighbours),
        weights=weights_of(info.type for info in matrices if len(info.shape) > 1),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        tokenizer=lambda: gguf_tokenizer.from_gguf(file),
        generation=lambda tokenizer: generation.of_gguf(file.path, file.metadata, tokenizer),
    )


def _state(path: Path) -> str:
    """What changes when a file does."""
    status = path.stat()
    return f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"


def _tensors(
    file: GgufFile, config: ModelConfig, fused: bool, as_neighbours: bool
) -> dict[str, StoredTensor]:
    stored = {
        name: StoredTensor(name, _as_rows(info.shape), _reader(info))
        for name, info in file.tensors.items()
        if name not in ROPE_TENSORS
    }
    naming = Naming(_TOP, "blk.{}.", _PARTS, _EXPERTS, _FUSED if fused else ())
    tensors = collect(file.path, config, stored, naming)
    dims = config.ropes[0].dims
    order = neighbours(dims or config.head_dim) if as_neighbours else None
    if dims:
        halves = partial_halves(config.head_dim, dims)
        order = [order[row] if order and row < dims else row for row in halves]
    return tensors if order is None else in_head_order(tensors, order)


def _as_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Matrices of experts as one, the rows of one expert after the other."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape


def _reader(info: TensorInfo) -> Callable[[int, int], F32]:
    items, width = BLOCKS[info.type]
    columns = info.shape[-1] if len(info.shape) > 1 else 1

    def read(first: int, count: int) -> F32:
        rows: F32
        if items == 1:
            data = read_block(
                info.path,
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
            start = info.offset + first * stride
            data = read_block(info.path, np.dtype("u1"), start, count * stride)
            rows = dequantize(data.reshape(count, stride), GGMLQuantizationType[info.type])
        return rows.reshape(count, columns) if len(info.shape) > 1 else rows

    return read
