"""Every sampling option through the engine: with drafts, without, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import answer, assert_same, ngram, prompts, recipe, run_all, twin
from wager import LLM, SamplingParams
from wager.config import StructuredOutput
from wager.errors import RequestError

BLOCK_BYTES = 2 * 16 * 2 * 2 * 16 * 4
"""Of the tiny model."""
PROMPT = [10, 20, 30, 40, 50, 60] * 3
BASE = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=2, seed=3)
HOW: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0}}
OPTIONS: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 2.0},
    "negative frequency": {"frequency_penalty": -2.0},
    "repetition": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": {40: 8.0, 20: -100.0, 77: 3.0}},
    "allowed": {"allowed_token_ids": tuple(range(3, 90))},
    "bad words": {"bad_words": ("e", " t", "ab", "in", "0")},
    "min tokens": {"min_tokens": 10, "ignore_eos": False, "logit_bias": {2: 6.0}},
    "filters": {"top_k": 30, "top_p": 0.9, "min_p": 0.02},
    "prompt scores": {"prompt_logprobs": 2},
    "special text": {"skip_special_tokens": False, "logit_bias": {0: 7.0, 1: 7.0}},
    "regex": {"structured": StructuredOutput("regex", "[a-e ]{3,30}[0-9]+"), "ignore_eos": False},
    "all": {
        "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
        "logit_bias": {40: 2.0, 2: 3.0}, "bad_words": ("e",), "min_tokens": 5, "min_p": 0.01,
        "ignore_eos": False, "stop": ("zz",), "stop_token_ids": (99,),
        "structured": StructuredOutput("regex", "[a-z0-9 ]+"),
    },
}  # fmt: skip


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    return make_llm()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("option", OPTIONS)
def test_drafts_change_nothing(llm: LLM, option: str, how: str) -> None:
    """Ids, text, reasons and log-probabilities, with right, wrong and copied drafts."""
    params = replace(BASE, **OPTIONS[option], **HOW[how])
    known = answer(llm, PROMPT, params).token_ids
    texts = [PROMPT + known + [5] * 20]
    drafted = accepted = 0
    for setting in (
        recipe("Oracle", 4, texts=texts),
        recipe("Oracle", 16, texts=texts, wrong_every=5),
        recipe("Garbage", 6),
        recipe("Garbage", 3, constant=2),
        ngram(8, low=1),
    ):
        _, found = twin(llm, setting, PROMPT, params)
        drafted, accepted = drafted + found.counts.drafted, accepted + found.counts.accepted
    assert 0 < accepted < drafted


@pytest.mark.parametrize("verify", ["match", "rejection"])
def test_a_draft_model_sees_the_options(
    verify: str, make_llm: Callable[..., LLM], tiny_path: Path
) -> None:
    """With the target itself as the drafter every draft token is accepted, to the last: its picks
    behind its own draft are made under the same options."""
    llm = make_llm()
    setting = {
        "method": "draft_model", "num_speculative_tokens": 5, "controller": "off",
        "model": str(tiny_path), "verify": verify,
    }  # fmt: skip
    for option, changes in OPTIONS.items():
        params = replace(BASE, **changes, **HOW["sampled"])
        plain = answer(llm, PROMPT, params)
        llm.set_speculation(setting)
        found = answer(llm, PROMPT, params)
        llm.set_speculation(None)
        if verify == "match":
            assert_same(plain, found)
        assert found.counts.accepted > 0
        # Where the grammar ends is known only when it is reached: of the last draft some is lost.
        lost = found.counts.drafted - found.counts.accepted
        assert lost == 0 or (params.structured is not None and lost <= 5), option


def test_rejection_is_exact_where_nothing_is_drawn(llm: LLM) -> None:
    """At temperature 0, whatever the options: also where what is drafted is forbidden."""
    for changes in OPTIONS.values():
        params = replace(BASE, **changes, temperature=0.0)
        for block in (False, True):
            for setting in (ngram(4, low=1), recipe("Garbage", 4)):
                twin(
                    llm,
                    {**setting, "verify": "rejection", "block_verification": block},
                    PROMPT,
                    params,
                )


@pytest.mark.parametrize("option", ["allowed", "bad words", "regex", "bias"])
@pytest.mark.parametrize("block", [False, True])
def test_rejection_never_gives_what_is_excluded(llm: LLM, option: str, block: bool) -> None:
    """With sampling, and drafts that the options forbid."""
    params = replace(BASE, **OPTIONS[option], **HOW["sampled"])
    llm.set_speculation({**ngram(6, low=1), "verify": "rejection", "block_verification": block})
    for seed in range(20):
        found = answer(llm, PROMPT, replace(params, seed=seed))
        assert found.finish_reason in ("stop", "length")
        if option == "allowed":
            assert set(found.token_ids) <= set(range(3, 90))
        if option == "regex":
            assert set(found.text) <= set("abcde 0123456789")
        if option == "bad words":
            assert not set(found.token_ids) & {llm.tokenizer.encode("e", add_special=False)[0]}
        if option == "bias":
            assert 20 not in found.token_ids


@pytest.mark.parametrize("blocks", [None, 16])
def test_many_at_once_equal_their_solo_runs(
    make_llm: Callable[..., LLM], blocks: int | None
) -> None:
    """A shifting batch of all options, the second time with preemption."""
    memory = {} if blocks is None else {"kv_memory": blocks * BLOCK_BYTES, "max_model_len": 128}
    plain = make_llm(prefix_cache=False, max_num_seqs=1, max_model_len=128)
    llm = make_llm(max_num_seqs=8, max_batch_tokens=48, **memory)
    rng = random.Random(6)
    requests = []
    for index, prompt in enumerate(prompts(40, 288, 12, (5, 60))):
        options = list(OPTIONS.values())[index % len(OPTIONS)]
        how = {"temperature": rng.choice([0.0, 0.7, 1.0]), "seed": index}
        requests.append((prompt, replace(BASE, max_tokens=rng.randint(12, 40), **options, **how)))
    expected = run_all(plain, requests)
    for k in (1, 4, 16):
        llm.set_speculation(ngram(k, low=1))
        for found, one in zip(run_all(llm, requests), expected, strict=True):
            assert_same(one, found)
    assert llm.engine.stats.counts.accepted > 0
    assert llm.engine.pool.in_use == 0
    if blocks is not None:
        assert llm.engine.scheduler.preemptions > 0


def test_special_tokens_show_where_asked(llm: LLM) -> None:
    params = replace(BASE, temperature=0.0, max_tokens=3, allowed_token_ids=(1,))
    assert answer(llm, PROMPT, params).text == ""
    shown = answer(llm, PROMPT, replace(params, skip_special_tokens=False))
    assert shown.text == "<|im_start|>" * 3
    # A stop string may be made of them then.
    stopped = answer(llm, PROMPT, replace(params, skip_special_tokens=False, stop=("start|><|im",)))
    assert (stopped.text, stopped.finish_reason) == ("<|im_", "stop")


def test_an_end_token_stays_out_of_the_text(llm: LLM) -> None:
    params = replace(
        BASE, ignore_eos=False, allowed_token_ids=(2,), skip_special_tokens=False, temperature=0.0
    )
    assert answer(llm, PROMPT, params).text == ""
    assert (
        answer(llm, PROMPT, replace(params, include_stop_str_in_output=True)).text == "<|im_end|>"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_bias": {999_999: 5}}, "logit_bias: 999999 is outside the vocabulary of 288"),
        ({"logit_bias": {288: 1, 3: 1}}, "logit_bias: 288 is outside"),
        ({"allowed_token_ids": (5, 288)}, "allowed_token_ids: 288 is outside"),
        ({"stop_token_ids": (10**9,)}, "stop_token_ids: 1000000000 is outside"),
        ({"bad_words": ("a\x00b" * 50,)}, None),
        ({"structured": StructuredOutput("regex", "[a")}, "structured: .*unclosed"),
        ({"structured": StructuredOutput("json_schema", '{"type": "strin"}')}, "structured: "),
    ],
)
def test_what_cannot_be_served_is_refused_and_the_others_go_on(
    llm: LLM, options: dict[str, Any], message: str | None
) -> None:
    before = answer(llm, PROMPT, BASE)
    params = replace(BASE, **options)
    if message is None:
        answer(llm, PROMPT, params)
    else:
        with pytest.raises(RequestError, match=f"^{message}"):
            llm.generate([PROMPT, PROMPT], [BASE, params])
    assert not llm.engine.has_work()
    assert llm.engine.pool.in_use == 0
    assert_same(answer(llm, PROMPT, BASE), before)


@pytest.mark.parametrize("speculation", [None, ngram(4, low=1)], ids=["plain", "ngram"])
def test_options_that_leave_no_token_end_their_request_alone(
    make_llm: Callable[..., LLM], speculation: Any
) -> None:
    llm = make_llm(speculation=speculation)
    before = answer(llm, PROMPT, BASE)
    contradiction = replace(
        BASE, allowed_token_ids=(100,), structured=StructuredOutput("regex", "[ab]+")
    )
    late = replace(
        BASE,
        allowed_token_ids=tuple(llm.tokenizer.encode("a", add_special=False)),
        structured=StructuredOutput("regex", "aaab"),
    )
    found = run_all(llm, [(PROMPT, BASE), (PROMPT, contradiction), (PROMPT, late)])
    assert_same(found[0], before)
    assert [one.finish_reason for one in found] == ["length", "abort", "abort"]
    assert "every token is excluded" in str(found[1].stop_reason)
    assert (found[1].text, found[2].text) == ("", "aaa")
    assert len(found[2].accepted_flags) == len(found[2].token_ids) == 3
    assert llm.engine.pool.in_use == 0


@pytest.mark.parametrize("temperature", [1e50, 1e308])
def test_a_huge_temperature_beside_a_mask(make_llm: Callable[..., LLM], temperature: float) -> None:
    """What is picked is what is allowed, and the next step can be fed with it."""
    llm = make_llm()
    for allowed in ((5,), (6,), (7,), (8,), (4, 9, 130)):
        params = SamplingParams(
            temperature=temperature, seed=1, max_tokens=6, ignore_eos=True,
            allowed_token_ids=allowed,
        )  # fmt: skip
        plain, _ = twin(llm, ngram(3, low=1), [5, 6, 7], params)
        assert len(plain.token_ids) == 6
        assert set(plain.token_ids) <= set(allowed)
