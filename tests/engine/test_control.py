"""The controller inside the engine: exact, bounded, and told what it is told."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.control.cheap import Cheap, cheapen
from tests.recipes import ngram, prompts, recipe, run_all
from wager import LLM, SamplingParams
from wager.engine.bets import Bets
from wager.engine.control.noloss import NoLoss
from wager.errors import RequestError

V = 288
METHODS: dict[str, dict[str, Any]] = {
    "auto": {"method": "auto"},
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
    "ngram_gpu": {"method": "ngram_gpu", "prompt_lookup_min": 1},
    "model": {"method": "draft_model", "model": "self", "quantization": "int8"},
    "all": {
        "method": ["ngram", "suffix", "draft_model"], "model": "self", "quantization": "int8",
    },
}  # fmt: skip


@pytest.fixture
def make_cheap(make_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    def make(**options: Any) -> LLM:
        llm = make_llm(**options)
        cheapen(llm)
        return llm

    return make


def controller(llm: LLM) -> NoLoss:
    bets = llm.engine.bets
    assert bets is not None
    assert isinstance(bets.controller, NoLoss)
    return bets.controller


def requests(count: int, tokens: int = 40, **params: Any) -> list[tuple[list[int], SamplingParams]]:
    return [
        (prompt, SamplingParams(max_tokens=tokens, ignore_eos=True, seed=n, **params))
        for n, prompt in enumerate(prompts(count, V, 5))
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", METHODS)
def test_every_answer_is_that_of_plain_decoding(
    name: str, temperature: float, make_cheap: Callable[..., LLM], make_llm: Callable[..., LLM]
) -> None:
    asked = requests(24, temperature=temperature)
    plain = run_all(make_llm(max_num_seqs=6), asked)
    llm = make_cheap(max_num_seqs=6, speculation=METHODS[name])
    found = run_all(llm, asked)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    if temperature == 0.0:
        assert llm.engine.stats.counts.drafted > 50
    alone = [run_all(llm, [one])[0].token_ids for one in asked[:4]]
    assert alone == [one.token_ids for one in plain[:4]]


def test_with_aborts_and_preemption(
    make_cheap: Callable[..., LLM], make_llm: Callable[..., LLM]
) -> None:
    plain = run_all(make_llm(max_model_len=128, max_num_seqs=8), requests(16))
    llm = make_cheap(
        max_model_len=128, max_num_seqs=8, kv_memory=24 * 16384, speculation=METHODS["auto"]
    )
    engine = llm.engine
    rng = random.Random(4)
    names = {engine.add_request(p, s): n for n, (p, s) in enumerate(requests(16))}
    told: dict[int, list[int]] = {}
    gone = set()
    while engine.has_work():
        for output in engine.step():
            told.setdefault(names[output.request_id], []).extend(output.outputs[0].token_ids)
        if rng.random() < 0.03:
            gone.add(victim := rng.choice(list(names)))
            engine.abort(victim)
    for name, number in names.items():
        expected = plain[number].token_ids
        found = told.get(number, [])
        assert found == (expected[: len(found)] if name in gone else expected)
    # Nothing is kept of requests that are over.
    assert not controller(llm).acceptance._requests


def test_what_is_never_right_costs_a_few_drafts(make_cheap: Callable[..., LLM]) -> None:
    setting = {**recipe("Garbage", 8, constant=5), "controller": "on"}
    llm = make_cheap(max_num_seqs=4, speculation=setting)
    run_all(llm, requests(24, tokens=60, temperature=1.0))
    counts = llm.engine.stats.counts
    assert counts.drafted < 0.05 * counts.committed
    assert controller(llm).decisions.reasons.total() > 300


def test_steps_of_rest_may_be_told_together(
    make_cheap: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller comes to the same as if it had been asked, and told, step by step."""
    asked: list[int] = []
    looks = NoLoss.looks
    monkeypatch.setattr(Cheap, "look_ms", 0.4)
    monkeypatch.setattr(NoLoss, "looks", lambda *a: (asked.append(1), looks(*a))[1])
    found = []
    for together in (True, False):
        if not together:
            monkeypatch.setattr(Bets, "_rest", lambda self, works: None)
        asked.clear()
        setting = {**recipe("Garbage", 8, constant=5), "controller": "on"}
        llm = make_cheap(max_num_seqs=3, speculation=setting)
        run_all(llm, requests(9, tokens=200, temperature=1.0))
        one = controller(llm)
        found.append((len(asked), one.decisions.reasons, one.account.balance, one.account.gained))
    (few, *together_told), (many, *told) = found
    assert together_told[0] == told[0]
    assert together_told[1:] == pytest.approx(told[1:], abs=0.001)
    assert together_told[0].total() == many
    assert many - few > 50


