"""What `wager methods` lists: the package's list, matching, the hub, memory, engines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest

from tests.tiny import write_tiny_hf
from wager.arms import Speculation
from wager.bench.methods import Found, Way, find
from wager.bench.methods_engines import Target, engines, known_engine
from wager.bench.methods_heads import KINDS, compare, families, family_of, heads, matching_heads
from wager.bench.methods_hub import Lookup, kind_of, look_up
from wager.bench.methods_pairs import Adds
from wager.bench.methods_report import count, size
from wager.errors import ConfigError, ModelError
from wager.models.facts import LayerCache, ModelFacts, TensorFact

HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
LIST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["heads", "families"],
    "additionalProperties": False,
    "properties": {
        "heads": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["target", "head", "kind", "source"],
                "additionalProperties": False,
                "properties": {
                    "target": {"type": "string", "pattern": f"^{HUB_ID}$"},
                    "head": {"type": ["string", "null"], "pattern": f"^{HUB_ID}$"},
                    "kind": {"enum": list(KINDS)},
                    "source": {"type": "string", "pattern": "^https://"},
                    "note": {"type": "string", "minLength": 1},
                },
            },
        },
        "families": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "models"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "models": {
                        "type": "array",
                        "minItems": 2,
                        "items": {
                            "type": "object",
                            "required": ["id", "parameters"],
                            "additionalProperties": False,
                            "properties": {
                                "id": {"type": "string", "pattern": f"^{HUB_ID}$"},
                                "parameters": {"type": "integer", "minimum": 1_000_000},
                            },
                        },
                    },
                },
            },
        },
    },
}


# ------------------------------------------------------------------------------- the list itself


def test_the_list_is_well_formed() -> None:
    text = (files("wager.bench") / "heads.json").read_text(encoding="utf-8")
    jsonschema.validate(json.loads(text), LIST_SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_list_holds_forty_targets_and_every_kind() -> None:
    assert len({head.target.lower() for head in heads()}) >= 40
    assert {head.kind for head in heads()} == set(KINDS)


def test_no_pair_is_listed_twice() -> None:
    pairs = [(h.target.lower(), (h.head or "").lower(), h.kind) for h in heads()]
    assert len(pairs) == len(set(pairs))


def test_a_head_is_missing_only_where_it_is_part_of_the_target() -> None:
    assert {head.kind for head in heads() if head.head is None} <= {"mtp", "dspark"}
    assert not [head for head in heads() if head.head == head.target]


def test_every_source_is_a_page_of_a_host() -> None:
    for head in heads():
        parts = urlsplit(head.source)
        assert parts.hostname in {"github.com", "huggingface.co", "docs.vllm.ai", "docs.sglang.io"}
        assert len(parts.path.strip("/").split("/")) >= 2


def test_families_name_a_model_once() -> None:
    ids = [model.id.lower() for family in families() for model in family.models]
    assert len(ids) == len(set(ids))


# -------------------------------------------------------------------------------------- matching


@pytest.mark.parametrize(
    ("name", "target", "match"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "exact"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B", "exact"),
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B", "copy"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B", "copy"),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "Qwen/Qwen3-8B", "copy"),
        ("bartowski/Qwen_Qwen3-8B-GGUF", "Qwen/Qwen3-8B", "copy"),
        ("Qwen3-8B-Q4_K_M.gguf", "Qwen/Qwen3-8B", "copy"),
        ("Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf", "Qwen/Qwen3-8B", "copy"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "copy"),
        ("SmolLM2 135M Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "copy"),
        ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B", "tuning"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507", "tuning"),
        ("Qwen/Qwen3-14B", "Qwen/Qwen3-8B", None),
        ("Qwen/Qwen3-80B", "Qwen/Qwen3-8B", None),
        ("Qwen/Qwen2.5-Coder-7B", "Qwen/Qwen2.5-7B", None),
        ("nex-agi/Qwen3-32B-Nex-N1", "Qwen/Qwen3-32B", None),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Llama-3.1-8B", None),
        ("", "Qwen/Qwen3-8B", None),
    ],
)
def test_names(name: str, target: str, match: str | None) -> None:
    assert compare(name, target) == match


def test_exact_matches_come_first() -> None:
    found = matching_heads(["zai-org/GLM-4.7-Flash"])
    assert [(head.kind, match) for head, match in found] == [("mtp", "exact"), ("eagle3", "exact")]
    names = ["deepseek-ai/DeepSeek-V4-Flash"]
    assert [(head.kind, match) for head, match in matching_heads(names)] == [
        ("mtp", "exact"), ("dspark", "tuning"),
    ]  # fmt: skip


def test_family() -> None:
    found = family_of(["/models/Qwen2.5-Coder-7B-Instruct"])
    assert found is not None
    assert (found[0].name, found[1]) == ("Qwen2.5-Coder", "copy")
    assert family_of(["tiny", "model"]) is None


# --------------------------------------------------------------------------------- a fake target


def facts(name: str = "Qwen/Qwen3-8B", **changes: Any) -> ModelFacts:
    made = ModelFacts(
        name=name, source="hub", location=f"{name}@abc", architecture="Qwen3ForCausalLM",
        model_type="qwen3", num_layers=36, hidden_size=4096, intermediate_size=12288, num_heads=32,
        num_kv_heads=8, head_dim=128, vocab_size=151936, max_context=40960, tied_head=False,
        dtype="BF16", quantisation=None, model_dtype="bfloat16", parameters=8_190_735_360,
        weight_bytes=16_381_470_720, kv_layers=(LayerCache("full", 2 * 8 * 128, 8),) * 36,
        experts=None, experts_per_token=None, mtp_layers=0, tokenizer_hash="qwen", tensors=(),
        speculative=None,
    )  # fmt: skip
    return replace(made, **changes)


def head_facts(name: str, kind: str, **changes: Any) -> ModelFacts:
    speculative = {"kind": kind, **changes.pop("speculative", {})}
    made = facts(
        name, parameters=400_000_000, weight_bytes=800_000_000, num_layers=1, tokenizer_hash=None,
        kv_layers=(LayerCache("full", 2 * 8 * 128, 8),), speculative=speculative,
    )  # fmt: skip
    return replace(made, **changes)


def reader(*known: ModelFacts) -> Callable[..., ModelFacts]:
    by_name = {made.name: made for made in known}

    def read(name: str, *, tokenizer: bool = True) -> ModelFacts:
        if name not in by_name:
            raise ModelError(f"{name}: there is no such model on the hub")
        return by_name[name] if tokenizer else replace(by_name[name], tokenizer_hash=None)

    return read


@dataclass
class Model:
    id: str
    tags: list[str] | None = None


@dataclass
class Hub:
    """Answers as the hub's API does, over a list of models."""

    models: list[Model] = field(default_factory=list)
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def model_info(self, repo_id: str, *, timeout: float | None = None) -> Model:
        assert timeout
        self.asked.append(repo_id)
        if self.error is not None:
            raise self.error
        return next((m for m in self.models if m.id == repo_id), Model(repo_id))

    def list_models(
        self, *, filter: Any = None, search: str | None = None, sort: Any = None,
        limit: int | None = None,
    ) -> Iterable[Model]:  # fmt: skip
        assert search
        self.asked.append(f"{filter}:{search}")
        fitting = [
            m for m in self.models if filter in (m.tags or ()) and search.lower() in m.id.lower()
        ]
        return fitting[:limit]


