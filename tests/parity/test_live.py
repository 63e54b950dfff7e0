"""The comparison of test_reference.py with the transformers that is installed, over the same file.

It also shows that the committed references are what transformers computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity import cases
from tests.parity.test_reference import continuation, read
from wager import LLM
from wager.models.load import resolve

pytestmark = [
    pytest.mark.parity,
    # Other packages' warnings are theirs to solve.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def reference() -> Any:
    pytest.importorskip("torch", reason="install requirements-parity.txt")
    pytest.importorskip("transformers", reason="install requirements-parity.txt")
    from scripts import make_reference

    return make_reference


@pytest.mark.parametrize("name", list(cases.TINY))
def test_tiny_model(name: str, reference: Any, tmp_path: Path) -> None:
    directory = cases.tiny_model(name, tmp_path / name)
    theirs = reference.load(directory)
    llm = LLM(str(directory), weights="f32", threads=2)
    ids = cases.tiny_tokens(name)
    expected = reference.logits(theirs, ids)
    assert np.abs(llm.logits(ids.tolist()) - expected).max() < cases.TOLERANCE
    stored = read(cases.TINY_FILE)[f"{name}.logits"]
    assert np.abs(expected[list(cases.TINY_POSITIONS)] - stored).max() < cases.TOLERANCE
    tokens, _ = reference.greedy(theirs, ids[:40], cases.TINY_GREEDY)
    assert continuation(llm, ids[:40], cases.TINY_GREEDY) == tokens.tolist()


@pytest.mark.model
def test_smollm2(reference: Any) -> None:
    theirs, prompts = reference.smollm2(resolve("smollm2-135m"))
    llm = LLM("smollm2-135m", weights="f32", max_model_len=2048)
    stored = read(cases.SMOLLM2_FILE)
    for i, prompt in enumerate(prompts):
        if i not in cases.OTHER_TOKENS:
            assert prompt == llm.tokenizer.encode(cases.PROMPTS[i], False), f"prompt {i}"
        ids = np.array(prompt)
        expected = reference.logits(theirs, ids)
        difference = np.abs(llm.logits(prompt) - expected).max()
        assert difference < cases.TOLERANCE, f"prompt {i}"
        kept = expected[-1][stored[f"{i}.ids"]]
        assert np.abs(kept - stored[f"{i}.logits"]).max() < cases.TOLERANCE, f"prompt {i}"
        tokens, gaps = reference.greedy(theirs, ids, cases.GREEDY)
        found = continuation(llm, ids, cases.GREEDY)
        first = next((j for j in range(cases.GREEDY) if found[j] != tokens[j]), None)
        assert first is None, f"prompt {i}: token {first}, top-2 gap {gaps[first]:.1e}"
