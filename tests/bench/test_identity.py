"""Where replies part, and what an engine does by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.scripted import reply, silent
from wager.backend import Answer
from wager.bench.identity import Control, Divergence, Identity, compare
from wager.types import TokenLogprob


def ids(*tokens: int) -> Answer:
    return reply("a", tokens)


def told(answer: Answer, *gaps: float) -> Answer:
    """With the two best log-probabilities at each position."""
    logprobs = [TokenLogprob(1, -0.5, ((1, -0.5), (2, -0.5 - gap))) for gap in gaps]
    return replace(answer, logprobs=logprobs)


def test_equal_in_every_run_of_both_arms() -> None:
    found = compare([("a", [ids(1, 2), ids(1, 2)], [ids(1, 2), ids(1, 2)])])
    assert found == Identity(1, 1, "tokens", [], Control(1, 1))


@pytest.mark.parametrize(
    ("spec", "position"),
    [(ids(1, 9, 3), 1), (ids(9, 2, 3), 0), (ids(1, 2), 2), (ids(1, 2, 3, 4), 3)],
)
def test_the_first_divergence_is_an_index(spec: Answer, position: int) -> None:
    found = compare([("a", [ids(1, 2, 3)], [ids(1, 2, 3), spec])])
    assert (found.equal, found.first_divergences) == (0, [Divergence("a", position, None)])


def test_the_gap_of_the_two_best_tokens_is_of_the_plain_reply_there() -> None:
    plain, spec = told(ids(1, 2, 3), 5.0, 0.25, 5.0), told(ids(1, 9, 3), 7.0, 7.0, 7.0)
    (one,) = compare([("a", [plain], [spec])]).first_divergences
    assert (one.position, one.top2_gap) == (1, pytest.approx(0.25))
    (short,) = compare([("a", [told(ids(1, 2), 5.0, 0.25)], [ids(1, 2, 3)])]).first_divergences
    assert (short.position, short.top2_gap) == (2, None)


def test_an_engine_that_differs_from_itself_is_named_by_the_control() -> None:
    """Both arms give two different replies: not equal, and no fault of speculation alone."""
    noisy = [ids(1, 2), ids(1, 3)]
    found = compare([("a", noisy, noisy), ("b", [ids(4), ids(4)], [ids(4), ids(4)])])
    assert (found.compared, found.equal, found.control) == (2, 1, Control(2, 1))
    once = compare([("a", [ids(1)], [ids(1)])])
    assert once.control is None


def test_text_where_ids_are_not_told() -> None:
    plain = silent(reply("a", text="so it is"))
    spec = silent(reply("a", text="so it was"))
    found = compare([("a", [plain], [spec])])
    assert (found.unit, found.first_divergences) == ("text", [Divergence("a", 6, None)])
    assert compare([("a", [plain], [reply("a", text="so it is")])]).equal == 1


def test_nothing_to_compare() -> None:
    assert compare([]) == Identity(0, 0, None, [], None)
    assert compare([("a", [], [ids(1)])]) == Identity(0, 0, None, [], None)
