"""Greedy tokens of wager in float32 beside those of llama.cpp and vLLM, both speculating.

Two engines sum in different orders, so their logits differ in the last digits. A token may differ
only where the two best logits are closer than that; how far they are apart where the tokens first
part is in the message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from benchmarks.peers import ask

from tests.parity import cases
from wager import LLM, SamplingParams
from wager.backend import Prompt
from wager.external.server import ServerBackend

pytestmark = [pytest.mark.engines, pytest.mark.model]

TOKENS = 48
NOISE = 0.01
"""Logits of two float32 engines on this model: 2e-4 apart at most in tests/parity, and llama.cpp
computes attention in its own way."""
CHOSEN = (0, 1, 3, 8, 10, 12, 14, 16, 18, 19)


@pytest.fixture(scope="module")
def llm() -> LLM:
    speculation = {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    return LLM("smollm2-135m", speculation=speculation, weights="f32", max_model_len=2048)


def ours(llm: LLM, prompts: Sequence[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    return [answer.outputs[0].token_ids for answer in llm.generate(prompts, params)]


def parting(llm: LLM, prompt: list[int], mine: list[int], theirs: list[int]) -> str | None:
    """What to say where two answers part for another reason than noise; None where all is well.

    An engine may or may not hand out the end token itself.
    """
    ends = llm.model.generation.eos_ids
    mine, theirs = ([t for t in tokens if t not in ends] for tokens in (mine, theirs))
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if at is None:
        at = min(len(mine), len(theirs))
        if len(mine) == len(theirs):
            return None
    best = np.sort(llm.logits([*prompt, *mine[:at]])[-1])[-2:]
    gap = float(best[1] - best[0])
    return None if gap < NOISE else f"token {at}, top-2 logit gap {gap:.4f}"


def prompt_of(ids: list[int], name: str = "p", **params: object) -> Prompt:
    sampling = SamplingParams(temperature=0.0, **{"max_tokens": TOKENS, **params})  # type: ignore[arg-type]
    return Prompt(name, sampling, token_ids=tuple(ids))


def tokens(server: ServerBackend, ids: list[int]) -> list[int]:
    """The ids of a whole answer; llama-server's streams leave some out, its other answers none."""
    prompt = prompt_of(ids)
    if server.name == "llamacpp":
        path, body = server.request(prompt)
        return list(server.post(path, body | {"stream": False})["tokens"])
    (answer,) = ask(server, [prompt])
    assert answer.token_ids is not None
    return answer.token_ids


def compare(server: ServerBackend, llm: LLM) -> None:
    prompts = [llm.tokenizer.encode(cases.PROMPTS[i], add_special=False) for i in CHOSEN]
    answers = ours(llm, prompts)
    parted = {}
    for index, prompt, mine in zip(CHOSEN, prompts, answers, strict=True):
        if found := parting(llm, prompt, mine, tokens(server, prompt)):
            parted[index] = found
    assert not parted


def speculates(server: ServerBackend, llm: LLM) -> None:
    before = server.counters()
    ids = llm.tokenizer.encode(cases.PROMPTS[18], add_special=False)
    (answer,) = ask(server, [prompt_of(ids, ignore_eos=True)])
    counted = server.counters().since(before)
    assert answer.tokens == TOKENS
    assert counted.generated == TOKENS
    assert counted.accepted is not None
    assert counted.drafted is not None
    assert 0 < counted.accepted <= counted.drafted


def test_llama_answers_the_same(llama: ServerBackend, llm: LLM) -> None:
    compare(llama, llm)


def test_llama_speculates(llama: ServerBackend, llm: LLM) -> None:
    speculates(llama, llm)


def test_llama_serves_several_at_once(llama: ServerBackend, llm: LLM) -> None:
    prompts = [
        prompt_of(
            llm.tokenizer.encode(cases.PROMPTS[i], add_special=False),
            str(i),
            max_tokens=8,
            ignore_eos=True,
        )
        for i in CHOSEN[:4]
    ]
    assert [answer.tokens for answer in ask(llama, prompts)] == [8] * 4


def test_llama_cuts_text_as_wager_does(llama: ServerBackend, llm: LLM) -> None:
    for text in cases.PROMPTS:
        theirs = llama.post("/tokenize", {"content": text})["tokens"]
        assert llm.tokenizer.encode(text, add_special=False) == theirs, text[:40]


def test_vllm_answers_the_same(vllm: ServerBackend, llm: LLM) -> None:
    compare(vllm, llm)


def test_vllm_speculates(vllm: ServerBackend, llm: LLM) -> None:
    speculates(vllm, llm)
