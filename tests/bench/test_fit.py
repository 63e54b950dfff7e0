"""The memory calculator: drafters, answers, options."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bench.fit_fakes import GB, GIB, draft_model, model, setting, work
from wager.bench.fit.calculate import (
    choose_engine,
    drafter_of,
    is_method,
    kv_dtype,
    weight_width,
)
from wager.bench.fit.engines import ENGINES
from wager.bench.fit.memory import total
from wager.bench.fit.report import as_json, rows, verdict
from wager.errors import ConfigError
from wager.models.facts.read import LayerCache, TensorFact

# Drafters


@pytest.mark.parametrize(
    ("engine", "name", "host"),
    [("vllm", "ngram", 0), ("vllm", "suffix", 330), ("own", "ngram", 100), ("own", "suffix", 330)],
)
def test_methods_take_no_device_memory(engine: str, name: str, host: int) -> None:
    assert is_method(name)
    drafter = drafter_of(name, model(), None, engine, 6)
    found = work(drafter, setting(engine, clients=4))
    assert found.drafted is not None
    assert found.drafted.kv_per_token == found.plain.kv_per_token
    assert found.drafted.lookahead == 4 * 6
    assert sum(part.nbytes for part in found.drafted.host) == 4 * 4096 * host
    assert found.plain.host == []
    if engine == "vllm":
        assert found.drafted.kv_tokens == found.plain.kv_tokens
        assert "takes no room for keys and values" in verdict(found)


def test_methods_of_llama_cpp_keep_their_names() -> None:
    assert drafter_of("ngram", model(), None, "llamacpp", None).method == "ngram-simple"
    assert drafter_of("ngram-mod", model(), None, "llamacpp", None).k == 64
    assert drafter_of("ngram-mod", model(), None, "vllm", None).method == "ngram"
    for engine in ("llamacpp", "sglang"):
        with pytest.raises(ConfigError, match="no suffix drafter"):
            drafter_of("suffix", model(), None, engine, None)


def test_a_head_keeps_keys_of_its_own() -> None:
    head = model(
        name="head", layers=1, speculative={"kind": "eagle3", "num_speculative_tokens": 5},
        parameters=10_000_000, weight_bytes=20_000_000,
    )  # fmt: skip
    drafter = drafter_of("head", model(), head, "vllm", None)
    assert (drafter.method, drafter.k, len(drafter.layers)) == ("eagle3", 5, 1)
    found = work(drafter, setting(kv_dtype="f32"))
    assert found.drafted is not None
    assert found.drafted.kv_per_token == 31 * 384 * 4
    # Rows of the draft, and the head's own slots ahead of the target.
    assert found.drafted.lookahead == 10
    medusa = model(speculative={"kind": "medusa"}, kv_layers=(LayerCache("none"),))
    assert drafter_of("m", model(), medusa, "vllm", 3).layers == ()


def test_mtp_is_counted_only_when_it_drafts() -> None:
    tensors = (TensorFact("model.layers.29.x", "F32", (50,), 200),
               TensorFact("model.layers.30.x", "F32", (25,), 100))  # fmt: skip
    target = model(mtp_layers=1, tensors=tensors, parameters=75, weight_bytes=300)
    found = work(drafter_of("mtp", target, None, "vllm", None), setting(), target)
    assert found.plain.parts[0].nbytes == 200
    assert found.drafted is not None
    assert [part.nbytes for part in found.drafted.parts[:2]] == [200, 100]
    assert found.drafted.kv_per_token == 31 * 384 * 4
    with pytest.raises(ConfigError, match="has no layers for multi-token prediction"):
        drafter_of("mtp", model(), None, "vllm", None)


def test_another_tokenizer_is_noticed() -> None:
    other = drafter_of("d", model(), model(name="d", tokenizer_hash="b"), "vllm", 4)
    assert "another tokenizer" in work(other, setting()).notes[0]
    assert work(draft_model(), setting()).notes == []
    unknown = model(name="d", tokenizer_hash=None, vocab_size=50000)
    found = work(drafter_of("d", model(), unknown, "vllm", 4), setting())
    assert found.notes == ["vocabularies differ in size: 49152 and 50000"]


def test_state_is_kept_for_every_draft_token() -> None:
    state = LayerCache("none", state_values=1000, state_f32=500)
    target = model(kv_layers=(LayerCache("full", 384, 3), state))
    found = work(drafter_of("ngram", target, None, "vllm", 3), setting(width=2.0), target)
    assert found.plain.state_per_sequence == 4000
    assert found.drafted is not None
    assert found.drafted.state_per_sequence == 4 * 4000
    assert found.drafted.kv_tokens < found.plain.kv_tokens


# Answers


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("memory", [3 * GB, 4 * GB, 6 * GB])
def test_the_largest_context_is_the_largest(engine: str, drafted: bool, memory: int) -> None:
    target = model(max_context=1 << 20)
    drafter = draft_model() if drafted else None
    device = "gpu" if engine == "sglang" else "cpu"
    chosen = setting(engine, device=device, memory=memory, max_model_len=1 << 20, clients=2,
                     width=None if engine == "llamacpp" else 4.0)  # fmt: skip
    found = work(drafter, chosen, target)
    side = found.drafted if drafted else found.plain
    assert side is not None
    made = ENGINES[engine](target, drafter, chosen)

    def fits(context: int, clients: int) -> bool:
        rest = total(made.weights()) + total(made.reserve(context, clients))
        return rest + clients * made.sequence(context + made.lookahead()) <= made.usable()

    for clients, largest in ((1, side.largest_one), (2, side.largest_all)):
        assert (largest is None) == (not fits(1, clients))
        if largest is not None:
            assert fits(largest, clients)
            assert not fits(largest + 1, clients)


def test_verdicts() -> None:
    roomy = setting(memory=8 * GB)
    assert verdict(work(None, roomy)) == "Fits: 1 client with 4,096 tokens each."
    many = setting(memory=4 * GB, clients=64)
    said = verdict(work(None, many))
    assert said.startswith("Fits for 7 of 64 clients with 4,096 tokens each; all 64 fit with ")
    small = verdict(work(None, setting(memory=1 * GB)))
    assert small.startswith("Does not fit: 2.55 GB are needed before the first token, 1.00 GB")
    crowded = verdict(work(draft_model(), many))
    assert crowded.endswith(" % of the room for keys and values, and 2 of 64 clients fit.")
    drafted = verdict(work(draft_model(), roomy))
    assert "d (draft_model) takes " in drafted
    assert drafted.endswith(" % of the room for keys and values.")
    only_plain = verdict(work(draft_model(), setting(memory=2800 * 10**6, max_model_len=1024)))
    assert "With d (draft_model) it does not fit: " in only_plain
    long = verdict(work(None, setting(memory=2650 * 10**6, max_model_len=8192)))
    assert "one context of 8,192 tokens does not fit: start it with a max-model-len of at" in (
        long[0].lower() + long[1:]
    )


def test_memory_that_others_use_is_mentioned() -> None:
    found = work(None, setting(), memory_free=1 * GB)
    needed = total(found.plain.parts) + 4096 * 30 * 384 * 4
    assert found.notes == [f"only 1.00 GB of it are free now; this takes {needed / 1e9:.2f}"]
    assert work(None, setting(), memory_free=4 * GB).notes == []


def test_json_holds_what_the_table_holds() -> None:
    found = work(draft_model(), setting(clients=2), kv_memory=GIB)
    record = as_json(found)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["plain"]["kv_tokens"] == found.plain.kv_tokens
    assert record["drafted"]["parts"][1]["name"] == "draft weights"
    assert record["draft"]["num_speculative_tokens"] == 4
    assert record["verdict"] == verdict(found)
    table = {line[0]: line for line in rows(found)}
    assert table["KV tokens"][1:3] == (f"{found.plain.kv_tokens:,}",
                                       f"{record['drafted']['kv_tokens']:,}")  # fmt: skip
    assert table["draft weights"][1] == "-"
    assert as_json(work(None, setting()))["drafted"] is None
    assert all(line[2] == "" for line in rows(work(None, setting())))


# Options


def test_types() -> None:
    gguf = model(source="gguf", architecture="llama", dtype="Q4_1", quantisation="Q4_1")
    assert weight_width("llamacpp", "auto", gguf) == (None, "Q4_1")
    assert weight_width("own", "auto", gguf) == (34 / 32, "int8")
    assert weight_width("own", "auto", model()) == (4.0, "f32")
    assert weight_width("own", "auto", model(dtype="BF16")) == (2.0, "bf16")
    assert weight_width("vllm", "auto", model()) == (2.0, "bf16")
    assert weight_width("vllm", "auto", model(model_dtype="float16")) == (2.0, "f16")
    assert weight_width("vllm", "float32", model()) == (4.0, "f32")
    for engine, asked in (("llamacpp", "f16"), ("own", "f16"), ("vllm", "int8")):
        with pytest.raises(ConfigError, match=r"^dtype: "):
            weight_width(engine, asked, model())


@pytest.mark.parametrize(
    ("engine", "asked", "width", "expected"),
    [("own", "auto", 4.0, "f32"), ("own", "auto", 34 / 32, "f16"),
     ("llamacpp", "auto", None, "f16"), ("vllm", "auto", 4.0, "f32"),
     ("vllm", "auto", 2.0, "bf16"), ("vllm", "fp8_e4m3", 2.0, "fp8"),
     ("llamacpp", "q8_0", None, "q8_0"), ("own", "f32", 4.0, "f32")],
)  # fmt: skip
def test_kv_types(engine: str, asked: str, width: float | None, expected: str) -> None:
    assert kv_dtype(engine, asked, model(), width) == expected


@pytest.mark.parametrize(("engine", "asked"), [("vllm", "q8_0"), ("own", "fp8"), ("vllm", "x")])
def test_kv_types_that_an_engine_has_not(engine: str, asked: str) -> None:
    with pytest.raises(ConfigError, match=rf"kv-dtype: '{asked}' is no type .* it has: auto, f32"):
        kv_dtype(engine, asked, model(), 2.0)


@pytest.mark.parametrize(
    ("changes", "engine", "why"),
    [
        ({}, "own", None),
        ({"architecture": "Qwen3ForCausalLM"}, "own", None),
        ({"architecture": "Gemma3ForConditionalGeneration"}, "own", None),
        ({"architecture": "GptOssForCausalLM"}, "vllm", "GptOssForCausalLM"),
        ({"architecture": "qwen3moe", "source": "gguf", "experts": 8}, "own", None),
        ({"architecture": "qwen3next", "source": "gguf"}, "llamacpp", "qwen3next"),
        ({"kv_layers": (LayerCache("window", 384, 3, window=64),)}, "own", None),
        ({"kv_layers": (LayerCache("none", state_values=9),)}, "vllm",
         "layers that keep no keys and values of each token"),
        ({"quantisation": "gptq 4-bit", "tensors": (TensorFact("w", "I32", (1,), 4),)}, "own",
         None),
        ({"quantisation": "fp8 8-bit"}, "vllm", "fp8 8-bit"),
        ({"tensors": (TensorFact("w", "F8_E4M3", (1,), 1),)}, "vllm", "weights stored as F8_E4M3"),
        ({"architecture": "llama", "source": "gguf", "quantisation": "Q3_K",
          "tensors": (TensorFact("w", "Q3_K", (256,), 110),)},
         "llamacpp", "weights stored as Q3_K"),
        ({"architecture": "llama", "source": "gguf", "quantisation": "Q4_1",
          "tensors": (TensorFact("w", "Q4_1", (32,), 20),)}, "own", None),
    ],
)  # fmt: skip
def test_the_engine_that_is_meant(changes: dict[str, Any], engine: str, why: str | None) -> None:
    reason = None if why is None else f"wager's own engine does not run {why}"
    assert choose_engine(model(**changes)) == (engine, reason)


def test_wagers_own_engine_keeps_what_lies_before_a_window() -> None:
    window, full = LayerCache("window", 384, 3, window=64), LayerCache("full", 384, 3)
    sizes = [
        ENGINES["own"](model(kv_layers=(layer, full)), None, setting()).sequence(1000)
        for layer in (window, full)
    ]
    assert sizes[0] == sizes[1] > 0
    other = [
        ENGINES["llamacpp"](model(kv_layers=(layer, full)), None, setting("llamacpp")).sequence(
            9000
        )
        for layer in (window, full)
    ]
    assert other[0] < other[1]
