"""From a name to a model that runs: resolve, check, pack or map, hand to the op set."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from wager.errors import ConfigError, ModelError, UnsupportedModel
from wager.models.checkpoint import MAX_CONTEXT, Checkpoint
from wager.models.generation import GenerationConfig
from wager.models.names import locate
from wager.models.packed import PackedWeights, load_packed
from wager.models.rope import rope_table
from wager.models.tokenizer import Tokenizer
from wager.ops.base import (
    F32,
    GROUP,
    MATRICES,
    Layer,
    LayerWeights,
    Matrix,
    OpSet,
    in_groups,
)
from wager.shape import ModelConfig
from wager.types import WeightKind

__all__ = ["GenerationConfig", "Model", "load_model", "open_checkpoint", "resolve"]


@dataclass(slots=True)
class Model:
    """Everything the engine needs. ``head`` is ``embed`` when they are tied.

    ``ropes`` are the rotary tables, float32 [max_context, D], cosines then sines. ``fingerprint``
    is a sha256 over the source files and the weight type: equal fingerprints mean equal packed
    weights.
    """

    name: str
    path: Path
    config: ModelConfig
    ops: OpSet
    embed: Matrix
    layers: list[Layer]
    final_norm: F32
    head: Matrix
    ropes: tuple[F32, ...]
    weights: WeightKind
    packed_bytes: int
    fingerprint: str
    tokenizer: Tokenizer
    generation: GenerationConfig


def resolve(name_or_path: str) -> Path:
    """The directory or GGUF file of a model on this machine. Raises ModelError."""
    return locate(name_or_path).path


def open_checkpoint(name_or_path: str) -> Checkpoint:
    """Check a model on disk without reading its weights."""
    found = locate(name_or_path)
    if found.path.is_dir():
        from wager.models.hf_model import open_directory

        return open_directory(found.path, found.name)
    from wager.models.gguf_model import open_gguf

    return open_gguf(found.path, found.name)


def load_model(
    name_or_path: str,
    ops: OpSet,
    weights: WeightKind | Literal["auto"] = "auto",
    max_context: int | None = None,
) -> Model:
    """Load a model over an op set.

    ``weights`` auto is int8 for files of 8 bits and fewer, bf16 for files in bf16, f32 otherwise.
    ``max_context`` shortens the context (tokens), never lengthens it. Raises ModelError
    (CorruptFile, UnsupportedModel) and ConfigError.
    """
    checkpoint = open_checkpoint(name_or_path)
    config = _with_context(checkpoint, max_context)
    kind = _weight_kind(checkpoint, weights)
    tokenizer = checkpoint.tokenizer()
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{checkpoint.path}: the tokenizer knows {tokenizer.vocab_size} tokens, the embedding "
            f"has {config.vocab_size} rows: it is another model's tokenizer"
        )
    generation = checkpoint.generation(tokenizer)
    packed = load_packed(checkpoint, ops, kind)
    embed = packed.matrix("embed", ops)
    model = Model(
        name=checkpoint.name,
        path=checkpoint.path,
        config=config,
        ops=ops,
        embed=embed,
        layers=[_layer(packed, ops, config, index) for index in range(config.num_layers)],
        final_norm=packed.vector("norm"),
        head=embed if config.tied_head else packed.matrix("head", ops),
        ropes=tuple(rope_table(r, config.head_dim, config.max_context) for r in config.ropes),
        weights=kind,
        packed_bytes=packed.nbytes,
        fingerprint=hashlib.sha256(f"{checkpoint.fingerprint} {kind}".encode()).hexdigest(),
        tokenizer=tokenizer,
        generation=generation,
    )
    _trim_heap()
    return model


def _layer(packed: PackedWeights, ops: OpSet, config: ModelConfig, index: int) -> Layer:
    matrices = {
        name: packed.matrix(f"{index}.{name}", ops)
        for name in MATRICES
        if packed.has(f"{index}.{name}")
    }
    vectors = {
        field.name: packed.vector(f"{index}.{field.name}")
        for field in fields(LayerWeights)
        if field.name not in MATRICES and packed.has(f"{index}.{field.name}")
    }
    return ops.layer(config, LayerWeights(**matrices, **vectors), config.kind(index))


def _with_context(checkpoint: Checkpoint, max_context: int | None) -> ModelConfig:
    config = checkpoint.config
    if max_context is not None:
        if not 1 <= max_context <= config.max_context:
            raise ConfigError(
                f"max_model_len: must be from 1 to {config.max_context}, which the model was made "
                f"for; got {max_context}"
            )
        config = replace(config, max_context=max_context)
    if config.max_context > MAX_CONTEXT:
        raise UnsupportedModel(
            f"{checkpoint.path}: a context of {config.max_context} tokens; {MAX_CONTEXT} is the "
            "limit"
        )
    return config


def _weight_kind(checkpoint: Checkpoint, weights: WeightKind | Literal["auto"]) -> WeightKind:
    config = checkpoint.config
    widths = (config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size)
    uneven = next((width for width in widths if width % GROUP), None)
    if weights == "auto":
        stored = checkpoint.weights
        return "f32" if in_groups(stored) and uneven is not None else stored
    if in_groups(weights) and uneven is not None:
        raise ConfigError(
            f"weights: {weights} needs widths that are multiples of {GROUP}, and "
            f"{checkpoint.path} has {uneven}; use f32 or bf16"
        )
    return weights


def _trim_heap() -> None:
    """Give back what parsing left free: glibc keeps it, as much as the tokenizer itself takes."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (AttributeError, OSError):
            return
