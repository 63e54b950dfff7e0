"""A model in 4 bits, from its file to its tokens."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recipes import ngram, prompts, run_all
from tests.tiny_gguf import write_tiny_gguf
from wager import LLM, SamplingParams


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("q4_1") / "m.gguf", tensor_type="Q4_1"))


def test_auto_still_takes_8_bits(path: str) -> None:
    with LLM(path, threads=1) as llm:
        assert llm.model.weights == "int8"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_in_a_batch_changes_no_token(path: str, temperature: float) -> None:
    asked = [
        (prompt, SamplingParams(temperature=temperature, seed=seed, max_tokens=24))
        for seed, prompt in enumerate(prompts(12, vocab=288, seed=3))
    ]
    with LLM(path, weights="int4", threads=1, max_num_seqs=1, prefix_cache=False) as llm:
        plain = [answer.token_ids for answer in run_all(llm, asked)]
    for threads in (1, 3):
        with LLM(path, weights="int4", threads=threads, max_num_seqs=6, max_batch_tokens=32,
                 speculation=ngram(6, low=1), check_integrity=True) as llm:  # fmt: skip
            assert [answer.token_ids for answer in run_all(llm, asked)] == plain
            assert llm.engine.stats.counts.drafted > 0


def test_no_further_from_f32_than_int8(path: str) -> None:
    """The layers are those of the file exactly; at int8 they are rounded once more."""
    ids = [token for prompt in prompts(6, vocab=288, seed=5) for token in prompt][:200]
    logits = {}
    for weights in ("f32", "int8", "int4"):
        with LLM(path, weights=weights, threads=1, kv="f32") as llm:
            logits[weights] = llm.logits(ids)
    error = {kind: float(np.square(logits[kind] - logits["f32"]).mean()) for kind in logits}
    assert 0.0 < error["int4"] < 1.2 * error["int8"]
