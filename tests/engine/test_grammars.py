"""Grammars through the engine: always valid, with every kind of drafter, many at once."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import answer, assert_same, ngram, recipe, run_all, twin
from tests.sampling.test_grammar_processes import LATER
from wager import LLM, AsyncLLM, SamplingParams
from wager.config import StructuredOutput
from wager.errors import RequestError
from wager.sampling import grammar, grammar_links
from wager.sampling.grammar import prepare
from wager.sampling.grammar_links import Forked
from wager.sampling.grammar_messages import Limits
from wager.types import FORM_FAULT

SCHEMA = {
    "type": "object",
    "properties": {
        "status": {"enum": ["open", "closed", "n/a"]},
        "a": {"type": "integer", "minimum": 0, "maximum": 99_999},
        "b": {"type": "integer", "minimum": -9, "maximum": 999},
        "c": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["status", "a", "b", "c"],
    "additionalProperties": False,
}
JSON = StructuredOutput("json_schema", json.dumps(SCHEMA))
PARAMS = SamplingParams(temperature=1.0, seed=2, max_tokens=300, structured=JSON, logprobs=1)
PREFIX = '{"status": "open", "a": 12, "b": 3, "c": 4}\n' * 3


def check(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert list(found) == ["status", "a", "b", "c"]
    assert found["status"] in ("open", "closed", "n/a")
    assert 0 <= found["a"] <= 99_999
    assert -9 <= found["b"] <= 999
    assert 1 <= found["c"] <= 5
    return dict(found)


def requests(llm: LLM, count: int, **changes: Any) -> list[tuple[list[int], SamplingParams]]:
    """A long shared beginning, with what n-gram drafters like."""
    rng = random.Random(1)
    return [
        (
            llm.tokenizer.encode(f"{PREFIX}{rng.choice('abc')}{index} ", add_special=False),
            replace(PARAMS, seed=index, temperature=(0.0, 0.7, 1.0)[index % 3], **changes),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("memory", [None, 40])
def test_sixteen_at_once_are_all_valid(make_llm: Callable[..., LLM], memory: int | None) -> None:
    options = {} if memory is None else {"kv_memory": memory * 8192, "max_model_len": 496}
    llm = make_llm(max_num_seqs=16, **options)
    asked = requests(llm, 16)
    plain = run_all(llm, asked)
    for one in plain:
        check(one.text)
        assert one.finish_reason == "stop"
    for setting in (ngram(5, low=1), ngram(5, low=2, high=4), recipe("Garbage", 5, constant=2)):
        llm.set_speculation(setting)
        for found, one in zip(run_all(llm, asked), plain, strict=True):
            assert_same(one, found)
    assert llm.engine.stats.counts.accepted > 0
    assert llm.engine.pool.in_use == 0


def test_drafts_that_end_too_early(make_llm: Callable[..., LLM]) -> None:
    """An end token is drafted at places all over the answer."""
    llm = make_llm()
    prompt, params = requests(llm, 1)[0]
    known = answer(llm, prompt, params).token_ids
    texts = [[*prompt, *known[:place], 2] for place in range(0, len(known), 5)]
    for text in texts:
        twin(llm, recipe("Oracle", 5, texts=[text]), prompt, params)
    oracle = recipe("Oracle", 8, texts=[[*prompt, *known, *known]])
    _, found = twin(llm, oracle, prompt, params)
    assert found.counts.accepted >= len(known) - 1 - found.counts.steps


@pytest.mark.parametrize("setting", ["own", "two methods"])
def test_a_draft_model_drafts_within_the_grammar(
    make_llm: Callable[..., LLM], tiny_path: Path, setting: str
) -> None:
    llm = make_llm()
    config: dict[str, Any] = {
        "method": "draft_model", "model": str(tiny_path),
        "num_speculative_tokens": 6, "controller": "off",
    }  # fmt: skip
    if setting != "own":
        config |= {"method": ["ngram", "draft_model"], "prompt_lookup_min": 2}
    for prompt, params in requests(llm, 6):
        plain, found = twin(llm, config, prompt, params)
        check(plain.text)
        if setting == "own":
            assert found.counts.drafted - found.counts.accepted <= 6
        assert found.counts.accepted > 0
    assert llm.engine.stats.drafter_failures == 0


@pytest.mark.parametrize("block", [False, True])
def test_rejection_gives_valid_answers(
    make_llm: Callable[..., LLM], tiny_path: Path, block: bool
) -> None:
    llm = make_llm(max_num_seqs=8)
    for method in (
        ngram(5, low=1),
        {
            "method": "draft_model", "model": "self", "quantization": "int8",
            "num_speculative_tokens": 4, "controller": "off",
        },
    ):  # fmt: skip
        llm.set_speculation({**method, "verify": "rejection", "block_verification": block})
        for found in run_all(llm, requests(llm, 12)):
            check(found.text)
            assert found.finish_reason == "stop"
        assert llm.engine.stats.counts.accepted > 0


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        (StructuredOutput("choice", ("red", "green", "bl\u00fce \U0001f600")), "red|green|bl.e ."),
        (StructuredOutput("regex", "[a-z]{2,8}@[a-z]{1,5}\\.com"), "[a-z]{2,8}@[a-z]{1,5}.com"),
        (
            StructuredOutput(
                "grammar", 'start: "(" NUMBER ("+" NUMBER)* ")"\nNUMBER: /[0-9]{1,3}/'
            ),
            r"\(\d{1,3}(\+\d{1,3})*\)",
        ),
        (StructuredOutput("json_object"), r"\{.*\}"),
    ],
)
def test_other_kinds(
    make_llm: Callable[..., LLM], structured: StructuredOutput, pattern: str
) -> None:
    llm = make_llm()
    prompt = llm.tokenizer.encode("red green (1+2+3) a@b.com {} ", add_special=False)
    for seed in range(6):
        params = SamplingParams(
            temperature=0.7, seed=seed, max_tokens=120, structured=structured, n=2, logprobs=0
        )
        (plain,) = llm.generate([prompt], params)
        llm.set_speculation(ngram(6, low=1))
        (found,) = llm.generate([prompt], params)
        llm.set_speculation(None)
        for one, other in zip(plain.outputs, found.outputs, strict=True):
            assert_same(one, other)
            if one.finish_reason == "stop":
                assert re.fullmatch(pattern, one.text, re.DOTALL)


def test_ignored_end_tokens_and_min_tokens(make_llm: Callable[..., LLM]) -> None:
    """A satisfied grammar ends the answer all the same."""
    llm = make_llm()
    prompt, params = requests(llm, 1)[0]
    for changes in ({"ignore_eos": True}, {"min_tokens": 200}):
        plain, _ = twin(llm, ngram(5, low=1), prompt, replace(params, **changes))
        check(plain.text)
        assert (plain.finish_reason, plain.stop_reason) == ("stop", None)


def test_a_stream_under_a_grammar_is_the_whole_answer(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(5, low=1))
    prompt, params = requests(llm, 1)[0]
    whole = answer(llm, prompt, params)
    pieces = [piece.outputs[0] for piece in llm.stream(prompt, params)]
    assert "".join(p.text for p in pieces) == whole.text
    assert pieces[-1].finish_reason == "stop"


def test_a_prepared_grammar_costs_the_engine_nothing(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm()
    structured = StructuredOutput("regex", "[a-c]{5}")
    prepare(llm.tokenizer, llm.model.generation.eos_ids, structured)
    monkeypatch.setattr(Forked, "compiled", None)
    params = SamplingParams(structured=structured, max_tokens=9, n=3)
    (found,) = llm.generate([[5, 6, 7]], params)
    assert all(re.fullmatch("[a-c]{5}", one.text) for one in found.outputs)


def test_the_engine_s_thread_compiles_nothing(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many grammars there are: those that find no place wait, and the others go on."""
    monkeypatch.setattr(grammar_links, "LIVE", 2)
    threads: list[str] = []
    real = Forked.compiled

    def noted(self: Forked, structured: StructuredOutput, patience_s: float) -> None:
        threads.append(threading.current_thread().name)
        real(self, structured, patience_s)

    monkeypatch.setattr(Forked, "compiled", noted)
    patterns = [f"[a-{last}]{{{count}}}" for last in "bcd" for count in (3, 7)]

    async def ask(llm: AsyncLLM, pattern: str) -> str:
        params = SamplingParams(
            structured=StructuredOutput("regex", pattern), max_tokens=20, seed=1, n=2
        )
        found = await llm.generate([5, 6, 7], params)
        assert all(re.fullmatch(pattern, one.text) for one in found.outputs)
        return found.outputs[0].text

    async def main() -> None:
        async with AsyncLLM(make_llm(max_num_seqs=4)) as llm:
            first = await asyncio.gather(*(ask(llm, pattern) for pattern in patterns))
            again = await asyncio.gather(*(ask(llm, pattern) for pattern in patterns))
            assert first == again

    asyncio.run(main())
    assert len(threads) >= len(patterns)
    assert "wager-engine" not in threads


@pytest.mark.parametrize("setting", [None, ngram(5, low=1)])
def test_a_hostile_grammar_ends_alone(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, setting: Any
) -> None:
    """Behind what compiling it shows."""
    monkeypatch.setattr(grammar, "LIMITS", Limits(burst_s=0.3))
    llm = make_llm(max_num_seqs=8)
    asked = requests(llm, 4)
    plain = run_all(llm, asked)
    llm.set_speculation(setting)
    hostile = SamplingParams(structured=LATER, max_tokens=30)
    found = run_all(llm, [asked[0], ([5, 6], hostile), *asked[1:], ([7], hostile)])
    for other in (found.pop(1), found.pop()):
        assert (other.text, other.finish_reason) == ("b", "abort")
        assert str(other.stop_reason).startswith(f"{FORM_FAULT}: the grammar takes too long")
    for one, other in zip(plain, found, strict=True):
        assert_same(one, other)
    with pytest.raises(RequestError, match="takes too long to follow"):
        llm.generate([[5]], hostile)
