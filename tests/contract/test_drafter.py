"""What every drafting method keeps to, seen from the seam: picked up from the registry by name."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from wager.config import SpeculationConfig
from wager.drafters.base import Drafter, DraftQuery
from wager.registry import drafter_class, drafter_names
from wager.types import Draft

VOCAB = 5
Make = Callable[[], Drafter]


@pytest.fixture(params=drafter_names())
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a fresh drafter of one method."""
    config = SpeculationConfig.parse(
        {"method": request.param, "num_speculative_tokens": 8, "prompt_lookup_min": 1}
    )
    return lambda: drafter_class(request.param)(config, VOCAB)


def texts(seed: int, count: int = 4) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(VOCAB), k=rng.randrange(1, 40)) for _ in range(count)]


def grow(drafter: Drafter, prompts: list[list[int]], seed: int) -> list[list[Draft]]:
    """Ten steps in which every request commits one to three tokens; the drafts of each step."""
    rng = random.Random(seed)
    lengths = [len(p) for p in prompts]
    for request, prompt in enumerate(prompts):
        drafter.observe(request, prompt)
    steps = []
    for _ in range(10):
        queries = [DraftQuery(r, n, rng.randrange(1, 9)) for r, n in enumerate(lengths)]
        drafts = drafter.propose(queries)
        assert len(drafts) == len(queries)
        for query, draft in zip(queries, drafts, strict=True):
            assert len(draft.tokens) <= query.limit
            assert all(0 <= token < VOCAB for token in draft.tokens)
            assert draft.source or not draft.tokens
        for request in range(len(prompts)):
            tokens = rng.choices(range(VOCAB), k=rng.randrange(1, 4))
            drafter.observe(request, tokens)
            lengths[request] += len(tokens)
        steps.append(drafts)
    return steps


def test_valid_drafts_and_deterministic(make: Make) -> None:
    runs = [grow(make(), texts(1), seed=2) for _ in range(2)]
    assert runs[0] == runs[1]
    assert any(draft.tokens for step in runs[0] for draft in step)


def test_cleared_is_as_new(make: Make) -> None:
    drafter = make()
    grow(drafter, texts(3), seed=4)
    drafter.clear()
    assert grow(drafter, texts(1), seed=2) == grow(make(), texts(1), seed=2)


def test_released_number_can_be_used_again(make: Make) -> None:
    drafter = make()
    first, second = texts(5, count=2)
    drafter.observe(0, first)
    drafter.release(0)
    drafter.release(12345)
    drafter.observe(0, second)
    assert len(drafter.propose([DraftQuery(0, len(second), 4)])) == 1


def test_requests_that_are_not_asked_do_not_matter(make: Make) -> None:
    """A mixed batch: some requests draft in a step, others do not; nobody's draft changes."""
    drafter = make()
    prompts = texts(6, count=6)
    for request, prompt in enumerate(prompts):
        drafter.observe(request, prompt)
    queries = [DraftQuery(r, len(p), 4) for r, p in enumerate(prompts)]
    together = drafter.propose(queries)
    assert [drafter.propose([q])[0] for q in queries] == together
    assert drafter.propose(queries[1::2]) == together[1::2]
