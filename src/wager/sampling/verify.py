"""Verification is the plain sampler, run along the draft. There is no second sampler.

Words: a draft token is *accepted* when the target picks the same token at its place; the target's
own token at the first mismatch is *recovered*, the one after a fully accepted draft is the *bonus*.
"""

from __future__ import annotations

from dataclasses import dataclass

from wager.ops.base import F32, OpSet
from wager.sampling.sampler import SequenceState
from wager.types import Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one step committed for one sequence: at least one token.

    ``accepted`` of them, the first ones, are draft tokens; the recovered or bonus token is never
    counted. 0 <= accepted <= len(draft) and accepted <= len(committed) <= accepted + 1; the two are
    equal where an accepted token ended the sequence.
    """

    committed: list[int]
    accepted: int


def verify(rows: F32, draft: Draft, state: SequenceState, ops: OpSet) -> Verdict:
    """Pick and commit row after row, for as long as the tokens picked are those of the draft.

    ``rows`` [1 + len(draft), V]: the model's logits behind the newest committed token and behind
    each draft token. Plain decoding is the same with an empty draft. Stops behind a token that ends
    the sequence, drafted or not. Rows behind the first mismatch are not looked at, so what is
    committed is what plain decoding, one row at a time, would have committed.
    """
    if len(rows) != 1 + len(draft.tokens):
        raise ValueError(f"{len(rows)} rows for a draft of {len(draft.tokens)} tokens")
    committed: list[int] = []
    for row, drafted in zip(rows, (*draft.tokens, None), strict=True):
        token = state.pick(row, ops)
        state.commit(token, row, ops)
        committed.append(token)
        if token != drafted:
            return Verdict(committed, len(committed) - 1)
        if state.finish_reason is not None:
            break
    return Verdict(committed, len(committed))
