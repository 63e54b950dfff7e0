"""What `wager methods` learns from the hub: by a fake of its API, and over HTTP from a stand-in."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx2
import pytest

from tests.bench.methods_fakes import Hub, Model, facts, head_facts, reader
from tests.hub import fake_hub, point_library_at
from tests.tiny import write_tiny_hf
from wager.bench.methods.engines import SELF
from wager.bench.methods.find import find
from wager.bench.methods.hub import Lookup, kind_of, look_up
from wager.models.facts.read import ModelFacts


def test_heads_on_the_hub() -> None:
    hub = Hub([
        Model("someone/Qwen3-8B-new-eagle3", ["eagle3"]),
        Model("AngelSlim/Qwen3-8B_eagle3", ["eagle3"]),
        Model("someone/Qwen3-80B-eagle3", ["eagle3"]),
        Model("someone/Qwen3-8B-draft", ["speculative-decoding", "dflash"]),
        Model("someone/Qwen3-8B-nothing", ["speculative-decoding"]),
    ])  # fmt: skip
    found = find("Qwen/Qwen3-8B", read=reader(facts()), api=hub)
    new = {way.drafter: way.kind for way in found.ways if way.origin == "hub"}
    assert new == {"someone/Qwen3-8B-new-eagle3": "eagle3", "someone/Qwen3-8B-draft": "dflash"}
    assert not any("hub" in note for note in found.notes if "own engine" not in note)


def test_what_a_model_was_made_from() -> None:
    mine = Model("me/finetune", ["base_model:finetune:Qwen/Qwen3-14B", "base_model:Qwen/Qwen3-14B"])
    found = find("me/finetune", read=reader(facts("me/finetune")), api=Hub([mine]))
    assert "Qwen/Qwen3-14B" in found.names
    assert "AngelSlim/Qwen3-14B_eagle3" in {way.drafter for way in found.ways}


def test_no_answer_is_said_and_stops_nothing() -> None:
    hub = Hub(error=ConnectionError("name resolution failed\nmore"))
    found = find("Qwen/Qwen3-8B", read=reader(facts()), api=hub)
    assert "the hub gave no answer: name resolution failed" in found.notes
    assert len(hub.asked) == 1
    unread = {way.unread for way in found.ways if way.drafter is not None}
    assert unread == {"not looked up"}


def test_a_hub_that_hangs_is_given_up() -> None:
    never = threading.Event()

    class Hanging(Hub):
        def model_info(self, repo_id: str, *, timeout: float | None = None) -> Model:
            never.wait(30)
            return Model(repo_id)

    found = look_up(["Qwen3-8B"], None, Hanging(), seconds=0.05)
    never.set()
    assert found == Lookup(missed="the hub gave no answer in 0 s")


def test_offline_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    found = look_up(["Qwen3-8B"], "Qwen/Qwen3-8B")
    assert found.offline
    assert found.missed is not None
    assert "HF_HUB_OFFLINE" in found.missed


@pytest.mark.parametrize(
    ("name", "tags", "kind"),
    [
        ("a/Qwen3-8B-P-EAGLE", [], "peagle"),
        ("a/Qwen3-8B-EAGLE-3.1", [], "eagle3"),
        ("a/EAGLE-Qwen3-8B", ["eagle3"], "eagle"),
        ("a/x-DFlash2", ["dflash"], "dflash2"),
        ("a/x", ["medusa"], "medusa"),
        ("a/x", ["llama"], None),
    ],
)
def test_kinds_by_name_then_tag(name: str, tags: list[str], kind: str | None) -> None:
    assert kind_of(name, tags) == kind


def test_what_is_found_by_name_is_listed_as_what_its_files_are() -> None:
    hub = Hub([Model(f"x/Qwen3-8B-{name}", ["eagle3"]) for name in ("a", "b", "c-peagle")])
    known = [
        head_facts("x/Qwen3-8B-a", "dflash"),
        facts("x/Qwen3-8B-b"),
        head_facts("x/Qwen3-8B-c-peagle", "eagle3"),
    ]
    found = find("Qwen/Qwen3-8B", read=reader(facts(), *known), api=hub)
    kinds = {way.drafter: way.kind for way in found.ways if way.origin == "hub"}
    assert kinds == {"x/Qwen3-8B-a": "dflash", "x/Qwen3-8B-c-peagle": "peagle"}
    assert [refused.name for refused in found.refused] == ["x/Qwen3-8B-b"]


def test_a_drafter_that_breaks_off_does_not_end_the_list() -> None:
    read_rest = reader(facts())

    def read(name: str, *, tokenizer: bool = True) -> ModelFacts:
        if name.startswith("AngelSlim"):
            raise httpx2.ReadTimeout("")
        return read_rest(name, tokenizer=tokenizer)

    found = find("Qwen/Qwen3-8B", read=read, api=Hub())
    way = next(way for way in found.ways if way.drafter == "AngelSlim/Qwen3-8B_eagle3")
    assert (way.adds, way.unread) == (None, "ReadTimeout")


# Over HTTP


def write_head(path: Path, name: str) -> None:
    write_tiny_hf(path / name, seed=5)
    config = path / name / "config.json"
    raw = json.loads(config.read_text())
    raw |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 100}
    config.write_text(json.dumps(raw))


def test_the_stand_in_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repos = tmp_path / "repos"
    write_tiny_hf(repos / "me" / "Qwen3-8B-AWQ", seed=1)
    write_tiny_hf(repos / "Qwen" / "Qwen3-0.6B", seed=2)
    write_head(repos, "AngelSlim/Qwen3-8B_eagle3")
    write_head(repos, "new/Qwen3-8B-EAGLE3")
    with fake_hub(repos) as hub:
        point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache")
        hub.details["new/Qwen3-8B-EAGLE3"] = {"tags": ["eagle3", "safetensors"]}
        found = find("me/Qwen3-8B-AWQ")
        assert hub.served
    listed = {way.drafter: way for way in found.ways}
    known = listed["AngelSlim/Qwen3-8B_eagle3"]
    assert known.adds is not None
    assert known.adds.weight_bytes > 0
    assert any("by its name this target holds the same weights" in n for n in known.notes)
    assert listed["new/Qwen3-8B-EAGLE3"].origin == "hub"
    absent = listed["RedHatAI/Qwen3-8B-speculator.eagle3"]
    assert (absent.adds, "no such model" in str(absent.unread)) == (None, True)
    assert not any("hub" in note for note in found.notes if "own engine" not in note)


def test_a_target_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_tiny_hf(tmp_path / "Qwen3-8B", seed=1)
    write_head(tmp_path / "repos", "new/Qwen3-8B-EAGLE3")
    with fake_hub(tmp_path / "repos") as hub:
        point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache")
        hub.details["new/Qwen3-8B-EAGLE3"] = {"tags": ["eagle3"]}
        found = find(str(target))
    assert [way.drafter for way in found.ways if way.origin == "hub"] == ["new/Qwen3-8B-EAGLE3"]


def test_a_hub_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_tiny_hf(tmp_path / "Qwen3-8B", seed=1)
    with fake_hub(tmp_path) as hub:
        endpoint = hub.endpoint
    point_library_at(monkeypatch, endpoint, tmp_path / "cache")
    found = find(str(target))
    assert any("the hub gave no answer" in note for note in found.notes)
    # The target's own weights draft without any hub.
    elsewhere = [way for way in found.ways if way.drafter and way.drafter != SELF]
    assert {way.unread for way in elsewhere} == {"not looked up"}