def test_rejection_is_controlled_too(make_cheap: Callable[..., LLM]) -> None:
    setting = {**METHODS["model"], "verify": "rejection"}
    llm = make_cheap(max_num_seqs=4, speculation=setting)
    run_all(llm, requests(24, tokens=60, temperature=0.7))
    assert llm.engine.stats.counts.accepted > 50


# One request's own wishes


def test_a_request_can_do_without(make_cheap: Callable[..., LLM]) -> None:
    for setting in (METHODS["ngram"], ngram(6, low=1)):
        llm = make_cheap(speculation=METHODS["ngram"])
        llm.set_speculation(setting)
        if setting is METHODS["ngram"]:
            cheapen(llm)
        prompt = prompts(1, V, 1, (60, 60))[0]
        for own, drafted in ((None, True), ({"enabled": False}, False), ({"enabled": True}, True)):
            llm.engine.stats.reset()
            run_all(llm, [(prompt, greedy(own))])
            assert (llm.engine.stats.counts.drafted > 0) == drafted


def test_a_request_can_ask_for_fewer(make_cheap: Callable[..., LLM]) -> None:
    for setting in (METHODS["auto"], ngram(6, low=1)):
        llm = make_cheap(speculation=METHODS["auto"])
        llm.set_speculation(setting)
        if setting is METHODS["auto"]:
            cheapen(llm)
        prompt = prompts(1, V, 1, (60, 60))[0]
        run_all(llm, [(prompt, greedy({"num_speculative_tokens": 2}))])
        assert 0 < len(llm.engine.stats.counts.drafted_at) <= 2


def test_a_request_can_ask_for_one_method(make_cheap: Callable[..., LLM]) -> None:
    llm = make_cheap(speculation=METHODS["auto"])
    prompt = prompts(1, V, 1, (60, 60))[0]
    for method in ("ngram", "suffix"):
        llm.engine.stats.reset()
        run_all(llm, [(prompt, greedy({"method": method}))] * 3)
        assert {s.split()[0] for s in llm.engine.stats.by_source} == {method}


def greedy(own: dict[str, Any] | None) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, speculation=own)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"enabled": "no"}, "enabled must be true or false"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"k": 4}, "unknown key 'k'"),
        ("off", "must be an object"),
        ({"method": 3}, "method must be a name"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(own: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        SamplingParams(speculation=own)


def test_a_wish_that_the_engine_cannot_grant_is_refused(make_llm: Callable[..., LLM]) -> None:
    plain, llm = make_llm(), make_llm(speculation=ngram(4, low=1))
    with pytest.raises(RequestError, match="decodes plainly"):
        plain.engine.add_request([5, 6], greedy({"method": "ngram"}))
    with pytest.raises(RequestError, match="drafts at most 4"):
        llm.engine.add_request([5, 6], greedy({"num_speculative_tokens": 5}))
    with pytest.raises(RequestError, match="not one of this engine's: ngram"):
        llm.engine.add_request([5, 6], greedy({"method": "suffix"}))
    assert not plain.engine.has_work()
    assert not llm.engine.has_work()


# State


def test_resetting_the_caches_forgets_what_was_learnt(make_cheap: Callable[..., LLM]) -> None:
    llm = make_cheap(speculation=METHODS["ngram"])
    run_all(llm, requests(4))
    before = controller(llm)
    assert before.decisions.reasons
    llm.reset_caches()
    assert controller(llm) is not before
    assert not controller(llm).decisions.reasons


def test_a_drafter_that_breaks_stops_no_bets(make_cheap: Callable[..., LLM]) -> None:
    setting = {
        **METHODS["ngram"], "method": ["tests.recipes:Raising", "ngram"], "options": {"after": 6},
    }  # fmt: skip
    llm = make_cheap(max_num_seqs=4, speculation=setting)
    run_all(llm, requests(8))
    drafters = llm.engine.drafters
    assert drafters is not None
    assert llm.engine.stats.drafter_failures == drafters.failures > 0
    assert llm.engine.stats.by_source["ngram"].drafted > 0
