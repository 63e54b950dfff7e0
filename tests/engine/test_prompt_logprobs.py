"""Log-probabilities of the prompt: each row's own, whatever chunks, caches and preemptions do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.recipes import ngram, prompts, recipe
from wager import LLM, SamplingParams
from wager.engine import prompts as module
from wager.sampling.sampler import token_logprob
from wager.types import RequestOutput, TokenLogprob

BLOCK_BYTES = 2 * 16 * 2 * 2 * 16 * 4
"""Of the tiny model."""
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, prompt_logprobs=3)
CHUNK = 32


def by_definition(llm: LLM, prompt: list[int], count: int = 3) -> list[TokenLogprob | None]:
    """From the logits of all places, by the ordinary path."""
    rows = llm.logits(prompt)
    ops = llm.model.ops
    return [
        None,
        *(token_logprob(rows[i], prompt[i + 1], count, ops) for i in range(len(prompt) - 1)),
    ]


def answers(
    llm: LLM, batch: list[list[int]], params: SamplingParams = PARAMS
) -> list[RequestOutput]:
    return llm.generate(batch, params)


@pytest.mark.parametrize("speculation", [None, ngram(4, low=1)], ids=["plain", "ngram"])
def test_lengths_around_the_chunk(make_llm: Callable[..., LLM], speculation: Any) -> None:
    """8 prompts around the border, together and one by one."""
    llm = make_llm(max_batch_tokens=CHUNK, max_num_seqs=8, speculation=speculation)
    lengths = (1, 2, 31, 32, 33, 63, 64, 65)
    batch = [prompts(1, 288, length, (length, length))[0] for length in lengths]
    expected = [by_definition(llm, prompt) for prompt in batch]
    for found, entries, prompt in zip(answers(llm, batch), expected, batch, strict=True):
        assert found.prompt_logprobs == entries
        assert len(entries) == len(prompt)
    for prompt, entries in zip(batch, expected, strict=True):
        assert answers(llm, [prompt])[0].prompt_logprobs == entries


def test_the_values_are_those_of_a_log_softmax(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    prompt = prompts(1, 288, 2, (40, 40))[0]
    found = answers(llm, [prompt])[0].prompt_logprobs
    assert found is not None
    assert found[0] is None
    rows = llm.logits(prompt).astype(np.float64)
    for place, entry in enumerate(found[1:], start=1):
        assert entry is not None
        row = rows[place - 1]
        exact = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert entry.token_id == prompt[place]
        assert entry.logprob == pytest.approx(exact[prompt[place]], abs=1e-4)
        assert len(entry.top) == 3
        assert entry.top[0][1] == pytest.approx(exact.max(), abs=1e-4)


def test_a_cached_prefix_changes_nothing(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    prompt = prompts(2, 288, 3, (100, 100))[1]
    expected = by_definition(llm, prompt)
    without = replace(PARAMS, prompt_logprobs=None)
    assert llm.generate([prompt], without)[0].prompt_logprobs is None
    cached = llm.generate([prompt], without)[0]
    scored = answers(llm, [prompt])[0]
    assert cached.cached_tokens == 96
    assert scored.cached_tokens == 0
    assert scored.prompt_logprobs == expected
    assert scored.outputs[0].token_ids == cached.outputs[0].token_ids
    # What it computed serves others.
    assert llm.generate([prompt], without)[0].cached_tokens == 96


def test_a_preempted_prompt_goes_on_where_it_was(make_llm: Callable[..., LLM]) -> None:
    """Requests that lose their blocks in the middle of the prompt, and behind it."""
    llm = make_llm(
        max_model_len=128, max_num_seqs=6, max_batch_tokens=CHUNK, kv_memory=12 * BLOCK_BYTES
    )
    batch = prompts(12, 288, 4, (40, 90))
    expected = [by_definition(llm, prompt) for prompt in batch]
    params = replace(PARAMS, max_tokens=30)
    for speculation in (None, ngram(6, low=1)):
        llm.set_speculation(speculation)
        before = llm.engine.scheduler.preemptions
        for found, entries in zip(answers(llm, batch, params), expected, strict=True):
            assert found.prompt_logprobs == entries
            assert len(found.outputs[0].token_ids) == 30
        assert llm.engine.scheduler.preemptions > before
    assert llm.engine.pool.in_use == 0


def test_a_preempted_request_may_reuse_what_is_scored(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_batch_tokens=CHUNK)
    engine = llm.engine
    prompt = prompts(1, 288, 5, (100, 100))[0]
    name = engine.add_request(prompt, PARAMS)
    engine.step()
    engine.step()
    sequence = engine.scheduler.running[0]
    assert sequence.computed == 64
    assert len(sequence.request.prompt_logprobs or []) == 65
    engine.scheduler._preempt(sequence)
    engine.step()
    # 65 entries: rows from 64 on are wanted, so that four blocks may come from the cache.
    assert sequence.computed == 96
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    assert {o.request_id for o in outputs} == {name}
    assert outputs[0].prompt_logprobs == by_definition(llm, prompt)


def test_all_choices_share_them(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_batch_tokens=CHUNK)
    prompt = prompts(1, 288, 6, (70, 70))[0]
    (found,) = answers(llm, [prompt], replace(PARAMS, n=3, temperature=1.0, seed=1))
    assert found.prompt_logprobs == by_definition(llm, prompt)
    assert len(found.outputs) == 3


def test_they_come_once_with_the_first_tokens(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_batch_tokens=CHUNK)
    for length in (1, 100):
        prompt = prompts(1, 288, 7, (length, length))[0]
        pieces = list(llm.stream(prompt, PARAMS))
        assert pieces[0].outputs[0].token_ids
        assert pieces[0].prompt_logprobs == by_definition(llm, prompt)
        assert all(piece.prompt_logprobs is None for piece in pieces[1:])


def test_who_asks_for_none_beside_one_who_does(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_batch_tokens=64, max_num_seqs=4, speculation=recipe("Garbage", 3))
    batch = prompts(6, 288, 8, (20, 90))
    each = [replace(PARAMS, prompt_logprobs=(None, 0, 20)[i % 3]) for i in range(6)]
    for index, found in enumerate(llm.generate(batch, each)):
        count = each[index].prompt_logprobs
        expected = None if count is None else by_definition(llm, batch[index], count)
        assert found.prompt_logprobs == expected


def test_logits_come_in_pieces(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a chunk is, only so many rows of the vocabulary's width are there at a time."""
    llm = make_llm()
    prompt = prompts(1, 288, 9, (200, 200))[0]
    ops, sizes = llm.model.ops, []
    logits = ops.logits

    def watched(*arguments: Any) -> Any:
        sizes.append(len(arguments[4]))
        return logits(*arguments)

    monkeypatch.setattr(ops, "logits", watched)
    found = answers(llm, [prompt])[0].prompt_logprobs
    assert max(sizes) <= module.PIECE
    assert sum(sizes) == 199 + 4
    monkeypatch.undo()
    assert found == by_definition(llm, prompt)


