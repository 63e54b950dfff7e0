"""The rules that keep the distribution: every outcome of three tokens is enumerated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sampling.chi_square import excess
from tests.sampling.fakes import remember, sequence
from wager.config import SamplingParams
from wager.ops.base import OpSet
from wager.sampling import rejection
from wager.sampling.rejection import (
    ACCEPT,
    DRAFT,
    RESIDUAL,
    Rule,
    distribution,
    draw,
    reject,
    reject_block,
    rule,
    uniform,
)
from wager.sampling.sampler import SequenceState
from wager.sampling.verify import Verdict, verify
from wager.types import NO_DRAFT, Draft

V = 8
PROMPT = [6, 3]
DRAWS = 20_000
RULES = {"rejection": reject, "block": reject_block}
# Row t: the logits behind token t. The two models agree to a degree.
TARGET = (1.3 * np.random.default_rng(1).standard_normal((V, V))).astype(np.float32)
OTHER = (0.7 * TARGET + np.random.default_rng(2).standard_normal((V, V))).astype(np.float32)
PLAIN: dict[str, Any] = {"temperature": 1.0}
FILTERED: dict[str, Any] = {"temperature": 0.8, "top_k": 6, "top_p": 0.92, "min_p": 0.02}

Drafting: TypeAlias = Callable[[SequenceState, int, int], Draft]
"""(state, newest token, most tokens) -> draft."""


@pytest.fixture(scope="module")
def ops(fast_ops: OpSet) -> OpSet:
    """The rules are the same over both; picking is tested elsewhere."""
    return fast_ops


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distribution is worked out once: the same rows come many thousand times."""
    remember(
        monkeypatch,
        lambda state, ahead: (
            state.params,
            len(state.output_ids) + len(ahead) < state.params.min_tokens,
        ),
    )


# Drafters


def drawn(behind: Callable[[SequenceState, int, list[int]], Any]) -> Drafting:
    """Tokens with the distributions that they were drawn from, by noise of their own."""

    def drafting(state: SequenceState, last: int, most: int) -> Draft:
        tokens: list[int] = []
        each = []
        for _ in range(most):
            q = behind(state, [last, *tokens][-1], tokens)
            each.append(q)
            tokens.append(draw(q, uniform(state, DRAFT, len(tokens))))
        return Draft(tuple(tokens), "drawn", 0, tuple(each))

    return drafting


def model(table: NDArray[np.float32]) -> Drafting:
    """As a draft model does it: with the request's own options."""
    hot = drawn(lambda state, last, tokens: rejection.distribution(table[last], state, tokens))

    def drafting(state: SequenceState, last: int, most: int) -> Draft:
        greedy = state.selection.temperature == 0.0
        return (certain(table) if greedy else hot)(state, last, most)

    return drafting


def certain(table: NDArray[np.float32]) -> Drafting:
    """Tokens that were not drawn: the likeliest of a model, or what stands in a text."""
    follows = table.argmax(axis=1).tolist()

    def drafting(state: SequenceState, last: int, most: int) -> Draft:
        tokens: list[int] = []
        for _ in range(most):
            tokens.append(follows[[last, *tokens][-1]])
        return Draft(tuple(tokens), "certain")

    return drafting


# Another temperature and no filters, whatever the request says.
SHARP = np.exp(OTHER.astype(np.float64) / 0.4)
SHARP /= SHARP.sum(axis=1, keepdims=True)
# What an n-gram drafter copies has nothing to do with the target's choice.
COPIED = np.roll(np.eye(V, dtype=np.float32), 3, axis=1)
# Never drafts the last three tokens, and is sure of two that the target's filters often exclude.
DISJOINT = OTHER[:, : V - 3] + np.array([3, 0, 0, 3, 0], np.float32)
DRAFTERS: dict[str, Drafting] = {
    "n-gram": certain(COPIED),
    "argmax": certain(OTHER),
    "drawn": model(OTHER),
    "sharp": drawn(lambda state, last, tokens: SHARP[last]),
    "disjoint": model(np.ascontiguousarray(DISJOINT)),
}


