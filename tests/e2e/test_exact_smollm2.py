"""Speculation never changes a token, on the real small model (`make exact`).

200 prompts (copy-like, repeated words, free text), each with two combinations of draft length,
temperature, weights and company drawn by a seed; 48 tokens each. A part of them is left to the
controller, which goes by the times that this machine takes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from tests.recipes import ngram, run_all
from wager import LLM, SamplingParams
from wager.bench.workloads.generated import chosen, prompts
from wager.bench.workloads.prompts import Prompt
from wager.errors import ModelError
from wager.types import CompletionOutput, WeightKind

pytestmark = [pytest.mark.exact, pytest.mark.model]

MODEL = "smollm2-135m"
PROMPTS = 200
MODES = ("alone", "batch of 8", "prefix hit", "chunked prompt", "preempted")
KINDS: tuple[WeightKind, ...] = ("f32", "int8")


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    params: SamplingParams
    k: int
    """0: the controller finds it."""
    mode: str
    weights: WeightKind


def texts(llm: LLM) -> list[list[int]]:
    """Copy-like, repeated words and free text in turn."""
    rng = random.Random(2024)
    words = ["river", "stone", "lamp", "forest", "copper", "window", "garden", "silver", "winter"]
    third = PROMPTS // 3 + 1
    copies, stories = (
        prompts(chosen([name])[0], third, llm.tokenizer.vocab_size) for name in ("copy", "story")
    )
    made = []
    for index in range(third):
        made.append(_ids(llm, copies[index]))
        made.append(llm.prompt_ids(f" {rng.choice(words)}" * rng.randint(10, 60)))
        made.append(_ids(llm, stories[index]))
    return made[:PROMPTS]


def _ids(llm: LLM, prompt: Prompt) -> list[int]:
    if prompt.messages is None:
        return llm.prompt_ids(prompt.text or "")
    return llm.chat_ids([{"role": role, "content": text} for role, text in prompt.messages])


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    try:
        with LLM(MODEL, weights="int8") as llm:
            drawn = texts(llm)
    except ModelError as error:
        pytest.fail(str(error))
    rng = random.Random(7)
    made = []
    for index, prompt in enumerate(drawn):
        for _ in range(2):
            params = SamplingParams(
                temperature=rng.choice([0.0, 0.7, 1.0]), seed=index, max_tokens=48, ignore_eos=True,
                top_p=rng.choice([1.0, 0.95]), top_k=rng.choice([0, 50]),
            )  # fmt: skip
            k = rng.choice([0, 1, 4, 8, 16])
            made.append(Case(prompt, params, k, rng.choice(MODES), rng.choice(KINDS)))
    return made


@pytest.fixture(scope="module")
def plain(cases: list[Case]) -> dict[int, CompletionOutput]:
    """Alone, in one piece, without a cache."""
    answers: dict[int, CompletionOutput] = {}
    for weights in KINDS:
        group = [i for i, case in enumerate(cases) if case.weights == weights]
        with LLM(MODEL, weights=weights, prefix_cache=False, max_num_seqs=1) as llm:
            outputs = run_all(llm, [(cases[i].prompt, cases[i].params) for i in group])
            answers.update(zip(group, outputs, strict=True))
    return answers


def options(mode: str, weights: WeightKind) -> dict[str, Any]:
    if mode == "alone":
        return {"prefix_cache": False, "max_num_seqs": 1}
    if mode == "chunked prompt":
        return {"prefix_cache": False, "max_num_seqs": 4, "max_batch_tokens": 48}
    if mode == "preempted":
        width = 4 if weights == "f32" else 2
        block = 2 * 16 * 30 * 3 * 64 * width
        return {"max_num_seqs": 8, "max_model_len": 1024, "kv_memory": 70 * block}
    return {"max_num_seqs": 8}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weights", KINDS)
def test_ids_equal_plain_decoding(
    weights: WeightKind, mode: str, cases: list[Case], plain: dict[int, CompletionOutput]
) -> None:
    mine = [i for i, c in enumerate(cases) if (c.weights, c.mode) == (weights, mode)]
    assert len(mine) > 10
    compared = 0
    with LLM(MODEL, weights=weights, check_integrity=True, **options(mode, weights)) as llm:
        for k in sorted({cases[i].k for i in mine}):
            llm.set_speculation(ngram(k, low=1) if k else {"method": "auto"})
            group = [i for i in mine if cases[i].k == k]
            requests = [(cases[i].prompt, cases[i].params) for i in group]
            if mode == "prefix hit":
                run_all(llm, requests)
            for index, found in zip(group, run_all(llm, requests), strict=True):
                assert found.token_ids == plain[index].token_ids, cases[index]
                compared += 1
        assert compared == len(mine)
        counts = llm.engine.stats.counts
        assert 0 < counts.accepted < counts.drafted
        if mode == "prefix hit":
            assert llm.engine.stats.cached_tokens > 0
        if mode == "preempted":
            assert llm.engine.stats.preemptions > 0
    print(f"{weights}, {mode}: {compared} of {compared} equal, {counts.accepted} drafts accepted")
