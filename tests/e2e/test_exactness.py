"""Speculation never changes a token: the full grid on a tiny model.

200 prompts x {k in {1, 4, 8, 16}, the controller} x temperature in {0, 0.7, 1} x {alone, in a
shifting batch, after a prefix hit, with a chunked prompt, preempted}, with f32 and int8 weights.
The yardstick is plain decoding, alone, in one piece, without a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.control.cheap import cheapen
from tests.recipes import ngram, prompts, run_all
from wager import LLM, SamplingParams
from wager.types import CompletionOutput

PROMPTS = 200
DRAFT_LENGTHS = (1, 4, 8, 16)
TEMPERATURES = (0.0, 0.7, 1.0)
WEIGHTS = ("f32", "int8")

MODES: dict[str, dict[str, Any]] = {
    "alone": {"prefix_cache": False, "max_num_seqs": 1},
    "shifting batch": {"prefix_cache": False, "max_num_seqs": 8},
    "prefix hit": {"prefix_cache": True, "max_num_seqs": 8, "kv_pool_blocks": 4000},
    "chunked prompt": {"prefix_cache": False, "max_num_seqs": 8, "max_batch_tokens": 24},
    "preempted": {"prefix_cache": True, "max_num_seqs": 8, "kv_pool_blocks": 14},
}


def requests(temperature: float) -> list[tuple[list[int], SamplingParams]]:
    """Seeded; lengths differ, so that the batch shifts. At temperature 0.7 the filters join in."""
    made = []
    for index, prompt in enumerate(prompts(PROMPTS, vocab=288, seed=7)):
        params = SamplingParams(
            temperature=temperature,
            seed=index,
            max_tokens=8 + (index * 7) % 17,
            ignore_eos=index % 2 == 0,
        )
        if temperature == 0.7:
            params = replace(params, top_k=(0, 40, 5)[index % 3], top_p=(1.0, 0.9)[index % 2])
        made.append((prompt, params))
    return made


@pytest.fixture(scope="module")
def plain_answers(tiny_path: Any) -> dict[tuple[str, float], list[CompletionOutput]]:
    answers = {}
    for weights in WEIGHTS:
        with LLM(
            str(tiny_path), weights=weights, threads=1, prefix_cache=False, max_num_seqs=1,
            check_integrity=True,
        ) as llm:  # fmt: skip
            for temperature in TEMPERATURES:
                answers[weights, temperature] = run_all(llm, requests(temperature))
            assert llm.engine.stats.counts.drafted == 0
    return answers


def settings(controlled: bool) -> list[dict[str, Any]]:
    """Fixed draft lengths, or any length, by two methods, where the controller expects a gain."""
    if controlled:
        return [{"method": "auto", "prompt_lookup_min": 1}]
    return [ngram(k, low=1, high=4) for k in DRAFT_LENGTHS]


@pytest.mark.parametrize("controlled", [False, True], ids=["controller off", "controller on"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("mode", MODES)
def test_ids_equal_plain_decoding(
    mode: str,
    weights: str,
    controlled: bool,
    make_llm: Callable[..., LLM],
    plain_answers: dict[tuple[str, float], list[CompletionOutput]],
) -> None:
    options = dict(MODES[mode])
    blocks = options.pop("kv_pool_blocks", None)
    if blocks is not None:
        width = 4 if weights == "f32" else 2
        options["kv_memory"] = blocks * 2 * 16 * 2 * 2 * 16 * width
        options["max_model_len"] = 128
    llm = make_llm(weights=weights, **options)
    for setting in settings(controlled):
        llm.set_speculation(setting)
        if controlled:
            cheapen(llm)
        for temperature in TEMPERATURES:
            llm.engine.stats.reset()
            found = run_all(llm, requests(temperature))
            for index, plain in enumerate(plain_answers[weights, temperature]):
                assert found[index].token_ids == plain.token_ids, (setting, temperature, index)
                assert found[index].finish_reason == plain.finish_reason
            assert llm.engine.stats.counts.accepted > 0, "no draft was ever accepted"
            assert llm.engine.stats.counts.accepted < llm.engine.stats.counts.drafted
    if mode == "prefix hit":
        assert llm.engine.stats.cached_tokens > 0
    if mode == "chunked prompt":
        assert llm.engine.stats.prefill_steps > PROMPTS
    if mode == "preempted":
        assert llm.engine.scheduler.preemptions > 50
    assert llm.engine.pool.in_use == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_token(
    threads: int,
    make_llm: Callable[..., LLM],
    plain_answers: dict[tuple[str, float], list[CompletionOutput]],
) -> None:
    llm = make_llm(weights="int8", threads=threads, speculation=ngram(8, low=1))
    found = run_all(llm, requests(0.7)[:40])
    for answer, plain in zip(found, plain_answers["int8", 0.7], strict=False):
        assert answer.token_ids == plain.token_ids
