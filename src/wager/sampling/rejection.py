"""The rules of acceptance that keep the target's distribution, not its tokens under a seed.

`reject`: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding",
2023; Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023.
`reject_block`: Sun et al., "Block Verification Accelerates Speculative Decoding", 2024: the draft
is judged as a whole, and no fewer tokens are accepted in expectation. A draft token without a
distribution counts as certain. Draws of the draft, of acceptance and of the residual use noise of
their own; at temperature 0 both rules are the plain one.

p is the target's distribution after the request's processors and filters, q the drafter's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wager.ops.base import F32, OpSet
from wager.ops.sampling import key_of, philox_word, survivors
from wager.sampling.sampler import SequenceState
from wager.sampling.verify import Verdict, verify
from wager.types import Draft

F64: TypeAlias = NDArray[np.float64]
Rule: TypeAlias = Callable[[F32, Draft, SequenceState, OpSet], Verdict]

DRAFT: Final = 1
"""Purpose of the noise: drawing a draft token."""
ACCEPT: Final = 2
RESIDUAL: Final = 3


def rule(verify_by: str, block: bool) -> Rule:
    """The rule that a speculative config names."""
    if verify_by == "match":
        return verify
    return reject_block if block else reject


def distribution(row: F32, state: SequenceState, ahead: Sequence[int] = ()) -> F64:
    """Probabilities [V] of the next token behind ``ahead``, from a model's logits [V].

    Raises ValueError on NaN or +inf, and where every token is excluded.
    """
    logits = state.process(row, ahead)
    if not logits.max() < np.inf:
        raise ValueError("logits: NaN or +inf")
    if logits.max() == -np.inf:
        raise ValueError("logits: every token is excluded (-inf)")
    scaled, kept = survivors(logits, state.selection)
    probabilities = np.zeros(len(row))
    weights = np.exp(scaled[kept].astype(np.float64))
    probabilities[kept] = weights / weights.sum()
    return probabilities


def draw(weights: F64, uniform: float) -> int:
    """The id that a number from [0, 1) falls to, by weights [V] that need not sum to 1."""
    mass = np.cumsum(weights)
    found = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    # Rounding may reach beyond the last id that has any weight.
    return min(found, int(np.flatnonzero(weights)[-1]))


def uniform(state: SequenceState, purpose: int, ahead: int = 0) -> float:
    """A number from (0, 1), a function of seed, choice, purpose, position and ``ahead``.

    ``ahead`` is how far the token lies behind the committed ones. No two steps have both in common,
    so that a draw whose outcome counted already is never used again, when a position is drafted a
    second time.
    """
    counter = (ahead, state.position + ahead, state.choice, purpose)
    return (philox_word(counter, key_of(state.selection.seed)) + 0.5) / 2.0**32


def reject(rows: F32, draft: Draft, state: SequenceState, ops: OpSet) -> Verdict:
    """Accept each draft token x with probability min(1, p(x) / q(x)); at the first refusal draw
    from max(p - q, 0). ``rows`` and the verdict are those of `verify`."""
    if state.selection.temperature == 0.0 or not draft.tokens:
        return verify(rows, draft, state, ops)
    _check(rows, draft)
    for index, token in enumerate(draft.tokens):
        p, q = distribution(rows[index], state), _drafted(draft, index, rows.shape[1])
        if uniform(state, ACCEPT) * q[token] >= p[token]:
            state.commit(_residual(p, q, state), rows[index], ops)
            return Verdict(_committed(state, index + 1), index)
        state.commit(token, rows[index], ops)
        if state.finish_reason is not None:
            return Verdict(_committed(state, index + 1), index + 1)
    return _bonus(rows, state, ops)


def reject_block(rows: F32, draft: Draft, state: SequenceState, ops: OpSet) -> Verdict:
    """Block verification: the longest prefix of the draft that its own test accepts, then a token
    from the residual of that place."""
    if state.selection.temperature == 0.0 or not draft.tokens:
        return verify(rows, draft, state, ops)
    _check(rows, draft)
    end, width = len(draft.tokens), rows.shape[1]
    ratio, ratios, accepted = 1.0, [1.0], 0
    p, q = distribution(rows[0], state), _drafted(draft, 0, width)
    for index, token in enumerate(draft.tokens):
        ratio = min(ratio * float(p[token] / q[token]), 1.0)
        if ratio == 0.0:
            break
        ratios.append(ratio)
        likely = ratio
        if index + 1 < end:
            try:
                p = distribution(rows[index + 1], state, draft.tokens[: index + 1])
            except ValueError:
                # A place that may never be reached: as far as it can be looked at, the draft ends
                # here. Where it is accepted so far, the fault shows as in plain decoding.
                end = index + 1
        if index + 1 < end:
            q = _drafted(draft, index + 1, width)
            rest = float(np.maximum(ratio * p - q, 0.0).sum())
            likely = rest / (rest + 1.0 - ratio) if rest > 0.0 else 0.0
        if uniform(state, ACCEPT, index) < likely:
            accepted = index + 1
        if index + 1 == end:
            break
    for index, token in enumerate(draft.tokens[:accepted]):
        state.commit(token, rows[index], ops)
        if state.finish_reason is not None:
            return Verdict(_committed(state, index + 1), index + 1)
    if accepted == end:
        return _bonus(rows[: end + 1], state, ops)
    row = rows[accepted]
    p, q = ratios[accepted] * distribution(row, state), _drafted(draft, accepted, width)
    state.commit(_residual(p, q, state), row, ops)
    return Verdict(_committed(state, accepted + 1), accepted)


def _check(rows: F32, draft: Draft) -> None:
    if len(rows) != 1 + len(draft.tokens):
        raise ValueError(f"{len(rows)} rows for a draft of {len(draft.tokens)} tokens")


def _drafted(draft: Draft, index: int, width: int) -> F64:
    """q of a draft position, [width]."""
    q = np.zeros(width)
    if draft.distributions is None:
        q[draft.tokens[index]] = 1.0
    else:
        own = draft.distributions[index]
        q[: len(own)] = own
    return q


def _residual(p: F64, q: F64, state: SequenceState) -> int:
    rest = np.maximum(p - q, 0.0)
    # Only rounding refuses a token where p and q are the same.
    return draw(rest if rest.any() else p, uniform(state, RESIDUAL))


def _bonus(rows: F32, state: SequenceState, ops: OpSet) -> Verdict:
    """``rows`` are those up to the last accepted token's."""
    token = state.pick(rows[-1], ops)
    state.commit(token, rows[-1], ops)
    return Verdict(_committed(state, len(rows)), len(rows) - 1)


def _committed(state: SequenceState, count: int) -> list[int]:
    return state.output_ids[-count:]
