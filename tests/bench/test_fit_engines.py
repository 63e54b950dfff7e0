"""How each engine divides memory.

Values marked as recorded are lines that real vLLM 0.32 (CPU) and llama-server b11434 printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.fit_fakes import GB, GIB, MIB, draft_model, model, setting, work
from wager import LLM
from wager.bench.fit.calculate import (
    drafter_of,
    weight_width,
)
from wager.bench.fit.engines import ENGINES, LlamaCpp, Vllm
from wager.bench.fit.memory import Drafter, Engine, total
from wager.engine.memory import block_bytes
from wager.models.facts.read import LayerCache, ModelFacts, read_facts
from wager.ops.base import BLOCK

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
    for weights, kv in (("f32", "f32"), ("f32", "f16"), ("int8", "f16"), ("int4", "f16")):
        llm = make_llm(weights=weights, kv=kv)
        width, name = weight_width("own", weights, read_facts(str(tiny_path)))
        assert name == weights
        chosen = setting("own", kv_dtype=kv, width=width, max_model_len=512)
        found = work(None, chosen, read_facts(str(tiny_path)))
        assert found.plain.kv_per_token * BLOCK == block_bytes(llm.model, llm.config)
        # Norms stay in 32 bits, and pieces of the file are aligned.
        assert found.plain.parts[0].nbytes == pytest.approx(llm.model.packed_bytes, rel=0.02)
