"""Many requests at once: each equals its solo run, whatever the others do."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.recipes import answer, assert_same, ngram, prompts, recipe, run_all
from wager import LLM, SamplingParams
from wager.drafters.base import DraftQuery
from wager.types import Draft, RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=2)


def solo(llm: LLM, requests: list[tuple[list[int], SamplingParams]]) -> list:
    llm.set_speculation(None)
    return [answer(llm, p, s) for p, s in requests]


def test_random_interleavings_of_drafting_and_free_requests(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(prefix_cache=False, max_num_seqs=8, max_batch_tokens=64)
    rng = random.Random(3)
    lengths = [3, 200, 17, 64, 5, 120, 33, 80]
    requests = []
    for index, length in enumerate(lengths):
        prompt = (
            [9 + index, 10 + index] * length
            if index % 2
            else list(rng.choices(range(288), k=length))
        )
        requests.append((prompt[:length], replace(GREEDY, max_tokens=10 + index)))
    expected = solo(llm, requests)
    llm.set_speculation(ngram(8, low=1))
    for _ in range(20):
        order = list(range(len(requests)))
        rng.shuffle(order)
        arrivals = {index: rng.randrange(12) for index in order}
        found = interleaved(llm, requests, order, arrivals)
        for index, plain in enumerate(expected):
            assert_same(plain, found[index])
    assert llm.engine.stats.counts.accepted > 0


def interleaved(llm: LLM, requests: list, order: list[int], arrivals: dict[int, int]) -> dict:
    from wager.engine.llm import Collector

    collectors = {str(i): Collector() for i in order}
    step = 0
    pending = list(order)
    while pending or llm.engine.has_work():
        for index in [i for i in pending if arrivals[i] <= step]:
            llm.engine.add_request(*requests[index], request_id=str(index))
            pending.remove(index)
        for output in llm.engine.step():
            collectors[output.request_id].add(output)
        step += 1
    return {int(name): c.output().outputs[0] for name, c in collectors.items()}


def test_repeated_words_beside_a_mate_that_never_drafts(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=2)
    rng = random.Random(5)
    mate = rng.sample(range(3, 288), 60)
    requests = [([3 + word] * 40, replace(GREEDY, max_tokens=16)) for word in range(0, 250, 5)]
    expected = solo(llm, requests)
    llm.set_speculation(ngram(4, low=2, high=5))
    alone = [answer(llm, p, s) for p, s in requests]
    own = replace(GREEDY, speculation={"enabled": False})
    pairs = [run_all(llm, [(mate, own), request]) for request in requests]
    assert sum(other.counts.drafted for other, _ in pairs) == 0
    paired = [one for _, one in pairs]
    for found in (alone, paired):
        assert sum(one.counts.accepted for one in found) > 0
    for plain, one, two in zip(expected, alone, paired, strict=True):
        assert_same(plain, one)
        assert_same(plain, two)


def test_a_batch_without_any_draft(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    requests = [(p, replace(GREEDY, max_tokens=12)) for p in prompts(10, 288, 4)]
    expected = solo(llm, requests)
    llm.set_speculation(recipe("Oracle", 4, texts=[]))
    bets = llm.engine.bets
    assert bets is not None
    asked: list[int] = []
    propose = bets.drafters.propose

    def heard(queries: Sequence[DraftQuery]) -> list[Draft]:
        asked.append(len(queries))
        return propose(queries)

    bets.drafters.propose = heard  # type: ignore[method-assign]
    for plain, one in zip(expected, run_all(llm, requests), strict=True):
        assert_same(plain, one)
    assert max(asked) > 1
    assert llm.engine.stats.counts.drafted == 0


def test_seeds_hold_in_any_company(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(4, low=1))
    hot = SamplingParams(temperature=1.5, max_tokens=20, seed=42)
    prompt = [40, 41, 42, 40, 41, 42]
    first = answer(llm, prompt, hot)
    noise = [(p, SamplingParams(max_tokens=30, seed=i)) for i, p in enumerate(prompts(7, 288, 1))]
    for _ in range(3):
        assert_same(first, answer(llm, prompt, hot))
        assert_same(first, run_all(llm, [*noise, (prompt, hot)])[-1])
    others = {tuple(answer(llm, prompt, replace(hot, seed=s)).token_ids) for s in range(43, 48)}
    assert tuple(first.token_ids) not in others
    assert len(others) == 5
    unseeded = {tuple(answer(llm, prompt, replace(hot, seed=None)).token_ids) for _ in range(4)}
    assert len(unseeded) > 1


def test_seeds_do_not_matter_to_greedy_requests(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(5, low=1))
    short, long = [5, 6, 7], [8, 9] * 40
    expected = solo(llm, [(short, GREEDY), (long, GREEDY)])
    llm.set_speculation(ngram(5, low=1))
    stop = llm.tokenizer.decode(expected[1].token_ids[-2:])
    for seeds in [(1, 2), (3, 3)]:
        pair = [(p, replace(GREEDY, seed=s)) for p, s in zip((short, long), seeds, strict=True)]
        for plain, one in zip(expected, run_all(llm, pair), strict=True):
            assert_same(plain, one)
    stopped = run_all(
        llm, [(short, replace(GREEDY, seed=1)), (long, replace(GREEDY, seed=2, stop=(stop,)))]
    )
    assert stopped[0].token_ids == expected[0].token_ids


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_preemption_while_drafts_are_in_flight(make_llm: Callable[..., LLM], k: int) -> None:
    roomy = make_llm(max_model_len=208)
    params = SamplingParams(temperature=0.8, max_tokens=100, ignore_eos=True)
    requests = [(p, replace(params, seed=i)) for i, p in enumerate(prompts(10, 288, 4, (100, 100)))]
    expected = solo(roomy, requests)
    block = 2 * 16 * 2 * 2 * 16 * 4
    llm = make_llm(max_model_len=208, kv_memory=20 * block, max_num_seqs=10)
    llm.set_speculation(ngram(k, low=1) if k else None)
    found = run_all(llm, requests)
    for plain, one in zip(expected, found, strict=True):
        assert one.token_ids == plain.token_ids
    assert llm.engine.scheduler.preemptions > 0
    assert llm.engine.pool.in_use == 0


def test_choices_differ_and_equal_their_solo_runs(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    params = SamplingParams(temperature=1.0, seed=3, n=4, max_tokens=12, ignore_eos=True)
    prompt = [50, 51, 52] * 8
    plain = llm.generate([prompt], params)[0].outputs
    assert len({tuple(c.token_ids) for c in plain}) == 4
    llm.set_speculation(ngram(4, low=1))
    for expected, found in zip(plain, llm.generate([prompt], params)[0].outputs, strict=True):
        assert found.index == expected.index
        assert_same(expected, found)
    single = answer(llm, prompt, replace(params, n=1))
    assert_same(plain[0], single)


def test_aborts_at_any_time_leave_the_others_alone(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=4, max_batch_tokens=32)
    requests = [(p, replace(GREEDY, logprobs=None)) for p in prompts(12, 288, 6)]
    expected = solo(llm, requests)
    llm.set_speculation(ngram(4, low=1))
    rng = random.Random(1)
    for _ in range(15):
        doomed = {str(i): rng.randrange(25) for i in rng.sample(range(12), 6)}
        outputs: dict[str, list[RequestOutput]] = {str(i): [] for i in range(12)}
        for index, (prompt, params) in enumerate(requests):
            llm.engine.add_request(prompt, params, request_id=str(index))
        step = 0
        while llm.engine.has_work():
            for name in [n for n, when in doomed.items() if when == step]:
                llm.engine.abort(name)
            for output in llm.engine.step():
                outputs[output.request_id].append(output)
            step += 1
        for name, pieces in outputs.items():
            ids = [t for piece in pieces for c in piece.outputs for t in c.token_ids]
            last = pieces[-1].outputs[0]
            assert pieces[-1].finished
            assert sum(piece.finished for piece in pieces) == 1
            if last.finish_reason == "abort":
                assert name in doomed
                assert ids == expected[int(name)].token_ids[: len(ids)]
            else:
                assert ids == expected[int(name)].token_ids
        assert llm.engine.pool.in_use == 0
    llm.engine.abort("nobody")


@pytest.mark.parametrize(
    "speculation",
    [
        recipe("Garbage", 4, constant=7),
        recipe("Garbage", 9),
        recipe("Outside", 4),
        recipe("Raising", 4, after=5),
        recipe("Greedy", 3),
    ],
    ids=lambda s: str(s["method"]).rpartition(":")[2],
)
def test_a_bad_drafter_costs_speed_and_nothing_else(
    make_llm: Callable[..., LLM], speculation: dict, caplog: pytest.LogCaptureFixture
) -> None:
    llm = make_llm(max_num_seqs=4)
    requests = [(p, replace(GREEDY, logprobs=None, max_tokens=12)) for p in prompts(10, 288, 8)]
    expected = solo(llm, requests)
    llm.set_speculation(speculation)
    with caplog.at_level(logging.WARNING):
        found = run_all(llm, requests)
    for plain, one in zip(expected, found, strict=True):
        assert_same(plain, one)
    stats = llm.engine.stats
    if speculation["method"].endswith(("Outside", "Raising")):
        assert stats.drafter_failures > 0
        assert "drafting is off" in caplog.text
    else:
        assert stats.drafter_failures == 0
        assert stats.counts.drafted > 0


def test_every_step_commits_for_every_sampled_request(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=recipe("Garbage", 6), max_num_seqs=3)
    for prompt in prompts(5, 288, 9):
        llm.engine.add_request(prompt, GREEDY)
    steps = 0
    while llm.engine.has_work():
        before = llm.engine.stats.counts.committed
        llm.engine.step()
        steps += 1
        assert llm.engine.stats.counts.committed > before or llm.engine.stats.prefill_steps
    # Nothing is drafted over and over: no run takes more steps than plain decoding.
    assert steps <= 5 * GREEDY.max_tokens + 5  # type: ignore[operator]


class BadFor:
    """An op set whose logits turn unusable for one choice at one position."""

    def __init__(self, ops: Any, choice: int, position: int) -> None:
        self._ops, self._choice, self._position = ops, choice, position

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def select(self, row: Any, params: Any, position: int) -> int:
        if params.choice == self._choice and position == self._position:
            raise ValueError("logits: NaN or +inf")
        return int(self._ops.select(row, params, position))


def test_bad_logits_end_one_choice_and_spare_the_others(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    params = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=6, ignore_eos=True)
    prompt = [50, 51, 52] * 8
    plain = llm.generate([prompt], params)[0].outputs
    known = [prompt + choice.token_ids for choice in plain]
    ops = llm.model.ops
    # At the last position the others end in the same step; before it they go on.
    for position in (len(prompt) + 2, len(prompt) + 5):
        llm.model.ops = BadFor(ops, 1, position)  # type: ignore[assignment]
        for speculation in (None, recipe("Oracle", 4, texts=known)):
            llm.set_speculation(speculation)
            found = llm.generate([prompt], params)[0].outputs
            assert_same(plain[0], found[0])
            assert_same(plain[2], found[2])
            assert found[1].finish_reason == "abort"
            assert found[1].token_ids == plain[1].token_ids[: position - len(prompt)]
            assert len(found[1].accepted_flags) == len(found[1].token_ids)
            assert llm.engine.pool.in_use == 0
            assert not llm.engine.has_work()
    llm.model.ops = ops


def test_counters_start_anew_after_a_reset(make_llm: Callable[..., LLM]) -> None:
    block = 2 * 16 * 2 * 2 * 16 * 4
    llm = make_llm(max_model_len=208, kv_memory=20 * block, max_num_seqs=10)
    llm.set_speculation(recipe("Outside", 4))
    long = replace(GREEDY, max_tokens=100)
    run_all(llm, [(p, long) for p in prompts(10, 288, 4, (100, 100))])
    assert llm.engine.stats.preemptions == llm.engine.scheduler.preemptions > 0
    assert llm.engine.stats.drafter_failures > 0
    llm.engine.stats.reset()
    llm.set_speculation(None)
    run_all(llm, [([5, 6, 7], GREEDY)])
    assert llm.engine.stats.preemptions == 0
    assert llm.engine.stats.drafter_failures == 0
