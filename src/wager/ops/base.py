"""The op set: the fused blocks over which a transformer is written once.

Two implementations satisfy it: `native` (the C++ extension) and `reference` (numpy, row by row).
Both are *row-invariant*: a row's result does not depend on how many rows are computed with it, on
which, on the number of threads, or on how the prompt was chunked or cached. Every element is
summed in one fixed order; attention reads keys and values by logical position from the pool, after
rounding to the KV type, same-step rows included.

Words: T rows in the step, R requests, H hidden size, V vocabulary size, D head size. A *slot* is a
place for one token's keys and values: block id * BLOCK + offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wager.errors import ModelError
from wager.shape import LayerKind, ModelConfig, piece_shapes
from wager.types import KvKind, WeightKind

BLOCK: Final = 16
"""Tokens per KV block."""
GROUP: Final = 32
"""Weights (along K) that share a scale (int8), or a scale and a minimum (int4)."""

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]
Matrix: TypeAlias = Any
"""An op set's handle of a packed weight of shape [N, K]; opaque to everyone else."""
Layer: TypeAlias = Any
"""An op set's handle of one layer's weights; opaque to everyone else."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are packed handles, vectors are float32.

    ``qkv`` is [(heads + 2 * kv_heads) * D, H], rows in the order q, k, v, and so is its bias;
    ``gate_up`` is [2 * intermediate, H], gate rows first; ``out`` [H, heads * D]; ``down``
    [H, intermediate]. With experts, ``gate_up`` and ``down`` hold those of one expert after the
    other, and ``router`` is [experts, H], float32. q and k rows are in an order in which i and
    i + D/2 are a rotary pair. ``attn_norm`` and ``mlp_norm`` [H] stand at the input of a block,
    ``attn_post_norm`` and ``mlp_post_norm`` [H] at its output; ``q_norm`` and ``k_norm`` are [D],
    or as wide as all heads.
    What the model does not have is None.
    """

    qkv: Matrix
    out: Matrix
    gate_up: Matrix
    down: Matrix
    router: Matrix | None = None
    attn_norm: F32 | None = None
    mlp_norm: F32 | None = None
    attn_post_norm: F32 | None = None
    mlp_post_norm: F32 | None = None
    qkv_bias: F32 | None = None
    out_bias: F32 | None = None
    q_norm: F32 | None = None
    k_norm: F32 | None = None


