"""Ollama's side of the backend, against a store written after its documentation.

Ollama itself was not run: see recorded/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.external.pretend import program
from wager.arms import parse_arms
from wager.backend import Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external.ollama import OllamaBackend, stored
from wager.external.server import ServerOptions

PLAIN, NGRAM, DFLASH, OTHER = parse_arms("plain,ngram:k=4,max=5,dflash:k=4,mtp:tag=m:fast,k=2")
KIND = "application/vnd.ollama.image."
CHAT = Prompt("p", SamplingParams(max_tokens=4), messages=(("user", "hi"),))


def put(store: Path, name: str, *kinds: str, params: dict[str, Any] | None = None) -> None:
    """Write a model's manifest, and the blob of its parameters."""
    layers = [{"mediaType": KIND + kind, "digest": f"sha256:{kind}0"} for kind in kinds]
    if params is not None:
        layers.append({"mediaType": KIND + "params", "digest": "sha256:params0"})
        (store / "blobs").mkdir(parents=True, exist_ok=True)
        (store / "blobs" / "sha256-params0").write_text(json.dumps(params))
    path = store / "manifests" / "registry.ollama.ai" / "library" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"layers": layers}))


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Any]:
    """Make a backend over a store in a folder of the test; stopped at the end."""
    made: list[OllamaBackend] = []
    path = program(tmp_path, "ollama", "", "", **{"api__version": {"version": "0.32.14"}})

    def make(model: str = "m", **options: Any) -> OllamaBackend:
        options.setdefault("program", path)
        environment = {"OLLAMA_MODELS": str(tmp_path / "store")}
        made.append(OllamaBackend(model, ServerOptions(environment=environment, **options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_store_says_whether_a_model_drafts(tmp_path: Path) -> None:
    put(tmp_path, "m/latest", "model", "template")
    put(tmp_path, "m/dflash", "model", "draft")
    plain, dflash = stored("m", tmp_path), stored("library/m:dflash", tmp_path)
    assert plain is not None
    assert dflash is not None
    assert plain.file == tmp_path / "blobs" / "sha256-model0"
    assert (plain.drafts, dflash.drafts) == (False, True)
    assert stored("absent", tmp_path) is None
    assert stored("../m", tmp_path) is None


@pytest.mark.parametrize(("length", "drafts"), [(4, True), (0, False)])
def test_a_models_parameters_have_the_last_word(tmp_path: Path, length: int, drafts: bool) -> None:
    put(tmp_path, "m/latest", "model", "draft", params={"draft_num_predict": length})
    found = stored("m", tmp_path)
    assert found is not None
    assert found.drafts is drafts


def test_ngram_is_explained_with_the_command_over_the_same_file(
    tmp_path: Path, backend: Any
) -> None:
    put(tmp_path / "store", "m/latest", "model")
    file = tmp_path / "store" / "blobs" / "sha256-model0"
    with pytest.raises(ConfigError) as caught:
        backend().check(NGRAM)
    assert f"llama-server --model {file} --spec-type ngram-simple" in str(caught.value)


def test_a_model_that_drafts_has_no_plain_arm(tmp_path: Path, backend: Any) -> None:
    put(tmp_path / "store", "m/latest", "model", "draft")
    with pytest.raises(ConfigError, match="draft_num_predict 0") as caught:
        backend().check(PLAIN)
    assert "llama-server --model " in str(caught.value)
    assert "drafting as its Modelfile says" in backend().check(DFLASH)


def test_a_model_without_drafts_has_no_other_arm(tmp_path: Path, backend: Any) -> None:
    put(tmp_path / "store", "m/latest", "model")
    assert backend().check(PLAIN) == "m, no speculation"
    with pytest.raises(ConfigError, match=r"does not draft.*dflash:tag=NAME"):
        backend().check(DFLASH)


def test_the_other_arm_is_another_model(tmp_path: Path, backend: Any) -> None:
    put(tmp_path / "store", "m/latest", "model")
    put(tmp_path / "store", "m/fast", "model", params={"draft_num_predict": 2})
    made = backend()
    assert made.check(OTHER).startswith("m:fast")
    made.arm = OTHER
    path, body = made.request(CHAT)
    assert (path, body["model"]) == ("/v1/chat/completions", "m:fast")
    made.arm = PLAIN
    assert made.request(CHAT)[1]["model"] == "m"


def test_settings_go_into_the_environment(backend: Any) -> None:
    made = backend(max_model_len=512, max_clients=3)
    assert made.full_command(PLAIN, 4321)[1:] == ["serve"]
    given = made.environment(PLAIN)
    assert given["OLLAMA_HOST"] == "127.0.0.1:4321"
    assert given["OLLAMA_CONTEXT_LENGTH"] == "512"
    assert given["OLLAMA_NUM_PARALLEL"] == "3"
    assert given["OLLAMA_NOPRUNE"] == "1"


def test_raw_prompts_are_refused(backend: Any) -> None:
    with pytest.raises(ConfigError, match="chats only"):
        backend().request(Prompt("p", SamplingParams(), text="x"))
    chat = Prompt("p", SamplingParams(ignore_eos=True), messages=(("user", "hi"),))
    with pytest.raises(ConfigError, match="ignore_eos"):
        backend().request(chat)


def test_what_ollama_has_no_option_for_is_refused(backend: Any) -> None:
    with pytest.raises(ConfigError, match="kv-memory"):
        backend(kv_memory=1).check(PLAIN)
    with pytest.raises(ConfigError, match="threads: Ollama"):
        backend(threads=1).check(PLAIN)
    with pytest.raises(ConfigError, match="takes none"):
        backend(arguments=("--x",)).check(PLAIN)
