"""Log-probabilities of a prompt's own tokens: of each under the row of the one before it.

Rows are those of the pass that computes the prompt anyway, chunk by chunk. Which of them are still
wanted follows from how many entries there are, so that a chunk's border, a preemption and a cached
prefix (which is taken only as far as the entries reach, see `Sequence.reusable`) need no rule of
their own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wager.engine.scheduler import Work
from wager.models.decoder import head_logits
from wager.models.load import Model
from wager.ops.base import F32
from wager.sampling.sampler import token_logprob

PIECE: Final = 32
"""Rows of logits that there are at a time: what bounds the memory."""


def score_prompt(model: Model, vocab_size: int, work: Work, hidden: F32, first: int) -> None:
    """Add the entries that the rows of ``work`` tell of.

    ``hidden`` [T, H] is the last layer's output, the work's rows begin at ``first``. Raises
    ValueError where the model gave no usable logits.
    """
    request, start = work.sequence.request, work.sequence.computed
    entries = request.prompt_logprobs
    if entries is None:
        return
    alternatives = request.params.prompt_logprobs or 0
    end = min(start + work.rows, request.prompt_length - 1)
    for begin in range(max(start, len(entries) - 1), end, PIECE):
        positions = range(begin, min(begin + PIECE, end))
        rows = np.arange(len(positions), dtype=np.int32) + np.int32(first + begin - start)
        logits = head_logits(model, hidden, rows)
        for position, row in zip(positions, logits, strict=True):
            token = request.prompt_ids[position + 1]
            entries.append(token_logprob(row[:vocab_size], token, alternatives, model.ops))