def ways(found: Found, kind: str) -> list[Way]:
    return [way for way in found.ways if way.kind == kind]


def command(way: Way, engine: str) -> str:
    text = next(run.command for run in way.runs if run.engine == engine)
    assert text is not None
    return text


# ------------------------------------------------------------------------------------- the ways


def test_ngram_and_suffix_always() -> None:
    found = find("org/Nobody-1B", read=reader(facts("org/Nobody-1B")), hub=False)
    assert [way.kind for way in found.ways] == ["ngram", "suffix"]
    assert all(way.adds == Adds(0, 0.0) and way.drafter is None for way in found.ways)
    assert command(found.ways[0], "vllm") == (
        "vllm serve org/Nobody-1B --speculative-config "
        '\'{"method":"ngram","num_speculative_tokens":8,"prompt_lookup_min":2,'
        '"prompt_lookup_max":5}\''
    )
    assert [run.engine for run in found.ways[1].runs if run.engine != "own"] == ["vllm"]
    assert "not looked up on the hub: offline" in found.notes


def test_published_heads_with_their_memory_and_commands() -> None:
    eagle = head_facts("RedHatAI/Qwen3-8B-speculator.eagle3", "eagle3",
                       speculative={"num_speculative_tokens": 5})  # fmt: skip
    dflash = head_facts("z-lab/Qwen3-8B-DFlash-b16", "dflash", speculative={"block_size": 16})
    found = find("Qwen/Qwen3-8B", read=reader(facts(), eagle, dflash), api=Hub())
    way = next(way for way in found.ways if way.drafter == eagle.name)
    assert way.adds == Adds(800_000_000, 2 * 8 * 128 * 2.0)
    assert way.source is not None
    assert way.source.startswith("https://")
    assert '"num_speculative_tokens":5' in command(way, "vllm")
    assert "convert_hf_to_gguf" in " ".join(
        note for run in way.runs if run.engine == "llamacpp" for note in run.notes
    )
    assert "Qwen3-8B.gguf" in command(way, "llamacpp")
    block = next(way for way in found.ways if way.drafter == dflash.name)
    # Of a block of 16 the first slot is the token that is committed already.
    assert '"num_speculative_tokens":15' in command(block, "vllm")
    other = next(way for way in found.ways if way.drafter == "AngelSlim/Qwen3-8B_eagle3")
    assert other.adds is None
    assert other.unread is not None
    assert "no such model" in other.unread


