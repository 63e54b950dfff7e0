"""The definition of the filters and of the noise of `OpSet.select`, in numpy.

Filters (temperature T > 0, largest logit m): all come to a lower bound on the logits, so ties at a
border stay together.

- scaled logit z = (logit - m) / T;
- top_k: the k-th largest logit; k <= 0 or >= V keeps all;
- top_p: with weights exp(z) over what top_k kept, the largest logit l such that the tokens with
  logits >= l hold at least top_p of the weight; 1 keeps all;
- min_p: m + T * log(min_p); 0 keeps all.

Noise (purpose TARGET): word (id mod 4) of Philox4x32-10 with the counter (id // 4, position,
choice, purpose) and the key (low, high 32 bits of the seed); u = (word + 1/2) / 2^32, noise
-log(-log(u)). Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011);
the Gumbel-max trick as in Maddison, Tarlow and Minka (2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wager.ops.base import F32, SelectParams

TARGET: Final = 0
"""Purpose of the noise: picking the target's token."""

_LOW32: Final = 0xFFFFFFFF
_LARGEST_INVERSE: Final = 3e38
_LEAST_INVERSE: Final = 1e-37
"""Not 0: times an excluded logit (-inf) that is NaN."""


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10 of many counters, uint32 [n, 4] -> [n, 4]."""
    words = _rounds([counter[:, i].astype(np.uint64) for i in range(4)], key)
    return np.stack(words, axis=1).astype(np.uint32)


def philox_word(counter: tuple[int, int, int, int], key: tuple[int, int]) -> int:
    """The first word of one counter, 32 bits each."""
    return int(_rounds(counter, key)[0])


def _rounds(counter: Sequence[Any], key: tuple[int, int]) -> tuple[Any, ...]:
    """On whole numbers, or on uint64 arrays."""
    c0, c1, c2, c3 = counter
    key0, key1 = key
    for _ in range(10):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (product1 >> 32) ^ c1 ^ key0, product1 & _LOW32
        c2, c3 = (product0 >> 32) ^ c3 ^ key1, product0 & _LOW32
        key0, key1 = (key0 + 0x9E3779B9) & _LOW32, (key1 + 0xBB67AE85) & _LOW32
    return c0, c1, c2, c3


def key_of(seed: int) -> tuple[int, int]:
    """The key of a seed from [0, 2**64): its low and its high 32 bits."""
    return seed & _LOW32, seed >> 32 & _LOW32


def gumbel_noise(
    ids: NDArray[Any], seed: int, position: int, choice: int, purpose: int = TARGET
) -> NDArray[np.float64]:
    """The noise of each token id, float64 [len(ids)]; finite."""
    counter = np.empty((len(ids), 4), np.uint32)
    counter[:, 0] = ids // 4
    counter[:, 1:] = (position, choice, purpose)
    words = philox(counter, key_of(seed))
    chosen = words[np.arange(len(ids)), ids % 4].astype(np.float64)
    # -log(u) as -log1p(u - 1): exact near 1, where the largest noise comes from.
    rest = (2.0**32 - 0.5 - chosen) * 2.0**-32
    noise: NDArray[np.float64] = -np.log(-np.log1p(-rest))
    return noise


def survivors(logits: F32, params: SelectParams) -> tuple[F32, NDArray[np.int64]]:
    """Scaled logits, float32 [V], and the ids that pass the filters, ascending."""
    top = logits.max()
    inverse = np.float32(min(max(1.0 / params.temperature, _LEAST_INVERSE), _LARGEST_INVERSE))
    with np.errstate(over="ignore"):
        scaled = (logits - top) * inverse
    bound: np.float32 = np.float32(-np.inf)
    if 0 < params.top_k < len(logits):
        bound = np.partition(logits, -params.top_k)[-params.top_k]
    if params.top_p < 1.0:
        bound = max(
            bound, _top_p_bound(logits[logits >= bound], scaled[logits >= bound], params.top_p)
        )
    if params.min_p > 0.0:
        with np.errstate(over="ignore"):
            least = np.float32(float(top) + math.log(params.min_p) * params.temperature)
        bound = max(bound, least)
    kept = logits >= min(bound, top)
    return scaled, np.flatnonzero(kept & (logits > -np.inf))


def _top_p_bound(logits: F32, scaled: F32, top_p: float) -> np.float32:
    weights = np.exp(scaled.astype(np.float64))
    order = np.argsort(-logits, kind="stable")
    mass = np.cumsum(weights[order])
    reached = int(np.searchsorted(mass, top_p * mass[-1]))
    border: np.float32 = logits[order[min(reached, len(order) - 1)]]
    return border
