"""What every drafting method owes the engine. A new method is one more line in METHODS."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.recipes import ngram, prompts, run_all
from wager import LLM, SamplingParams
from wager.drafters.base import Drafter, DraftQuery
from wager.registry import drafter_class, drafter_names
from wager.speculation import SpeculationConfig
from wager.types import Draft

METHODS: dict[str, dict[str, Any]] = {
    "ngram": ngram(6, low=1, high=4),
    "suffix": {"method": "suffix", "num_speculative_tokens": 6},
}
VOCAB = 288


def build(method: str) -> Drafter:
    config = SpeculationConfig.parse(METHODS[method])
    assert config is not None
    drafter: Drafter = drafter_class(method)(config.methods[0], VOCAB)
    return drafter


def play(drafter: Drafter, seed: int) -> list[list[Draft]]:
    """Three requests side by side, with repeats, in random pieces."""
    rng = random.Random(seed)
    texts = {number: prompts(1, VOCAB, seed + number, (30, 60))[0] for number in range(3)}
    lengths = dict.fromkeys(texts, 0)
    answers = []
    for number, text in texts.items():
        drafter.start(number, text, "")
        lengths[number] = len(text)
    for _ in range(30):
        queries = [DraftQuery(n, lengths[n], rng.randint(1, 6)) for n in texts]
        drafts = drafter.propose(queries)
        answers.append(drafts)
        assert len(drafts) == len(queries)
        for query, draft in zip(queries, drafts, strict=True):
            assert len(draft.tokens) <= query.limit
            assert all(0 <= t < VOCAB for t in draft.tokens)
            assert bool(draft.tokens) == bool(draft.source)
        for number in texts:
            tokens = [rng.choice([5, 6, 7]) for _ in range(rng.randint(1, 4))]
            drafter.observe(number, tokens)
            lengths[number] += len(tokens)
    return answers


def test_every_built_in_method_is_in_the_table() -> None:
    assert set(METHODS) == set(drafter_names())


@pytest.mark.parametrize("method", METHODS)
def test_deterministic_and_within_bounds(method: str) -> None:
    assert play(build(method), 1) == play(build(method), 1)
    assert any(d.tokens for drafts in play(build(method), 1) for d in drafts)


@pytest.mark.parametrize("method", METHODS)
def test_release_forgets_a_request_and_spares_the_others(method: str) -> None:
    drafter = build(method)
    text = [4, 5, 6, 7] * 4
    drafter.start(1, text, "")
    drafter.start(2, text, "")
    before = drafter.propose([DraftQuery(2, len(text), 4)])
    drafter.release(1)
    drafter.release(99)
    assert drafter.propose([DraftQuery(2, len(text), 4)]) == before
    # The same number again is a new request: its old, longer history must not show.
    drafter.start(1, [9, 8, 4], "")
    assert drafter.propose([DraftQuery(1, 3, 4)])[0].tokens == ()


@pytest.mark.parametrize("method", METHODS)
def test_clear_makes_it_as_new(method: str) -> None:
    drafter = build(method)
    first = play(drafter, 3)
    for number in range(3):
        drafter.release(number)
    drafter.clear()
    assert play(drafter, 3) == first


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_exact_output_in_a_mixed_batch(
    method: str, temperature: float, make_llm: Callable[..., LLM]
) -> None:
    llm = make_llm(max_num_seqs=4)
    requests = [
        (p, SamplingParams(temperature=temperature, seed=i, max_tokens=20, ignore_eos=True))
        for i, p in enumerate(prompts(9, VOCAB, 2))
    ]
    plain = run_all(llm, requests)
    llm.set_speculation(METHODS[method])
    for expected, found in zip(plain, run_all(llm, requests), strict=True):
        assert found.token_ids == expected.token_ids
    assert llm.engine.stats.counts.accepted > 0
