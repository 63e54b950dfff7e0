"""What `wager methods` finds for a target: memory, engines, commands, candidates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.bench.methods_fakes import Hub, command, facts, head_facts, reader, ways
from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.arms import Speculation
from wager.bench.methods.engines import Target, engines, known_engine
from wager.bench.methods.find import find
from wager.bench.methods.heads import KINDS, Head, heads
from wager.bench.methods.pairs import Adds, Draft, speculation_of
from wager.bench.spelling import count, size
from wager.errors import ConfigError
from wager.models.facts.read import TensorFact


def test_ngram_and_suffix_always() -> None:
    found = find("org/Nobody-1B", read=reader(facts("org/Nobody-1B")), hub=False)
    assert [way.kind for way in found.ways] == ["ngram", "ngram-mod", "suffix"]
    assert all(way.adds == Adds(0, 0.0) and way.drafter is None for way in found.ways)
    assert command(found.ways[0], "vllm") == (
        "vllm serve org/Nobody-1B --speculative-config "
        '\'{"method":"ngram","num_speculative_tokens":8,"prompt_lookup_min":2,'
        '"prompt_lookup_max":5}\''
    )
    assert [run.engine for run in found.ways[1].runs] == ["llamacpp"]
    assert [run.engine for run in found.ways[2].runs] == ["vllm"]
    assert "not looked up on the hub: offline" in found.notes


def test_what_the_own_engine_runs_without_a_drafters_files(tmp_path: Path) -> None:
    target = str(write_tiny_hf(tmp_path / "target", seed=1))
    found = find(target, hub=False)
    own = {
        (way.kind, way.drafter): run.command or ""
        for way in found.ways
        for run in way.runs
        if run.engine == "own"
    }
    assert list(own) == [
        ("ngram", None), ("suffix", None), ("suffix+ngram", None), ("draft_model", "self"),
    ]  # fmt: skip
    assert own["suffix", None].startswith(f"wager run {target} -sc ")
    assert '"method":["suffix","ngram"]' in own["suffix+ngram", None]
    assert '"model":"self","quantization":"int8"' in own["draft_model", "self"]
    coarse = next(way for way in found.ways if way.drafter == "self")
    assert [run.engine for run in coarse.runs] == ["own"]
    assert coarse.adds is not None
    assert 0 < coarse.adds.weight_bytes < found.target.weight_bytes / 2
    assert coarse.adds.kv_bytes_per_token == found.target.kv_bytes_per_token()
    # 8-bit weights are rounded further.
    gguf = str(write_tiny_gguf(tmp_path / "m.gguf", tensor_type="Q8_0"))
    (way,) = [way for way in find(gguf, hub=False).ways if way.drafter == "self"]
    assert '"quantization":"int4"' in command(way, "own")


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
    assert any("zai-org/GLM-4.5 has layers of its own for mtp" in note for note in found.notes)
    kept = facts("zai-org/GLM-4.5", mtp_layers=1)
    found = find(kept.name, read=reader(kept), hub=False)
    assert len(ways(found, "mtp")) == 1
    assert not any("of its own" in note for note in found.notes)


def test_what_is_part_of_a_target_is_not_part_of_another_tuning() -> None:
    mtp = facts("deepseek-ai/DeepSeek-V4-Flash", mtp_layers=1)
    kinds = [way.kind for way in find(mtp.name, read=reader(mtp), hub=False).ways]
    assert ("mtp" in kinds, "dspark" in kinds) == (True, False)
    dspark = facts("deepseek-ai/DeepSeek-V4-Flash-0731", mtp_layers=3)
    found = find(dspark.name, read=reader(dspark), hub=False)
    kinds = [way.kind for way in found.ways]
    assert ("mtp" in kinds, "dspark" in kinds) == (False, True)
    assert ways(found, "dspark")[0].origin == "built in"


@pytest.mark.parametrize(
    "head", heads(), ids=lambda head: f"{head.kind}:{head.head or head.target}"
)
def test_every_pair_of_the_list_has_a_command(head: Head) -> None:
    target = facts(head.target, mtp_layers=1)
    found = find(head.target, read=reader(target), hub=False)
    way = next(w for w in found.ways if (w.kind, w.drafter) == (head.kind, head.head))
    config = json.loads(command(way, "vllm").rpartition("--speculative-config ")[2].strip("'"))
    assert config["method"] == way.method
    assert config.get("model") == head.head
    assert config["num_speculative_tokens"] >= 1


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
    (way,) = [way for way in ways(found, "draft_model") if way.origin == "candidate"]
    assert way.drafter == str(same)
    # The own engine drafts with files that it can load, and with nothing on the hub.
    assert f'"model":"{same}"' in command(way, "own")
    options = {"model": "org/drafter", "num_speculative_tokens": 4}
    runs = engines("draft_model", Speculation("draft_model", options), Target("a", "a", False))
    hub = next(run for run in runs if run.engine == "own")
    assert (hub.command, hub.needs) == (None, "files on this machine")
    assert way.adds is not None
    assert way.adds.weight_bytes > 0
    assert any("has the target's tokenizer" in note for note in way.notes)
    assert any("100 % of the target's: no faster than it" in note for note in way.notes)
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
    found = find(str(target), [f"{other}, {tmp_path / 'missing'}"], hub=False)
    assert [refused.name for refused in found.refused] == [str(other), str(tmp_path / "missing")]
    assert "tokenizer differs" in found.refused[0].reason
    assert "no such file" in found.refused[1].reason
    # The name stands before the reason, and once.
    assert str(tmp_path) not in found.refused[1].reason


def test_a_candidate_that_is_a_head_is_listed_as_one() -> None:
    head = head_facts("me/my-head", "eagle3", hidden_size=2048)
    found = find("Qwen/Qwen3-8B", ["me/my-head"], read=reader(facts(), head), hub=False)
    way = next(way for way in found.ways if way.drafter == "me/my-head")
    assert (way.kind, way.origin) == ("eagle3", "candidate")
    assert any("hidden states of 2048; the target's are 4096" in note for note in way.notes)


def test_an_empty_directory_of_candidates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        find("Qwen/Qwen3-8B", [str(tmp_path)], read=reader(facts()), hub=False)
    with pytest.raises(ConfigError, match="candidates: an empty name"):
        find("Qwen/Qwen3-8B", [""], read=reader(facts()), hub=False)


def test_a_head_is_no_target() -> None:
    head = head_facts("a/head", "eagle3", speculative={"target": "Qwen/Qwen3-8B"})
    with pytest.raises(ConfigError, match=r"is a draft head \(eagle3\); name Qwen/Qwen3-8B"):
        find("a/head", read=reader(head), hub=False)


# Engines


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


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("org/m-GGUF:Q4_K_M", "llama-server -hf org/m-GGUF:Q4_K_M --spec-type"),
        ("org/m-GGUF/m-Q4_0.gguf", "llama-server -hf org/m-GGUF -hff m-Q4_0.gguf --spec-type"),
    ],
)
def test_a_gguf_target_on_the_hub(name: str, start: str) -> None:
    target = Target(name, name, gguf=True, hub=True)
    runs = engines("mtp", Speculation("mtp", {"num_speculative_tokens": 1}), target)
    by_engine = {run.engine: run.command or "" for run in runs}
    assert by_engine["llamacpp"].startswith(start)
    assert by_engine["ollama"] == f"FROM hf.co/{name}\nPARAMETER draft_num_predict 1"


def test_a_gguf_drafter() -> None:
    options = {"model": "d-Q8_0.gguf", "num_speculative_tokens": 4}
    runs = engines("draft_model", Speculation("draft_model", options), Target("a/b", "a/b", False))
    needs = {run.engine: run.needs for run in runs if run.command is None}
    assert needs["vllm"] == needs["transformers"] == "Hugging Face layout"
    llama = next(run.command for run in runs if run.engine == "llamacpp")
    assert llama is not None
    assert "-m b.gguf " in llama
    assert "--spec-draft-model d-Q8_0.gguf" in llama


def test_an_assistant_that_is_a_model_of_its_own() -> None:
    found = find("google/gemma-4-E2B-it", read=reader(facts("google/gemma-4-E2B-it")), api=Hub())
    (way,) = ways(found, "mtp")
    assert way.drafter == "google/gemma-4-E2B-it-assistant"
    assert '"model":"google/gemma-4-E2B-it-assistant"' in command(way, "vllm")
    assert "assistant_model=" in command(way, "transformers")


def test_the_page_says_which_engine_runs_which_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| ([^|]+) \| [^|]*\|$", page, re.MULTILINE)
    written = {kind: titles.strip().split(", ") for kind, titles in rows}
    assert set(written) == {"ngram", "suffix", "draft_model", *KINDS}
    for kind, titles in written.items():
        draft = Draft(kind, None if kind in ("ngram", "suffix", "mtp") else "org/drafter", "list")
        runs = engines(kind, speculation_of(draft, None, facts()), Target("a/b", "a/b", gguf=False))
        assert [run.title for run in runs] == titles, kind


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
