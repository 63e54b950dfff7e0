"""Speculation never changes a token, whatever a model computes: a part of the grid of
`tests.e2e.test_exactness` over every family, with windows that end inside prompts and drafts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_exactness import MODES
from tests.parity import tiny_cases
from tests.recipes import ngram, prompts, recipe, run_all, twin
from tests.tiny import write_tiny_hf
from tests.tiny_weights import TINY_FAMILIES
from wager import LLM, SamplingParams
from wager.models.load import open_checkpoint
from wager.runtime.target import kv_block_bytes
from wager.types import CompletionOutput

PROMPTS = 12
TEMPERATURES = (0.0, 0.7)
ARCHITECTURES: dict[str, dict[str, Any]] = {family: {"family": family} for family in TINY_FAMILIES}
ARCHITECTURES |= {
    "biases": tiny_cases.LLAMA["biases"],
    "longrope": tiny_cases.FAMILIES["phi3_long"],
    "yarn": tiny_cases.LLAMA["rope_yarn"],
}
WINDOWS = {"mistral": 24, "qwen2": 24, "phi3": 40, "gemma2": 20, "gemma3": 20}


def requests(temperature: float) -> list[tuple[list[int], SamplingParams]]:
    return [
        (
            prompt,
            SamplingParams(
                temperature=temperature, seed=index, max_tokens=8 + index * 7 % 17, ignore_eos=True
            ),
        )
        for index, prompt in enumerate(prompts(PROMPTS, vocab=288, seed=11))
    ]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"sharpness": 4.0, **ARCHITECTURES[request.param]}
    return write_tiny_hf(tmp_path_factory.mktemp(request.param), seed=1, **options)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[dict[float, list[CompletionOutput]]]:
    with LLM(
        str(model), weights="f32", threads=1, prefix_cache=False, max_num_seqs=1,
        check_integrity=True,
    ) as llm:  # fmt: skip
        yield {temperature: run_all(llm, requests(temperature)) for temperature in TEMPERATURES}


@pytest.mark.parametrize("mode", MODES)
def test_ids_equal_plain_decoding(
    mode: str, model: Path, plain: dict[float, list[CompletionOutput]]
) -> None:
    options = dict(MODES[mode])
    blocks = options.pop("kv_pool_blocks", None)
    if blocks is not None:
        options["kv_memory"] = blocks * kv_block_bytes(open_checkpoint(str(model)).config, "f32")
    with LLM(
        str(model), weights="f32", threads=1, max_model_len=128, check_integrity=True,
        speculation=ngram(6, low=1, high=4), **options,
    ) as llm:  # fmt: skip
        for temperature in TEMPERATURES:
            for index, found in enumerate(run_all(llm, requests(temperature))):
                assert found.token_ids == plain[temperature][index].token_ids, index
        counts = llm.engine.stats.counts
        assert 0 < counts.accepted < counts.drafted
        if mode == "prefix hit":
            # The same prompts again: every block of theirs is there.
            run_all(llm, requests(0.0))
            assert llm.engine.stats.cached_tokens > 0
        if mode == "preempted":
            assert llm.engine.scheduler.preemptions > 0
        assert llm.engine.pool.in_use == 0


@pytest.mark.parametrize("family", WINDOWS)
def test_refused_drafts_at_the_edge_of_a_window(family: str, tmp_path: Path) -> None:
    """Whichever draft token is the first that a window leaves something behind for, and whichever
    is refused: log-probabilities too are those of plain decoding, to the bit."""
    path = write_tiny_hf(tmp_path, family=family, seed=2, sharpness=4.0)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=2)
    with LLM(str(path), weights="f32", threads=1, check_integrity=True) as llm:
        for length in range(WINDOWS[family] - 9, WINDOWS[family] + 2):
            prompt = prompts(3, vocab=288, seed=length, lengths=(length, length))[2]
            llm.set_speculation(None)
            text = prompt + llm.generate([prompt], params)[0].outputs[0].token_ids
            for wrong in (2, 3, 7):
                setting = recipe("Oracle", 8, texts=[text], wrong_every=wrong)
                llm.engine.stats.reset()
                twin(llm, setting, prompt, params)
                counts = llm.engine.stats.counts
                assert 0 < counts.accepted < counts.drafted
