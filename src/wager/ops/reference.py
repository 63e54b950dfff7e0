"""The op set in numpy, row by row: slow, simple, the other side of the native op set's contract.

Every block loops over rows and computes each one alone, so a row's result cannot depend on the
others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wager.ops.base import (
    BLOCK,
    F32,
    I32,
    MATRICES,
    Bytes,
    KvPool,
    Layer,
    LayerWeights,
    RaggedBatch,
    SelectParams,
    check_layer,
)
from wager.ops.reference_matrix import Matrix, pack_into, packed_bytes, unpacked
from wager.ops.sampling import gumbel_noise, survivors
from wager.shape import Activation, Experts, LayerKind, ModelConfig
from wager.types import KvKind, WeightKind


@dataclass(frozen=True, slots=True)
class _Layer:
    config: ModelConfig
    weights: LayerWeights
    kind: LayerKind


class ReferenceOps:
    """See `wager.ops.base.OpSet`."""

    name = "reference"
    instruction_set = "numpy"
    threads = 1

    def packed_bytes(self, n: int, k: int, kind: WeightKind) -> int:
        return packed_bytes(n, k, kind)

    def pack_into(self, out: Bytes, weight: F32, first_row: int, n: int, kind: WeightKind) -> None:
        pack_into(out, weight, first_row, n, kind)

    def matrix(self, data: Bytes, n: int, k: int, kind: WeightKind) -> Matrix:
        return unpacked(data, n, k, kind)

    def layer(self, config: ModelConfig, weights: LayerWeights, kind: LayerKind) -> _Layer:
        check_layer(
            config,
            weights,
            {n: part.shape for n in MATRICES if (part := getattr(weights, n)) is not None},
        )
        return _Layer(config, weights, kind)

    def kv_pool(self, config: ModelConfig, blocks: int, kind: KvKind) -> KvPool:
        shape = (blocks, config.num_layers, config.num_kv_heads, BLOCK, config.head_dim)
        dtype = np.float32 if kind == "f32" else np.float16
        keys, values = np.zeros(shape, dtype), np.zeros(shape, dtype)
        return KvPool(kind, blocks, keys, values, 2 * keys[0].nbytes)

    def embed(self, table: Matrix, tokens: I32, scale: float = 1.0) -> F32:
        _check_range("a token id", tokens, table.shape[0])
        out = np.empty((len(tokens), table.shape[1]), np.float32)
        for i, token in enumerate(tokens):
            out[i] = table.row(int(token)) * np.float32(scale)
        return out

    def attn_in(
        self,
        layer: _Layer,
        x: F32,
        batch: RaggedBatch,
        ropes: Sequence[F32],
        pool: KvPool,
        index: int,
    ) -> F32:
        config, weights = layer.config, layer.weights
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        owners = _owners(batch, pool)
        rope = None if layer.kind.rope is None else ropes[layer.kind.rope]
        if rope is not None:
            _check_range("a position", batch.positions, len(rope))
        q = np.empty((len(x), heads * dim), np.float32)
        for i, (position, owner) in enumerate(zip(batch.positions, owners, strict=True)):
            qkv = weights.qkv.times(rms_norm(x[i], weights.attn_norm, config.norm_eps))
            if weights.qkv_bias is not None:
                qkv = qkv + weights.qkv_bias
            parts = np.split(qkv, [heads * dim, (heads + kv_heads) * dim])
            turned = [
                rotate(_normed(part, norm, config), None if rope is None else rope[position])
                for part, norm in zip(parts, (weights.q_norm, weights.k_norm), strict=False)
            ]
            q[i] = turned[0].reshape(-1)
            block, offset = batch.block_tables[owner][position // BLOCK], position % BLOCK
            with np.errstate(over="ignore"):
                pool.keys[block, index, :, offset] = turned[1]
                pool.values[block, index, :, offset] = parts[2].reshape(kv_heads, dim)
        return q

    def attention(self, layer: _Layer, q: F32, batch: RaggedBatch, pool: KvPool, index: int) -> F32:
        config = layer.config
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        scale = np.float32(config.score_scale)
        out = np.empty((len(q), heads * dim), np.float32)
        for i, owner in enumerate(_owners(batch, pool)):
            seen = int(batch.positions[i]) + 1
            first = max(seen - layer.kind.window, 0) if layer.kind.window else 0
            blocks = batch.block_tables[owner][: -(-seen // BLOCK)]
            keys = _context(pool.keys[blocks, index], first, seen)
            values = _context(pool.values[blocks, index], first, seen)
            queries = q[i].reshape(kv_heads, heads // kv_heads, dim) * scale
            scores = capped(queries @ keys.transpose(0, 2, 1), config.attention_cap)
            weights = np.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            out[i] = (weights @ values).reshape(-1)
        return out

    def attn_out(self, layer: _Layer, attended: F32, x: F32) -> None:
        weights = layer.weights
        for i in range(len(x)):
            y = weights.out.times(attended[i])
            if weights.out_bias is not None:
                y = y + weights.out_bias
            x[i] += _added(y, weights.attn_post_norm, layer.config)

    def mlp(self, layer: _Layer, x: F32) -> None:
        weights, config = layer.weights, layer.config
        for i in range(len(x)):
            hidden = rms_norm(x[i], weights.mlp_norm, config.norm_eps)
            if config.experts is not None:
                x[i] += _mixture(layer, config.experts, hidden) * np.float32(config.residual_scale)
                continue
            gate, up = np.split(weights.gate_up.times(hidden), 2)
            y = weights.down.times(activated(gate, config.activation) * up)
            x[i] += _added(y, weights.mlp_post_norm, config)

    def run_layers(
        self,
        layers: Sequence[Layer],
        first: int,
        x: F32,
        batch: RaggedBatch,
        ropes: Sequence[F32],
        pool: KvPool,
    ) -> None:
        for index, layer in enumerate(layers, first):
            q = self.attn_in(layer, x, batch, ropes, pool, index)
            self.attn_out(layer, self.attention(layer, q, batch, pool, index), x)
            self.mlp(layer, x)

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
        _check_range("logits: a row", rows, len(x))
        out = np.empty((len(rows), head.shape[0]), np.float32)
        for i, row in enumerate(rows):
            out[i] = capped(head.times(rms_norm(x[row], norm, eps)) * np.float32(scale), cap)
        return out

    def select(self, logits: F32, params: SelectParams, position: int) -> int:
        _check_logits(logits)
        if params.temperature == 0:
            return int(logits.argmax())
        scaled, kept = survivors(logits, params)
        noisy = scaled[kept] + gumbel_noise(kept, params.seed, position, params.choice)
        return int(kept[noisy.argmax()])

    def log_softmax(self, logits: F32, ids: Sequence[int]) -> list[float]:
        _check_logits(logits)
        _check_range("log_softmax: a token id", ids, len(logits))
        exact = logits.astype(np.float64)
        top = exact.max()
        total = top + math.log(np.exp(exact - top).sum())
        return [float(exact[i] - total) for i in ids]

    def close(self) -> None:
        pass


def rms_norm(x: F32, weight: F32 | None, eps: float) -> F32:
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis; x itself without a weight."""
    if weight is None:
        return x
    mean = np.mean(x * x, axis=-1, keepdims=True)
    normed: F32 = x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight
    return normed


