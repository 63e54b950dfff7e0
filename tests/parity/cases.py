"""What is compared with transformers: tiny random models, and prompts for SmolLM2.

Read by scripts/make_reference.py, which runs where torch and transformers are, and by the tests of
this folder. So it imports neither wager nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.parity import tiny_cases
from tests.tiny import write_tiny_hf

DATA = Path(__file__).parent.parent / "data"
TINY_FILE = DATA / "reference_tiny.npz"
SMOLLM2_FILE = DATA / "reference_smollm2.npz"

TOLERANCE = 1e-3
"""Largest absolute difference of a logit, float32 against float32."""

TINY = tiny_cases.LLAMA | tiny_cases.FAMILIES
TINY_TOKENS = 150
TINY_POSITIONS = (0, 1, 15, 16, 63, 149)
TINY_GREEDY = 48

GREEDY = 64
TOP_IDS = 64
RANDOM_IDS = 200


def tiny_model(name: str, directory: Path) -> Path:
    """Write the tiny model called ``name``."""
    return write_tiny_hf(directory, seed=sum(map(ord, name)), **TINY[name])


def tiny_tokens(name: str) -> NDArray[np.int32]:
    """The sequence whose logits are compared, int32 [TINY_TOKENS]."""
    rng = np.random.default_rng(sum(map(ord, name)) + 1)
    return rng.integers(3, 288, TINY_TOKENS, dtype=np.int32)


def random_ids(vocab: int) -> NDArray[np.int64]:
    """The ids, beside the likeliest, whose logits are kept; the same for every prompt."""
    return np.sort(np.random.default_rng(0).choice(vocab, RANDOM_IDS, replace=False))


def _chat(question: str) -> str:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def _texts() -> Iterator[str]:
    yield "The capital of France is"
    yield "Once upon a time, in a village at the edge of a great forest, there lived a clockmaker"
    yield "Water boils at a lower temperature on a mountain because"
    yield "A binary search tree keeps its keys in order, so that"
    yield "In 1969, two people walked on the Moon. They"
    yield "Dear customer,\n\nthank you for your message of 3 March. We have looked into"
    yield "The three laws of motion are:\n\n1."
    yield "Q: What is the difference between a virus and a bacterium?\nA:"
    yield "def fibonacci(n: int) -> int:\n    "
    yield 'import json\n\n\ndef load(path):\n    """Read a JSON file."""\n'
    yield "SELECT name, COUNT(*) FROM orders\nJOIN customers ON"
    yield "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n"
    yield _chat("Name three primary colours.")
    yield _chat("Explain in two sentences what a hash table is.")
    yield _chat("Write a Python function that reverses a list in place.")
    yield _chat("Translate 'good morning' into French, German and Spanish.")
    yield "Größere Städte in Österreich sind Wien, Graz und"
    yield "数学の授業で先生は \U0001f642 と言いました。"
    yield "one two three four " * 24
    yield "".join(f"Line {i}: the value of item {i * 7 % 100} is {i * i}.\n" for i in range(60))


PROMPTS = tuple(_texts())

OTHER_TOKENS = frozenset({6})
"""Prompts that transformers cuts into other tokens: converting this tokenizer from GGUF, it loses
the step that sets digits apart, so that a blank line before a digit is two tokens. llama.cpp cuts
them as wager does (tests/engines)."""
