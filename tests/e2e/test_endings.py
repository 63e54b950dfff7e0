"""Requests that end inside an accepted block: end tokens, stop ids, stop strings, budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.recipes import answer, assert_same, recipe, twin
from wager import LLM, SamplingParams

PROMPT = [10, 20, 30, 40, 50, 60]
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
# Sampled text of a random model is varied; under a seed its continuation is known all the same.
SAMPLED = SamplingParams(temperature=1.0, seed=11, max_tokens=48, ignore_eos=True)


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    return make_llm()


def continuation(llm: LLM, params: SamplingParams) -> list[int]:
    return answer(llm, PROMPT, params).token_ids


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("k", [1, 5, 16])
def test_stop_token_ids_inside_a_block(llm: LLM, k: int, params: SamplingParams) -> None:
    known = continuation(llm, params)
    oracle = recipe("Oracle", k, texts=[PROMPT + known])
    for index, token in enumerate(known):
        stopping = replace(params, stop_token_ids=(token,))
        plain, _ = twin(llm, oracle, PROMPT, stopping)
        first = known.index(token)
        assert len(plain.token_ids) == first + 1 <= index + 1
        assert plain.finish_reason == "stop"
        assert plain.stop_reason == token


def test_the_models_own_end_token_inside_a_block(llm: LLM) -> None:
    known = continuation(llm, SAMPLED)
    params = replace(SAMPLED, ignore_eos=False)
    oracle = recipe("Oracle", 5, texts=[PROMPT + known])
    for token in dict.fromkeys(known):
        llm.model.generation = replace(llm.model.generation, eos_ids=(token,))
        plain, _ = twin(llm, oracle, PROMPT, params)
        assert plain.token_ids == known[: known.index(token) + 1]
        assert plain.finish_reason == "stop"
        ignoring, _ = twin(llm, oracle, PROMPT, replace(params, ignore_eos=True))
        assert ignoring.token_ids == known


@pytest.mark.parametrize("k", [4, 20])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_stop_strings_inside_a_block(llm: LLM, k: int, width: int) -> None:
    known = continuation(llm, SAMPLED)
    oracle = recipe("Oracle", k, texts=[PROMPT + known])
    drafted = steps = 0
    for index in range(len(known) - width + 1):
        stop = llm.tokenizer.decode(known[index : index + width])
        if not stop or "\ufffd" in stop:
            continue
        for include in (False, True):
            params = replace(SAMPLED, stop=(stop,), include_stop_str_in_output=include)
            plain, speculative = twin(llm, oracle, PROMPT, params)
            assert plain.finish_reason == "stop"
            assert plain.stop_reason == stop
            assert plain.text.endswith(stop) == include or not include
            assert stop not in plain.text[: -len(stop)]
            drafted += speculative.counts.drafted
            steps += speculative.counts.drafted_steps
    assert drafted > steps > 0, "blocks of one token would prove nothing"


def test_a_one_character_stop_anywhere_in_a_long_accepted_run(llm: LLM) -> None:
    known = continuation(llm, SAMPLED)
    text = llm.tokenizer.decode(known)
    oracle = recipe("Oracle", 16, texts=[PROMPT + known])
    for character in dict.fromkeys(text.replace("\ufffd", "")):
        plain, _ = twin(llm, oracle, PROMPT, replace(SAMPLED, stop=(character,)))
        assert character not in plain.text


@pytest.mark.parametrize("k", [1, 4, 16])
def test_exactly_max_tokens_are_delivered_and_counted(llm: LLM, k: int) -> None:
    known = continuation(llm, GREEDY)
    oracle = recipe("Oracle", k, texts=[PROMPT + known])
    for budget in range(1, 17):
        params = replace(GREEDY, max_tokens=budget, logprobs=0)
        plain, speculative = twin(llm, oracle, PROMPT, params)
        assert len(plain.token_ids) == budget
        assert len(speculative.logprobs or []) == budget
        assert len(speculative.accepted_flags) == budget
        assert speculative.counts.committed == budget
        assert speculative.finish_reason == "length"


def test_min_tokens_hold_back_end_tokens_in_accepted_drafts(llm: LLM) -> None:
    known = continuation(llm, SAMPLED)
    end = known[2]
    llm.model.generation = replace(llm.model.generation, eos_ids=(end,))
    for minimum in range(1, 9):
        params = replace(SAMPLED, ignore_eos=False, min_tokens=minimum)
        llm.set_speculation(None)
        free = answer(llm, PROMPT, params)
        oracle = recipe("Oracle", 5, texts=[PROMPT + free.token_ids, PROMPT + known])
        plain, _ = twin(llm, oracle, PROMPT, params)
        assert end not in plain.token_ids[:minimum]
        assert len(plain.token_ids) > minimum
        if minimum <= 2:
            assert plain.token_ids == known[:3]


@pytest.mark.parametrize("k", [1, 7, 16])
def test_the_end_of_the_context_clips_a_block(make_llm: Callable[..., LLM], k: int) -> None:
    llm = make_llm(max_model_len=64)
    for length in range(44, 64):
        prompt = [77] * length
        params = replace(GREEDY, max_tokens=None)
        llm.set_speculation(None)
        known = answer(llm, prompt, params).token_ids
        oracle = recipe("Oracle", k, texts=[prompt + known + [5] * 20])
        plain, _ = twin(llm, oracle, prompt, params)
        assert len(prompt) + len(plain.token_ids) == 64
        assert plain.finish_reason == "length"
        garbage, _ = twin(llm, recipe("Garbage", k, constant=9), prompt, params)
        assert garbage.token_ids == plain.token_ids


def test_full_acceptance_takes_the_fewest_steps(llm: LLM) -> None:
    known = continuation(llm, GREEDY)
    for k in (1, 3, 8):
        llm.set_speculation(recipe("Oracle", k, texts=[PROMPT + known]))
        counts = answer(llm, PROMPT, GREEDY).counts
        # The first token comes with the prompt; then every step commits k + 1.
        assert counts.steps == 1 + -(-(len(known) - 1) // (k + 1))
        assert counts.drafted == counts.accepted
        assert counts.acceptance_rate == 1.0
        assert counts.acceptance_length is not None
        assert 1 < counts.acceptance_length <= k + 1
        llm.set_speculation(None)


def test_half_right_drafts_keep_rates_between_zero_and_one(llm: LLM) -> None:
    known = continuation(llm, SAMPLED)
    for every in (2, 3, 7):
        oracle = recipe("Oracle", 6, texts=[PROMPT + known], wrong_every=every)
        plain, speculative = twin(llm, oracle, PROMPT, SAMPLED)
        assert_same(plain, speculative)
        rate = speculative.counts.acceptance_rate
        assert rate is not None
        assert 0 < rate < 1
        assert sum(speculative.accepted_flags) == speculative.counts.accepted
