"""`verify: rejection` under options that look at the history: the distribution is the target's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sampling.chi_square import excess
from tests.sampling.fakes import remember, sequence
from tests.sampling.test_rejection import DRAFTERS, PROMPT, RULES, TARGET, V, answer, exact
from wager.config import SamplingParams, StructuredOutput
from wager.ops.base import OpSet
from wager.sampling.rejection import distribution
from wager.types import Draft

DRAWS = 3000
OPTIONS: dict[str, dict[str, Any]] = {
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.7, "repetition_penalty": 1.4},
    "rewards": {"frequency_penalty": -1.5, "repetition_penalty": 0.7},
    "bias": {"logit_bias": {2: -100, 4: 2.0}},
    "allowed": {"allowed_token_ids": (1, 2, 4, 7)},
    # Tokens 1 to 7 are the letters from a to g.
    "bad words": {"bad_words": ("ab", "dd", "c")},
    "grammar": {"structured": StructuredOutput("regex", "(ab|ba|c|d)+")},
}


@pytest.fixture(scope="module")
def ops(fast_ops: OpSet) -> OpSet:
    """The rules are the same over both; picking is tested elsewhere."""
    return fast_ops


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distribution is worked out once per history."""
    remember(monkeypatch, lambda state, ahead: (tuple(state.output_ids), tuple(ahead)))


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("by", RULES)
@pytest.mark.parametrize("drafter", ["n-gram", "drawn"])
@pytest.mark.parametrize("option", OPTIONS)
def test_the_distribution_is_the_targets(by: str, drafter: str, option: str, ops: OpSet) -> None:
    """What is accepted, and what comes in place of a refused token."""
    params = SamplingParams(max_tokens=3, ignore_eos=True, **OPTIONS[option])
    found = Counter(
        tuple(answer(RULES[by], params, DRAFTERS[drafter], 2, seed, ops)[0].output_ids)
        for seed in range(DRAWS)
    )
    assert excess(found, exact(params)) < 1.0


@pytest.mark.parametrize("option", OPTIONS)
def test_the_options_change_the_distribution(option: str) -> None:
    """So that the test above has something to see."""
    plain = exact(SamplingParams(max_tokens=3, ignore_eos=True))
    own = exact(SamplingParams(max_tokens=3, ignore_eos=True, **OPTIONS[option]))
    distance = sum(abs(plain.get(t, 0.0) - own.get(t, 0.0)) for t in {*plain, *own}) / 2
    assert distance > 0.1


@pytest.mark.parametrize("by", RULES)
@pytest.mark.parametrize("most", [1, 2, 3, 6])
def test_a_draft_may_go_on_behind_the_grammars_end(by: str, most: int, ops: OpSet) -> None:
    """The request ends there, and nothing fails."""
    params = SamplingParams(structured=StructuredOutput("regex", "[abc]{3}"))
    for seed in range(200):
        state = sequence(params, seed=seed, prompt_ids=PROMPT)
        while state.finish_reason is None:
            last = [*PROMPT, *state.output_ids][-1]
            drawn = tuple((seed + i) % 3 + 1 for i in range(most))
            RULES[by](TARGET[[last, *drawn]], Draft(drawn, "test"), state, ops)
        assert len(state.output_ids) == 3
        assert set(state.output_ids) <= {1, 2, 3}
        assert state.finish_reason == "stop"


@pytest.mark.parametrize("by", RULES)
def test_forbidden_drafts_are_never_accepted(by: str, ops: OpSet) -> None:
    params = SamplingParams(allowed_token_ids=(1, 2), max_tokens=6)
    for seed in range(100):
        state = sequence(params, seed=seed, prompt_ids=PROMPT, eos_ids=())
        while state.finish_reason is None:
            last = [*PROMPT, *state.output_ids][-1]
            draft = Draft((5, 1), "test")
            verdict = RULES[by](TARGET[[last, *draft.tokens]], draft, state, ops)
            assert verdict.accepted == 0
        assert set(state.output_ids) <= {1, 2} <= set(range(V))


BROKEN = np.full(V, np.nan, np.float32)
FAULTS: dict[str, tuple[dict[str, Any], dict[int, NDArray[np.float32]]]] = {
    # Behind "a" there is nothing; behind "cd" there is.
    "no token left": ({"structured": StructuredOutput("choice", ("ab", "cd")),
                       "bad_words": ("b",)}, {}),
    "not a number": ({"allowed_token_ids": (1, 3)}, {1: BROKEN}),
}  # fmt: skip


@pytest.mark.parametrize("by", RULES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_behind_a_draft_token_counts_once_it_is_accepted(
    by: str, fault: str, ops: OpSet
) -> None:
    """As in plain decoding, where it is met behind that token alone."""
    options, rows_behind = FAULTS[fault]
    params = SamplingParams(max_tokens=2, ignore_eos=True, **options)
    rows = np.stack([TARGET[PROMPT[-1]], *(rows_behind.get(t, TARGET[t]) for t in (1, 2))])
    draft = Draft((1, 2), "test")
    first = distribution(rows[0], sequence(params, prompt_ids=PROMPT))
    others = 0
    for seed in range(1000):
        state = sequence(params, seed=seed, prompt_ids=PROMPT)
        try:
            RULES[by](rows, draft, state, ops)
        except ValueError:
            assert state.output_ids == [1]
        else:
            assert state.output_ids == [3]
            others += 1
    share = float(first[3])
    assert 0.1 < share < 0.9
    assert abs(others - 1000 * share) < 4.0 * (1000 * share * (1.0 - share)) ** 0.5