def test_peagle_and_dflash2_run_where_they_are_known_to() -> None:
    found = find("Qwen/Qwen3-8B", read=reader(facts()), api=Hub())
    (peagle,) = ways(found, "peagle")
    assert [run.engine for run in peagle.runs] == ["vllm"]
    assert '"method":"eagle3"' in command(peagle, "vllm")
    assert '"parallel_drafting":true' in command(peagle, "vllm")
    (dflash2,) = ways(found, "dflash2")
    assert dflash2.method == "dflash"
    assert [run.engine for run in dflash2.runs] == ["vllm"]


def test_another_tuning_is_said_to_be_one() -> None:
    found = find("Qwen/Qwen3-8B-Base", read=reader(facts("Qwen/Qwen3-8B-Base")), api=Hub())
    heads_found = [way for way in found.ways if way.origin == "list"]
    assert heads_found
    for way in heads_found:
        assert any("made for Qwen/Qwen3-8B, by its name another tuning" in n for n in way.notes)


def test_mtp_in_the_files() -> None:
    tensors = (TensorFact("mtp.fc.weight", "BF16", (4096, 8192), 67_108_864),)
    model = facts("org/With-MTP-8B", mtp_layers=1, tensors=tensors)
    (way,) = ways(find(model.name, read=reader(model), hub=False), "mtp")
    assert way.adds == Adds(67_108_864, 2 * 8 * 128 * 2.0)
    assert (way.origin, way.drafter) == ("built in", None)
    assert '{"method":"mtp","num_speculative_tokens":1}' in command(way, "vllm")
    assert command(way, "transformers") == "model.generate(**inputs, use_mtp=True)"


def test_mtp_that_these_files_have_lost() -> None:
    model = facts("unsloth/GLM-4.5-GGUF")
    found = find(model.name, read=reader(model), hub=False)
    assert not ways(found, "mtp")
    assert any("zai-org/GLM-4.5 has layers for multi-token" in note for note in found.notes)
    kept = facts("zai-org/GLM-4.5", mtp_layers=1)
    found = find(kept.name, read=reader(kept), hub=False)
    assert len(ways(found, "mtp")) == 1
    assert not any("multi-token" in note for note in found.notes)


def test_smaller_models_of_the_family() -> None:
    small = facts("Qwen/Qwen3-0.6B", parameters=596_000_000, weight_bytes=1_200_000_000)
    padded = facts("Qwen/Qwen3-1.7B", parameters=1_700_000_000, vocab_size=152064)
    other = facts("Qwen/Qwen3-4B", parameters=4_000_000_000, tokenizer_hash="other")
    found = find("Qwen/Qwen3-8B", read=reader(facts(), small, padded, other), api=Hub())
    listed = {way.drafter: way for way in ways(found, "draft_model")}
    assert list(listed) == ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"]
    assert any("compared token by token" in note for note in listed["Qwen/Qwen3-0.6B"].notes)
    assert "heterogeneous" not in command(listed["Qwen/Qwen3-0.6B"], "vllm")
    assert '"use_heterogeneous_vocab":true' in command(listed["Qwen/Qwen3-1.7B"], "vllm")
    assert [refused.name for refused in found.refused] == ["Qwen/Qwen3-4B"]
    assert "tokenizer differs" in found.refused[0].reason