def test_an_aborted_prompt_leaves_nothing(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_batch_tokens=CHUNK)
    prompt = prompts(1, 288, 10, (100, 100))[0]
    name = llm.engine.add_request(prompt, PARAMS)
    llm.engine.step()
    llm.engine.abort(name)
    (last,) = llm.engine.step()
    assert (last.finished, last.prompt_logprobs) == (True, None)
    assert llm.engine.pool.in_use == 0
    assert answers(llm, [prompt])[0].prompt_logprobs == by_definition(llm, prompt)


def test_logits_that_cannot_be_used_end_one_request(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm()
    batch = prompts(3, 288, 11, (30, 40))
    expected = [o.outputs[0].token_ids for o in answers(llm, batch)]
    score = module.score_prompt

    def failing(model: Any, vocab_size: int, work: Any, hidden: Any, first: int) -> None:
        if work.sequence.request.prompt_ids == batch[1]:
            raise ValueError("logits: NaN or +inf")
        score(model, vocab_size, work, hidden, first)

    monkeypatch.setattr("wager.engine.engine.score_prompt", failing)
    found = answers(llm, batch)
    reasons = [o.outputs[0].finish_reason for o in found]
    assert reasons == ["length", "abort", "length"]
    assert "NaN" in str(found[1].outputs[0].stop_reason)
    assert [found[i].outputs[0].token_ids for i in (0, 2)] == [expected[0], expected[2]]
    assert llm.engine.pool.in_use == 0
