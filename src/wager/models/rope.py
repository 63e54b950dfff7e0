"""Rotary position embedding: tables, and the divisors of scaled frequencies.

The table is computed in float64 and rounded once. Su et al., RoFormer (2021); the llama3 rule
follows the Llama 3.1 release.
"""

from __future__ import annotations

import math

import numpy as np

from wager.config import ModelConfig
from wager.ops.base import F32

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


def rope_table(config: ModelConfig, positions: int) -> F32:
    """float32 [positions, D]: D/2 cosines, then D/2 sines."""
    half = config.head_dim // 2
    rates = frequencies(config.rope_theta, config.head_dim)
    if config.rope_factors is not None:
        rates = rates / np.array(config.rope_factors, dtype=np.float64)
    table = np.empty((positions, config.head_dim), dtype=np.float32)
    for first in range(0, positions, _ROWS):
        part = table[first : first + _ROWS]
        angles = np.arange(first, first + len(part), dtype=np.float64)[:, None] * rates
        part[:, :half] = np.cos(angles)
        part[:, half:] = np.sin(angles)
    return table
