"""The op set over the C++ extension: thin, since what it calls takes microseconds.

The extension checks shapes, types and indices, and raises ValueError or TypeError. Results are
bit-equal on every instruction set and with any number of threads. ``WAGER_ISA`` (``scalar``,
``avx2`` or ``avx512``) forces an instruction set; without it the best one that passes the check at
load is taken.

A forked child may go on using an op set: its worker threads are gone, the calling thread does all
the work. It must not be forked while another thread is inside a block.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

import wager._native as _native
from wager.errors import ConfigError, ModelError, UnsupportedModel
from wager.ops.base import (
    BLOCK,
    F32,
    I32,
    MATRICES,
    Bytes,
    KvPool,
    Layer,
    LayerWeights,
    Matrix,
    RaggedBatch,
    SelectParams,
    check_groups,
    check_layer,
)
from wager.shape import LayerKind, ModelConfig
from wager.types import KvKind, WeightKind

ISA_VARIABLE: Final = "WAGER_ISA"
INSTRUCTION_SETS: Final = ("scalar", "neon", "avx2", "avx512")
MAX_HEAD_DIM: Final = 512
_VECTOR: Final = 16
_PAGE: Final = 4096
_SEED_MASK: Final = (1 << 64) - 1


class NativeOps:
    """See `wager.ops.base.OpSet`."""

    name = "native"

    def __init__(self, threads: int, instruction_set: str | None = None) -> None:
        self.instruction_set = choose_instruction_set(instruction_set)
        self.threads = threads
        self._ops: Any = _native.ops(self.instruction_set, threads)

    def packed_bytes(self, n: int, k: int, kind: WeightKind) -> int:
        """Whole panels of 16 columns; per weight int8 holds 8.5 bits, int4 holds 5."""
        check_groups(n, k, kind)
        return int(_native.packed_bytes(n, k, kind))

    def pack_into(self, out: Bytes, weight: F32, first_row: int, n: int, kind: WeightKind) -> None:
        check_groups(n, weight.shape[1], kind)
        problem = _native.pack_into(out, weight, first_row, n, kind)
        if problem:
            raise ModelError(f"a weight is {problem} (matrix of shape [{n}, {weight.shape[1]}])")

    def matrix(self, data: Bytes, n: int, k: int, kind: WeightKind) -> Matrix:
        check_groups(n, k, kind)
        return _native.matrix(data, n, k, kind)

    def layer(self, config: ModelConfig, weights: LayerWeights, kind: LayerKind) -> Layer:
        if config.intermediate_size % _VECTOR:
            raise UnsupportedModel(
                f"intermediate_size {config.intermediate_size}: the native op set needs a multiple "
                f"of {_VECTOR}; use the reference op set"
            )
        if config.head_dim % 2 or config.head_dim > MAX_HEAD_DIM:
            raise UnsupportedModel(
                f"head_dim {config.head_dim}: the native op set needs an even number of at most "
                f"{MAX_HEAD_DIM}; use the reference op set"
            )
        parts = {field.name: getattr(weights, field.name) for field in fields(weights)}
        matrices = {name: part for name in MATRICES if (part := parts[name]) is not None}
        check_layer(config, weights, {name: (part.n, part.k) for name, part in matrices.items()})
        constants = {
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "dim": config.head_dim,
            "eps": config.norm_eps,
            "score_scale": config.score_scale,
            "score_cap": config.attention_cap,
            "residual_scale": config.residual_scale,
            "window": kind.window,
            "rope": -1 if kind.rope is None else kind.rope,
            "gelu": config.activation == "gelu_tanh",
            "experts": config.experts.count if config.experts else 0,
            "experts_used": config.experts.used if config.experts else 0,
            "normalised": config.experts is not None and config.experts.normalised,
        }
        return _native.layer(constants, **parts)

    def kv_pool(self, config: ModelConfig, blocks: int, kind: KvKind) -> KvPool:
        layers, kv_heads = config.num_layers, config.num_kv_heads
        shape = (blocks, layers, kv_heads)
        dtype = np.dtype(np.float32 if kind == "f32" else np.float16)
        per_head = BLOCK * config.head_dim
        size = shape[0] * shape[1] * shape[2] * per_head * dtype.itemsize
        # Reading a whole vector at the last value goes up to one vector further.
        raw_keys, raw_values = (_untouched(size + _VECTOR * dtype.itemsize) for _ in range(2))
        handle = _native.pool(raw_keys, raw_values, layers, blocks, kv_heads, config.head_dim, kind)
        keys = raw_keys[:size].view(dtype).reshape(*shape, config.head_dim, BLOCK)
        values = raw_values[:size].view(dtype).reshape(*shape, BLOCK, config.head_dim)
        per_block = 2 * layers * kv_heads * per_head * dtype.itemsize
        return KvPool(kind, blocks, keys, values, per_block, handle)

    def embed(self, table: Matrix, tokens: I32, scale: float = 1.0) -> F32:
        return self._ops.embed(table, tokens, scale)

    def attn_in(
        self,
        layer: Layer,
        x: F32,
        batch: RaggedBatch,
        ropes: Sequence[F32],
        pool: KvPool,
        index: int,
    ) -> F32:
        return self._ops.attn_in(
            layer, x, batch.handle or _checked(batch), ropes, pool.handle, index
        )

    def attention(self, layer: Layer, q: F32, batch: RaggedBatch, pool: KvPool, index: int) -> F32:
        return self._ops.attention(layer, q, batch.handle or _checked(batch), pool.handle, index)

    def attn_out(self, layer: Layer, attended: F32, x: F32) -> None:
        self._ops.attn_out(layer, attended, x)

    def mlp(self, layer: Layer, x: F32) -> None:
        self._ops.mlp(layer, x)

    def run_layers(
        self,
        layers: Sequence[Layer],
        first: int,
        x: F32,
        batch: RaggedBatch,
        ropes: Sequence[F32],
        pool: KvPool,
    ) -> None:
        self._ops.decode(layers, first, x, batch.handle or _checked(batch), ropes, pool.handle)

    def logits(
        self,
        norm: F32,
        eps: float,
        head: Matrix,
        x: F32,
        rows: I32,
        scale: float = 1.0,
        cap: float = 0.0,
    ) -> F32:
        return self._ops.logits(norm, eps, head, x, rows, scale, cap)

    def select(self, logits: F32, params: SelectParams, position: int) -> int:
        return _native.select(
            self._ops,
            logits,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seed & _SEED_MASK,
            params.choice,
            position,
            True,
        )

    def log_softmax(self, logits: F32, ids: Sequence[int]) -> list[float]:
        return _native.log_softmax(self._ops, logits, ids)

    def read_rate(self, data: Bytes) -> float:
        """Bytes per second that all threads together read of ``data``: the bound of a step, which
        reads every weight."""
        return float(_native.read_rate(self._ops, data))

    def close(self) -> None:
        self._ops = None


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Of those that the project has. ``agrees``: its kernels give the known answers here, None
    where this machine cannot run it."""

    name: str
    built: bool
    agrees: bool | None


