"""The tables of options: sound in themselves, and every row of them is heard of when it is read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from wager.external.dialects import dialect, read_only, vllm
from wager.external.dialects.base import Option, Reading
from wager.external.dialects.names import FLAGS, GENERAL, elsewhere, owner, spelled
from wager.external.dialects.vllm_rules import RULES
from wager.external.dialects.vllm_table import KEYS, MTP_ALIASES

VALUES = {"text": "x", "whole": "3", "real": "0.5", "json": "true", "flag": ""}
ROWS = [
    (engine, option, name)
    for engine, options in FLAGS.items()
    for option in options
    for name in option.names
    if option.meaning and option.key != "target"
]
# What an option needs beside it to mean anything.
BESIDE = {
    "vllm": ["--spec-method", "ngram", "--spec-tokens", "4"],
    "llamacpp": ["-md", "D.gguf"],
    "sglang": ["--speculative-algorithm", "EAGLE3"],
}


def read(engine: str, words: list[str]) -> Reading:
    if engine in read_only.ENGINES:
        return read_only.read(engine, words)
    return dialect(engine).read(words)


@pytest.mark.parametrize(("engine", "option", "name"), ROWS, ids=lambda x: str(x)[:40])
def test_every_row_is_heard_of(engine: str, option: Option, name: str) -> None:
    variable = name.isupper()
    value = VALUES[option.kind]
    words = [f"{name}={value}"] if variable else [name, value] if value else [name]
    if option.key != "method":
        words = [*words, *(w for w in BESIDE.get(engine, []) if option.key != "model")]
    found = read(engine, words)
    # A method is told by its name, however it was named.
    told = (name, "method: ") if option.key == "method" else name
    said = [f for f in found.findings if f.what.startswith(told)]
    assert said, found.findings
    assert all(finding.text.strip() for finding in found.findings)
    if option.severity != "note":
        assert option.severity in {finding.severity for finding in said}


@pytest.mark.parametrize("engine", FLAGS)
def test_a_spelling_belongs_to_one_row(engine: str) -> None:
    names = [name for option in FLAGS[engine] for name in (*option.names, option.variable) if name]
    assert [name for name, times in Counter(names).items() if times > 1] == []


@pytest.mark.parametrize("option", [o for options in FLAGS.values() for o in options] + [*KEYS],
                         ids=lambda o: o.names[0])  # fmt: skip
def test_a_row_says_what_is_wrong_exactly_where_something_is(option: Option) -> None:
    assert bool(option.verdict) == (option.severity != "note")


@pytest.mark.parametrize("key", KEYS, ids=lambda o: o.names[0])
def test_every_key_of_vllm_is_heard_of(key: Option) -> None:
    values: dict[str, Any] = {"whole": 3, "real": 0.5, "json": True, "text": "x"}
    config = {"method": "ngram", "num_speculative_tokens": 4, key.names[0]: values[key.kind]}
    if key.names[0] == "method":
        config["method"] = "ngram"
    found = vllm.read_config(config)
    assert any(f.what.startswith(key.names[0]) for f in found.findings)


@pytest.mark.parametrize("alias", sorted(MTP_ALIASES))
def test_older_names_of_mtp(alias: str) -> None:
    found = vllm.read_config({"method": alias, "num_speculative_tokens": 1})
    assert found.speculation is not None
    assert found.speculation.method == "mtp"
    assert any(f.severity == "warning" and alias in f.what for f in found.findings)


def test_every_rule_of_vllm_can_speak() -> None:
    """A rule that no config wakes would be a rule that nobody has tried."""
    base = {"num_speculative_tokens": 4}
    configs: list[dict[str, Any]] = [
        {"method": "ngram", **base},
        {"method": "ngram", "prompt_lookup_max": 3, **base},
        {"method": "ngram", "prompt_lookup_min": 3, **base},
        {"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 2, **base},
        {"method": "ngram_gpu", **base},
        {"method": "ngram", "draft_tensor_parallel_size": 2, **base},
        {"method": "suffix", "num_speculative_tokens_per_batch_size": [[1, 2, 3]]},
        {"method": "dspark", "draft_sample_method": "probabilistic", **base},
        {"method": "dspark", "draft_sample_method": "typical", **base},
        {"method": "draft_model", "model": "D", "max_model_len": 64, **base},
        {"method": "mtp", **base},
        {"method": "medusa", "model": "H", **base},
        {"method": "custom_class", "model": "a.B",
         "num_speculative_tokens_per_batch_size": [[1, 2, 3]], **base},
        {"method": "mlp_speculator", "model": "H", **base},
        {"method": "extract_hidden_states", **base},
        {"method": "eagle3", "model": "H", "rejection_sample_method": "block", **base},
        {"method": "eagle3", "model": "H", "rejection_sample_method": "strict", **base},
        {"method": "eagle3", "model": "H", "rejection_sample_method": "typical", **base},
        {"method": "eagle3", "model": "H", "rejection_sample_method": "synthetic", **base},
        {"method": "ngram", "num_speculative_tokens": 0},
        {"method": "ngram", "num_speculative_tokens": 200},
        {"method": "ngram", "use_heterogeneous_vocab": True, **base},
        {"method": "draft_model", "model": "D", "use_heterogeneous_vocab": True,
         "use_local_argmax_reduction": True, "draft_sample_method": "probabilistic", **base},
        {"method": "ngram", "index_share_for_mtp_iteration": True, **base},
        {"method": "eagle3", "model": "H", "parallel_drafting": True, **base},
    ]  # fmt: skip
    said = {(f.severity, f.what) for c in configs for f in vllm.read_config(c).findings}
    assert {(rule.severity, rule.what) for rule in RULES} - said == set()


@pytest.mark.parametrize(
    ("engine", "words", "target", "rest"),
    [
        ("vllm", ["M", "--port", "9000"], "M", ["--port", "9000"]),
        ("vllm", ["--dtype", "float32", "--model", "M"], "M", ["--dtype", "float32"]),
        ("vllm", ["--spec-tokens", "3", "--spec-method", "ngram", "M"], "M", []),
        ("llamacpp", ["-c", "512", "-m", "T.gguf", "-np", "4"], "T.gguf",
         ["-c", "512", "-np", "4"]),
        ("llamacpp", ["-hf", "org/T-GGUF:Q4_0"], "org/T-GGUF:Q4_0", []),
        ("sglang", ["--model", "M", "--tp", "2"], "M", ["--tp", "2"]),
        ("ollama", ["run", "qwen3.5:9b", "hi"], "qwen3.5:9b", ["hi"]),
        ("own", ["smollm2-135m", "--threads", "2"], "smollm2-135m", ["--threads", "2"]),
        ("mlx", ["--model", "M", "--draft-model", "D"], "M", []),
    ],
)  # fmt: skip
def test_target_and_rest(engine: str, words: list[str], target: str, rest: list[str]) -> None:
    found = read(engine, words)
    assert found.target == target
    assert list(found.rest) == rest


def test_spellings() -> None:
    assert spelled("-md", "llamacpp") is spelled("LLAMA_ARG_SPEC_DRAFT_MODEL", "llamacpp")
    assert spelled("-md", "vllm") is None
    found = elsewhere("--spec-type", "vllm")
    assert found is not None
    assert found[0] == "llamacpp"
    assert elsewhere("--port", "vllm") is None
    assert owner("prompt_lookup_max") == "vllm"
    assert owner("spec_ngram_mod_n_match") == "llamacpp"
    assert owner("cyclic") == "own"
    assert owner("nonsense") is None
    assert "target" in GENERAL
