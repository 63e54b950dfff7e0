"""The library's front door: batches, streams, asyncio, and refusals in one clear line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import ngram, prompts
from wager import LLM, AsyncLLM, EngineConfig, SamplingParams, SpeculationConfig
from wager.errors import ConfigError, RequestError, WagerError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def test_a_stream_adds_up_to_the_whole(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(4, low=1))
    prompt = [30, 31, 32] * 6
    whole = llm.generate([prompt], GREEDY)[0].outputs[0]
    pieces = [piece.outputs[0] for piece in llm.stream(prompt, GREEDY)]
    assert [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert "".join(p.text for p in pieces) == whole.text
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"


def test_leaving_a_stream_aborts_it(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    for _ in llm.stream([5, 6, 7], GREEDY):
        break
    assert not llm.engine.has_work()
    assert llm.engine.pool.in_use == 0
    assert llm.engine.stats.aborted == 1


def test_text_prompts_and_chats(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    by_text, by_ids = (
        llm.generate(p, GREEDY)[0] for p in ("the cat", [llm.tokenizer.encode("the cat")])
    )
    assert by_text.outputs[0].token_ids == by_ids.outputs[0].token_ids
    answer = llm.chat([{"role": "user", "content": "hello"}], GREEDY)
    assert len(answer.outputs[0].token_ids) == 12
    assert answer.first_token_s is not None
    assert answer.total_s is not None
    assert 0 < answer.first_token_s <= answer.total_s


def test_defaults_come_from_the_model(make_llm: Callable[..., LLM]) -> None:
    own = make_llm().default_params()
    assert (own.temperature, own.top_k, own.top_p) == (0.8, 40, 0.95)


def test_a_second_run_hits_the_prefix_cache_until_it_is_reset(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    prompt = list(range(40, 90))
    assert llm.generate([prompt], GREEDY)[0].cached_tokens == 0
    assert llm.generate([prompt], GREEDY)[0].cached_tokens == 48
    llm.reset_caches()
    assert llm.generate([prompt], GREEDY)[0].cached_tokens == 0


def test_salts_do_not_share(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    prompt = list(range(40, 90))
    cached = []
    for salt in ("a", "b", "a"):
        llm.engine.add_request(prompt, GREEDY, cache_salt=salt)
        while llm.engine.has_work():
            cached += [o.cached_tokens for o in llm.engine.step() if o.finished]
    assert cached == [0, 0, 48]


def test_logits_do_not_depend_on_chunks(make_llm: Callable[..., LLM]) -> None:
    ids = prompts(1, 288, 3, (100, 100))[0]
    whole = make_llm().logits(ids)
    pieces = make_llm(max_batch_tokens=32).logits(ids)
    assert whole.shape == (100, 288)
    assert (whole == pieces).all()


def test_asyncio_requests_share_batches(tiny_path: Path, make_llm: Callable[..., LLM]) -> None:
    batch = prompts(6, 288, 5)
    expected = [o.outputs[0].token_ids for o in make_llm().generate(batch, GREEDY)]

    async def run() -> None:
        options: dict[str, Any] = {"weights": "f32", "threads": 1, "check_integrity": True}
        async with AsyncLLM(str(tiny_path), speculation=ngram(4, low=1), **options) as llm:
            answers = await asyncio.gather(*(llm.generate(p, GREEDY) for p in batch))
            assert [a.outputs[0].token_ids for a in answers] == expected
            assert llm.llm.engine.stats.steps < 6 * 13
            with pytest.raises(RequestError, match="prompt"):
                await llm.generate([])
            stream = llm.stream(batch[0], SamplingParams(max_tokens=400, ignore_eos=True))
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
            again = await llm.generate(batch[1], GREEDY)
            assert again.outputs[0].token_ids == expected[1]
        with pytest.raises(ConfigError, match="closed"):
            await llm.generate(batch[0], GREEDY)

    asyncio.run(run())


def test_a_broken_engine_leaves_no_asyncio_caller_waiting(tiny_path: Path) -> None:
    async def run() -> None:
        llm = AsyncLLM(str(tiny_path), weights="f32", threads=1)
        with pytest.raises(AttributeError):
            await asyncio.wait_for(llm.generate([5, 6], {"n": 1}), 20)  # type: ignore[arg-type]
        assert len((await llm.generate([5, 6], GREEDY)).outputs[0].token_ids) == 12

        def broken() -> None:
            raise RuntimeError("the step broke")

        llm.llm.engine.step = broken  # type: ignore[method-assign, assignment]
        both = (llm.generate([5, 6], GREEDY), llm.generate([7, 8], GREEDY))
        found = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 20)
        errors = [f for f in found if isinstance(f, ConfigError)]
        assert len(errors) == 2
        assert any(isinstance(error.__cause__, RuntimeError) for error in errors)
        with pytest.raises(ConfigError, match="closed"):
            await asyncio.wait_for(llm.generate([5, 6], GREEDY), 20)
        await llm.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], GREEDY, "prompt: is empty"),
        ("", GREEDY, "prompt: is empty"),
        ([5] * 64, GREEDY, "prompt: 64 tokens, but the context holds 64"),
        ([5, 288], GREEDY, "prompt: token 288 is outside the vocabulary of 288"),
        ([-1], GREEDY, "prompt: token -1"),
        ([5], SamplingParams(stop_token_ids=(999,)), "stop_token_ids: 999"),
    ],
)
def test_bad_requests_are_refused_and_the_others_go_on(
    make_llm: Callable[..., LLM], prompt: Any, params: SamplingParams, message: str
) -> None:
    llm = make_llm(max_model_len=64)
    before = llm.generate([[7, 8, 9]], GREEDY)[0].outputs[0].token_ids
    with pytest.raises(RequestError, match=message):
        llm.generate([[7, 8, 9], prompt], [GREEDY, params])
    assert llm.engine.pool.in_use == 0
    assert not llm.engine.has_work()
    assert llm.generate([[7, 8, 9]], GREEDY)[0].outputs[0].token_ids == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int3"}, "weights: must be one of"),
        ({"threads": 0}, "threads: must be at least 1"),
        ({"max_model_len": 4096}, "max_model_len: must be from 1 to 512.*got 4096"),
        ({"kv_memory": 1000}, "kv_memory: 1000 bytes hold 0 tokens"),
        ({"kv_memory": 1 << 60}, "kv_memory: .* MiB free"),
        ({"max_num_seqs": 64, "max_batch_tokens": 32}, "max_num_seqs: 64 .*max_batch_tokens: 32"),
        ({"blocksize": 16}, "blocksize: is not an engine option"),
        ({"config": EngineConfig(), "threads": 1}, "config: given together with threads"),
        (
            {"speculation": {"method": "ngram", "num_speculative_tokens": 0}},
            "num_speculative_tokens",
        ),
        ({"speculation": {"method": "oracle", "num_speculative_tokens": 2}}, "method: 'oracle'"),
        (
            {"speculation": {"method": "nowhere:Nothing", "num_speculative_tokens": 2}},
            "method: cannot load",
        ),
    ],
)
def test_bad_options_are_refused_by_name(
    tiny_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(WagerError, match=message) as caught:
        LLM(str(tiny_path), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ({}, '"method" is missing'),
        ({"method": "ngram", "controller": "off"}, '"num_speculative_tokens" is missing'),
        ({"method": "ngram", "controller": "maybe"}, "controller: must be one of on, off"),
        ({"method": "ngram", "loss_budget": 2}, "loss_budget: must be at least 0 and at most 1"),
        ({"method": "ngram", "objective": "fun"}, "objective: must be one of throughput"),
        ({**ngram(2), "objective": "latency"}, "objective: is for"),
        ({"method": "ngram", "num_speculative_tokens": 2, "k": 3}, "unknown key 'k'"),
        ({"method": "ngram", "num_speculative_tokens": 2.5}, "num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens"),
        (ngram(2, low=5, high=3), "prompt_lookup_min: 5 is larger than prompt_lookup_max: 3"),
        (ngram(2, low=0), "prompt_lookup_min"),
        ({**ngram(2), "match": "best"}, "match: must be one of"),
        ({**ngram(2), "verify": "guess"}, "verify: must be one of"),
        ({**ngram(2), "block_verification": True}, '"verify": "rejection"'),
        ({**ngram(2), "options": {}}, "unknown key 'options'"),
        ({**ngram(2), "method": []}, "method: the list is empty"),
        ({**ngram(2), "method": ["ngram", "ngram"]}, "named twice"),
        ({**ngram(2), "method": ["ngram", 3]}, "must be the name"),
        ({**ngram(2), "cyclic": 1}, "cyclic"),
    ],
)
def test_bad_speculation_is_refused_by_name(raw: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        SpeculationConfig.parse(raw)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "bounds"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt-lookup-min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ],
)
def test_lookup_bounds_are_completed_as_in_vllm(
    raw: dict[str, int], bounds: tuple[int, int]
) -> None:
    config = SpeculationConfig.parse({"method": "ngram", "num_speculative_tokens": 3, **raw})
    assert config is not None
    assert config.methods[0].options.bounds == bounds


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 1 << 64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": [7]}, "stop"),
        ({"stop_token_ids": [-5]}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_bad_sampling_options_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: "):
        SamplingParams(**options)


def test_speculation_changes_only_while_idle(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    name = llm.engine.add_request([5, 6], GREEDY)
    with pytest.raises(ConfigError, match="set_speculation"):
        llm.set_speculation(ngram(2))
    with pytest.raises(ConfigError, match="reset_caches"):
        llm.reset_caches()
    with pytest.raises(RequestError, match="request_id"):
        llm.engine.add_request([5, 6], GREEDY, request_id=name)
    llm.engine.abort(name)
    llm.engine.step()
    llm.set_speculation(ngram(2))


def test_step_times_are_measured_for_speculation_and_kept(
    make_llm: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain decoding needs none: it starts without, and leaves none behind."""
    monkeypatch.setenv("WAGER_HOME", str(tmp_path))
    plain = make_llm()
    plain.generate([[5, 6]], GREEDY)
    assert not plain.engine.times.known
    plain.close()
    assert not list(tmp_path.rglob("costs/*.json"))

    llm = make_llm()
    llm.set_speculation(ngram(2))
    assert llm.engine.times.known
    (saved,) = tmp_path.rglob("costs/*.json")
    at_start = saved.read_text()
    assert len(llm.engine.costs.table(64)) > 5
    llm.set_speculation(None)
    llm.set_speculation(ngram(3))
    assert saved.read_text() == at_start
