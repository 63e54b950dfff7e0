"""The products and attention of SmolLM2-135M's shape against what the machine can do.

    python -m benchmarks.kernels [--rows 1,2,3,5,9,17,32] [--context 512] [--isa avx2] [--rounds 9]

In one run: read bandwidth of a stream of 512 MB, the peak rate of multiply-adds, and the time of a
step (all blocks, no sampler) by rows with random weights, arms alternating, medians. ``ratio`` is
the time over max(bytes / bandwidth, multiply-adds / peak). Last come the parts of a step and the
sampler.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import wager._native as _native

from wager.models.packed import table_kind
from wager.models.rope import rope_table
from wager.ops.base import F32, PACK_ROWS, KvPool, LayerWeights, Matrix, RaggedBatch, SelectParams
from wager.ops.native import NativeOps
from wager.ops.select import physical_cores
from wager.shape import ModelConfig
from wager.types import WeightKind

SMOL = ModelConfig("llama", 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, True)
STREAM_BYTES = 1 << 29
PROBES = 7


def rates(ops: NativeOps) -> dict[str, Any]:
    """``read``, bytes/s, and ``multiply_adds`` by weight kind, 1/s: all threads, best of a few."""
    data = np.ones(STREAM_BYTES, np.uint8)
    read = max(ops.read_rate(data) for _ in range(PROBES))
    peaks = {
        kind: max(_native.multiply_rate(ops._ops, kind, 3_000_000) for _ in range(PROBES))
        for kind in get_args(WeightKind)
    }
    return {"read": read, "multiply_adds": peaks}


def best(probes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The highest rates of several probes: what the machine can do when it is left alone."""
    found = list(probes)
    kinds = found[0]["multiply_adds"]
    return {
        "read": max(probe["read"] for probe in found),
        "multiply_adds": {k: max(probe["multiply_adds"][k] for probe in found) for k in kinds},
    }


