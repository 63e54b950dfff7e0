"""GGUF metadata as a `ModelConfig`. What it asks for and cannot be run is refused by name.

Keys and rules: llama.cpp's ``llama-arch.cpp`` and ``llama-model.cpp``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from wager.errors import CorruptFile, UnsupportedModel
from wager.models import families
from wager.models.checkpoint import STORED_DTYPES, WHAT_WORKS, check_config, quoted, read_block
from wager.models.facts.gguf import Metadata, sliding_layers
from wager.models.families import Family
from wager.models.gguf_file import GgufFile
from wager.models.rope import yarn_factors, yarn_scale
from wager.shape import Experts, LayerKind, ModelConfig, Rope

ROPE_TENSORS: Final = (
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
)  # fmt: skip
_LOCAL_THETA: Final = 10000.0
_NO_ROPE_EVERY: Final = 4

# Settings that are read below, or change nothing here: known by name, so that one that is not known
# is refused instead of being overlooked.
_KNOWN: Final = frozenset(
    {
        "block_count", "context_length", "embedding_length", "embedding_length_out",
        "feed_forward_length", "vocab_size", "tensor_data_layout", "attention.head_count",
        "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length",
        "attention.value_length", "rope.freq_base", "rope.dimension_count", "rope.scale_linear",
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)  # fmt: skip
_MUST_BE: Final[dict[str, Any]] = {
    "expert_count": 0, "expert_used_count": 0, "attention.causal": True,
    "use_parallel_residual": False, "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0,
    "attention.sliding_window": 0,
}  # fmt: skip
_YARN: Final = frozenset(
    {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor"}
)
_WINDOW: Final = frozenset({"attention.sliding_window", "attention.sliding_window_pattern"})
_EXPERTS: Final = frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"})
_OF_FAMILY: Final = {
    "llama": _WINDOW | _EXPERTS,
    "qwen3moe": _EXPERTS,
    "phi3": _WINDOW | {"rope.scaling.attn_factor"},
    "gemma2": _WINDOW | {"attn_logit_softcapping", "final_logit_softcapping"},
    "gemma3": _WINDOW | {"final_logit_softcapping", "rope.freq_base_swa"},
    "granite": frozenset({"embedding_scale", "residual_scale", "attention.scale", "logit_scale"}),
}


def read_config(file: GgufFile) -> tuple[ModelConfig, Family]:
    """The shape of the model and its family, from metadata and tensor list."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CorruptFile(f"{file.path}: general.architecture is missing")
    family = families.of_gguf(architecture)
    if family is None:
        why = families.RECURRENT_REASON if families.recurrent(architecture) else WHAT_WORKS
        raise UnsupportedModel(
            f"{file.path}: architecture {quoted(architecture)} is not supported; {why}"
        )
    fields = Metadata(file, architecture)
    _refuse_unknown(file, fields, architecture)
    heads, hidden = fields.need("attention.head_count"), fields.need("embedding_length")
    head_dim = fields.whole("attention.key_length") or hidden // heads
    if (fields.whole("attention.value_length") or head_dim) != head_dim:
        raise UnsupportedModel(
            f"{file.path}: {architecture}.attention.value_length differs from the head size "
            f"{head_dim}; only equal sizes work"
        )
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CorruptFile(f"{file.path}: tensor token_embd.weight is missing or no matrix")
    config = ModelConfig(
        architecture=architecture,
        # The rows of the table count: vocab_size may know of fewer.
        vocab_size=table.shape[0],
        hidden_size=hidden,
        intermediate_size=fields.whole("expert_feed_forward_length")
        or fields.need("feed_forward_length"),
        num_layers=fields.layers("block_count", fields.whole("block_count")),
        num_heads=heads,
        num_kv_heads=fields.whole("attention.head_count_kv") or heads,
        head_dim=head_dim,
        max_context=fields.need("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in file.tensors,
    )
    check_config(file.path, config)
    # Only now are the sizes known to be sane enough to make lists of their length.
    config = replace(config, **family.traits, **_constants(fields, config))
    config = replace(config, **_biases(file), **_layers(file, fields, config))
    config = replace(config, experts=_experts(fields))
    check_config(file.path, config)
    return config, family


def _refuse_unknown(file: GgufFile, fields: Metadata, architecture: str) -> None:
    known = _KNOWN | _YARN | _OF_FAMILY.get(architecture, frozenset())
    for key, value in fields.raw.items():
        if key in known or (key in _MUST_BE and value == _MUST_BE[key]):
            continue
        raise UnsupportedModel(
            f"{file.path}: setting {quoted(f'{architecture}.{key}')} = {quoted(value)} is not "
            f"supported; {WHAT_WORKS}"
        )


def _constants(fields: Metadata, config: ModelConfig) -> dict[str, Any]:
    if config.architecture == "granite":
        scaling = fields.number("logit_scale", 1.0)
        if scaling <= 0:
            raise CorruptFile(f"{fields.path}: granite.logit_scale is {scaling}")
        return {
            "embed_scale": fields.number("embedding_scale", 1.0),
            "attention_scale": fields.number("attention.scale", config.score_scale),
            "residual_scale": fields.number("residual_scale", 1.0),
            "logit_scale": 1.0 / scaling,
        }
    if config.architecture not in ("gemma2", "gemma3"):
        return {}
    # The file does not say by what queries are scaled; the largest model of each has its own way.
    largest = {"gemma2": 46, "gemma3": 62}[config.architecture]
    per_head = config.hidden_size / config.num_heads
    second = config.architecture == "gemma2"
    return {
        "embed_scale": config.hidden_size**0.5,
        "attention_scale": (per_head if config.num_layers == largest else config.head_dim) ** -0.5,
        "attention_cap": fields.number("attn_logit_softcapping", 50.0 if second else 0.0),
        "logit_cap": fields.number("final_logit_softcapping", 30.0 if second else 0.0),
    }


def _experts(fields: Metadata) -> Experts | None:
    count = fields.whole("expert_count") or 0
    if not count:
        return None
    used = fields.need("expert_used_count")
    if used > count or count > families.MAX_EXPERTS:
        raise CorruptFile(f"{fields.path}: {used} of {count} experts cannot be used")
    # llama.cpp divides by the sum of the chosen in both families.
    return Experts(count, used, normalised=True)


def _biases(file: GgufFile) -> dict[str, Any]:
    """Biases are there or not; no key says so."""
    found = {
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "out_bias": "blk.0.attn_output.bias" in file.tensors,
    }
    return {key: True for key, there in found.items() if there}


def _layers(file: GgufFile, fields: Metadata, config: ModelConfig) -> dict[str, Any]:
    window = fields.whole("attention.sliding_window") or 0
    architecture, layers = config.architecture, config.num_layers
    windows = [window if on else 0 for on in sliding_layers(fields, architecture, layers)]
    ropes: tuple[Rope, ...] = (_rope(file, fields, config),)
    # For granite, and for it alone, this key says whether queries and keys are turned.
    turned = architecture != "granite" or fields.flag("rope.scaling.finetuned", default=True)
    if architecture == "gemma3":
        ropes += (Rope(fields.number("rope.freq_base_swa", _LOCAL_THETA)),)
        kinds = tuple(LayerKind(each, 1 if each else 0) for each in windows)
    elif architecture == "smollm3":
        kinds = tuple(
            LayerKind(each, 0 if (index + 1) % _NO_ROPE_EVERY else None)
            for index, each in enumerate(windows)
        )
    else:
        kinds = tuple(LayerKind(each, 0 if turned else None) for each in windows)
    return {"ropes": ropes, "kinds": () if set(kinds) == {LayerKind()} else kinds}


def _rope(file: GgufFile, fields: Metadata, config: ModelConfig) -> Rope:
    theta = fields.number("rope.freq_base", 10000.0)
    dims = fields.whole("rope.dimension_count") or config.head_dim
    if dims > config.head_dim or dims % 2:
        raise CorruptFile(
            f"{file.path}: rope.dimension_count is {dims}; a head has {config.head_dim}"
        )
    attention = fields.number("rope.scaling.attn_factor", 1.0)
    rope = Rope(theta, scale=attention, dims=0 if dims == config.head_dim else dims)
    kind = fields.get("rope.scaling.type")
    scale = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    original = fields.whole("rope.scaling.original_context_length") or config.max_context
    if kind not in (None, "none", "linear", "llama3", "yarn", "longrope"):
        raise UnsupportedModel(
            f"{file.path}: rope scaling {quoted(kind)} is not supported; what works: none, linear, "
            "llama3 (as rope_freqs), yarn, longrope"
        )
    stored, long, short = (_stored(file, name, dims // 2) for name in ROPE_TENSORS)
    if (long is None) != (short is None):
        raise CorruptFile(f"{file.path}: one of {', '.join(ROPE_TENSORS[1:])} is missing")
    if long is not None:
        return replace(rope, factors=short, long_factors=long, original_context=original)
    if stored is not None:
        return replace(rope, factors=stored)
    if kind in ("llama3", "longrope"):
        raise UnsupportedModel(f"{file.path}: rope scaling {quoted(kind)} without its factors")
    if kind == "none" or scale in (0.0, 1.0):
        return rope
    if kind == "yarn":
        fast = fields.number("rope.scaling.yarn_beta_fast", 32.0)
        slow = fields.number("rope.scaling.yarn_beta_slow", 1.0)
        if not 0.0 < slow < fast or theta <= 1.0 or scale < 1.0:
            raise CorruptFile(f"{file.path}: the yarn settings contradict each other")
        factors = yarn_factors(theta, dims, scale, fast, slow, original)
        # The converter writes the model's attention factor, which takes the place of YaRN's own.
        own = fields.number("rope.scaling.yarn_attn_factor", yarn_scale(scale))
        return replace(rope, factors=factors, scale=attention * own)
    return replace(rope, factors=(scale,) * (dims // 2))


def _stored(file: GgufFile, name: str, pairs: int) -> tuple[float, ...] | None:
    """Divisors of the frequencies that the file keeps as a tensor."""
    info = file.tensors.get(name)
    if info is None:
        return None
    if info.type != "F32" or info.shape != (pairs,):
        raise CorruptFile(f"{file.path}: {name} is not {pairs} F32 numbers")
    stored = read_block(info.path, STORED_DTYPES["F32"], info.offset, pairs)
    return tuple(stored.astype(np.float64).tolist())
