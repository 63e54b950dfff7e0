"""Presence, frequency and repetition penalties: counts that grow with the answer.

The meanings are those of vLLM: repetition, over prompt and answer, comes first; then frequency and
presence, over the answer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wager.config import SamplingParams
from wager.ops.base import F32

if TYPE_CHECKING:
    from wager.sampling.processors import History


class Penalties:
    """A processor (see `wager.sampling.processors`) of one sequence.

    Each token that prompt or answer hold has a place in three arrays, found by its id, so that a
    new token costs one look-up and a row as much as there are different tokens.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._repetition = np.float32(params.repetition_penalty)
        # What only the prompt holds concerns repetition alone.
        prompt = np.unique(np.array(prompt_ids, dtype=np.int64))
        if self._repetition == 1.0:
            prompt = prompt[:0]
        self._size = len(prompt)
        self._place = {int(token): place for place, token in enumerate(prompt)}
        self._ids: NDArray[np.int64] = prompt
        self._counts: F32 = np.zeros(self._size, np.float32)
        self._in_prompt = np.ones(self._size, np.bool_)
        self._counted = 0

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether one of them is set."""
        return bool(
            params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        )

    def __call__(self, row: F32, history: History) -> F32:
        for token in history.output_ids[self._counted :]:
            self._count(token, 1.0)
        self._counted = len(history.output_ids)
        for token in history.ahead:
            self._count(token, 1.0)
        penalised = self._penalised(row)
        for token in history.ahead:
            self._count(token, -1.0)
        return penalised

    def _count(self, token: int, by: float) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._size
            if place == len(self._ids):
                self._grow()
            self._ids[place] = token
            self._size += 1
        self._counts[place] += by

    def _grow(self) -> None:
        more = max(64, self._size)
        self._ids = np.concatenate([self._ids, np.zeros(more, np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(more, np.float32)])
        self._in_prompt = np.concatenate([self._in_prompt, np.zeros(more, np.bool_)])

    def _penalised(self, row: F32) -> F32:
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        said = counts > 0.0
        # Tokens beyond the row, and those that were only ever ahead.
        there = (ids < len(row)) & (said | self._in_prompt[: self._size])
        if not there.any():
            return row
        ids, counts, said = ids[there], counts[there], said[there]
        values = row[ids]
        if self._repetition != 1.0:
            values = np.where(values > 0.0, values / self._repetition, values * self._repetition)
        if self._frequency:
            values = values - self._frequency * counts
        if self._presence:
            values = values - self._presence * said.astype(np.float32)
        row = row.copy()
        row[ids] = values
        return row
