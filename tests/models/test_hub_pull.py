"""Pulling from a stand-in for the hub: what comes, what is checked, and what is left behind."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import COMMIT, Hub, etag_of, fake_hub, point_library_at
from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.cli.pull import pull
from wager.errors import ConfigError, CorruptFile, ModelError, UnsupportedModel
from wager.models import hub_cache, hub_fetch, hub_names
from wager.models.hub_pull import Pulled, pull_hub
from wager.models.load import open_checkpoint, resolve

TINY = "org/tiny"
GGUFS = "org/tiny-GGUF"
Q8 = "tiny-Q8_0.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    root = tmp_path / "repos"
    write_tiny_hf(root / TINY)
    for extra in ("README.md", "pytorch_model.bin", "original/consolidated.safetensors"):
        (root / TINY / extra).parent.mkdir(exist_ok=True)
        (root / TINY / extra).write_bytes(b"not wanted")
    write_tiny_hf(root / "org/shards", shards=3)
    for kind in ("Q8_0", "F16"):
        write_tiny_gguf(root / GGUFS / f"tiny-{kind}.gguf", tensor_type=kind)
    (root / GGUFS / "mmproj-tiny-Q8_0.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(hub_fetch, "_WAIT_SECONDS", 0.0)
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))
    with fake_hub(root) as served:
        point_library_at(monkeypatch, served.endpoint, tmp_path / "cache")
        yield served


def take(name: str, *progress: Any) -> Pulled:
    wanted = hub_names.parse(name)
    assert wanted is not None
    return pull_hub(wanted, *progress)


def base(tmp_path: Path, repo: str) -> Path:
    return tmp_path / "cache/hub" / f"models--{repo.replace('/', '--')}"


def test_a_directory_is_pulled_once(hub: Hub, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    pulled = take(TINY, lambda *what: seen.append(what))
    assert pulled.path == base(tmp_path, TINY) / "snapshots" / COMMIT
    assert hub_cache.files_in(pulled.path) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    for name in hub_cache.files_in(pulled.path):
        assert (pulled.path / name).read_bytes() == (hub.root / TINY / name).read_bytes()
    assert pulled.checked
    assert pulled.fetched == pulled.nbytes == seen[-1][2]
    assert all(0 <= done <= total for _, done, total in seen)
    assert open_checkpoint(TINY).name == TINY
    hub.served.clear()
    again = take(TINY)
    assert (again.path, again.fetched, again.checked) == (pulled.path, 0, True)
    assert not hub.served


def test_every_shard_comes(hub: Hub) -> None:
    pulled = take("org/shards")
    assert len(list(pulled.path.glob("*.safetensors"))) == 3
    assert open_checkpoint("org/shards").config.num_layers == 2


def test_the_library_finds_what_was_pulled(hub: Hub) -> None:
    from huggingface_hub import hf_hub_download

    take(f"{GGUFS}:q8_0")
    hub.served.clear()
    path = Path(hf_hub_download(GGUFS, Q8))
    assert path == resolve(f"{GGUFS}:Q8_0")
    assert not hub.served


def test_what_the_library_fetched_is_not_fetched_again(hub: Hub) -> None:
    from huggingface_hub import snapshot_download

    root = Path(snapshot_download(TINY, allow_patterns=["*.json", "model.safetensors"]))
    hub.served.clear()
    assert resolve(TINY) == root
    pulled = take(TINY)
    assert (pulled.path, pulled.fetched) == (root, 0)
    assert not hub.served


@pytest.mark.parametrize("quant", ["Q8_0", "q8_0", Q8])
def test_one_file_of_many(hub: Hub, quant: str) -> None:
    pulled = take(f"{GGUFS}:{quant}")
    assert pulled.path.name == Q8
    assert set(hub.served) == {f"{GGUFS}/{Q8}"}
    assert open_checkpoint(f"{GGUFS}:{quant}").path == pulled.path


def test_all_parts_of_a_file(hub: Hub) -> None:
    whole = hub.root / GGUFS / Q8
    (hub.root / GGUFS / "Q4_0").mkdir()
    for number in (1, 2):
        shutil.copy(whole, hub.root / GGUFS / f"Q4_0/big-Q4_0-0000{number}-of-00002.gguf")
    pulled = take(f"{GGUFS}:Q4_0")
    assert pulled.path.name == "big-Q4_0-00001-of-00002.gguf"
    assert pulled.path.with_name("big-Q4_0-00002-of-00002.gguf").is_file()
    assert resolve(f"{GGUFS}:q4_0") == pulled.path
    pulled.path.with_name("big-Q4_0-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelError, match=r"only in part \(.*00002-of-00002\.gguf is missing\)"):
        resolve(f"{GGUFS}:Q4_0")


def test_which_file_is_asked_for(hub: Hub) -> None:
    for name, said in (
        (GGUFS, r"2 GGUF files; name one: there are: tiny-F16\.gguf, tiny-Q8_0\.gguf$"),
        (f"{GGUFS}:Q4_K_M", r"no file of quantisation Q4_K_M; there are: tiny-F16\.gguf, tiny"),
        (f"{GGUFS}:mmproj-tiny-Q8_0.gguf", "is not a model of its own; there are"),
        (f"{GGUFS}:tiny.gguf", r"has no file tiny\.gguf; there are"),
        (f"{TINY}:Q8_0", "no file of quantisation Q8_0; it has no GGUF"),
    ):
        with pytest.raises(ModelError, match=said):
            take(name)
    assert not hub.served


def test_a_family_that_cannot_run_is_not_fetched(hub: Hub) -> None:
    config = hub.root / TINY / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "MambaForCausalLM"))
    with pytest.raises(UnsupportedModel, match="MambaForCausalLM"):
        take(TINY)
    assert not hub.served[f"{TINY}/model.safetensors"]


def test_pickles_are_not_fetched(hub: Hub) -> None:
    (hub.root / TINY / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor .*pickles"):
        take(TINY)
    assert not hub.served


def test_revisions(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no revision 'dev'"):
        take(f"{TINY}@dev")
    pulled = take(f"{TINY}@{COMMIT}")
    assert not (base(tmp_path, TINY) / "refs").exists()
    assert resolve(f"{TINY}@{COMMIT}") == pulled.path
    with pytest.raises(ModelError, match=f"{TINY}: is not here yet; run: wager pull {TINY}$"):
        resolve(TINY)
    take(TINY)
    assert (base(tmp_path, TINY) / "refs/main").read_text() == COMMIT
    with pytest.raises(ConfigError, match="revision: org/tiny@dev names one too"):
        pull(f"{TINY}@dev", "main")
    with pytest.raises(ModelError, match="has no revision 'dev'"):
        pull(TINY, "dev")
    with pytest.raises(ConfigError, match="is no branch, tag or commit"):
        pull(TINY, "../..")


def test_a_broken_connection_goes_on(hub: Hub) -> None:
    size = (hub.root / GGUFS / Q8).stat().st_size
    hub.cuts[Q8] = [size // 3, size // 3]
    assert take(f"{GGUFS}:Q8_0").checked
    assert hub.served[f"{GGUFS}/{Q8}"] == size
    assert [begin for _, begin in hub.ranges] == [
        None, f"bytes={size // 3}-", f"bytes={2 * (size // 3)}-",
    ]  # fmt: skip


def test_what_came_is_kept_for_the_next_pull(hub: Hub, tmp_path: Path) -> None:
    size = (hub.root / GGUFS / Q8).stat().st_size
    hub.cuts[Q8] = [1000] + [0] * 5
    with pytest.raises(ModelError, match="the hub stopped answering"):
        take(f"{GGUFS}:Q8_0")
    (part,) = (base(tmp_path, GGUFS) / "blobs").iterdir()
    assert part.name.endswith(".wager-part")
    with pytest.raises(ModelError, match="is not here yet"):
        resolve(f"{GGUFS}:Q8_0")
    hub.served.clear()
    take(f"{GGUFS}:Q8_0")
    assert hub.served[f"{GGUFS}/{Q8}"] == size - 1000
    assert not part.exists()


def test_an_interrupt_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(f"{GGUFS}:Q8_0", interrupt)
    assert not list((base(tmp_path, GGUFS)).glob("snapshots/*/*"))
    (part,) = base(tmp_path, GGUFS).glob("blobs/*.wager-part")
    kept = part.stat().st_size
    assert kept > 0
    hub.served.clear()
    take(f"{GGUFS}:Q8_0")
    assert hub.served[f"{GGUFS}/{Q8}"] == (hub.root / GGUFS / Q8).stat().st_size - kept


@pytest.mark.parametrize(
    ("name", "file", "kind"),
    [(f"{GGUFS}:Q8_0", Q8, "sha256"), (TINY, "tokenizer.json", "sha1")],
)
def test_other_bytes_are_not_taken(
    hub: Hub, tmp_path: Path, name: str, file: str, kind: str
) -> None:
    hub.altered.add(file)
    with pytest.raises(CorruptFile, match=f"{file}: came with the {kind} .*, not "):
        take(name)
    repo = name.partition(":")[0]
    assert not (base(tmp_path, repo) / "blobs" / etag_of(hub.root / repo / file)).exists()
    assert not list(base(tmp_path, repo).rglob("*.wager-part"))
    hub.altered.clear()
    assert take(name).checked


def test_a_part_of_another_file_is_not_believed(hub: Hub, tmp_path: Path) -> None:
    blobs = base(tmp_path, GGUFS) / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{etag_of(hub.root / GGUFS / Q8)}.wager-part"
    part.write_bytes(b"x" * 500)
    with pytest.raises(CorruptFile, match="nothing of it was kept"):
        take(f"{GGUFS}:Q8_0")
    part.write_bytes(b"x" * (1 << 22))
    assert take(f"{GGUFS}:Q8_0").checked


def test_a_damaged_file_is_fetched_again(hub: Hub) -> None:
    pulled = take(f"{GGUFS}:Q8_0")
    blob = pulled.path.resolve()
    raw = bytearray(blob.read_bytes())
    raw[-1] ^= 1
    blob.write_bytes(raw)
    again = take(f"{GGUFS}:Q8_0")
    assert again.fetched == len(raw)
    assert hashlib.sha256(again.path.read_bytes()).hexdigest() == blob.name


def test_a_hub_that_is_busy(hub: Hub) -> None:
    hub.busy = 3
    assert take(f"{GGUFS}:Q8_0").checked
    hub.busy = 20
    with pytest.raises(ModelError, match=r"fewer requests \(429\); wait some minutes, or set HF_T"):
        take(f"{GGUFS}:F16")


def test_gated_private_and_absent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(GGUFS)
    with pytest.raises(ModelError, match=r"is gated: accept its terms.*HF_TOKEN"):
        take(f"{GGUFS}:Q8_0")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert take(f"{GGUFS}:Q8_0").checked
    assert hub.tokens == [None]
    with pytest.raises(ModelError, match="there is no such model on the hub"):
        take("org/absent")


def test_a_file_that_is_listed_and_gone(hub: Hub) -> None:
    hub.broken.add("tokenizer.json")
    with pytest.raises(ModelError, match=r"^org/tiny: the hub answered: .*404"):
        take(TINY)


def test_no_network(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(TINY)
    for endpoint, offline, why in (
        ("http://127.0.0.1:9", False, "cannot be reached"),
        (hub.endpoint, True, r"HF_HUB_OFFLINE"),
    ):
        point_library_at(monkeypatch, endpoint, tmp_path / "cache", offline=offline)
        hub.requests.clear()
        pulled = take(TINY)
        assert not pulled.fetched
        assert not pulled.checked
        assert pulled.note is not None
        with pytest.raises(ModelError, match=rf"org/shards: is not here yet, and the hub .*{why}"):
            take("org/shards")
        assert not hub.requests


def test_a_full_disk(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "the part")

    with monkeypatch.context() as patch:
        patch.setattr(hub_fetch._Download, "run", full)
        with pytest.raises(ModelError, match=r"the disk of the part is full; .*HF_HOME"):
            take(f"{GGUFS}:Q8_0")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(ModelError, match=r"GB more, and 0\.0 GB are free: the disk of .* is full"):
        take(f"{GGUFS}:Q8_0")
    assert not hub.served


def test_a_cache_that_cannot_be_written(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    point_library_at(monkeypatch, hub.endpoint, tmp_path / "file")
    with pytest.raises(ModelError, match=r"^org/tiny: .*file"):
        take(TINY)


def test_without_links(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    pulled = take(f"{GGUFS}:Q8_0")
    assert not pulled.path.is_symlink()
    assert pulled.path.read_bytes() == (hub.root / GGUFS / Q8).read_bytes()
    assert take(f"{GGUFS}:Q8_0").fetched == 0


def test_the_command(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.details[GGUFS] = {"tags": ["gguf", "license:apache-2.0"]}
    pull(f"{GGUFS}:Q8_0")
    out, error = capsys.readouterr()
    assert out.splitlines()[0] == f"{GGUFS}:Q8_0: 0 MB, licence apache-2.0, hashes checked"
    assert error.startswith(f"fetching {GGUFS}:Q8_0, ")
    pull(f"{GGUFS}:Q8_0")
    assert "already here, licence apache-2.0, hashes checked" in capsys.readouterr().out
