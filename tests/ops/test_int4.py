"""Packing in 4 bits: a 4-bit file is kept as it is, and both op sets choose the same."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from tests.contract.test_ops import same_bits
from tests.ops.sets import make, usable_sets
from tests.ops.stack import pack
from wager.ops.base import F32, OpSet
from wager.ops.reference import ReferenceOps
from wager.ops.reference_matrix import affine

Q4_1 = GGMLQuantizationType.Q4_1
Q4_0 = GGMLQuantizationType.Q4_0


def weights(seed: int, scale: float = 0.05, shift: float = 0.0) -> F32:
    """float32 [64, 160]: five groups, so that the last one has no partner."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((64, 160)) * scale + shift).astype(np.float32)


def rows_of(ops: OpSet, weight: F32) -> F32:
    """What a packed matrix holds, float32 [N, K]."""
    return ops.embed(pack(ops, weight, "int4"), np.arange(len(weight), dtype=np.int32))


def native_sets() -> list[OpSet]:
    return [make(f"native-{isa}-1") for isa in usable_sets()]


@pytest.mark.parametrize("scale", [1e-4, 0.05, 30.0])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_scale_and_minimum_of_a_q4_1_file_are_found_again(scale: float, shift: float) -> None:
    blocks = quantize(weights(1, scale, shift * scale), Q4_1)
    stored = blocks.reshape(-1, 20)[:, :4].copy().view(np.float16).astype(np.float32)
    scales, minima = affine(dequantize(blocks, Q4_1).reshape(-1, 32))
    assert same_bits(scales, stored[:, 0])
    assert same_bits(minima, stored[:, 1])


@pytest.mark.parametrize("kind", [Q4_1, Q4_0])
def test_4_bit_files_are_kept_exactly(kind: GGMLQuantizationType) -> None:
    weight = dequantize(quantize(weights(2), kind), kind)
    for ops in (ReferenceOps(), *native_sets()):
        assert same_bits(rows_of(ops, weight), weight)


def test_both_op_sets_choose_the_same() -> None:
    plain = weights(3)
    brain = (plain.view(np.uint32) & 0xFFFF0000).view(np.float32)
    eighths = dequantize(quantize(plain, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    tiny, far, alike = plain * 1e-6, plain + 100, np.repeat(plain[:, :1], 160, axis=1)
    for weight in (plain, brain, eighths, tiny, far, alike, np.rint(plain * 30)):
        expected = rows_of(ReferenceOps(), weight)
        for ops in native_sets():
            assert same_bits(rows_of(ops, weight), expected)


def test_a_group_of_equal_weights_keeps_its_value() -> None:
    weight = np.repeat(weights(4)[:, :1], 160, axis=1)
    for ops in (ReferenceOps(), *native_sets()):
        # Half of the smallest half-precision number is what may be missing.
        np.testing.assert_allclose(rows_of(ops, weight), weight, rtol=1e-6, atol=3e-8)


def test_a_packed_matrix_takes_5_bits_per_weight() -> None:
    for ops in (ReferenceOps(), *native_sets()):
        assert ops.packed_bytes(96, 576, "int4") == 96 * 576 * 5 // 8
