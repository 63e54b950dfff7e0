"""What each engine's dialect writes for an arm, and that nothing of an arm is lost in silence."""

from __future__ import annotations

import json

import pytest

from wager.arms import Speculation, arm_of, parse_arms
from wager.errors import ConfigError
from wager.external.dialects import ENGINES, dialect
from wager.external.dialects.names import FLAGS, GENERAL, owner
from wager.external.dialects.options import TITLES


def speculation(text: str) -> Speculation:
    (arm,) = parse_arms(text)
    assert arm.speculation is not None
    return arm.speculation


def config(text: str) -> dict[str, object]:
    """What vLLM gets for an arm."""
    option, value = dialect("vllm").write(speculation(text)).arguments
    assert option == "--speculative-config"
    loaded = json.loads(value)
    assert isinstance(loaded, dict)
    return loaded


def llama(text: str) -> str:
    return " ".join(dialect("llamacpp").write(speculation(text)).arguments)


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_decoding_needs_no_arguments(engine: str) -> None:
    written = dialect(engine).write(None)
    assert written.arguments == ()
    assert written.notes == ()


def test_ollama_switches_plain_decoding_on_in_the_model_file() -> None:
    assert dialect("ollama").write(None).lines == ("PARAMETER draft_num_predict 0",)


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("ngram:k=4",
         {"num_speculative_tokens": 4, "prompt_lookup_min": 5, "prompt_lookup_max": 5}),
        ("ngram:k=8,max=3",
         {"num_speculative_tokens": 8, "prompt_lookup_min": 3, "prompt_lookup_max": 3}),
        ("ngram:k=8,min=2,max=5",
         {"num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 5}),
        ("suffix:k=16,suffix_decoding_max_spec_factor=2.0",
         {"num_speculative_tokens": 16, "suffix_decoding_max_spec_factor": 2.0}),
        ("draft_model:model=org/D,k=4", {"model": "org/D", "num_speculative_tokens": 4}),
        ("mtp:k=1", {"num_speculative_tokens": 1}),
        ("mtp:model=H", {"model": "H"}),
        ("suffix", {}),
    ],
)  # fmt: skip
def test_vllm(arm: str, expected: dict[str, object]) -> None:
    assert config(arm) == {"method": arm.partition(":")[0], **expected}


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("ngram-simple:k=8,spec-ngram-simple-size-n=3", (8, 3)),
        ("ngram-simple", (48, 12)),
        ("ngram-map-k:spec_ngram_map_k_size_m=6", (6, 12)),
        ("ngram-mod:k=8", (8, 24)),
        ("ngram-mod", (64, 24)),
    ],
)
def test_vllm_takes_the_nearest_for_methods_of_llama_cpp(
    arm: str, expected: tuple[int, int]
) -> None:
    k, size = expected
    assert config(arm) == {
        "method": "ngram", "num_speculative_tokens": k,
        "prompt_lookup_min": size, "prompt_lookup_max": size,
    }  # fmt: skip
    assert "is llama.cpp's" in dialect("vllm").write(speculation(arm)).notes[0]


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("ngram:k=8,min=2,max=5",
         "--spec-type ngram-simple --spec-ngram-simple-size-n 5 --spec-ngram-simple-size-m 8 "
         "--spec-ngram-simple-min-hits 1"),
        ("ngram-simple:k=8,spec-ngram-simple-size-n=3",
         "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8 "
         "--spec-ngram-simple-min-hits 1"),
        ("ngram-mod",
         "--spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 "
         "--spec-ngram-mod-n-max 64"),
        ("ngram-mod:k=8",
         "--spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 8 "
         "--spec-ngram-mod-n-max 8"),
        ("ngram-cache:lookup-cache-static=w.lookup", "--spec-type ngram-cache -lcs w.lookup"),
        ("ngram-cache:k=8", "--spec-type ngram-cache"),
        ("draft_model:model=/a/d.gguf,k=4,spec-draft-p-min=0.75",
         "--spec-type draft-simple --spec-draft-model /a/d.gguf --spec-draft-n-max 4 "
         "--spec-draft-n-min 0 --spec-draft-p-min 0.75"),
        ("draft-simple:model=org/D-GGUF:Q4_0,k=4",
         "--spec-type draft-simple --spec-draft-hf org/D-GGUF:Q4_0 --spec-draft-n-max 4 "
         "--spec-draft-n-min 0 --spec-draft-p-min 0.0"),
        ("mtp", "--spec-type draft-mtp --spec-draft-n-max 3 --spec-draft-n-min 0 "
         "--spec-draft-p-min 0.0"),
    ],
)  # fmt: skip
def test_llama_cpp(arm: str, expected: str) -> None:
    assert llama(arm) == expected


