"""Models in a store of Ollama: found by their names, opened where they lie, never written to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_gguf import write_tiny_gguf
from wager.cli.ls import ls
from wager.cli.rm import rm
from wager.errors import CorruptFile, ModelError, RequestError, UnsupportedModel
from wager.models import ollama
from wager.models.facts.read import read_facts
from wager.models.load import load_model, open_checkpoint, resolve

KIND = "application/vnd.ollama.image."
GO_TEMPLATE = b"{{ .System }}<|user|>{{ .Prompt }}"


class Store:
    """A store as Ollama lays it out."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def blob(self, data: bytes, kind: str) -> dict[str, Any]:
        """Add a layer."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.root / "blobs" / f"sha256-{digest}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return {"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(data)}

    def model(self, name: str, *layers: dict[str, Any]) -> Path:
        """Add a manifest; ``name`` is its path below the manifests."""
        path = self.root / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        return path


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    return write_tiny_gguf(tmp_path / "tiny.gguf", tensor_type="Q8_0").read_bytes()


@pytest.fixture
def store(tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store(tmp_path / "store")
    model = made.blob(gguf, "model")
    template = made.blob(GO_TEMPLATE, "template")
    made.model("registry.ollama.ai/library/tiny/latest", model, template)
    made.model("registry.ollama.ai/library/tiny/1b-q8_0", model, template)
    made.model("registry.ollama.ai/someone/tiny/latest", model)
    made.model("hf.co/org/tiny-GGUF/Q8_0", model)
    monkeypatch.setenv("OLLAMA_MODELS", str(made.root))
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return made


@pytest.mark.parametrize(
    "name",
    ["tiny", "tiny:latest", "tiny:1b-q8_0", "someone/tiny", "hf.co/org/tiny-GGUF:Q8_0"],
)
def test_names(store: Store, name: str) -> None:
    checkpoint = open_checkpoint(f"ollama:{name}")
    assert checkpoint.name == f"ollama:{name}"
    assert checkpoint.path.parent == store.root / "blobs"


def test_the_template_is_that_of_the_file(store: Store, gguf: bytes) -> None:
    tokenizer = open_checkpoint("ollama:tiny").tokenizer()
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.has_chat_template
    assert GO_TEMPLATE.decode() not in tokenizer.chat(chat)
    bare = gguf.replace(b"tokenizer.chat_template", b"general.description____"[:23])
    assert len(bare) == len(gguf)
    store.model("registry.ollama.ai/library/bare/latest", store.blob(bare, "model"),
                store.blob(GO_TEMPLATE, "template"))  # fmt: skip
    tokenizer = open_checkpoint("ollama:bare").tokenizer()
    with pytest.raises((ModelError, RequestError), match="has no chat template"):
        tokenizer.chat(chat)


def test_a_blob_by_its_path(store: Store) -> None:
    blob = resolve("ollama:tiny")
    assert blob.suffix != ".gguf"
    assert open_checkpoint(str(blob)).path == blob
    assert read_facts("ollama:tiny").tensors == read_facts(str(blob)).tensors
    with pytest.raises(UnsupportedModel, match=r"neither a directory .* nor a GGUF file"):
        resolve(str(store.root / "blobs" / f"sha256-{hashlib.sha256(GO_TEMPLATE).hexdigest()}"))


def test_what_is_not_there(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ModelError, match=r"ollama:tiny:7b: .*there are: ollama:tiny:1b-q8_0, ollama:tiny:latest$"
    ):
        resolve("ollama:tiny:7b")
    with pytest.raises(ModelError, match=r"ollama:other: .*ollama:hf\.co/org/tiny-GGUF:Q8_0, "):
        resolve("ollama:other")
    for name in ("ollama:", "ollama:a/b/c/d", "ollama:../x", "ollama:a:b:c", "ollama:x:.."):
        with pytest.raises(ModelError, match="is no name of Ollama"):
            resolve(name)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"no store of Ollama here \(.*nowhere\); OLLAMA_MODELS"):
        resolve("ollama:tiny")


def test_the_store_of_the_home_directory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ollama").mkdir()
    store.root.rename(tmp_path / ".ollama/models")
    assert resolve("ollama:tiny").is_relative_to(tmp_path / ".ollama/models")


def test_a_blob_that_is_gone_or_short(store: Store) -> None:
    blob = resolve("ollama:tiny")
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match=r"the manifest of ollama:tiny says .*ollama pull tiny"):
        resolve("ollama:tiny")
    blob.unlink()
    with pytest.raises(ModelError, match=r"is missing; .* run: ollama pull tiny"):
        resolve("ollama:tiny")


def test_models_that_are_more_than_a_file(store: Store, gguf: bytes) -> None:
    model = store.blob(gguf, "model")
    place = "registry.ollama.ai/library/odd/latest"
    store.model(place, model, store.blob(b"lora", "adapter"))
    with pytest.raises(UnsupportedModel, match="ollama:odd: is a model with an adapter"):
        resolve("ollama:odd")
    store.model(place, store.blob(b"weights", "tensor"))
    with pytest.raises(UnsupportedModel, match=r"is not one GGUF file; .* 0 of them \(tensor\)"):
        resolve("ollama:odd")
    store.model(place, {**model, "digest": "sha256:../../secret"})
    with pytest.raises(CorruptFile, match="is no digest of a layer"):
        resolve("ollama:odd")
    manifest = store.model(place)
    manifest.write_text("{")
    with pytest.raises(CorruptFile, match="is not sound JSON"):
        resolve("ollama:odd")
    manifest.write_text('{"layers": [1]}')
    with pytest.raises(CorruptFile, match="has no list of layers"):
        resolve("ollama:odd")
    assert "ollama:odd:latest" in ollama.names()


def test_listed_and_packed_weights_removed(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.models.plain_ops import PlainOps

    load_model("ollama:tiny", PlainOps())
    ls()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "int8" in line)
    assert "ollama:" in line
    rm("ollama:tiny")
    assert resolve("ollama:tiny").is_file()
    with pytest.raises(ModelError, match="nothing of 'ollama:tiny' is kept"):
        rm("ollama:tiny")
