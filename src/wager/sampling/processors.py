"""What changes a row of logits before a token is picked from it, in the order in which it applies.

A processor sees the history as it stands when the token is picked: prompt, committed tokens and,
on the row behind an accepted draft token, that token too. Verification commits draft tokens one by
one, so a processor needs to know nothing of drafts. A drafter that asks for tokens behind its own
draft has those ``ahead``: they are history for this one call and leave no trace.

Rows may be shorter than the vocabulary: a draft model's, which knows fewer tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from wager.config import SamplingParams
from wager.ops.base import F32
from wager.sampling.penalties import Penalties

_EXCLUDED: Final = np.float32(-np.inf)


class History(Protocol):
    """What a processor may look at."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def output_ids(self) -> Sequence[int]:
        """Committed tokens, in order."""
        ...

    @property
    def ahead(self) -> Sequence[int]:
        """Tokens that are taken to follow them."""
        ...


class Processor(Protocol):
    """One option's effect on the logits of one sequence, whose history only ever grows."""

    def __call__(self, row: F32, history: History) -> F32:
        """The row [V] itself where nothing applies, else a changed copy: log-probabilities are
        reported from the row as the model gave it."""
        ...


class AllowedTokens:
    """Nothing but these ids."""

    def __init__(self, allowed_ids: Sequence[int]) -> None:
        self._ids = _id_array(allowed_ids)

    def __call__(self, row: F32, history: History) -> F32:
        kept = np.full_like(row, _EXCLUDED)
        ids = self._ids[self._ids < len(row)]
        kept[ids] = row[ids]
        return kept


class BadWords:
    """The last token of each sequence of ids, where the answer ends with the ones before it."""

    def __init__(self, sequences: Collection[Sequence[int]]) -> None:
        self._always = _id_array({ids[0] for ids in sequences if len(ids) == 1})
        # By the token before the last, so that most rows need one look-up.
        self._behind: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for ids in sequences:
            if len(ids) > 1:
                self._behind.setdefault(ids[-2], []).append((tuple(ids[:-1]), ids[-1]))
        self._longest = max((len(ids) - 1 for ids in sequences), default=0)

    def __call__(self, row: F32, history: History) -> F32:
        banned = self._always
        if self._longest:
            tail = (*history.output_ids[-self._longest :], *history.ahead)
            found = [
                last
                for start, last in (self._behind.get(tail[-1], ()) if tail else ())
                if tail[-len(start) :] == start
            ]
            if found:
                banned = np.concatenate([banned, _id_array(found)])
        return _without(row, banned)


class LogitBias:
    """Adds to the logits of some ids."""

    def __init__(self, biases: Sequence[tuple[int, float]]) -> None:
        self._ids = np.array([token for token, _ in biases], dtype=np.int64)
        self._values = np.array([bias for _, bias in biases], dtype=np.float32)

    def __call__(self, row: F32, history: History) -> F32:
        row = row.copy()
        there = self._ids < len(row)
        row[self._ids[there]] += self._values[there]
        return row


class MinTokens:
    """No end token among the first ``min_tokens`` output tokens: their logits become -inf.

    The first place where an end token can stand is position ``min_tokens`` of the output, counted
    from 0. Stop strings keep to the same rule, see `SequenceState`.
    """

    def __init__(self, min_tokens: int, end_ids: Collection[int]) -> None:
        self.min_tokens = min_tokens
        self.end_ids = _id_array(end_ids)

    def __call__(self, row: F32, history: History) -> F32:
        if len(history.output_ids) + len(history.ahead) >= self.min_tokens:
            return row
        return _without(row, self.end_ids)


def processors_for(
    params: SamplingParams,
    end_ids: Collection[int],
    prompt_ids: Sequence[int],
    bad_words: Collection[Sequence[int]] = (),
    grammar: Processor | None = None,
) -> tuple[Processor, ...]:
    """The processors that a request needs, in order; ``end_ids`` are all tokens that would end it,
    ``bad_words`` the token sequences of its bad words."""
    processors: list[Processor] = []
    if grammar is not None:
        processors.append(grammar)
    if params.allowed_token_ids is not None:
        processors.append(AllowedTokens(params.allowed_token_ids))
    if bad_words:
        processors.append(BadWords(bad_words))
    if params.biases:
        processors.append(LogitBias(params.biases))
    if params.min_tokens and end_ids:
        processors.append(MinTokens(params.min_tokens, end_ids))
    if Penalties.needed(params):
        processors.append(Penalties(params, prompt_ids))
    return tuple(processors)


def _id_array(ids: Collection[int]) -> NDArray[np.int64]:
    return np.array(sorted(ids), dtype=np.int64)


def _without(row: F32, banned: NDArray[Any]) -> F32:
    """A copy in which these ids cannot be picked; the row itself where none is banned."""
    # Ids may lie beyond the row: a generation config names end tokens that the head does not have.
    banned = banned[banned < len(row)]
    if not len(banned):
        return row
    row = row.copy()
    row[banned] = _EXCLUDED
    return row