def test_llama_cpp_takes_a_list() -> None:
    arm = arm_of({"method": "ngram-mod,draft-simple", "model": "d.gguf"})
    words = dialect("llamacpp").write(arm.speculation).arguments
    assert words[:2] == ("--spec-type", "ngram-mod,draft-simple")
    assert words[words.index("--spec-draft-n-max") + 1] == "3"
    for engine in ENGINES:
        if engine != "llamacpp":
            said = "suffix.ngram, in JSON" if engine == "own" else "one method at a time"
            with pytest.raises(ConfigError, match=said):
                dialect(engine).write(arm.speculation)


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("ngram:k=7", "NGRAM --speculative-num-draft-tokens 8"),
        ("eagle3:model=P,k=3", "EAGLE3 --speculative-draft-model-path P --speculative-num-steps 3 "
         "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
        ("eagle3:model=P,k=3,speculative-eagle-topk=4,speculative-num-draft-tokens=16",
         "EAGLE3 --speculative-draft-model-path P --speculative-num-steps 3 "
         "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16"),
        ("mtp:k=1", "EAGLE --speculative-num-steps 1 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 2"),
        ("dflash:model=P,k=15", "DFLASH --speculative-draft-model-path P "
         "--speculative-dflash-block-size 16"),
        ("dspark:model=P,k=7", "DSPARK --speculative-draft-model-path P "
         "--speculative-dspark-block-size 7"),
    ],
)  # fmt: skip
def test_sglang(arm: str, expected: str) -> None:
    words = dialect("sglang").write(speculation(arm)).arguments
    assert " ".join(words) == f"--speculative-algorithm {expected}"


def test_ollama() -> None:
    written = dialect("ollama").write(speculation("dflash:model=./d.gguf,k=8"))
    assert written.lines == ("DRAFT ./d.gguf", "PARAMETER draft_num_predict 8")
    with pytest.raises(ConfigError, match="start llama-server with the same model file"):
        dialect("ollama").write(speculation("ngram:k=4"))