# What is expected, and what is found


def exact(params: SamplingParams, eos: tuple[int, ...] = ()) -> dict[tuple[int, ...], float]:
    """Probability of every answer, by plain sampling."""
    whole = {(): 1.0}
    for _ in range(params.max_tokens or 0):
        grown: dict[tuple[int, ...], float] = {}
        for tokens, share in whole.items():
            if tokens and tokens[-1] in eos:
                grown[tokens] = share
                continue
            state = sequence(params, prompt_ids=PROMPT, eos_ids=eos)
            p = distribution(TARGET[[*PROMPT, *tokens][-1]], state, tokens)
            for token in np.flatnonzero(p):
                grown[(*tokens, int(token))] = share * float(p[token])
        whole = grown
    return whole


def answer(
    by: Rule, params: SamplingParams, drafting: Drafting, k: int, seed: int, ops: OpSet,
    eos: tuple[int, ...] = (),
) -> tuple[SequenceState, list[Verdict]]:  # fmt: skip
    state = sequence(params, seed=seed, prompt_ids=PROMPT, eos_ids=eos)
    verdicts = []
    while state.finish_reason is None:
        last = [*PROMPT, *state.output_ids][-1]
        most = min(k, state.room - 1)
        draft = drafting(state, last, most) if most else NO_DRAFT
        verdicts.append(by(TARGET[[last, *draft.tokens]], draft, state, ops))
    return state, verdicts


def found(
    by: Rule, params: SamplingParams, drafting: Drafting, ops: OpSet, eos: tuple[int, ...] = (),
    k: int = 2,
) -> Counter[tuple[int, ...]]:  # fmt: skip
    return Counter(
        tuple(answer(by, params, drafting, k, seed, ops, eos)[0].output_ids)
        for seed in range(DRAWS)
    )


SETTINGS = [
    ("n-gram", FILTERED, ()), ("argmax", PLAIN, ()), ("drawn", PLAIN, ()), ("drawn", FILTERED, ()),
    ("sharp", PLAIN, ()), ("disjoint", FILTERED, ()),
    # An end token is likely, and excluded at first: processors see the draft before a token.
    ("drawn", {"temperature": 1.0, "min_tokens": 1}, (4, 5)),
]  # fmt: skip


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("by", RULES)
@pytest.mark.parametrize(("drafter", "options", "eos"), SETTINGS, ids=str)
def test_the_distribution_is_the_targets(
    by: str, drafter: str, options: dict[str, Any], eos: tuple[int, ...], ops: OpSet
) -> None:
    """Also of the token behind a refusal, and of the steps that follow."""
    params = SamplingParams(max_tokens=3, ignore_eos=not eos, **options)
    counts = found(RULES[by], params, DRAFTERS[drafter], ops, eos)
    assert excess(counts, exact(params, eos)) < 1.0


# The power of the check


def accepts_by_p(
    rows: NDArray[np.float32], draft: Draft, state: SequenceState, ops: OpSet
) -> Verdict:
    """Wrong: accepts with p instead of p / q."""
    ones = tuple(np.ones_like(q) for q in draft.distributions or ())
    return reject(rows, Draft(draft.tokens, draft.source, 0, ones), state, ops)


def likeliest(state: SequenceState, last: int, most: int) -> Draft:
    """Wrong: tokens that were not drawn, said to be drawn."""
    tokens = DRAFTERS["argmax"](state, last, most).tokens
    each = tuple(
        rejection.distribution(OTHER[before], state) for before in [last, *tokens][: len(tokens)]
    )
    return Draft(tokens, "likeliest", 0, each)


def softmax_of_residual(p: Any, q: Any, state: SequenceState) -> int:
    """Wrong: not every token of the residual is equally far from 0."""
    rest = np.maximum(p - q, 0.0)
    return draw(np.where(p > 0.0, np.exp(rest), 0.0), uniform(state, RESIDUAL))


def target_again(p: Any, q: Any, state: SequenceState) -> int:
    """Wrong: behind a refusal the target is asked again, as if nothing had been refused."""
    return draw(p, uniform(state, RESIDUAL))


