"""Facts of models on a stand-in for the hub: the same as here, and no weights fetched."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub import COMMIT, Hub, fake_hub, point_library_at
from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.errors import CorruptFile, ModelError
from wager.models.facts.read import ModelFacts, read_facts


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    root = tmp_path / "repos"
    write_tiny_hf(root / "org/tiny", intermediate=4096)
    write_tiny_hf(root / "org/shards", shards=3)
    for kind in ("Q8_0", "F16"):
        write_tiny_gguf(root / f"org/ggufs/tiny-{kind}.gguf", tensor_type=kind, intermediate=12288)
    (root / "org/empty").mkdir()
    (root / "org/empty/README.md").write_text("nothing")
    with fake_hub(root) as served:
        point_library_at(monkeypatch, served.endpoint, tmp_path / "cache")
        yield served


def test_the_hub_says_the_same_as_the_directory(hub: Hub) -> None:
    for repo in ("org/tiny", "org/shards"):
        here, there = read_facts(str(hub.root / repo)), read_facts(repo)
        assert there.location == f"{repo}@{COMMIT}"
        assert there.source == "hub"
        for field in ModelFacts.__dataclass_fields__:
            if field not in ("name", "source", "location", "tensors"):
                assert getattr(here, field) == getattr(there, field), field
        assert set(here.tensors) == set(there.tensors)


def test_weights_stay_on_the_hub(hub: Hub) -> None:
    facts = read_facts("org/tiny")
    size = (hub.root / "org/tiny/model.safetensors").stat().st_size
    assert size > 6 << 20
    assert 0 < hub.served["org/tiny/model.safetensors"] <= 1 << 18
    facts = read_facts("org/ggufs:F16")
    assert facts.dtype == "F16"
    assert (
        hub.served["org/ggufs/tiny-F16.gguf"]
        < (hub.root / "org/ggufs/tiny-F16.gguf").stat().st_size
    )
    assert not hub.served["org/ggufs/tiny-Q8_0.gguf"]
    hub.served.clear()
    assert read_facts("org/shards", tokenizer=False).tokenizer_hash is None
    assert not hub.served["org/shards/tokenizer.json"]


def test_gguf_files_of_the_hub(hub: Hub) -> None:
    assert read_facts("org/ggufs:q8_0").dtype == "Q8_0"
    assert read_facts("org/ggufs/tiny-F16.gguf").name == "org/ggufs/tiny-F16.gguf"
    with pytest.raises(ModelError, match=r"2 GGUF files; name one.*tiny-F16\.gguf, tiny-Q8_0"):
        read_facts("org/ggufs")
    with pytest.raises(ModelError, match="no file of quantisation Q4_0"):
        read_facts("org/ggufs:Q4_0")
    with pytest.raises(ModelError, match=r"has no file tiny\.gguf"):
        read_facts("org/ggufs/tiny.gguf")


def test_what_the_hub_refuses(hub: Hub) -> None:
    with pytest.raises(ModelError, match="no such model on the hub"):
        read_facts("org/absent")
    with pytest.raises(ModelError, match="has no revision 'dev'"):
        read_facts("org/tiny@dev")
    with pytest.raises(ModelError, match="has no revision 'dev'"):
        read_facts("org/tiny", "dev")
    with pytest.raises(ModelError, match="neither safetensors with a config"):
        read_facts("org/empty")
    hub.gated.add("org/tiny")
    with pytest.raises(ModelError, match=r"is gated.*HF_TOKEN"):
        read_facts("org/tiny")


def test_a_token_opens_what_is_gated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("org/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert read_facts("org/tiny").num_layers == 2


def test_a_cache_that_cannot_be_written(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "file")
    with pytest.raises(ModelError, match=r"^org/tiny: .*file"):
        read_facts("org/tiny")


def test_a_hub_that_breaks_off(hub: Hub) -> None:
    hub.broken.add("model.safetensors")
    with pytest.raises(ModelError, match=r"^org/tiny: the hub (stopped answering|answered)"):
        read_facts("org/tiny")


def test_a_damaged_shard_on_the_hub(hub: Hub) -> None:
    file = hub.root / "org/tiny/model.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 40) + file.read_bytes()[8:])
    with pytest.raises(CorruptFile, match="the header claims"):
        read_facts("org/tiny")


def test_offline_the_cache_is_read(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    online = read_facts("org/tiny")
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache2", offline=True)
    with pytest.raises(ModelError, match=r"not in the cache.*HF_HUB_OFFLINE"):
        read_facts("org/tiny")
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache")
    snapshot_download("org/tiny")
    hub.requests.clear()
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache", offline=True)
    assert set(read_facts("org/tiny").tensors) == set(online.tensors)
    assert hub.requests == []


def test_a_hub_that_is_away(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/tiny")
    nowhere = "http://127.0.0.1:9"
    point_library_at(monkeypatch, nowhere, tmp_path / "cache")
    assert read_facts("org/tiny").num_layers == 2
    with pytest.raises(ModelError, match=r"org/shards: the hub .* cannot be reached"):
        read_facts("org/shards")
