"""`verify: rejection` over the engine: drafts change tokens, never their distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.control.cheap import cheapen
from tests.recipes import answer, ngram
from tests.sampling.chi_square import excess_of_two
from tests.tiny import write_tiny_hf
from wager import LLM, SamplingParams

# Half of the vocabulary, each token once: behind some tokens there is a match, behind others none.
PROMPT = list(range(4, 288, 2))
CHOICES = 128
REQUESTS = 24


@pytest.fixture(scope="module")
def cut_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's embedding and its first layer: right now and then."""
    return write_tiny_hf(tmp_path_factory.mktemp("cut"), layers=1, seed=1, sharpness=4.0)


def outcomes(llm: LLM, first_seed: int, temperature: float = 1.5) -> Counter[tuple[int, ...]]:
    """Answers of four tokens, of 3072 choices. The first token is sampled behind the prompt, the
    next two can be drafted."""
    params = [
        SamplingParams(
            temperature=temperature, top_k=3, seed=first_seed + i, n=CHOICES, max_tokens=4,
            ignore_eos=True,
        )
        for i in range(REQUESTS)
    ]  # fmt: skip
    outputs = llm.generate([PROMPT] * REQUESTS, params)
    return Counter(tuple(one.token_ids) for output in outputs for one in output.outputs)


@pytest.fixture(scope="module")
def plain(tiny_path: Path) -> Counter[tuple[int, ...]]:
    with LLM(str(tiny_path), threads=1, weights="f32") as llm:
        found = outcomes(llm, 10_000)
        # Two temperatures that differ by little are told apart.
        assert excess_of_two(found, outcomes(llm, 20_000)) < 1.0
        assert excess_of_two(found, outcomes(llm, 30_000, 1.8)) > 1.0
    return found


OWN = {"method": "draft_model", "model": "self", "quantization": "int8"}
CUT = {
    "method": ["ngram", "draft_model"], "model": "CUT",
    "prompt_lookup_min": 1, "prompt_lookup_max": 2,
}  # fmt: skip
BOTH = {**CUT, **OWN, "method": CUT["method"]}
SURE = {**OWN, "draft_min_token_prob": 0.5}


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(
    ("setting", "controller"),
    [
        pytest.param(OWN, "off", id="own weights"),
        pytest.param(CUT, "off", id="n-gram and another model"),
        pytest.param(SURE, "off", id="where it is sure"),
        # A controller soon leaves the other model alone, which is hardly ever right.
        pytest.param(OWN, "on", id="own weights, controlled"),
        pytest.param(BOTH, "on", id="n-gram and own weights, controlled"),
        pytest.param(SURE, "on", id="where it is sure, controlled"),
    ],
)
def test_the_distribution_is_that_of_plain_sampling(
    setting: dict[str, Any], block: bool, controller: str, plain: Counter[tuple[int, ...]],
    tiny_path: Path, cut_path: Path,
) -> None:  # fmt: skip
    """With the noise, the batches and the shared blocks of the engine."""
    setting = {
        **setting, "num_speculative_tokens": 3, "controller": controller,
        "verify": "rejection", "block_verification": block,
    }  # fmt: skip
    if setting["model"] == "CUT":
        setting["model"] = str(cut_path)
    with LLM(str(tiny_path), threads=1, weights="f32", speculation=setting) as llm:
        if controller == "on":
            # Enough for probes of the model, beside another method, in so short a run.
            cheapen(llm, saved=1e6)
        found = outcomes(llm, 0)
        by_source = llm.engine.stats.by_source
        assert 0 < by_source["draft_model"].accepted < by_source["draft_model"].drafted
        if controller == "off":
            assert ("ngram" in by_source) == (setting["method"] == CUT["method"])
        assert llm.engine.stats.drafter_failures == 0
    assert excess_of_two(plain, found) < 1.0


def test_at_temperature_0_it_is_exact(make_llm: Callable[..., LLM], cut_path: Path) -> None:
    llm = make_llm()
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    expected = answer(llm, PROMPT, params)
    for block in (False, True):
        for method in (ngram(4, low=1), {
            "method": "draft_model", "num_speculative_tokens": 4, "controller": "off",
            "model": str(cut_path),
        }):  # fmt: skip
            llm.set_speculation({**method, "verify": "rejection", "block_verification": block})
            assert answer(llm, PROMPT, params).token_ids == expected.token_ids
    assert llm.engine.stats.counts.drafted > 0


def test_a_seed_gives_the_same_answer_twice(make_llm: Callable[..., LLM], cut_path: Path) -> None:
    """Under the same setting, alone: not what plain decoding gives under it."""
    llm = make_llm(speculation={
        "method": "draft_model", "num_speculative_tokens": 3, "controller": "off",
        "model": str(cut_path),
        "verify": "rejection",
    })  # fmt: skip
    params = SamplingParams(temperature=1.5, seed=5, max_tokens=30, ignore_eos=True)
    answers = [answer(llm, PROMPT, params).token_ids for _ in range(2)]
    assert answers[0] == answers[1]
    llm.set_speculation(None)
    assert answer(llm, PROMPT, params).token_ids != answers[0]
