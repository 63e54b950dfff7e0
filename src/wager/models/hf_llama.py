"""A directory in Hugging Face layout that holds a llama decoder, as a `Checkpoint`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from wager.config import ModelConfig
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models import generation, hf_tokenizer
from wager.models.checkpoint import (
    STORED_DTYPES,
    WHAT_WORKS,
    Checkpoint,
    StoredTensor,
    check_config,
    check_tensors,
    finite,
    quoted,
    read_block,
    tensor_shapes,
    widen,
)
from wager.models.rope import llama3_factors
from wager.models.safetensors_file import TensorInfo, read_directory, read_json
from wager.ops.base import F32

MAX_CONFIG: Final = 1 << 20
_ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM")

# Values that a setting may have; one that is left out or null is fine.
_MUST_BE: Final[dict[str, tuple[Any, ...]]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "hidden_act": ("silu", "swish"),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1.0,),
    "quantization_config": (),
    "sliding_window": (),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "final_logit_softcapping": (),
    "attn_logit_softcapping": (),
    "no_rope_layers": (),
    "clip_qkv": (),
}
# Buffers that old checkpoints carry and that follow from the config.
_DERIVED: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def open_directory(path: Path, name: str) -> Checkpoint:
    """Check a model directory. Raises ModelError, CorruptFile or UnsupportedModel."""
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: has no config.json, so it is no model directory; {WHAT_WORKS}")
    raw = read_json(path / "config.json", MAX_CONFIG)
    config = read_config(path / "config.json", raw)
    infos, digest = read_directory(path)
    stored = {key: _stored(info) for key, info in infos.items() if not _DERIVED.fullmatch(key)}
    _drop_tied_head(path, config, stored)
    hint = "" if config.tied_head else " (tie_word_embeddings is false)"
    check_tensors(path, config, {key: tensor.shape for key, tensor in stored.items()}, hint)
    identity = f"{path.resolve()}\0{sorted(raw.items(), key=lambda item: item[0])}\0{digest}"
    settings = path / "generation_config.json"
    sampling = read_json(settings, MAX_CONFIG) if settings.is_file() else {}
    return Checkpoint(
        name=name,
        path=path,
        config=config,
        tensors=stored,
        quantised=False,
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        tokenizer=lambda: hf_tokenizer.from_directory(path),
        generation=lambda tokenizer: generation.of_directory(path, raw, sampling, tokenizer),
    )


def read_config(path: Path, raw: dict[str, Any]) -> ModelConfig:
    """config.json as a `ModelConfig`; what it asks for and is not supported is refused by name."""
    architectures = raw.get("architectures") or [
        {"llama": "LlamaForCausalLM"}.get(str(raw.get("model_type")), raw.get("model_type"))
    ]
    if not isinstance(architectures, list) or architectures[0] not in _ARCHITECTURES:
        name = architectures[0] if isinstance(architectures, list) else architectures
        raise UnsupportedModel(
            f"{path}: architecture {quoted(name)} is not supported; {WHAT_WORKS}"
        )
    for key, allowed in _MUST_BE.items():
        value = raw.get(key)
        if value is not None and value not in allowed:
            may = " or ".join(repr(item) for item in allowed) or "left out"
            raise UnsupportedModel(f"{path}: {key} is {quoted(value)}; it must be {may}")
    kinds = raw.get("layer_types")
    if kinds is not None and set(map(str, kinds if isinstance(kinds, list) else [kinds])) != {
        "full_attention"
    }:
        raise UnsupportedModel(f"{path}: layer_types other than full_attention are not supported")
    fields = _Fields(path, raw)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", hidden // max(heads, 1))
    config = ModelConfig(
        architecture="llama",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        max_context=fields.integer("max_position_embeddings", 2048),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=10000.0,
        tied_head=fields.flag("tie_word_embeddings"),
    )
    check_config(path, config)
    # Only now is the head size known to be sane enough to make a list of that length.
    theta, factors = _rope(fields, head_dim)
    config = replace(config, rope_theta=theta, rope_factors=factors)
    check_config(path, config)
    return config


class _Fields:
    """Typed access to a JSON object."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self.path = path
        self.raw = raw

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise CorruptFile(f"{self.path}: {key} is not a whole number: {quoted(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        number = finite(value)
        if number is None:
            raise CorruptFile(f"{self.path}: {key} is not a number: {quoted(value)}")
        return number

    def flag(self, key: str) -> bool:
        value = self.raw.get(key, False)
        if not isinstance(value, bool):
            raise CorruptFile(f"{self.path}: {key} is neither true nor false: {quoted(value)}")
        return value


def _rope(fields: _Fields, head_dim: int) -> tuple[float, tuple[float, ...] | None]:
    """Base and divisors of the frequencies, from ``rope_parameters`` or from the older keys."""
    scaling = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise CorruptFile(f"{fields.path}: rope_scaling is not an object: {quoted(scaling)}")
    rules = _Fields(fields.path, scaling)
    theta = rules.number("rope_theta", fields.number("rope_theta", 10000.0))
    if not 0.0 < theta < 1e30:
        raise CorruptFile(f"{fields.path}: rope_theta is {theta}; it must be a positive number")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    partial = scaling.get("partial_rotary_factor")
    if partial is not None and partial != 1.0:
        raise UnsupportedModel(f"{fields.path}: partial_rotary_factor must be left out or 1")
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(
            f"{fields.path}: rope type {quoted(kind)} is not supported; what works: default, "
            "linear, llama3"
        )
    factor = rules.number("factor")
    if factor < 1.0:
        raise CorruptFile(f"{fields.path}: the rope factor is {factor}; it must be at least 1")
    if kind == "linear":
        return theta, (factor,) * (head_dim // 2)
    low, high = rules.number("low_freq_factor"), rules.number("high_freq_factor")
    original = rules.integer("original_max_position_embeddings")
    if not 0.0 < low < high or original < 1:
        raise CorruptFile(f"{fields.path}: the llama3 rope factors contradict each other")
    return theta, llama3_factors(theta, head_dim, factor, low, high, original)


def _stored(info: TensorInfo) -> StoredTensor:
    columns = math.prod(info.shape[1:])
    dtype = STORED_DTYPES[info.dtype]

    def read(first: int, count: int) -> F32:
        offset = info.offset + first * columns * dtype.itemsize
        data = widen(read_block(info.path, dtype, offset, count * columns), info.dtype)
        return data.reshape(count, *info.shape[1:])

    return StoredTensor(info.shape, read)


def _drop_tied_head(path: Path, config: ModelConfig, stored: dict[str, StoredTensor]) -> None:
    """Some files carry the tied head once more. It may go only if it is the embedding."""
    head, table = stored.get("lm_head.weight"), stored.get("model.embed_tokens.weight")
    if not config.tied_head or head is None or table is None:
        return
    expected = tensor_shapes(config)["model.embed_tokens.weight"]
    if head.shape != expected or table.shape != expected:
        return
    rows = max(1, (1 << 22) // config.hidden_size)
    for first in range(0, config.vocab_size, rows):
        count = min(rows, config.vocab_size - first)
        if not _same(head.read, table.read, first, count):
            raise UnsupportedModel(
                f"{path}: lm_head.weight differs from the embedding although "
                "tie_word_embeddings is true"
            )
    del stored["lm_head.weight"]


def _same(
    left: Callable[[int, int], F32], right: Callable[[int, int], F32], first: int, count: int
) -> bool:
    return bool(np.array_equal(left(first, count), right(first, count), equal_nan=True))
