"""Files as people have them: each works, or is refused in one line that says what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import write_safetensors, write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_weights import Shape, random_weights
from wager import LLM, SamplingParams
from wager.errors import WagerError

HI = [{"role": "user", "content": "the cat"}]
Make = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))


def hf(**options: Any) -> Make:
    return lambda path: write_tiny_hf(path / "m", **options)


def gguf(**options: Any) -> Make:
    return lambda path: write_tiny_gguf(path / "m.gguf", **options)


def changed(make: Make, change: Callable[[Path], object]) -> Make:
    """A model of which one thing is different."""

    def made(path: Path) -> Path:
        found = make(path)
        change(found)
        return found

    return made


def edited(name: str, **keys: Any) -> Callable[[Path], object]:
    """Keys of a JSON file; None removes one."""

    def edit(directory: Path) -> object:
        path = directory / name
        raw = json.loads(path.read_text()) | keys
        kept = {key: value for key, value in raw.items() if value is not None}
        return path.write_text(json.dumps(kept))

    return edit


def without(*names: str) -> Callable[[Path], object]:
    return lambda directory: [(directory / name).unlink() for name in names]


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text(text, encoding="utf-8")


def cut(bytes_left: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:bytes_left])


def weights(change: Callable[[dict[str, Any]], object], dtype: str = "F32") -> Make:
    """The tiny llama with other tensors."""

    def make(path: Path) -> Path:
        directory = write_tiny_hf(path / "m")
        tensors = dict(random_weights(Shape(2, 64, 4, 2, 16, 128, 288, True), 0))
        change(tensors)
        write_safetensors(directory / "model.safetensors", tensors, dtype)
        return directory

    return make


def head_twice(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()


def head_of_another(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + np.float32(1)


def too_large(tensors: dict[str, Any]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = np.inf


def rotary_buffers(tensors: dict[str, Any]) -> None:
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)


def adapter(path: Path) -> Path:
    directory = path / "m"
    directory.mkdir()
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    return directory


def pickled(path: Path) -> Path:
    directory = write_tiny_hf(path / "m")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    return directory


def a_part_is_missing(path: Path) -> Path:
    directory = write_tiny_hf(path / "m", shards=3)
    next(directory.glob("*00002-of-*")).unlink()
    return directory


def moved(path: Path) -> Path:
    """A directory that was copied without what its links point to, as a hub cache may be."""
    directory = write_tiny_hf(path / "m")
    shutil.move(directory / "model.safetensors", path / "elsewhere")
    (directory / "model.safetensors").symlink_to(path / "gone")
    return directory


WORKS: dict[str, Make] = {
    "a padded table": hf(vocab=320, tokenizer_vocab=288),
    "a padded table as GGUF": gguf(vocab=320, tokenizer_vocab=288),
    "a tied head stored once more": weights(head_twice),
    "buffers of an old library": weights(rotary_buffers),
    "bf16 stored as f16": weights(lambda _: None, "F16"),
    "no generation_config.json": changed(hf(), without("generation_config.json")),
    "no word on the type": changed(hf(), edited("config.json", torch_dtype=None)),
    "keys that nobody knows": changed(hf(), edited("config.json", auto_map={"a": "b"}, foo=1)),
    "several end tokens": changed(hf(), edited("generation_config.json", eos_token_id=[2, 0, 2])),
    "whole numbers with a point": changed(hf(), edited("config.json", hidden_size=64.0)),
    "a byte order mark": changed(
        hf(), lambda d: (d / "config.json").write_bytes(
            b"\xef\xbb\xbf" + (d / "config.json").read_bytes())
    ),
    "a template in a file of its own": changed(
        hf(), written("chat_template.jinja", "{{ messages[0]['content'] }}")
    ),
    "code beside the weights": changed(hf(), written("modeling_x.py", "raise SystemExit")),
    "a GGUF whose name is shouted": lambda path: gguf()(path).rename(path / "M.GGUF"),
}  # fmt: skip
REFUSED: dict[str, tuple[Make, str]] = {
    "another model's tokenizer": (hf(vocab=280, tokenizer_vocab=288), "another model's tokenizer"),
    "a head that is not the tied one": (weights(head_of_another), "differs from the embedding"),
    "a weight out of range": (weights(too_large), "not finite"),
    "an untied head that is missing": (
        changed(hf(), edited("config.json", tie_word_embeddings=False)), "lm_head.weight is missing"
    ),
    "a pickle": (pickled, "is a pickle, which is never read"),
    "a part that is missing": (a_part_is_missing, "is missing"),
    "a broken link": (moved, "neither model.safetensors nor"),
    "an adapter": (adapter, "adapter"),
    "a comma too many": (changed(hf(), written("config.json", '{"a": 1,}')), "is not sound JSON"),
    "no tokenizer": (changed(hf(), without("tokenizer.json")), "has no tokenizer.json"),
    "half a download": (changed(hf(), lambda d: cut(9000)(d / "model.safetensors")), "truncated"),
    "half a GGUF": (changed(gguf(), cut(40_000)), "truncated"),
    "a page instead of a file": (
        changed(gguf(), lambda p: p.write_text("<!DOCTYPE html><html></html>")), "GGUF"
    ),
    "a projector": (gguf(architecture="clip"), "architecture 'clip' is not supported"),
    "an embedding model": (gguf(architecture="bert"), "architecture 'bert' is not supported"),
    "a template that is broken": (
        changed(hf(), edited("tokenizer_config.json", chat_template="{% if %}")), "chat template"
    ),
    "no template": (
        changed(hf(), edited("tokenizer_config.json", chat_template=None)), "chat template"
    ),
}  # fmt: skip


@pytest.fixture
def opened() -> Iterator[Callable[[Path], LLM]]:
    models: list[LLM] = []

    def open_(path: Path) -> LLM:
        models.append(LLM(str(path), weights="f32", threads=1, max_model_len=128))
        return models[-1]

    yield open_
    for model in models:
        model.close()


@pytest.mark.parametrize("name", WORKS)
def test_what_works(name: str, tmp_path: Path, opened: Callable[[Path], LLM]) -> None:
    llm = opened(WORKS[name](tmp_path))
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    answer = llm.chat(HI, greedy).outputs[0]
    assert len(answer.token_ids) == 4
    # What pads the table is no token.
    assert max(answer.token_ids) < 288


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path, opened: Callable[[Path], LLM]) -> None:
    make, says = REFUSED[name]
    path = make(tmp_path)
    with pytest.raises(WagerError) as caught:
        opened(path).chat(HI, SamplingParams(max_tokens=1))
    said = str(caught.value)
    assert says in said
    assert "\n" not in said
    assert str(path) in said or "chat template" in said
