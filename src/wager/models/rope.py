"""Rotary position embedding: tables, and the divisors of scaled frequencies.

The table is computed in float64 and rounded once. Su et al., RoFormer (2021); the llama3 rule
follows the Llama 3.1 release.
"""

from __future__ import annotations

import math

import numpy as np

from wager.ops.base import F32
from wager.shape import Rope

_ROWS = 4096


def frequencies(theta: float, head_dim: int) -> np.ndarray:
    """Rotary frequencies by pair, float64 [D/2], radians per position."""
    return theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def llama3_factors(
    theta: float, head_dim: int, factor: float, low: float, high: float, original_context: int
) -> tuple[float, ...]:
    """Divisors of the frequencies under Llama 3.1's rule, [D/2].

    Wavelengths shorter than original_context / high stay, those longer than original_context / low
    are stretched by ``factor``, and between the two the change is linear in the inverse wavelength.
    """
    turns = original_context * frequencies(theta, head_dim) / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple((1.0 / ((1.0 - smooth) / factor + smooth)).tolist())


def yarn_factors(
    theta: float, dims: int, factor: float, fast: float, slow: float, original_context: int,
    whole: bool = True,
) -> tuple[float, ...]:  # fmt: skip
    """Divisors of the frequencies under YaRN, [dims / 2]: 1 for those that turn more than ``fast``
    times within the original context, ``factor`` for those that turn less than ``slow`` times, and
    the inverse linear in the index of the pair between the two.

    ``whole`` widens the range between the two to whole indices. Peng et al., YaRN (2023).
    """

    def index(turns: float) -> float:
        return dims * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index(fast), index(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    high += 0.001 if low == high else 0.0
    stretched = np.clip((np.arange(dims // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    return tuple((1.0 / (stretched / factor + 1.0 - stretched)).tolist())


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """What YaRN multiplies queries and keys by."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def longrope_scale(factor: float, original_context: int) -> float:
    """What LongRoPE multiplies queries and keys by. Ding et al., LongRoPE (2024)."""
    if factor <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(factor) / math.log(original_context))


def rope_table(rope: Rope, head_dim: int, positions: int) -> F32:
    """float32 [positions, D]: D/2 cosines, then D/2 sines; pairs that are not turned come last."""
    dims = rope.dims or head_dim
    rates = frequencies(rope.theta, dims)
    long = rope.long_factors is not None and positions > rope.original_context
    factors = rope.long_factors if long else rope.factors
    if factors is not None:
        rates = rates / np.array(factors, dtype=np.float64)
    half, pairs = head_dim // 2, dims // 2
    table = np.zeros((positions, head_dim), dtype=np.float32)
    table[:, pairs:half] = 1.0
    for first in range(0, positions, _ROWS):
        part = table[first : first + _ROWS]
        angles = np.arange(first, first + len(part), dtype=np.float64)[:, None] * rates
        part[:, :pairs] = np.cos(angles) * rope.scale
        part[:, half : half + pairs] = np.sin(angles) * rope.scale
    return table
