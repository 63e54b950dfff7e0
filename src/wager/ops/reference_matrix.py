"""Matrices of the reference op set: how they are packed, and their product with one row.

Weights keep their row-major order: "packed" bytes are the float32 rows, their upper halves, or the
half-precision scales [n, K / GROUP], for int4 the minima, and then the quantised rows: a byte per
weight, or for int4 per two weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wager.errors import ModelError
from wager.ops.base import F32, GROUP, PACK_ROWS, Bytes, check_groups, in_groups
from wager.types import WeightKind


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [n, k]: ``scales`` is None for float32, else float32 [n, k / GROUP].

    ``minima`` too, where the weights are unsigned: weight * scale + minimum.
    """

    weight: NDArray[Any]
    scales: F32 | None = None
    minima: F32 | None = None

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.weight.shape
        return n, k

    def times(self, x: F32) -> F32:
        """The product with one row of activations, [k] -> [n]."""
        if self.scales is None:
            return self.weight @ x
        quantised, scales = quantise(x)
        n, k = self.weight.shape
        groups = self.weight.reshape(n, k // GROUP, GROUP).astype(np.int32)
        values = quantised.reshape(-1, GROUP).astype(np.int32)
        dots = np.einsum("ngi,gi->ng", groups, values)
        products = dots.astype(np.float32) * (self.scales * scales)
        if self.minima is not None:
            products += self.minima * (values.sum(axis=1).astype(np.float32) * scales)
        return products.sum(axis=1, dtype=np.float32)

    def rows(self, part: int, parts: int) -> Matrix:
        """One of ``parts`` matrices that stand one below the other."""
        size = len(self.weight) // parts
        own = slice(part * size, (part + 1) * size)
        scales, minima = self.scales, self.minima
        return Matrix(
            self.weight[own],
            None if scales is None else scales[own],
            None if minima is None else minima[own],
        )

    def row(self, i: int) -> F32:
        if self.scales is None:
            return self.weight[i]
        row = self.weight[i].astype(np.float32) * np.repeat(self.scales[i], GROUP)
        return row if self.minima is None else np.repeat(self.minima[i], GROUP) + row


def packed_bytes(n: int, k: int, kind: WeightKind) -> int:
    if not in_groups(kind):
        return n * k * (4 if kind == "f32" else 2)
    check_groups(n, k, kind)
    groups = n * (k // GROUP)
    return groups * (2 + GROUP) if kind == "int8" else groups * (4 + GROUP // 2)


def pack_into(out: Bytes, weight: F32, first_row: int, n: int, kind: WeightKind) -> None:
    rows, k = weight.shape
    if first_row % PACK_ROWS or not 0 <= first_row <= n - rows:
        raise ValueError("pack_into: rows outside the matrix, or not on a multiple of PACK_ROWS")
    if out.shape != (packed_bytes(n, k, kind),):
        raise ValueError("pack_into: out has the wrong size")
    if not np.isfinite(weight).all():
        raise ModelError(f"a weight is not finite (matrix of shape [{n}, {k}])")
    last = first_row + rows
    if kind == "f32":
        out.view(np.float32).reshape(n, k)[first_row:last] = weight
        return
    if kind == "bf16":
        out.view(np.uint16).reshape(n, k)[first_row:last] = _bf16(weight)
        return
    # What does not fit half precision becomes infinite, and is refused.
    with np.errstate(over="ignore", invalid="ignore"):
        halves, quantised = (_int8 if kind == "int8" else _int4)(weight.reshape(-1, GROUP))
    if not np.isfinite(halves).all():
        raise ModelError(f"a weight is too large for {kind} (matrix of shape [{n}, {k}])")
    all_halves, all_rows = _parts(out, n, k, kind)
    all_halves[:, first_row:last] = halves.reshape(-1, rows, k // GROUP)
    all_rows[first_row:last] = quantised.reshape(rows, -1)


def unpacked(data: Bytes, n: int, k: int, kind: WeightKind) -> Matrix:
    if data.shape != (packed_bytes(n, k, kind),):
        raise ValueError("packed matrix: the number of bytes does not fit its shape")
    if kind == "f32":
        return Matrix(data.view(np.float32).reshape(n, k))
    if kind == "bf16":
        widened = data.view(np.uint16).astype(np.uint32) << 16
        return Matrix(widened.view(np.float32).reshape(n, k))
    halves, rows = _parts(data, n, k, kind)
    if kind == "int8":
        return Matrix(rows.view(np.int8), halves[0].astype(np.float32))
    levels = np.stack([rows & 15, rows >> 4], axis=2).reshape(n, k)
    return Matrix(levels, halves[0].astype(np.float32), halves[1].astype(np.float32))


def quantise(x: F32) -> tuple[NDArray[np.int8], F32]:
    """One row of activations in groups of GROUP: int8 [k] within +-127, scales [k / GROUP]."""
    groups = x.reshape(-1, GROUP)
    largest = np.abs(groups).max(axis=1)
    scales = np.where(largest > 1e-30, largest / np.float32(127), np.float32(0))
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    quantised = np.rint(groups * inverse[:, None]).clip(-127, 127)
    return quantised.astype(np.int8).reshape(-1), scales


def _parts(
    data: Bytes, n: int, k: int, kind: WeightKind
) -> tuple[NDArray[np.float16], NDArray[np.uint8]]:
    """Views of packed bytes: scales, for int4 minima too, [1 or 2, n, K / GROUP]; rows [n, ...]."""
    count = 1 if kind == "int8" else 2
    end = 2 * count * n * (k // GROUP)
    return data[:end].view(np.float16).reshape(count, n, -1), data[end:].reshape(n, -1)


def _bf16(weight: F32) -> NDArray[np.uint16]:
    """The upper halves of the nearest numbers that have nothing below, ties to even."""
    bits = weight.view(np.uint32)
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    if ((upper & 0x7F80) == 0x7F80).any():
        raise ModelError("a weight is too large for bf16")
    return upper.astype(np.uint16)


def _int8(groups: F32) -> tuple[NDArray[np.float16], NDArray[np.uint8]]:
    """Half-precision scales [1, G] and a byte per weight, of groups [G, GROUP]."""
    stored = (np.abs(groups).max(axis=1) / np.float32(127)).astype(np.float16)
    scales = stored.astype(np.float32)[:, None]
    quantised = np.rint(np.divide(groups, scales, out=np.zeros_like(groups), where=scales > 0))
    return stored[None], quantised.clip(-127, 127).astype(np.int8).view(np.uint8)


def _int4(groups: F32) -> tuple[NDArray[np.float16], NDArray[np.uint8]]:
    """Half-precision scales and minima [2, G] and a byte per two weights, of groups [G, GROUP]."""
    scales, minima = affine(groups)
    levels = _levels(groups, scales, minima).astype(np.uint8)
    halves = np.stack([scales, minima]).astype(np.float16)
    return halves, (levels[:, 0::2] | levels[:, 1::2] << 4).astype(np.uint8)


def affine(groups: F32) -> tuple[F32, F32]:
    """The scale and minimum, both half-precision numbers, of each group [G, GROUP].

    From the smallest weight to the largest, unless some other scale and minimum give every weight
    exactly: a group that comes from a 4-bit file may use a part of the levels, and may count them
    downwards.
    """
    low, high = groups.min(axis=1), groups.max(axis=1)
    minima = _halved(low)
    # Where all are alike, one step up is what half precision leaves of them.
    alike = low == high
    scales = _halved((high - minima) / np.where(alike, np.float32(1), np.float32(15)))
    kept = alike | _keeps(groups, scales, minima)
    for span in range(15, 0, -1):
        steps = (high - low) / np.float32(span)
        tried = np.flatnonzero(~kept & (steps == _halved(steps)))
        tried = tried[_keeps(groups[tried], steps[tried], low[tried])]
        for below in range(16 - span):
            for sign, edge in ((np.float32(1), low), (np.float32(-1), high)):
                tried = tried[~kept[tried]]
                step = sign * steps[tried]
                minimum = _halved(edge[tried] - step * np.float32(below))
                good = _keeps(groups[tried], step, minimum)
                found = tried[good]
                scales[found], minima[found], kept[found] = step[good], minimum[good], True
    return scales, minima


def _halved(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


def _levels(groups: F32, scales: F32, minima: F32) -> F32:
    """Whole numbers from 0 to 15."""
    scales, shifted = scales[:, None], groups - minima[:, None]
    levels = np.divide(shifted, scales, out=np.zeros_like(groups), where=scales != 0)
    return np.rint(levels).clip(0, 15)


def _keeps(groups: F32, scales: F32, minima: F32) -> NDArray[np.bool_]:
    """Which groups come out of their levels exactly."""
    weights = minima[:, None] + scales[:, None] * _levels(groups, scales, minima)
    return np.isfinite(scales) & np.isfinite(minima) & (weights == groups).all(axis=1)