def _normed(part: F32, norm: F32 | None, config: ModelConfig) -> F32:
    """Queries or keys of one row, [n, D], each head normed, or all of them together."""
    heads = part.reshape(-1, config.head_dim)
    if config.qk_norm == "width":
        return rms_norm(part, norm, config.norm_eps).reshape(heads.shape)
    return rms_norm(heads, norm, config.norm_eps)


def _added(y: F32, norm: F32 | None, config: ModelConfig) -> F32:
    """What a block adds to its input."""
    return rms_norm(y, norm, config.norm_eps) * np.float32(config.residual_scale)


def _mixture(layer: _Layer, experts: Experts, hidden: F32) -> F32:
    """What the experts of one row make of it, summed in the order of their numbers."""
    weights, config = layer.weights, layer.config
    assert weights.router is not None
    scores = weights.router.times(hidden).astype(np.float64)
    chosen = np.sort(np.argsort(-scores, kind="stable")[: experts.used])
    odds = np.exp(scores - scores.max())
    shares = (odds / (odds[chosen] if experts.normalised else odds).sum()).astype(np.float32)
    total = np.zeros_like(hidden)
    for number in chosen:
        gate_up, down = (
            part.rows(number, experts.count) for part in (weights.gate_up, weights.down)
        )
        gate, up = np.split(gate_up.times(hidden), 2)
        total += shares[number] * down.times(activated(gate, config.activation) * up)
    return total


def activated(x: F32, activation: Activation) -> F32:
    """x * sigmoid(x), or GELU with tanh: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))."""
    inner = x
    if activation == "gelu_tanh":
        inner = np.float32(2 * math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-inner))


def capped(x: F32, cap: float) -> F32:
    """cap * tanh(x / cap); x itself where there is no cap."""
    return x if cap == 0 else np.float32(cap) * np.tanh(x / np.float32(cap))


def rotate(vectors: F32, angles: F32 | None) -> F32:
    """Rotary embedding of pairs (i, i + D/2): [n, D] by one row of a table, [D]."""
    if angles is None:
        return vectors
    half = vectors.shape[1] // 2
    cosine, sine = angles[:half], angles[half:]
    a, b = vectors[:, :half], vectors[:, half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=1)


def _context(blocks: NDArray[Any], first: int, seen: int) -> F32:
    """Positions from ``first`` on of [blocks, kv_heads, BLOCK, D]: [kv_heads, seen - first, D]."""
    count, kv_heads, _, dim = blocks.shape
    joined = blocks.transpose(1, 0, 2, 3).reshape(kv_heads, count * BLOCK, dim)
    return joined[:, first:seen].astype(np.float32)


def _owners(batch: RaggedBatch, pool: KvPool) -> list[int]:
    """The request of each row. Checks the batch once."""
    if batch.handle is None:
        starts = batch.row_starts
        if starts[0] != 0 or starts[-1] != len(batch.positions) or (np.diff(starts) < 0).any():
            raise ValueError("row_starts must ascend from 0 to T")
        for r in range(len(starts) - 1):
            positions = batch.positions[starts[r] : starts[r + 1]]
            if not len(positions):
                continue
            if positions[0] < 0 or (np.diff(positions) != 1).any():
                raise ValueError("positions of a request must be consecutive and not negative")
            used = batch.block_tables[r][: positions[-1] // BLOCK + 1]
            if len(used) <= positions[-1] // BLOCK:
                raise ValueError("block_tables: too narrow for a position")
            _check_range("block_tables: a block id", used, pool.blocks)
        batch.handle = np.repeat(np.arange(len(starts) - 1), np.diff(starts)).tolist()
    owners: list[int] = batch.handle
    return owners


def _check_range(what: str, ids: Sequence[int] | I32, limit: int) -> None:
    values = np.asarray(ids)
    if values.size and (values.min() < 0 or values.max() >= limit):
        raise ValueError(f"{what} is out of range (there are {limit})")


def _check_logits(logits: F32) -> None:
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise ValueError("logits: NaN or +inf")
    if np.isneginf(logits).all():
        raise ValueError("logits: every token is excluded (-inf)")