def test_own_writes_what_it_has_and_says_what_it_has_not() -> None:
    option, value = dialect("own").write(speculation("ngram:k=8,max=3,match=earliest")).arguments
    assert option == "-sc"
    assert json.loads(value) == {
        "method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 3,
        "prompt_lookup_max": 3, "match": "earliest",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="does not draft this way yet; it has draft_model, "):
        dialect("own").write(speculation("medusa:k=4"))
    with pytest.raises(ConfigError, match="medusa: wager's own engine does not"):
        dialect("own").write(speculation("suffix+medusa:k=4"))


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("suffix:k=16,suffix_decoding_max_spec_factor=2.0",
         {"num_speculative_tokens": 16, "suffix_decoding_max_spec_factor": 2.0}),
        ("suffix", {"num_speculative_tokens": 24}),
        ("suffix:suffix_decoding_max_tree_depth=9",
         {"num_speculative_tokens": 9, "suffix_decoding_max_tree_depth": 9}),
        ("draft_model:model=self,quantization=int8,k=4",
         {"num_speculative_tokens": 4, "model": "self", "quantization": "int8"}),
        ("draft-simple:model=D.gguf,k=4,spec-draft-p-min=0.75",
         {"method": "draft_model", "num_speculative_tokens": 4, "model": "D.gguf",
          "draft_min_token_prob": 0.75}),
        ("draft_model:model=D,k=4,rejection_sample_method=standard",
         {"num_speculative_tokens": 4, "model": "D", "verify": "rejection"}),
        ("draft_model:model=D,k=4,rejection_sample_method=block",
         {"num_speculative_tokens": 4, "model": "D", "verify": "rejection",
          "block_verification": True}),
        ("draft-simple:model=D,k=4,spec_draft_sampling=probabilistic",
         {"method": "draft_model", "num_speculative_tokens": 4, "model": "D",
          "verify": "rejection"}),
        ("draft_model:model=D,k=4,verify=rejection,block_verification=true",
         {"num_speculative_tokens": 4, "model": "D", "verify": "rejection",
          "block_verification": True}),
        ("suffix+ngram:k=8,min=2,max=5",
         {"method": ["suffix", "ngram"], "num_speculative_tokens": 8, "prompt_lookup_min": 2,
          "prompt_lookup_max": 5}),
        ("suffix+draft-simple:k=4,model=D",
         {"method": ["suffix", "draft_model"], "num_speculative_tokens": 4, "model": "D"}),
    ],
)  # fmt: skip
def test_own_runs_the_methods_without_training(arm: str, expected: dict[str, object]) -> None:
    option, value = dialect("own").write(speculation(arm)).arguments
    assert option == "-sc"
    assert json.loads(value) == {"method": arm.partition(":")[0], **expected}


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        # With the controller a length need not be named, and is not made up.
        ("auto", {"method": "auto"}),
        ("auto:k=4,max=3", {"method": "auto", "num_speculative_tokens": 4, "prompt_lookup_max": 3}),
        ("ngram", {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 5}),
        ("draft_model:model=D", {"method": "draft_model", "model": "D"}),
        ("ngram:min=2,max=4,loss_budget=0.02,objective=latency",
         {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "loss_budget": 0.02,
          "objective": "latency"}),
        ("ngram:k=4,min=2,max=4,controller=off",
         {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2,
          "prompt_lookup_max": 4, "controller": "off"}),
    ],
)  # fmt: skip
def test_own_keeps_what_the_controller_is_told(arm: str, expected: dict[str, object]) -> None:
    written = dialect("own").write(speculation(arm))
    assert json.loads(written.arguments[1]) == expected
    assert not [note for note in written.notes if "left out" in note]
    for engine in ("vllm", "sglang"):
        if "k=4" in arm and not arm.startswith("auto"):
            said = "\n".join(dialect(engine).write(speculation(arm)).notes)
            assert "controller 'off' is left out" in said
    assert owner("objective") == owner("controller") == owner("loss_budget") == "own"


def test_own_reads_the_controllers_keys() -> None:
    given = {"method": "auto", "loss_budget": 0.01, "objective": "latency"}
    reading = dialect("own").read(["-sc", json.dumps(given)])
    assert {f.severity for f in reading.findings} == {"note"}
    assert {f.what.partition(":")[0] for f in reading.findings} >= {"loss_budget", "objective"}


