"""What a model says of its own answers: where they end, and how they are sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.plain_ops import PlainOps
from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager import LLM
from wager.errors import CorruptFile
from wager.models.generation import GenerationConfig
from wager.models.load import load_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))


def of(directory: Path, **values: Any) -> GenerationConfig:
    """Of a model whose generation_config.json has these."""
    (directory / "generation_config.json").write_text(json.dumps(values))
    return _loaded(directory)


def _loaded(directory: Path) -> GenerationConfig:
    return load_model(str(directory), PlainOps()).generation


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_hf(tmp_path / "hf")


def test_what_is_stated(directory: Path) -> None:
    stated = of(directory, temperature=0.8, top_k=40, top_p=0.95, eos_token_id=[5, 2])
    assert stated == GenerationConfig((0, 2, 5), 0.8, 40, 0.95)
    assert of(directory) == GenerationConfig((0, 2))
    cold = of(directory, do_sample=False, temperature=0.7)
    assert cold == GenerationConfig((0, 2), 0.0)
    (directory / "generation_config.json").unlink()
    assert _loaded(directory).eos_ids == (0, 2)


def test_all_of_it_is_the_default_of_a_request(directory: Path) -> None:
    of(directory, temperature=0.7, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.05)
    own = LLM(str(directory), threads=1).default_params()
    assert (own.temperature, own.top_k, own.top_p) == (0.7, 20, 0.8)
    assert (own.min_p, own.repetition_penalty) == (0.1, 1.05)


def test_what_a_gguf_file_states(tmp_path: Path) -> None:
    """The ends of an answer, of a turn and of a message; settings, but for the penalty."""
    stated = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9,
              "general.sampling.temp": 0.5, "general.sampling.top_k": 20,
              "general.sampling.min_p": 0.25, "general.sampling.penalty_repeat": 1.5}  # fmt: skip
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=stated)
    assert _loaded(path) == GenerationConfig((0, 2, 7, 9), 0.5, 20, min_p=0.25)
    silent = {"tokenizer.ggml.eos_token_id": None}
    assert _loaded(write_tiny_gguf(tmp_path / "n.gguf", metadata=silent)).eos_ids == (0, 2)
    wrong = {"tokenizer.ggml.eot_token_id": 288}
    with pytest.raises(CorruptFile, match="end token 288 is not in the vocabulary"):
        _loaded(write_tiny_gguf(tmp_path / "o.gguf", metadata=wrong))


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -1}, {"temperature": "hot"}, {"top_p": 0}, {"top_k": 1.5}, {"min_p": 2},
     {"min_p": -0.1}, {"repetition_penalty": 0}, {"repetition_penalty": "1.1"},
     {"eos_token_id": 288}, {"eos_token_id": "</s>"}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be(bad: dict[str, Any], directory: Path) -> None:
    with pytest.raises(CorruptFile):
        of(directory, **bad)
