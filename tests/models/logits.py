"""The logits of a model for a short text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wager.models.load import Model
from wager.runtime.kv import blocks_for
from wager.runtime.target import Span, Target

TEXT = tuple(int(token) for token in np.random.default_rng(8).integers(3, 250, 60))


def logits_of(model: Model, tokens: Sequence[int] = TEXT) -> NDArray[np.float32]:
    """Of every position, float32 [len(tokens), vocabulary]."""
    blocks = list(range(blocks_for(len(tokens))))
    target = Target(model, len(blocks), "f32")
    whole: NDArray[np.float32] = target.forward([Span(tokens, 0, blocks, len(tokens))]).logits
    return whole
