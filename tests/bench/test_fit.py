"""The memory calculator: sizes, drafters, and each engine's way of dividing memory.

Values marked as recorded are lines that real vLLM 0.32 (CPU) and llama-server b11434 printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wager import LLM
from wager.bench import fit_machine
from wager.bench.fit import (
    Fit,
    choose_engine,
    drafter_of,
    fit,
    is_method,
    kv_dtype,
    weight_width,
)
from wager.bench.fit_engines import ENGINES, LlamaCpp, Vllm
from wager.bench.fit_machine import Memory, gpu_memory, host_memory, parse_size, parse_smi
from wager.bench.fit_memory import Drafter, Engine, Setting, total
from wager.bench.fit_report import as_json, rows, size, verdict
from wager.engine.memory import block_bytes
from wager.errors import ConfigError
from wager.models.facts import LayerCache, ModelFacts, TensorFact, read_facts
from wager.ops.base import BLOCK

GB, GIB, MIB = 10**9, 1 << 30, 1 << 20


def model(**changes: Any) -> ModelFacts:
    """Facts of SmolLM2 135M in float32."""
    layers = changes.pop("layers", 30)
    values: dict[str, Any] = {
        "name": "smol", "source": "directory", "location": "/m", "architecture": "LlamaForCausalLM",
        "model_type": "llama", "num_layers": layers, "hidden_size": 576, "intermediate_size": 1536,
        "num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "vocab_size": 49152,
        "max_context": 8192, "tied_head": True, "dtype": "F32", "quantisation": None,
        "model_dtype": "float32", "parameters": 134_515_008, "weight_bytes": 538_060_032,
        "kv_layers": (LayerCache("full", 384, 3),) * layers, "experts": None,
        "experts_per_token": None, "mtp_layers": 0, "tokenizer_hash": "a", "tensors": (),
        "speculative": None, **changes,
    }  # fmt: skip
    return ModelFacts(**values)


def setting(engine: str = "vllm", **changes: Any) -> Setting:
    values: dict[str, Any] = {
        "engine": engine, "device": "cpu", "memory": 24 * GIB, "utilization": 1.0,
        "max_model_len": 4096, "clients": 1, "kv_dtype": "f32", "width": 4.0, **changes,
    }  # fmt: skip
    return Setting(**values)


def draft_model(k: int = 4) -> Drafter:
    return drafter_of("d", model(), model(name="d"), "vllm", k)


def work(
    drafter: Drafter | None, chosen: Setting, target: ModelFacts | None = None, **more: Any
) -> Fit:
    return fit(
        target or model(), drafter, chosen, memory_kind="given", memory_what="--memory", **more
    )


# Sizes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8GB", 8 * 10**9), ("8GiB", 8 << 30), ("1.5 GB", 1_500_000_000), ("512MiB", 512 << 20),
     ("100kB", 100_000), ("7B", 7), ("1TB", 10**12)],
)  # fmt: skip
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text, "memory") == nbytes


@pytest.mark.parametrize("text", ["8", "8G", "8gb", "GB", "-8GB", "8 GB of memory", "", "1e9B"])
def test_sizes_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"memory: .* is no size; write a number and a unit"):
        parse_size(text, "memory")


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="at most 1 PiB"):
        parse_size("9999999TB", "memory")
    with pytest.raises(ConfigError, match="at least one byte"):
        parse_size("0GB", "memory")


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 999, 23040, 538_060_032, 24 * GB, -2 * GB)] == [
        "0 B", "999 B", "23.04 kB", "538.06 MB", "24.00 GB", "-2.00 GB",
    ]  # fmt: skip


# The machine


def test_nvidia_smi_lines() -> None:
    assert parse_smi(["NVIDIA H200, 143771, 143000"]) == Memory(
        143771 * MIB, 143000 * MIB, "NVIDIA H200"
    )
    two = parse_smi(["NVIDIA A100-SXM4-80GB, 81920, 81000", "Tesla T4, 15360, 15000"])
    assert two == Memory(15360 * MIB, 15000 * MIB, "Tesla T4, the smallest of 2 GPUs")
    with pytest.raises(ConfigError, match="which holds no size; give --memory"):
        parse_smi(["NVIDIA GB10, [N/A], [N/A]"])


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi, alone on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def test_no_gpu(smi: Path) -> None:
    assert gpu_memory() is None
    smi.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    smi.chmod(0o755)
    assert gpu_memory() is None


def test_a_gpu(smi: Path) -> None:
    smi.write_text('#!/bin/sh\n[ "$1" = "--query-gpu=name,memory.total,memory.free" ] || exit 9\n'
                   "echo 'NVIDIA L4, 23034, 22500'\n")  # fmt: skip
    smi.chmod(0o755)
    assert gpu_memory() == Memory(23034 * MIB, 22500 * MIB, "NVIDIA L4")


def test_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text("MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  600 kB\n")
    monkeypatch.setattr(fit_machine, "_MEMINFO", info)
    monkeypatch.setattr(fit_machine, "_CGROUP", (limit,))
    assert host_memory() == Memory(1024_000, 614_400, "memory of the machine")
    limit.write_text("max\n")
    assert host_memory() == Memory(1024_000, 614_400, "memory of the machine")
    limit.write_text("512000\n")
    assert host_memory() == Memory(512_000, 512_000, "limit of the container")
    info.unlink()
    assert host_memory() is None


# vLLM


@pytest.mark.parametrize(
    ("gib", "max_model_len", "drafted", "tokens"),
    [(1, 2048, False, 23_296), (2, 1000, False, 45_500), (1, 4096, True, 11_648)],
)
def test_kv_tokens_that_vllm_logged(
    gib: int, max_model_len: int, drafted: bool, tokens: int
) -> None:
    """Recorded: "CPU KV cache size: N tokens" with VLLM_CPU_KVCACHE_SPACE, float32."""
    found = work(
        draft_model() if drafted else None, setting(max_model_len=max_model_len),
        kv_memory=gib * GIB,
    )  # fmt: skip
    side = found.drafted if drafted else found.plain
    assert side is not None
    assert side.left == gib * GIB
    assert side.kv_tokens == tokens
    # As it logs "Maximum concurrency ... per request".
    assert side.clients_at == pytest.approx(tokens / max_model_len)


def windowed(pattern: str, heads: int, head_dim: int, window: int) -> ModelFacts:
    """``f`` sees everything, ``w`` a window."""
    layers = tuple(
        LayerCache("full", 2 * heads * head_dim, heads)
        if kind == "f"
        else LayerCache("window", 2 * heads * head_dim, heads, window=window)
        for kind in pattern
    )
    return model(layers=len(layers), kv_layers=layers, max_context=131072)


@pytest.mark.parametrize(
    ("target", "context", "blocks", "concurrency"),
    [
        (windowed("wwwwwf" * 10 + "ww", 16, 128, 1024), 131072, 8192, 0.8096461751334256),
        (windowed("wf" * 21, 8, 256, 4096), 8192, 3900, 3.8048780487804876),
        (windowed("wf" * 12 + "f", 8, 64, 128), 131072, 25206, 2.980489535296204),
        (windowed("w" * 32, 8, 128, 4096), 32768, 5120, 9.980506822612085),
    ],
    ids=["gemma3-27b", "gemma2-9b", "gpt-oss-20b with a drafter's layer", "mistral-7b-v0.1"],
)
def test_blocks_of_layers_with_windows(
    target: ModelFacts, context: int, blocks: int, concurrency: float
) -> None:
    """Recorded from get_kv_cache_groups and get_max_concurrency_for_kv_cache_config of vLLM 0.32:
    10 GiB, bfloat16, blocks of 16, 4096 tokens in flight."""
    engine = Vllm(target, None, setting(device="gpu", kv_dtype="bf16", max_model_len=context))
    each, _ = engine._blocks(context)
    assert int(10 * GIB / each) == blocks
    assert engine.tokens(10 * GIB) == int(concurrency * context)


def test_utilization_and_reserve() -> None:
    found = work(None, setting(device="gpu", memory=24 * GB, utilization=0.9, width=2.0,
                               kv_dtype="bf16"))  # fmt: skip
    assert found.usable == int(21.6 * GB)
    parts = {part.name: part for part in found.plain.parts}
    assert set(parts) == {"weights", "activations", "CUDA graphs", "CUDA and libraries"}
    assert parts["weights"].nbytes == 2 * 134_515_008
    assert parts["weights"].kind == "from files"
    assert all(part.kind == "estimated" for name, part in parts.items() if name != "weights")
    # 256 requests sort 49152 logits: more than 2048 rows of a narrow layer.
    assert parts["activations"].nbytes == 256 * 49152 * 16
    assert found.plain.left == found.usable - total(found.plain.parts)


def test_devices_share_weights_and_heads() -> None:
    one = work(None, setting(device="gpu"), model(num_kv_heads=4, kv_layers=(
        LayerCache("full", 512, 4),) * 30))  # fmt: skip
    target = one.target
    two = work(None, setting(device="gpu", tensor_parallel=2), target)
    eight = work(None, setting(device="gpu", tensor_parallel=8), target)
    assert two.plain.kv_per_token == one.plain.kv_per_token / 2
    # Four heads on eight devices: two devices hold the same one.
    assert eight.plain.kv_per_token == one.plain.kv_per_token / 4
    assert two.plain.parts[0].nbytes == one.plain.parts[0].nbytes // 2
    latent = model(kv_layers=(LayerCache("full", 576, 1, True),) * 30)
    shared = work(None, setting(device="gpu", tensor_parallel=8), latent)
    assert shared.plain.kv_per_token == 30 * 576 * 4
    assert "one of 8 devices" in shared.notes[0]


# llama.cpp


def buffers(engine: Engine, context: int, clients: int) -> dict[str, float]:
    """What llama-server prints, in MiB."""
    found = {part.name: part.nbytes / MIB for part in engine.reserve(context, clients)}
    return found | {"kv": clients * engine.sequence(context) / MIB}


@pytest.mark.parametrize(
    ("slots", "context", "kv_type", "draft", "kv", "output", "compute"),
    [
        (1, 4096, "f16", None, 90.00, 0.19, 18.64),
        (4, 1024, "f16", None, 90.00, 0.75, 15.64),
        (1, 8192, "f16", None, 180.00, 0.19, 22.64),
        (4, 4096, "f16", None, 360.00, 0.75, 18.64),
        (4, 1024, "f32", None, 180.00, 0.75, 15.64),
        (1, 4096, "q8_0", None, 47.81, 0.19, 18.64),
        (2, 2048, "f16", "ngram-simple", 90.00, 0.38, 26.02),
        (2, 2048, "f16", "ngram-mod", 90.00, 0.38, 32.02),
    ],
)
def test_buffers_that_llama_server_printed(
    slots: int, context: int, kv_type: str, draft: str | None, kv: float, output: float,
    compute: float,
) -> None:  # fmt: skip
    """Recorded: "KV buffer size", "output buffer size", "compute buffer size"."""
    target = model(source="gguf")
    drafter = drafter_of(draft, target, None, "llamacpp", None) if draft else None
    engine = LlamaCpp(target, drafter, setting("llamacpp", kv_dtype=kv_type, width=None))
    found = buffers(engine, context, slots)
    # Two digits were printed.
    assert found["kv"] == pytest.approx(kv, abs=0.0051)
    assert found["output buffer"] == pytest.approx(output, abs=0.0051)
    assert found["compute buffer"] == pytest.approx(compute, rel=0.002)
    assert ("hash of n-grams" in found) == (draft == "ngram-mod")


@pytest.mark.parametrize(
    ("hidden", "inner", "queries", "compute", "more"),
    [
        (512, 4096, 8, 30.02, 0.002), (768, 2048, 12, 20.52, 0.002), (512, 2048, 4, 18.02, 0.002),
        (512, 4096, 32, 30.02, 0.002), (512, 1024, 32, 14.02, 0.002), (512, 512, 32, 14.02, 0.002),
        # An MLP as narrow as this shares room with attention: too much is reckoned, not too little.
        (1024, 1024, 16, 15.02, 0.14), (1024, 1024, 16, 13.02, 0.32), (2048, 512, 8, 21.02, 0.15),
    ],
)  # fmt: skip
def test_the_compute_buffer_of_other_shapes(
    hidden: int, inner: int, queries: int, compute: float, more: float
) -> None:
    """Recorded with random models of these widths: 1024 tokens, one slot, heads of 64."""
    target = model(hidden_size=hidden, intermediate_size=inner, vocab_size=298, num_heads=queries)
    engine = LlamaCpp(target, None, setting("llamacpp", width=None))
    found = buffers(engine, 1024, 1)["compute buffer"]
    assert compute * 0.998 < found < compute * (1 + more)


def test_a_draft_model_has_buffers_of_its_own() -> None:
    """Recorded: KV of the draft in f16 although the target's is f32."""
    target = model(source="gguf")
    small = model(name="d", dtype="Q8_0", quantisation="Q8_0", weight_bytes=143_025_408)
    drafter = drafter_of("d", target, small, "llamacpp", None)
    assert drafter.k == 3
    chosen = setting("llamacpp", kv_dtype="f32", width=None, max_model_len=2048, clients=2)
    found = work(drafter, chosen, target)
    assert found.drafted is not None
    assert found.drafted.kv_per_token == 30 * 384 * (4 + 2)
    parts = {part.name: part.nbytes for part in found.drafted.parts}
    assert parts["draft weights"] == 143_025_408
    assert parts["draft compute buffer"] == parts["compute buffer"]
    assert parts["output buffer"] == 2 * 2 * 49152 * 4
    # Slots are whole.
    assert found.plain.clients_at == int(found.plain.clients_at)


