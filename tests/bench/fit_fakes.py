"""Facts of SmolLM2 without its files, and settings of engines."""

from __future__ import annotations

from typing import Any

from wager.bench.fit.calculate import (
    Fit,
    drafter_of,
    fit,
)
from wager.bench.fit.memory import Drafter, Setting
from wager.models.facts.read import LayerCache, ModelFacts

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
