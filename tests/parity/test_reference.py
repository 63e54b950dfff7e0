"""Logits and greedy tokens against those that transformers computed (tests/data, committed)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.parity import cases
from wager import LLM, SamplingParams

# A greedy token is defined by the model only where the best logit leads by more than two float32
# implementations differ. Twice the largest difference seen; the references keep clear of it.
NOISE = {"tiny": 5e-5, "smollm2": 1e-3}


def read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as arrays:
        return dict(arrays)


def continuation(llm: LLM, ids: NDArray[Any], count: int) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    return llm.generate([ids.tolist()], params)[0].outputs[0].token_ids


@pytest.mark.parametrize("ops", ["native", "reference"])
@pytest.mark.parametrize("name", list(cases.TINY))
def test_tiny_model(name: str, ops: str, tmp_path: Path) -> None:
    reference = read(cases.TINY_FILE)
    ids = cases.tiny_tokens(name)
    llm = LLM(str(cases.tiny_model(name, tmp_path / name)), weights="f32", ops=ops, threads=2)
    found = llm.logits(ids.tolist())[list(cases.TINY_POSITIONS)]
    assert np.abs(found - reference[f"{name}.logits"]).max() < cases.TOLERANCE
    assert continuation(llm, ids[:40], cases.TINY_GREEDY) == reference[f"{name}.greedy"].tolist()


@pytest.fixture(scope="module")
def smollm2() -> LLM:
    return LLM("smollm2-135m", weights="f32", max_model_len=2048)


@pytest.mark.model
@pytest.mark.parametrize("index", range(len(cases.PROMPTS)))
def test_smollm2(index: int, smollm2: LLM) -> None:
    reference = read(cases.SMOLLM2_FILE)
    ids = reference[f"{index}.prompt"]
    found = smollm2.logits(ids.tolist())[-1]
    difference = np.abs(found[reference[f"{index}.ids"]] - reference[f"{index}.logits"])
    assert difference.max() < cases.TOLERANCE
    assert set(np.argsort(-found)[:10]) <= set(reference[f"{index}.ids"][: cases.TOP_IDS])
    assert continuation(smollm2, ids, cases.GREEDY) == reference[f"{index}.greedy"].tolist()


@pytest.mark.model
def test_smollm2_prompts_in_one_batch(smollm2: LLM) -> None:
    """All twenty at once: the batch must not show in anybody's tokens."""
    reference = read(cases.SMOLLM2_FILE)
    prompts = [reference[f"{i}.prompt"].tolist() for i in range(len(cases.PROMPTS))]
    params = SamplingParams(temperature=0.0, max_tokens=cases.GREEDY, ignore_eos=True)
    for i, answer in enumerate(smollm2.generate(prompts, params)):
        assert answer.outputs[0].token_ids == reference[f"{i}.greedy"].tolist(), f"prompt {i}"


@pytest.mark.model
def test_smollm2_tokenizer(smollm2: LLM) -> None:
    reference = read(cases.SMOLLM2_FILE)
    for i, text in enumerate(cases.PROMPTS):
        same = smollm2.tokenizer.encode(text, False) == reference[f"{i}.prompt"].tolist()
        assert same == (i not in cases.OTHER_TOKENS), f"prompt {i}"


@pytest.mark.parametrize(
    ("kind", "path"), [("tiny", cases.TINY_FILE), ("smollm2", cases.SMOLLM2_FILE)]
)
def test_references_are_clear_of_noise(kind: str, path: Path) -> None:
    """Else equality of greedy tokens above would ask for more than float32 defines."""
    gaps = [a for name, a in read(path).items() if name.endswith(".gaps")]
    assert min(float(a.min()) for a in gaps) > NOISE[kind]


def test_references_are_small() -> None:
    assert sum(file.stat().st_size for file in cases.DATA.iterdir()) < 1_000_000