def test_windows_of_llama_cpp_hold_a_batch_more() -> None:
    target = windowed("wf", 8, 128, 1024)
    engine = LlamaCpp(target, None, setting("llamacpp", kv_dtype="f16", width=None))
    assert engine.sequence(8192) == 4096 * (8192 + 1536)
    assert engine.sequence(500) == 4096 * (512 + 512)


# SGLang and wager's own


def test_what_sglang_reserves() -> None:
    def reserved(memory: int, draft: str | None) -> int:
        drafter = Drafter(draft, draft, 4) if draft else None
        chosen = setting("sglang", device="gpu", memory=memory, kv_dtype="bf16", width=2.0)
        return total(ENGINES["sglang"](model(), drafter, chosen).reserve(4096, 1))

    assert reserved(24 * GIB, None) == (512 + 2048 * 1.5 + 24 * 2 + 128) * MIB
    assert reserved(80 * GIB, None) == (512 + 8192 * 1.5 + 256 * 2 + 128) * MIB
    assert reserved(80 * GIB, "ngram") == reserved(80 * GIB, None)
    assert reserved(80 * GIB, "eagle3") == reserved(80 * GIB, None) + 2048 * MIB
    assert reserved(80 * GIB, "draft_model") == reserved(80 * GIB, None) + 6144 * MIB