@dataclass(slots=True)
class RaggedBatch:
    """The rows of one step, request after request; a request's positions are consecutive.

    tokens       int32 [T]
    positions    int32 [T]      logical position of each row in its request
    row_starts   int32 [R + 1]  request r owns rows row_starts[r] to row_starts[r + 1]
    block_tables int32 [R, B]   KV block ids by logical block; unused entries are -1
    logit_rows   int32 [L]      rows whose logits are wanted, ascending

    The arrays must not change once a block has seen the batch: ``handle`` is the op set's checked
    copy of them.
    """

    tokens: I32
    positions: I32
    row_starts: I32
    block_tables: I32
    logit_rows: I32
    handle: Any = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class KvPool:
    """Keys and values: arrays [blocks, layers, kv_heads, ...] of one KV type.

    The layout within a block is the op set's own. ``bytes_per_block`` counts keys and values of all
    layers. Memory is only touched as blocks are used. What a slot held before it was written never
    reaches a result.
    """

    kind: KvKind
    blocks: int
    keys: NDArray[Any]
    values: NDArray[Any]
    bytes_per_block: int
    handle: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SelectParams:
    """What picks one token from one row of logits; see `OpSet.select`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int


class OpSet(Protocol):
    """The fused blocks. Arrays are C-contiguous; results are new arrays unless said otherwise."""

    name: str
    instruction_set: str
    threads: int

    def packed_bytes(self, n: int, k: int, kind: WeightKind) -> int:
        """Size of a packed [n, k] matrix. Raises ModelError as `check_groups` does."""
        ...

    def pack_into(self, out: Bytes, weight: F32, first_row: int, n: int, kind: WeightKind) -> None:
        """Pack rows [first_row, first_row + len(weight)) of an [n, k] matrix into ``out``.

        ``first_row`` is a multiple of PACK_ROWS; rows not packed yet are left alone. Raises
        ModelError when a weight is not finite, or too large for bf16 or half-precision scales.

        bf16 is rounded to the nearest, ties to even. int8 is symmetric: weight / scale from -127 to
        127. int4 is (weight - minimum) / scale from 0 to 15; a group whose weights have that form
        already, as those of a 4-bit file, is kept exactly.
        """
        ...

    def matrix(self, data: Bytes, n: int, k: int, kind: WeightKind) -> Matrix:
        """A handle over packed bytes (kept alive by the handle; may be a read-only memory map).

        Bytes that start on a multiple of 64 are read faster.
        """
        ...

    def layer(self, config: ModelConfig, weights: LayerWeights, kind: LayerKind) -> Layer:
        """A layer of a model. Raises ValueError where a shape does not fit."""
        ...

    def kv_pool(self, config: ModelConfig, blocks: int, kind: KvKind) -> KvPool: ...

    def embed(self, table: Matrix, tokens: I32, scale: float = 1.0) -> F32:
        """Rows of the embedding times ``scale``, [T, H]. The table may be the (tied) head."""
        ...

    def attn_in(
        self,
        layer: Layer,
        x: F32,
        batch: RaggedBatch,
        ropes: Sequence[F32],
        pool: KvPool,
        index: int,
    ) -> F32:
        """Norm, q/k/v projection and bias, norms of q and k, rotary embedding; writes k and v of
        layer ``index`` to the pool.

        Each of ``ropes`` is [max positions, D]: D/2 cosines, then D/2 sines; the layer's kind says
        which of them is its own. Returns q, [T, heads * D].
        """
        ...

    def attention(self, layer: Layer, q: F32, batch: RaggedBatch, pool: KvPool, index: int) -> F32:
        """Causal attention of each row to the positions that its layer's window shows,
        [T, heads * D]: softmax over cap(scale * q . k)."""
        ...

    def attn_out(self, layer: Layer, attended: F32, x: F32) -> None:
        """x += residual_scale * norm(out projection + bias); in place."""
        ...

    def mlp(self, layer: Layer, x: F32) -> None:
        """x += residual_scale * norm(down(act(gate(norm(x))) * up(norm(x)))); in place.

        With experts, the sum of those chosen for the row, each times its weight.
        """
        ...

    def run_layers(
        self,
        layers: Sequence[Layer],
        first: int,
        x: F32,
        batch: RaggedBatch,
        ropes: Sequence[F32],
        pool: KvPool,
    ) -> None:
        """attn_in, attention, attn_out and mlp of consecutive layers, the first of which is layer
        ``first`` of the pool; in place. The same bits as block by block, in one call.
        """
        ...

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
        """Final norm and head of the chosen rows, times ``scale``, then capped, [L, V]."""
        ...

    def select(self, logits: F32, params: SelectParams, position: int) -> int:
        """Pick a token from one row, [V]: temperature, top-k, top-p, min-p, noise, arg-max.

        Temperature 0 is arg-max. Else: scale by 1 / temperature; keep the top_k largest (0 or less:
        all; ties of the k-th largest value are all kept); of those the smallest set of most likely
        tokens whose probability reaches top_p (ties at the border kept); of those the tokens with
        probability >= min_p * the largest; then add Gumbel noise -log(-log(u)) and take the
        arg-max, the lowest id among equals. ``u`` is a function of (seed, choice, purpose,
        position, token id) alone, through Philox4x32-10, so a token's noise does not depend on how
        it was reached nor on the other ids. Non-finite logits: -inf is never picked; NaN or +inf
        raise ValueError.
        """
        ...

    def log_softmax(self, logits: F32, ids: Sequence[int]) -> list[float]:
        """Log-probabilities of the ids under one row of raw logits, [V]."""
        ...

    def close(self) -> None:
        """Stop the threads. The op set must not be used afterwards."""
        ...


PACK_ROWS: Final = 48
"""Rows are packed in multiples of this (both op sets), so that loading can go piece by piece."""


def in_groups(kind: WeightKind) -> bool:
    """Whether weights of that kind are stored in groups of GROUP."""
    return kind in ("int8", "int4")


def check_groups(n: int, k: int, kind: WeightKind) -> None:
    """Raise ModelError where a matrix [n, k] is not made of whole groups and has to be."""
    if in_groups(kind) and k % GROUP:
        raise ModelError(
            f"{kind} weights: a matrix of shape [{n}, {k}] cannot be packed, K must be "
            f"a multiple of {GROUP}; use --weights f32 or bf16"
        )


MATRICES: Final = ("qkv", "out", "gate_up", "down", "router")
"""The parts of `LayerWeights` that are packed."""


def check_layer(
    config: ModelConfig, weights: LayerWeights, shapes: Mapping[str, tuple[int, int]]
) -> None:
    """Raise ValueError unless the layer has what its config says, in the right shapes.

    ``shapes`` are those of its `MATRICES`, which only an op set can tell.
    """
    expected = piece_shapes(config)
    for name in (part.name for part in fields(weights)):
        part = getattr(weights, name)
        found = None if part is None else shapes.get(name) or part.shape
        if found != expected.get(name):
            raise ValueError(f"layer: {name} is {found}, the config asks for {expected.get(name)}")


def choose(name: str, threads: int | None) -> OpSet:
    """The op set by name; ``auto`` takes native where the extension was built.

    Raises ConfigError when ``native`` is asked for and was not built.
    """
    from wager.ops.select import choose_op_set

    return choose_op_set(name, threads)
