"""The part of the op set that loading needs, with packing that a test can read back.

f32 is stored as it is, and so is bf16; int8 as groups of 32 with one float32 scale each: bytes of
row r are its k/32 scales, then its k values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wager.errors import ModelError
from wager.ops.base import F32, GROUP, PACK_ROWS, Bytes


class PlainOps:
    """Counts what was packed. ``matrix`` gives float32 weights, ``layer`` the `LayerWeights`."""

    name = "plain"
    instruction_set = "none"
    threads = 1

    def __init__(self) -> None:
        self.packed_rows = 0
        self.largest_piece = 0

    def packed_bytes(self, n: int, k: int, kind: str) -> int:
        if kind in ("f32", "bf16"):
            return 4 * n * k
        assert k % GROUP == 0
        return n * (k + 4 * (k // GROUP))

    def pack_into(self, out: Bytes, weight: F32, first_row: int, n: int, kind: str) -> None:
        rows, k = weight.shape
        assert weight.dtype == np.float32
        assert weight.flags.c_contiguous
        assert first_row % PACK_ROWS == 0
        assert rows % PACK_ROWS == 0 or first_row + rows == n
        if not np.isfinite(weight).all():
            raise ModelError("a weight is not finite")
        self.packed_rows += rows
        self.largest_piece = max(self.largest_piece, weight.nbytes)
        target = out.reshape(n, -1)[first_row : first_row + rows]
        if kind in ("f32", "bf16"):
            target[:] = weight.view(np.uint8)
            return
        groups = weight.reshape(rows, k // GROUP, GROUP)
        scales = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
        safe = np.where(scales == 0, np.float32(1), scales)
        target[:, : 4 * (k // GROUP)] = scales.reshape(rows, -1).view(np.uint8)
        target[:, 4 * (k // GROUP) :] = (
            np.rint(groups / safe).astype(np.int8).reshape(rows, k).view(np.uint8)
        )

    def matrix(self, data: Bytes, n: int, k: int, kind: str) -> F32:
        if kind in ("f32", "bf16"):
            return data.view(np.float32).reshape(n, k)
        rows = data.reshape(n, -1)
        scales = np.ascontiguousarray(rows[:, : 4 * (k // GROUP)]).view(np.float32)
        values = rows[:, 4 * (k // GROUP) :].view(np.int8).astype(np.float32)
        groups = values.reshape(n, -1, GROUP) * scales[:, :, None]
        return groups.reshape(n, k).astype(np.float32)

    def layer(self, config: Any, weights: Any, kind: Any) -> Any:
        return weights