def test_own_packs_weights() -> None:
    found = work(None, setting("own", width=34 / 32, kv_dtype="f16"))
    assert found.notes == [
        "wager's own engine takes 512 MiB for keys and values (or one longest context, if that is "
        "more) unless kv_memory says otherwise"
    ]
    assert work(None, setting("own", memory=500 * MIB)).notes == []
    assert found.plain.parts[0].nbytes == int(134_515_008 * 34 / 32)
    assert work(None, setting("own", width=4.0)).plain.parts[0].nbytes == 4 * 134_515_008


def test_own_is_reckoned_as_it_is_built(make_llm: Callable[..., LLM], tiny_path: Path) -> None:
    for weights, kv in (("f32", "f32"), ("f32", "f16"), ("int8", "f16")):
        llm = make_llm(weights=weights, kv=kv)
        width, name = weight_width("own", weights, read_facts(str(tiny_path)))
        assert name == weights
        chosen = setting("own", kv_dtype=kv, width=width, max_model_len=512)
        found = work(None, chosen, read_facts(str(tiny_path)))
        assert found.plain.kv_per_token * BLOCK == block_bytes(llm.model, llm.config)
        # Norms stay in 32 bits, and pieces of the file are aligned.
        assert found.plain.parts[0].nbytes == pytest.approx(llm.model.packed_bytes, rel=0.02)


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
    assert weight_width("vllm", "auto", model()) == (2.0, "bf16")
    assert weight_width("vllm", "auto", model(model_dtype="float16")) == (2.0, "f16")
    assert weight_width("vllm", "float32", model()) == (4.0, "f32")
    for engine, asked in (("llamacpp", "f16"), ("own", "bf16"), ("vllm", "int8")):
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


def test_the_engine_that_is_meant() -> None:
    assert choose_engine(model()) == ("own", None)
    assert choose_engine(model(architecture="Qwen3ForCausalLM"))[0] == "vllm"
    assert choose_engine(model(architecture="qwen3", source="gguf"))[0] == "llamacpp"
    mixture = model(architecture="llama", source="gguf", experts=8)
    assert choose_engine(mixture)[0] == "llamacpp"