def by_position(state: SequenceState, purpose: int, ahead: int = 0) -> float:
    """Wrong: where a position is drafted twice, its draws are the same both times."""
    return uniform(_Moved(state, ahead), purpose)


class _Moved:
    """As much of a state as draws look at, so many tokens on."""

    def __init__(self, state: SequenceState, by: int) -> None:
        self.position = state.position + by
        self.choice, self.selection = state.choice, state.selection


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("by", "drafting"),
    [(accepts_by_p, DRAFTERS["drawn"]), (reject, likeliest), (reject_block, likeliest)],
)
def test_a_wrong_test_of_acceptance_is_seen(by: Rule, drafting: Drafting, ops: OpSet) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True, **PLAIN)
    assert excess(found(by, params, drafting, ops), exact(params)) > 2.0


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("residual", [softmax_of_residual, target_again])
def test_a_wrong_residual_is_seen(
    residual: Callable[..., int], ops: OpSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection, "_residual", residual)
    params = SamplingParams(max_tokens=3, ignore_eos=True, **PLAIN)
    assert excess(found(reject, params, DRAFTERS["drawn"], ops), exact(params)) > 2.0


@pytest.mark.usefixtures("remembered")
def test_draws_that_are_used_twice_are_seen(ops: OpSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block verification judges a draft as a whole: of a position that is drafted again, the draws
    have had a part already in what came before."""
    monkeypatch.setattr(rejection, "uniform", by_position)
    params = SamplingParams(max_tokens=3, ignore_eos=True, **PLAIN)
    assert excess(found(reject_block, params, DRAFTERS["argmax"], ops), exact(params)) > 1.0


# The draws


def test_draws_are_even_and_independent() -> None:
    """Over positions, purposes and how far ahead; a few of so many may be equal by chance."""
    state = sequence(SamplingParams(), seed=11, prompt_ids=PROMPT)
    series = {
        (purpose, ahead): np.array([uniform(_Moved(state, j), purpose, ahead) for j in range(4000)])
        for purpose in (DRAFT, ACCEPT, RESIDUAL)
        for ahead in (0, 1)
    }
    together = np.concatenate(list(series.values()))
    assert len(set(together.tolist())) >= len(together) - 2
    for values in series.values():
        assert 0.0 < values.min() < values.max() < 1.0
        tenths = Counter((10 * values).astype(int).tolist())
        assert excess(tenths, dict.fromkeys(range(10), 0.1)) < 1.0
    correlations = np.corrcoef(np.stack(list(series.values())))
    np.fill_diagonal(correlations, 0.0)
    assert abs(correlations).max() < 5 / 4000**0.5


def test_draws_differ_by_seed_and_choice() -> None:
    params = SamplingParams()
    values = {
        uniform(sequence(params, seed=seed, choice=choice), ACCEPT)
        for seed in (0, 1, 1 << 40)
        for choice in range(3)
    }
    assert len(values) == 9


def test_a_draw_falls_to_ids_by_their_weight() -> None:
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    assert [draw(weights, u) for u in (1e-9, 0.2499, 0.25, 1.0 - 1e-9, 1.0)] == [1, 1, 3, 3, 3]


# Bounds


@pytest.mark.usefixtures("remembered")
def test_block_verification_accepts_no_fewer(ops: OpSet) -> None:
    """In expectation."""
    params = SamplingParams(max_tokens=16, ignore_eos=True, **PLAIN)
    accepted = {}
    for name, by in RULES.items():
        firsts = [
            by(TARGET[[PROMPT[-1], *draft.tokens]], draft, state, ops).accepted
            for seed in range(6000)
            for state in [sequence(params, seed=seed, prompt_ids=PROMPT)]
            for draft in [DRAFTERS["drawn"](state, PROMPT[-1], 5)]
        ]
        accepted[name] = (np.mean(firsts), np.std(firsts) / len(firsts) ** 0.5)
    gain = accepted["block"][0] - accepted["rejection"][0]
    assert gain > -3.0 * (accepted["block"][1] + accepted["rejection"][1])


@pytest.mark.parametrize("by", RULES)
def test_all_is_accepted_where_the_models_are_one(by: str, ops: OpSet) -> None:
    """Equal distributions, and nothing is 0 / 0."""
    for options in (PLAIN, FILTERED):
        params = SamplingParams(max_tokens=12, ignore_eos=True, **options)
        for seed in range(100):
            state, verdicts = answer(RULES[by], params, model(TARGET), 4, seed, ops)
            assert [v.accepted for v in verdicts] == [4, 4, 1]
            assert len(state.output_ids) == 12


@pytest.mark.parametrize("by", RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_nothing_behind_an_end_token_and_never_too_many(by: str, drafter: str, ops: OpSet) -> None:
    """Also where a draft goes on behind the end, and is longer than there is room."""
    eos = (2, 5)
    reasons = set()
    for most in (1, 2, 6):
        for seed in range(100):
            params = SamplingParams(max_tokens=most, **PLAIN)
            state = sequence(params, seed=seed, prompt_ids=PROMPT, eos_ids=eos)
            verdicts = []
            while state.finish_reason is None:
                last = [*PROMPT, *state.output_ids][-1]
                draft = DRAFTERS[drafter](state, last, 4)
                before = len(state.output_ids)
                verdict = RULES[by](TARGET[[last, *draft.tokens]], draft, state, ops)
                assert verdict.committed == state.output_ids[before:]
                assert (
                    tuple(verdict.committed[: verdict.accepted])
                    == (draft.tokens[: verdict.accepted])
                )
                assert 1 <= len(verdict.committed) <= verdict.accepted + 1
                verdicts.append(verdict)
            assert len(state.output_ids) <= most
            assert not set(state.output_ids[:-1]) & set(eos)
            reasons.add(state.finish_reason)
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("by", RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_top_k_one_and_greedy_are_plain(by: str, drafter: str, ops: OpSet) -> None:
    expected = []
    for _ in range(6):
        expected.append(int(TARGET[[*PROMPT, *expected][-1]].argmax()))
    for options in ({"temperature": 0.0}, {"temperature": 0.2, "top_k": 1, "top_p": 0.5}):
        params = SamplingParams(max_tokens=6, ignore_eos=True, **options)
        for seed in range(50):
            state, _ = answer(RULES[by], params, DRAFTERS[drafter], 3, seed, ops)
            assert state.output_ids == expected


@pytest.mark.parametrize("by", RULES)
def test_nothing_outside_the_nucleus(by: str, ops: OpSet) -> None:
    """Whatever the drafter thinks likely."""
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.7, top_p=0.6)
    state = sequence(params, prompt_ids=PROMPT)
    nucleus = [set(np.flatnonzero(distribution(row, state)).tolist()) for row in TARGET]
    assert any(len(ids) < V - 2 for ids in nucleus)
    for drafter in DRAFTERS.values():
        for seed in range(60):
            output = answer(RULES[by], params, drafter, 4, seed, ops)[0].output_ids
            for last, token in zip([PROMPT[-1], *output], output, strict=False):
                assert token in nucleus[last]


@pytest.mark.parametrize("by", RULES)
def test_logits_that_cannot_be_used_commit_nothing_false(by: str, ops: OpSet) -> None:
    state = sequence(SamplingParams(), prompt_ids=PROMPT)
    rows = TARGET[[3, 1]].copy()
    rows[0, 5] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        RULES[by](rows, Draft((1,), "test"), state, ops)
    rows[0] = -np.inf
    with pytest.raises(ValueError, match="excluded"):
        RULES[by](rows, Draft((1,), "test"), state, ops)
    with pytest.raises(ValueError, match="2 rows for a draft of 3 tokens"):
        RULES[by](rows, Draft((1, 2, 3), "test"), state, ops)
    assert not state.output_ids


def test_rules_by_name() -> None:
    assert rule("match", False) is verify
    assert rule("rejection", False) is reject
    assert rule("rejection", True) is reject_block
