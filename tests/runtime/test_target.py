"""The ragged forward: spans laid out as arrays, hidden states where asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wager import LLM
from wager.runtime.target import Span, ragged_batch


def test_spans_become_arrays() -> None:
    batch = ragged_batch(
        [Span([7, 8, 9], 0, [4], 1), Span([5], 20, [2, 3], 1), Span([1], 3, [9], 0)]
    )
    assert batch.tokens.tolist() == [7, 8, 9, 5, 1]
    assert batch.positions.tolist() == [0, 1, 2, 20, 3]
    assert batch.row_starts.tolist() == [0, 3, 4, 5]
    assert batch.block_tables.tolist() == [[4, -1], [2, 3], [9, -1]]
    assert batch.logit_rows.tolist() == [2, 3]


def test_hidden_states_do_not_change_the_pass(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    target = llm.engine.target
    span = Span([7, 8, 9], 0, [0], 3)
    plain = target.forward([span])
    tapped = target.forward([span], hidden_layers=(0, 1, 2))
    assert plain.hidden == {}
    assert np.array_equal(plain.logits, tapped.logits)
    assert sorted(tapped.hidden) == [0, 1, 2]
    embedded = llm.model.ops.embed(llm.model.embed, np.array([7, 8, 9], np.int32))
    assert np.array_equal(tapped.hidden[0], embedded)
    assert not np.array_equal(tapped.hidden[1], tapped.hidden[2])
