"""A stack of decoder layers with random weights over any op set, and ragged steps through it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wager.models.rope import rope_table
from wager.ops.base import (
    BLOCK,
    F32,
    I32,
    PACK_ROWS,
    KvPool,
    LayerWeights,
    Matrix,
    OpSet,
    RaggedBatch,
)
from wager.shape import ModelConfig, piece_shapes
from wager.types import KvKind, WeightKind

EPS = 1e-5
CONTEXT = 512


def config_of(
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    hidden: int = 64,
    intermediate: int = 96,
    vocab: int = 130,
    layers: int = 2,
    **traits: Any,
) -> ModelConfig:
    """130 and 96 are not multiples of every panel: tails are part of each test."""
    return ModelConfig(
        "llama", vocab, hidden, intermediate, layers, heads, kv_heads, dim, CONTEXT, EPS, True,
        **traits,
    )  # fmt: skip


def pack(ops: OpSet, weight: F32, kind: WeightKind, piece: int = PACK_ROWS) -> Matrix:
    """Packed piece by piece into memory that held something else."""
    n, k = weight.shape
    data = np.full(ops.packed_bytes(n, k, kind), 0xA5, np.uint8)
    for row in range(0, n, piece):
        ops.pack_into(data, weight[row : row + piece], row, n, kind)
    data.setflags(write=False)
    return ops.matrix(data, n, k, kind)


@dataclass
class Stack:
    """The same arguments give the same weights on every op set."""

    ops: OpSet
    config: ModelConfig
    table: Matrix
    layers: list[Any]
    norm: F32
    ropes: tuple[F32, ...]

    def pool(self, kind: KvKind, blocks: int = 80) -> KvPool:
        """Every slot holds something that would show if it were read."""
        pool = self.ops.kv_pool(self.config, blocks, kind)
        pool.keys[...] = np.nan
        pool.values[...] = np.inf
        pool.values[:, :, :, ::3] = np.nan
        return pool

    def step(self, pool: KvPool, batch: RaggedBatch) -> F32:
        x = self.ops.embed(self.table, batch.tokens, self.config.embed_scale)
        self.ops.run_layers(self.layers, 0, x, batch, self.ropes, pool)
        return self.logits(x, batch.logit_rows)

    def logits(self, x: F32, rows: I32) -> F32:
        config = self.config
        return self.ops.logits(
            self.norm, EPS, self.table, x, rows, config.logit_scale, config.logit_cap
        )


def build(ops: OpSet, config: ModelConfig, kind: WeightKind, seed: int = 0) -> Stack:
    rng = np.random.default_rng(seed)

    def matrix(n: int, k: int, stored: WeightKind = kind) -> Matrix:
        return pack(ops, (rng.standard_normal((n, k)) * k**-0.5).astype(np.float32), stored)

    def piece(name: str, shape: tuple[int, ...]) -> Any:
        if len(shape) == 2:
            return matrix(shape[0], shape[1], "f32" if name == "router" else kind)
        low, high = (-0.5, 0.5) if name.endswith("bias") else (0.5, 1.5)
        return rng.uniform(low, high, shape).astype(np.float32)

    def layer(index: int) -> Any:
        weights = {name: piece(name, shape) for name, shape in piece_shapes(config).items()}
        return ops.layer(config, LayerWeights(**weights), config.kind(index))

    layers = [layer(index) for index in range(config.num_layers)]
    table = matrix(config.vocab_size, config.hidden_size)
    norm = rng.uniform(0.5, 1.5, config.hidden_size).astype(np.float32)
    ropes = tuple(rope_table(rope, config.head_dim, CONTEXT) for rope in config.ropes)
    return Stack(ops, config, table, layers, norm, ropes)


def ragged(
    parts: Sequence[tuple[NDArray[np.int32], int, NDArray[np.int32]]],
) -> RaggedBatch:
    """From (tokens, first position, block ids) of each request."""
    width = max(len(blocks) for _, _, blocks in parts)
    tables = np.full((len(parts), width), -1, np.int32)
    for i, (_, _, blocks) in enumerate(parts):
        tables[i, : len(blocks)] = blocks
    lengths = [len(tokens) for tokens, _, _ in parts]
    return RaggedBatch(
        tokens=np.concatenate([tokens for tokens, _, _ in parts]).astype(np.int32),
        positions=np.concatenate([np.arange(p, p + len(t), dtype=np.int32) for t, p, _ in parts]),
        row_starts=np.cumsum([0, *lengths], dtype=np.int32),
        block_tables=tables,
        logit_rows=np.arange(sum(lengths), dtype=np.int32),
    )


def play(
    stack: Stack,
    kind: KvKind,
    prompts: Sequence[NDArray[np.int32]],
    steps: Iterable[Sequence[int]],
    blocks_seed: int = 5,
) -> list[F32]:
    """Logits of every position of every prompt, each [len(prompt), V].

    ``steps`` says how many rows each prompt takes part with; what is left follows row by row.
    """
    pool = stack.pool(kind)
    free = iter(np.random.default_rng(blocks_seed).permutation(pool.blocks).astype(np.int32))
    tables = [np.array([next(free) for _ in range(len(p) // BLOCK + 1)], np.int32) for p in prompts]
    done = [0] * len(prompts)
    found: list[list[F32]] = [[] for _ in prompts]
    plan = [*steps]
    while plan or any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        wanted = plan.pop(0) if plan else [1] * len(prompts)
        takes = [min(w, len(p) - d) for w, p, d in zip(wanted, prompts, done, strict=True)]
        taking = [i for i, take in enumerate(takes) if take]
        if not taking:
            continue
        batch = ragged([(prompts[i][done[i] :][: takes[i]], done[i], tables[i]) for i in taking])
        logits = stack.step(pool, batch)
        for i, first, last in zip(taking, batch.row_starts, batch.row_starts[1:], strict=False):
            found[i].append(logits[first:last])
            done[i] += takes[i]
    return [np.concatenate(parts) for parts in found]