def instruction_sets() -> list[InstructionSet]:
    """Every instruction set, best first, as this build and this machine have it."""
    built, usable = _native.built_instruction_sets(), dict(_native.instruction_sets())
    return [
        InstructionSet(name, name in built, usable.get(name)) for name in reversed(INSTRUCTION_SETS)
    ]


def _untouched(size: int) -> Bytes:
    """Zeros that start on a page, and whose memory is taken only as it is written."""
    raw = np.zeros(size + _PAGE, np.uint8)
    start = -raw.ctypes.data % _PAGE
    return raw[start : start + size]


def _checked(batch: RaggedBatch) -> Any:
    batch.handle = _native.batch(batch.positions, batch.row_starts, batch.block_tables)
    return batch.handle


def choose_instruction_set(name: str | None = None) -> str:
    """The best instruction set whose kernels pass the check, or the one asked for.

    ``name`` is taken from ``WAGER_ISA`` when None. Raises ConfigError where the one asked for is
    unknown, not supported by this machine, or fails the check.
    """
    name = name or os.environ.get(ISA_VARIABLE) or None
    if name is not None and name not in INSTRUCTION_SETS:
        raise ConfigError(
            f"{ISA_VARIABLE}: must be one of {', '.join(INSTRUCTION_SETS)}; got {name!r}"
        )
    usable = dict(_native.instruction_sets())
    if name is not None:
        if not usable.get(name, False):
            can = ", ".join(n for n, agrees in usable.items() if agrees)
            raise ConfigError(
                f"{ISA_VARIABLE}: {name} does not work on this machine; these do: {can}"
            )
        return name
    for candidate, agrees in usable.items():
        if agrees:
            return str(candidate)
        warnings.warn(
            f"the {candidate} kernels give wrong answers on this machine and are not used",
            RuntimeWarning,
            stacklevel=2,
        )
    raise ConfigError("no kernels work on this machine; use --ops reference")
