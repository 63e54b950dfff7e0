"""What every drafting method owes the engine. A new method is one more line in METHODS.

Methods that draft from token ids alone are also asked without an engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import ngram, prompts, run_all
from tests.tiny import write_tiny_hf
from wager import LLM, SamplingParams
from wager.drafters.base import Drafter, DraftQuery
from wager.registry import drafter_class, drafter_names
from wager.speculation import SpeculationConfig
from wager.types import Draft

METHODS: dict[str, dict[str, Any]] = {
    "ngram": ngram(6, low=1, high=4),
    "ngram_gpu": {**ngram(6, low=1, high=4), "method": "ngram_gpu"},
    "suffix": {"method": "suffix", "num_speculative_tokens": 6, "controller": "off"},
    "draft_model": {
        "method": "draft_model",
        "num_speculative_tokens": 6,
        "controller": "off",
        "model": "OTHER",
    },
}
LISTS: dict[str, dict[str, Any]] = {
    "suffix, ngram": {**ngram(6, low=1, high=4), "method": ["suffix", "ngram"]},
    "ngram, draft_model": {
        **ngram(5, low=2, high=4), "method": ["ngram", "draft_model"], "model": "OTHER"
    },
    "suffix, ngram, draft_model": {
        "method": ["suffix", "ngram", "draft_model"], "num_speculative_tokens": 4,
        "controller": "off",
        "model": "self", "quantization": "int8",
    },
}  # fmt: skip
TOKEN_ONLY = [name for name in METHODS if not drafter_class(name).needs.host]
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


@pytest.fixture(scope="module")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("other"), layers=1, seed=1, sharpness=4.0)


def setting(name: str, other_path: Path) -> dict[str, Any]:
    config = (METHODS | LISTS)[name]
    return config | {"model": str(other_path)} if config.get("model") == "OTHER" else config


@pytest.mark.parametrize("method", TOKEN_ONLY)
def test_deterministic_and_within_bounds(method: str) -> None:
    assert play(build(method), 1) == play(build(method), 1)
    assert any(d.tokens for drafts in play(build(method), 1) for d in drafts)


@pytest.mark.parametrize("method", TOKEN_ONLY)
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


@pytest.mark.parametrize("method", TOKEN_ONLY)
def test_clear_makes_it_as_new(method: str) -> None:
    drafter = build(method)
    first = play(drafter, 3)
    for number in range(3):
        drafter.release(number)
    drafter.clear()
    assert play(drafter, 3) == first


MODES: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1, "prefix_cache": False},
    "batch of 8": {"max_num_seqs": 8},
    "chunked prompts": {"max_num_seqs": 4, "max_batch_tokens": 24},
    "preempted": {
        "max_num_seqs": 8, "max_model_len": 128, "kv_memory": 18 * 2 * 16 * 2 * 2 * 16 * 4
    },
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("method", [*METHODS, *LISTS])
def test_exact_output(
    method: str, temperature: float, mode: str, make_llm: Callable[..., LLM], other_path: Path
) -> None:
    """Every request twice: the second time from the prefix cache, and from what was learnt."""
    llm = make_llm(**MODES[mode])
    requests = [
        (p, SamplingParams(temperature=temperature, seed=i, max_tokens=20, ignore_eos=i % 2 == 0))
        for i, p in enumerate(prompts(12, VOCAB, 2))
    ]
    plain = run_all(llm, requests)
    llm.set_speculation(setting(method, other_path))
    for _ in range(2):
        for expected, found in zip(plain, run_all(llm, requests), strict=True):
            assert found.token_ids == expected.token_ids
            assert found.finish_reason == expected.finish_reason
    assert llm.engine.stats.counts.accepted > 0
    assert llm.engine.stats.drafter_failures == 0
    if mode == "preempted":
        assert llm.engine.scheduler.preemptions > 0


@pytest.mark.parametrize("method", [*METHODS, *LISTS])
def test_aborts_spare_the_others(
    method: str, make_llm: Callable[..., LLM], other_path: Path
) -> None:
    llm = make_llm(max_num_seqs=8)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=24, ignore_eos=True)
    texts = prompts(8, VOCAB, 4)
    plain = [run_all(llm, [(text, params)])[0].token_ids for text in texts]
    llm.set_speculation(setting(method, other_path))
    engine = llm.engine
    names = [engine.add_request(text, params) for text in texts]
    found: dict[str, list[int]] = {name: [] for name in names}
    steps = 0
    while engine.has_work():
        for output in engine.step():
            found[output.request_id] += output.outputs[0].token_ids
        steps += 1
        if steps in (1, 3, 5):
            engine.abort(names[steps])
    for index, name in enumerate(names):
        if index in (1, 3, 5):
            assert found[name] == plain[index][: len(found[name])]
        else:
            assert found[name] == plain[index]
    assert engine.pool.in_use == 0
