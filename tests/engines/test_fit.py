"""`wager fit` against what the real engines print when they start: within 2 %.

vLLM logs the tokens that its keys and values have room for, llama-server the size of every buffer.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.peers import Peers, arm, running

from tests.engines.conftest import require
from wager.arms import Arm
from wager.bench.fit.calculate import Fit, Side, drafter_of, fit
from wager.bench.fit.engines import ENGINES
from wager.bench.fit.memory import MIB, Setting
from wager.external.server import ServerBackend
from wager.models.facts.read import LayerCache, ModelFacts, read_facts

pytestmark = pytest.mark.engines

WITHIN = 0.02
GIB = 1 << 30


def started(server: ServerBackend, chosen: Arm) -> str:
    """The log of a server that came up."""
    with running(server, chosen):
        return server.log_text()


# vLLM


@pytest.mark.parametrize(
    ("gib", "context", "draft"),
    [(1, 2048, None), (2, 1000, "ngram"), (1, 4096, "draft_model")],
)
def test_kv_tokens_of_vllm(peers: Peers, gib: int, context: int, draft: str | None) -> None:
    require(peers, "vllm")
    server = peers.vllm_server(clients=4, context=context)
    server.options = replace(server.options, kv_memory=gib * GIB)
    model = peers.directory
    text = {
        None: "plain",
        "ngram": "ngram:k=4,min=2,max=5",
        "draft_model": f"draft_model:model={model},k=4",
    }[draft]
    log = started(server, arm(text))
    (logged,) = re.findall(r"KV cache size: ([\d,]+) tokens", log)
    tokens = int(logged.replace(",", ""))

    side = vllm_side(model, draft, gib * GIB, context)
    assert side.kv_tokens == pytest.approx(tokens, rel=WITHIN)


def vllm_side(model: str, draft: str | None, kv_memory: int, context: int) -> Side:
    target = read_facts(model)
    drafter = None
    if draft is not None:
        own = target if draft == "draft_model" else None
        drafter = drafter_of(draft, target, own, "vllm", 4)
    setting = Setting("vllm", "cpu", 16 * GIB, 0.92, context, 4, "f32", 4.0)
    found = fit(
        target, drafter, setting, memory_kind="given", memory_what="test", kv_memory=kv_memory
    )
    return found.drafted or found.plain


def test_blocks_of_vllm_for_layers_with_windows(peers: Peers, tmp_path: Path) -> None:
    """Its own functions, called without a model: groups of layers, blocks, concurrency."""
    require(peers, "vllm")
    cases = {
        "gemma3": (("wwwwwf" * 10 + "ww"), 16, 128, 1024, 131072),
        "gemma2": ("wf" * 21, 8, 256, 4096, 8192),
        "uneven": ("wf" * 12 + "f", 8, 64, 128, 131072),
        "mistral": ("w" * 32, 8, 128, 4096, 32768),
        "full": ("f" * 28, 8, 128, 0, 40960),
    }
    script = tmp_path / "blocks.py"
    script.write_text(BLOCKS)
    python = peers.root / "vllm" / "bin" / "python"
    run = subprocess.run(
        [str(python), str(script), json.dumps(list(cases.values()))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers = json.loads(run.stdout.splitlines()[-1])
    for (pattern, heads, size, window, context), concurrency in zip(
        cases.values(), answers, strict=True
    ):
        layers = tuple(
            LayerCache("full" if kind == "f" else "window", 2 * heads * size, heads,
                       window=None if kind == "f" else window)
            for kind in pattern
        )  # fmt: skip
        target = replace(facts_of_smollm2(peers), num_layers=len(layers), kv_layers=layers)
        setting = Setting("vllm", "gpu", 24 * GIB, 0.92, context, 1, "bf16", 2.0)
        engine = ENGINES["vllm"](target, None, setting)
        assert engine.tokens(10 * GIB) == int(concurrency * context)


def facts_of_smollm2(peers: Peers) -> ModelFacts:
    return read_facts(peers.directory, tokenizer=False)


BLOCKS = """
import json, os, sys
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
from types import SimpleNamespace as Space
import torch
from vllm.v1.core import kv_cache_utils as kv
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