def test_own_says_what_a_rule_or_an_end_of_drafts_becomes() -> None:
    def notes(arm: str) -> str:
        return "\n".join(dialect("own").write(speculation(arm)).notes)

    assert "24, the depth of the tree, as in vLLM" in notes("suffix")
    block = notes("draft_model:model=D,k=4,rejection_sample_method=block,controller=off")
    assert "in effect: draft_model, at most 4 draft tokens, D, block verification" in block
    assert "keeps the distribution" in block
    assert "spec_draft_n_min 2 is left out" in notes("draft-simple:model=D,k=4,spec-draft-n-min=2")
    synthetic = "rejection_sample_method=synthetic,draft_sample_method=greedy"
    said = notes(f"draft_model:model=D,k=4,{synthetic}")
    assert "rejection_sample_method 'synthetic' is left out" in said
    assert "draft_sample_method 'greedy' is left out" in said
    # vLLM has words for quantisation that mean nothing here: refused, by name.
    with pytest.raises(ConfigError, match="quantization: must be one of"):
        notes("draft_model:model=D,k=4,quantization=fp8")
    for engine in ("vllm", "llamacpp", "sglang"):
        given = speculation("ngram:k=4,min=3,max=3,block_verification=true,draft_memory=f")
        said = "\n".join(dialect(engine).write(given).notes)
        assert "block_verification True is left out" in said
        assert "draft_memory 'f' is left out" in said


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "sglang", "ollama"])
def test_a_list_of_wagers_is_refused_by_name_elsewhere(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"^suffix\+ngram: .*(a\+b|ngram-mod,draft-simple)"):
        dialect(engine).write(speculation("suffix+ngram:k=8"))


@pytest.mark.parametrize(
    ("engine", "arm", "word"),
    [
        ("vllm", "ngram", "num_speculative_tokens is missing"),
        ("vllm", "ngram:k=0", "whole number of at least 1"),
        ("vllm", "ngram:k=1.5", "whole number"),
        ("vllm", "ngram:k=4,min=5,max=2", "larger than prompt_lookup_max"),
        ("vllm", "eagle3:k=3", "model is missing"),
        ("vllm", "mtp", "num_speculative_tokens is missing"),
        ("vllm", "draft_model:model=d.gguf,k=4", "reads no GGUF"),
        ("vllm", "nonsense:k=4", "not a method of vLLM"),
        ("vllm", "mlp_speculator:model=H,k=3", "fails at start-up"),
        ("vllm", "ngram:k=4,nonsense=1", "'nonsense' is not an option"),
        ("llamacpp", "ngram:max=3", "num_speculative_tokens is missing"),
        ("llamacpp", "ngram-cache:k=4", "8 tokens long"),
        ("llamacpp", "ngram-mod:k=4,spec-ngram-mod-n-min=9", "larger than the longest draft"),
        ("llamacpp", "draft_model:k=4", "model is missing"),
        ("llamacpp", "draft_model:model=/a/dir,k=4", "GGUF only"),
        ("llamacpp", "eagle:model=d.gguf,k=4", "EAGLE-3 heads only"),
        ("llamacpp", "suffix:k=4", "no suffix trees"),
        ("llamacpp", "medusa:k=4", "not a method of llama.cpp"),
        ("sglang", "suffix:k=4", "no such method"),
        ("sglang", "draft_model:model=d.gguf,k=4", "GGUF file"),
        ("ollama", "eagle3:k=4", "MTP layers and DFlash drafters only"),
        ("own", "ngram:k=0", "whole number of at least 1"),
        ("own", "ngram:controller=off", '"num_speculative_tokens" is missing'),
        ("own", "auto+ngram", "auto: .* does not draft this way"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(engine: str, arm: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        dialect(engine).write(speculation(arm))
    assert "\n" not in str(caught.value)


KEYS = {o.key for options in FLAGS.values() for o in options if o.key} - GENERAL


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "sglang", "own"])
@pytest.mark.parametrize("key", sorted(key for key in KEYS - {"method", "model"} if owner(key)))
def test_no_option_of_an_arm_is_lost_in_silence(engine: str, key: str) -> None:
    """Each is written, or a note names it."""
    options = {"num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 3, key: 3}
    written = dialect(engine).write(Speculation("ngram", options))
    words = " ".join(written.arguments)
    # What every engine has an n-gram for is written under a name of its own.
    common = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
    used = key in common or key in words or key.replace("_", "-") in words
    assert used or any(key in note for note in written.notes)


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no dialect"):
        dialect("tgi")
    assert all(engine in TITLES for engine in ENGINES)