@dataclass
class Stack:
    """A model of random weights, with a KV pool filled up to a context."""

    ops: NativeOps
    kind: WeightKind
    config: ModelConfig
    table: Matrix
    layers: list[Any]
    norm: F32
    ropes: tuple[F32, ...]
    pool: KvPool
    matrix_bytes: int

    def step(self, rows: int, context: int) -> dict[str, float]:
        """Milliseconds of one step of one request at that context, by part."""
        count = -(-(context + rows) // 16)
        batch = RaggedBatch(
            tokens=np.arange(rows, dtype=np.int32),
            positions=np.arange(context, context + rows, dtype=np.int32),
            row_starts=np.array([0, rows], np.int32),
            block_tables=np.arange(count, dtype=np.int32)[None],
            logit_rows=np.arange(rows, dtype=np.int32),
        )
        spent = dict.fromkeys(("attn_in", "attention", "attn_out", "mlp", "head"), 0.0)
        ops, clock = self.ops, time.perf_counter
        start = clock()
        x = ops.embed(self.table, batch.tokens)
        for index, layer in enumerate(self.layers):
            t0 = clock()
            q = ops.attn_in(layer, x, batch, self.ropes, self.pool, index)
            t1 = clock()
            attended = ops.attention(layer, q, batch, self.pool, index)
            t2 = clock()
            ops.attn_out(layer, attended, x)
            t3 = clock()
            ops.mlp(layer, x)
            t4 = clock()
            spent["attn_in"] += t1 - t0
            spent["attention"] += t2 - t1
            spent["attn_out"] += t3 - t2
            spent["mlp"] += t4 - t3
        t0 = clock()
        ops.logits(self.norm, self.config.norm_eps, self.table, x, batch.logit_rows)
        end = clock()
        spent["head"] = end - t0
        return {"step": 1e3 * (end - start), **{k: 1e3 * v for k, v in spent.items()}}

    def limit_ms(self, rows: int, context: int, machine: dict[str, Any]) -> float:
        """`limit_ms` of this stack."""
        kv = self.pool.bytes_per_block * context / 16
        return limit_ms(self.config, self.kind, self.matrix_bytes + kv, rows, context, machine)


def multiplies(config: ModelConfig) -> tuple[int, int]:
    """Multiply-adds of one row in the matrix products: of the layers, and of the head."""
    c = config
    width, kv_width = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer = c.hidden_size * (2 * width + 2 * kv_width) + 3 * c.hidden_size * c.intermediate_size
    return c.num_layers * layer, c.vocab_size * c.hidden_size


def limit_ms(
    config: ModelConfig,
    kind: WeightKind,
    read_bytes: float,
    rows: int,
    context: int,
    machine: dict[str, Any],
) -> float:
    """The least that a step can take: max(bytes / bandwidth, multiply-adds / peak).

    ``read_bytes`` are the packed weights and the keys and values of the context; ``machine`` is
    what `rates` returns.
    """
    attention = 2 * context * config.num_heads * config.head_dim * config.num_layers
    peaks = machine["multiply_adds"]
    layers, head = multiplies(config)
    work = layers / peaks[kind] + head / peaks[table_kind(kind)] + attention / peaks["f32"]
    return float(1e3 * max(read_bytes / machine["read"], rows * work))


def stack(ops: NativeOps, kind: WeightKind, config: ModelConfig, blocks: int) -> Stack:
    """Random weights in the shape of ``config``."""
    rng = np.random.default_rng(0)
    size = 0

    def matrix(n: int, k: int, stored: WeightKind = kind) -> Matrix:
        nonlocal size
        data = aligned(ops.packed_bytes(n, k, stored))
        size += len(data)
        weight = (rng.standard_normal((n, k), np.float32) * np.float32(k**-0.5)).astype(np.float32)
        for row in range(0, n, PACK_ROWS * 64):
            ops.pack_into(data, weight[row : row + PACK_ROWS * 64], row, n, stored)
        return ops.matrix(data, n, k, stored)

    c, ones = config, np.ones(config.hidden_size, np.float32)
    width, kv_width = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layers = [
        ops.layer(
            config,
            LayerWeights(
                qkv=matrix(width + 2 * kv_width, c.hidden_size),
                out=matrix(c.hidden_size, width),
                gate_up=matrix(2 * c.intermediate_size, c.hidden_size),
                down=matrix(c.hidden_size, c.intermediate_size),
                attn_norm=ones,
                mlp_norm=ones,
            ),
            config.kind(index),
        )
        for index in range(c.num_layers)
    ]
    table = matrix(c.vocab_size, c.hidden_size, table_kind(kind))
    pool = ops.kv_pool(config, blocks, "f32")
    pool.keys[...] = rng.standard_normal(pool.keys.shape[1:], np.float32)
    pool.values[...] = rng.standard_normal(pool.values.shape[1:], np.float32)
    ropes = tuple(rope_table(rope, c.head_dim, blocks * 16) for rope in c.ropes)
    return Stack(ops, kind, config, table, layers, ones, ropes, pool, size)


def aligned(size: int) -> np.ndarray[Any, Any]:
    """Bytes that start on a cache line."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def sampler_us(ops: NativeOps) -> dict[str, float]:
    """Microseconds to pick one token of 49152 whose logits are spread as a model's."""
    logits = np.random.default_rng(0).standard_normal(SMOL.vocab_size).astype(np.float32) * 3
    logits[7] = 12.0
    kinds = {
        "greedy": SelectParams(0.0, 0, 1.0, 0.0, 1, 0),
        "temperature 0.7": SelectParams(0.7, 0, 1.0, 0.0, 1, 0),
        "temperature 1": SelectParams(1.0, 0, 1.0, 0.0, 1, 0),
        "top-k 40": SelectParams(0.7, 40, 1.0, 0.0, 1, 0),
        "top-p 0.9": SelectParams(0.7, 0, 0.9, 0.0, 1, 0),
        "top-k 40, top-p 0.9, min-p 0.05": SelectParams(0.7, 40, 0.9, 0.05, 1, 0),
    }
    found = {}
    for name, params in kinds.items():
        times = []
        for position in range(200):
            start = time.perf_counter()
            ops.select(logits, params, position)
            times.append(time.perf_counter() - start)
        found[name] = 1e6 * statistics.median(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="1,2,3,5,9,17,32")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--weights", default="f32,int8,int4")
    options = parser.parse_args()
    rows = [int(r) for r in options.rows.split(",")]
    ops = NativeOps(options.threads, options.isa)
    machine = rates(ops)
    print(
        f"{ops.instruction_set}, {ops.threads} threads; read {machine['read'] / 1e9:.1f} GB/s;",
        "multiply-adds/s:",
        ", ".join(f"{k} {v / 1e9:.0f} G" for k, v in machine["multiply_adds"].items()),
    )
    blocks = -(-(options.context + max(rows)) // 16)
    stacks = [stack(ops, kind, SMOL, blocks) for kind in options.weights.split(",")]
    samples: dict[tuple[str, int], list[dict[str, float]]] = {}
    for number in range(options.rounds + 1):
        for s in stacks:
            for r in rows if number % 2 else rows[::-1]:
                times = s.step(r, options.context)
                if number:
                    samples.setdefault((s.kind, r), []).append(times)
    for s in stacks:
        print(f"\n{s.kind}, context {options.context}: milliseconds, medians")
        print("rows   step  limit  ratio   v      " + "attn_in attention attn_out   mlp   head")
        plain = 0.0
        for r in rows:
            found = samples[s.kind, r]
            median = {k: statistics.median(f[k] for f in found) for k in found[0]}
            step, limit = median.pop("step"), s.limit_ms(r, options.context, machine)
            plain = plain or step
            parts = " ".join(f"{v:7.2f}" for v in median.values())
            print(
                f"{r:4d} {step:6.2f} {limit:6.2f} {step / limit:6.2f} {step / plain:6.2f}  {parts}"
            )
    print("\nsampler, microseconds:", {k: round(v, 1) for k, v in sampler_us(ops).items()})


if __name__ == "__main__":
    main()