found = []
for pattern, heads, size, window, context in json.loads(sys.argv[1]):
    shape = dict(block_size=16, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16)
    specs = {
        f"model.layers.{i}": FullAttentionSpec(**shape) if kind == "f"
        else SlidingWindowSpec(**shape, sliding_window=window)
        for i, kind in enumerate(pattern)
    }
    config = Space(
        model_config=Space(max_model_len=context, use_mla=False),
        parallel_config=Space(decode_context_parallel_size=1, prefill_context_parallel_size=1,
                              pipeline_parallel_size=1),
        scheduler_config=Space(disable_hybrid_kv_cache_manager=False, max_num_batched_tokens=2048),
        max_in_flight_tokens=4096, speculative_config=None, kv_transfer_config=None,
        kv_events_config=None, attention_config=Space(hisparse_config=None),
        cache_config=Space(num_gpu_blocks_override=None, block_size=16, enable_prefix_caching=True,
                           get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC,
                           mamba_cache_mode=None, prefix_cache_retention_interval=None),
    )
    groups = kv.get_kv_cache_groups(config, specs)
    pool = kv.get_kv_cache_config_from_groups(config, groups, 10 << 30)
    found.append(kv.get_max_concurrency_for_kv_cache_config(config, pool))
print(json.dumps(found))
"""


# llama.cpp

BUFFER = re.compile(r"CPU(?:_Mapped)? +(model|KV|compute|output) buffer size = +([\d.]+) MiB")


@pytest.mark.parametrize(
    ("kind", "clients", "context", "kv_type", "draft"),
    [
        ("f32", 1, 4096, "f16", None),
        ("f32", 4, 1024, "f32", None),
        ("bf16", 2, 1000, "f16", None),
        ("q8_0", 1, 8192, "q8_0", None),
        ("q4_1", 2, 2048, "f16", "ngram-simple"),
        ("q8_0", 2, 2048, "f16", "ngram-mod"),
        ("f32", 2, 2048, "f32", "draft_model"),
    ],
)
def test_buffers_of_llama_server(
    peers: Peers, kind: str, clients: int, context: int, kv_type: str, draft: str | None
) -> None:
    require(peers, "llama")
    # -lv 4 prints the buffers.
    more = ("-lv", "4", "-ctk", kv_type, "-ctv", kv_type, "-fa", "on")
    server = peers.llama_server(kind, clients=clients, context=context, arguments=more)
    text = draft or "plain"
    if draft == "draft_model":
        text = f"draft_model:model={peers.gguf('q8_0')},k=8"
    elif draft is not None:
        text = f"{draft}:{LONGEST[draft]}"
    log = started(server, arm(text))
    printed = [(name, float(mib)) for name, mib in BUFFER.findall(log)]
    assert len(printed) == (8 if draft == "draft_model" else 4), printed

    found = llama_fit(peers, kind, clients, context, kv_type, draft)
    side = found.drafted or found.plain
    parts = {part.name: part.nbytes / MIB for part in side.parts}
    expected = {
        "model": parts["weights"] + parts.get("draft weights", 0),
        "KV": clients * side_sequence(found, context) / MIB,
        "compute": parts["compute buffer"] + parts.get("draft compute buffer", 0),
        "output": parts["output buffer"],
    }
    for name, value in expected.items():
        total = sum(mib for printed_name, mib in printed if printed_name == name)
        # Each line is rounded to 0.01 MiB.
        assert value == pytest.approx(total, rel=WITHIN, abs=0.0101), name


LONGEST = {
    "ngram-simple": "spec-ngram-simple-size-m=48",
    "ngram-mod": "spec-ngram-mod-n-max=64",
}


def llama_fit(
    peers: Peers, kind: str, clients: int, context: int, kv_type: str, draft: str | None
) -> Fit:
    target = read_facts(peers.gguf(kind))
    drafter = None
    if draft is not None:
        own = read_facts(peers.gguf("q8_0")) if draft == "draft_model" else None
        k = 8 if draft == "draft_model" else None
        drafter = drafter_of(draft, target, own, "llamacpp", k)
    setting = Setting("llamacpp", "cpu", 16 * GIB, 1.0, context, clients, kv_type, None)
    return fit(target, drafter, setting, memory_kind="given", memory_what="test")


def side_sequence(found: Fit, context: int) -> int:
    engine = ENGINES["llamacpp"](found.target, found.drafter, found.setting)
    return engine.sequence(context)
