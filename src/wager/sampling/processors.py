"""What changes a row of logits before a token is picked from it, in the order in which it applies.

A processor sees the history as it stands when the token is picked: prompt, committed tokens and,
on the row behind an accepted draft token, that token too. Verification commits draft tokens one by
one, so a processor needs to know nothing of drafts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from wager.config import SamplingParams
from wager.ops.base import F32


class History(Protocol):
    """What a processor may look at."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def output_ids(self) -> Sequence[int]:
        """Committed tokens, in order."""
        ...


class Processor(Protocol):
    """One option's effect on the logits."""

    def __call__(self, row: F32, history: History) -> F32:
        """The row [V] itself where nothing applies, else a changed copy: log-probabilities are
        reported from the row as the model gave it."""
        ...


class MinTokens:
    """No end token among the first ``min_tokens`` output tokens: their logits become -inf.

    The first place where an end token can stand is position ``min_tokens`` of the output, counted
    from 0. Stop strings keep to the same rule, see `SequenceState`.
    """

    def __init__(self, min_tokens: int, end_ids: Collection[int]) -> None:
        self.min_tokens = min_tokens
        self.end_ids = np.array(sorted(end_ids), dtype=np.int64)

    def __call__(self, row: F32, history: History) -> F32:
        if len(history.output_ids) >= self.min_tokens:
            return row
        row = row.copy()
        # A generation config may name end tokens that the head does not have.
        row[self.end_ids[self.end_ids < len(row)]] = -np.inf
        return row


def processors_for(params: SamplingParams, end_ids: Collection[int]) -> tuple[Processor, ...]:
    """The processors that a request needs; ``end_ids`` are all tokens that would end it."""
    processors: list[Processor] = []
    if params.min_tokens and end_ids:
        processors.append(MinTokens(params.min_tokens, end_ids))
    return tuple(processors)