def test_a_family_member_that_cannot_be_read_is_listed_as_not_compared() -> None:
    found = find("Qwen/Qwen3-8B", read=reader(facts()), hub=False)
    for way in ways(found, "draft_model"):
        assert way.adds is None
        assert any("was not compared" in note for note in way.notes)


def test_candidates(tmp_path: Path) -> None:
    target = write_tiny_hf(tmp_path / "target", seed=1)
    same = write_tiny_hf(tmp_path / "drafters" / "same", seed=2)
    found = find(str(target), [str(tmp_path / "drafters")], hub=False)
    (way,) = ways(found, "draft_model")
    assert (way.drafter, way.origin) == (str(same), "candidate")
    assert way.adds is not None
    assert way.adds.weight_bytes > 0
    assert any("has the target's tokenizer" in note for note in way.notes)
    assert any("100% of the target's parameters" in note for note in way.notes)
    assert f"vllm serve {target}" in command(way, "vllm")


def test_a_candidate_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    target = write_tiny_hf(tmp_path / "target", seed=1)
    other = write_tiny_hf(tmp_path / "other", seed=1)
    path = other / "tokenizer.json"
    raw = json.loads(path.read_text())
    vocab = raw["model"]["vocab"]
    first, second = list(vocab)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(raw))
    found = find(str(target), [str(other), str(tmp_path / "missing")], hub=False)
    assert [refused.name for refused in found.refused] == [str(other), str(tmp_path / "missing")]
    assert "tokenizer differs" in found.refused[0].reason
    assert "no such file" in found.refused[1].reason


def test_a_candidate_that_is_a_head_is_listed_as_one() -> None:
    head = head_facts("me/my-head", "eagle3", hidden_size=2048)
    found = find("Qwen/Qwen3-8B", ["me/my-head"], read=reader(facts(), head), hub=False)
    way = next(way for way in found.ways if way.drafter == "me/my-head")
    assert (way.kind, way.origin) == ("eagle3", "candidate")
    assert any("hidden states of 2048; the target's are 4096" in note for note in way.notes)


def test_an_empty_directory_of_candidates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        find("Qwen/Qwen3-8B", [str(tmp_path)], read=reader(facts()), hub=False)


def test_a_head_is_no_target() -> None:
    head = head_facts("a/head", "eagle3", speculative={"target": "Qwen/Qwen3-8B"})
    with pytest.raises(ConfigError, match=r"is a draft head \(eagle3\); name Qwen/Qwen3-8B"):
        find("a/head", read=reader(head), hub=False)


# --------------------------------------------------------------------------------------- the hub


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
    import threading

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


# --------------------------------------------------------------------------------------- engines


def test_a_gguf_target() -> None:
    target = Target("m", "/x/m-Q4_K_M.gguf", gguf=True, refusal="too new")
    runs = engines("ngram", Speculation("ngram", {"num_speculative_tokens": 4}), target)
    by_engine = {run.engine: run for run in runs}
    assert "own" not in by_engine
    llama = by_engine["llamacpp"].command
    assert llama is not None
    assert llama.startswith("llama-server -m /x/m-Q4_K_M.gguf --spec-type ngram-simple ")
    for engine in ("vllm", "transformers"):
        assert by_engine[engine].command is None
        assert by_engine[engine].needs == "Hugging Face layout"


def test_an_assistant_that_is_a_model_of_its_own() -> None:
    found = find("google/gemma-4-E2B-it", read=reader(facts("google/gemma-4-E2B-it")), api=Hub())
    (way,) = ways(found, "mtp")
    assert way.drafter == "google/gemma-4-E2B-it-assistant"
    assert '"model":"google/gemma-4-E2B-it-assistant"' in command(way, "vllm")
    assert "assistant_model=" in command(way, "transformers")


def test_unknown_engine() -> None:
    assert known_engine("vllm") == "vllm"
    with pytest.raises(ConfigError, match="there are: own, vllm"):
        known_engine("tgi")


def test_sizes_for_people() -> None:
    assert (size(0), size(999), size(1500), size(98_362_432)) == (
        "0 B",
        "999 B",
        "1.5 kB",
        "98.4 MB",
    )
    assert (count(8_190_735_360), count(134_515_008)) == ("8.19 B", "135 M")
    assert re.fullmatch(r"\d.*", count(12))
