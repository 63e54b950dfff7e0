"""What a model file offers, whatever its format: a config, and matrices that are read by rows.

Tensors carry their Hugging Face names, and q and k rows are in Hugging Face order (rotary pairs i
and i + D/2), whatever the file holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from wager.config import ModelConfig
from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.ops.base import F32

if TYPE_CHECKING:
    from wager.models.generation import GenerationConfig
    from wager.models.tokenizer import Tokenizer

# Bounds that no sound model of this kind reaches; they keep a lie in a file from costing memory.
MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 20
MAX_VOCAB: Final = 1 << 22
MAX_CONTEXT: Final = 1 << 20

WHAT_WORKS: Final = (
    "what works: models of the llama architecture, as a directory in Hugging Face layout "
    "(safetensors) or a GGUF file (F32, F16, BF16, Q8_0, Q4_0, Q4_1)"
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file. ``read(first, count)`` gives rows (elements of a vector), float32."""

    shape: tuple[int, ...]
    read: Callable[[int, int], F32]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, checked but not read.

    ``quantised`` says that its matrices are stored in 8 bits or fewer. ``fingerprint`` is a
    sha256 over paths, sizes, times and headers: it changes whenever the files do.
    """

    name: str
    path: Path
    config: ModelConfig
    tensors: Mapping[str, StoredTensor]
    quantised: bool
    fingerprint: str
    tokenizer: Callable[[], Tokenizer]
    generation: Callable[[Tokenizer], GenerationConfig]


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a llama decoder, by its Hugging Face name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        shapes[layer + "self_attn.q_proj.weight"] = (queries, hidden)
        shapes[layer + "self_attn.k_proj.weight"] = (keys, hidden)
        shapes[layer + "self_attn.v_proj.weight"] = (keys, hidden)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, queries)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        shapes[layer + "mlp.gate_proj.weight"] = (inner, hidden)
        shapes[layer + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_config(path: Path, config: ModelConfig) -> None:
    """Raise CorruptFile or UnsupportedModel where the sizes cannot be those of a model."""
    bounds = {
        "vocab_size": MAX_VOCAB,
        "hidden_size": MAX_WIDTH,
        "intermediate_size": MAX_WIDTH,
        "num_layers": MAX_LAYERS,
        "num_heads": MAX_WIDTH,
        "num_kv_heads": MAX_WIDTH,
        "head_dim": MAX_WIDTH,
        "max_context": 1 << 31,
    }
    for field, high in bounds.items():
        value = getattr(config, field)
        if not 1 <= value <= high:
            raise CorruptFile(f"{path}: {field} is {value}; it must be from 1 to {high}")
    if config.num_heads % config.num_kv_heads:
        raise CorruptFile(
            f"{path}: {config.num_heads} heads cannot share {config.num_kv_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise UnsupportedModel(f"{path}: head size {config.head_dim} is odd, so it has no rotary")
    for field, value in (("norm_eps", config.norm_eps), ("rope_theta", config.rope_theta)):
        if not 0.0 < value < 1e30:
            raise CorruptFile(f"{path}: {field} is {value}; it must be a positive number")
    if config.rope_factors is not None:
        if len(config.rope_factors) != config.head_dim // 2:
            raise CorruptFile(
                f"{path}: {len(config.rope_factors)} rotary factors for a head of "
                f"{config.head_dim}; there must be {config.head_dim // 2}"
            )
        if not all(0.0 < factor < 1e30 for factor in config.rope_factors):
            raise CorruptFile(f"{path}: a rotary factor is not a positive number")


def check_tensors(
    path: Path, config: ModelConfig, found: Mapping[str, tuple[int, ...]], hint: str = ""
) -> None:
    """Every tensor of the model is there in its shape, and no other is."""
    expected = tensor_shapes(config)
    # Sizes that lie ask for tensors that are not there: say so before anything is allocated.
    missing = next((name for name in expected if name not in found), None)
    if missing is not None:
        raise ModelError(f"{path}: tensor {missing} is missing{hint}")
    extra = next((name for name in found if name not in expected), None)
    if extra is not None:
        kind = "a bias" if extra.endswith(".bias") else "not part of a llama decoder"
        raise UnsupportedModel(f"{path}: tensor {quoted(extra)} is {kind}; {WHAT_WORKS}")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise CorruptFile(
                f"{path}: tensor {name} is {list(found[name])}, the config asks for {list(shape)}"
            )


def quoted(value: object, limit: int = 60) -> str:
    """Text from a file for a message: escaped, so that it stays on one line, and cut."""
    text = repr(value[: 2 * limit] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


STORED_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def finite(value: object) -> float | None:
    """A number of a file as a float; None if it is none, too large, infinite or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def read_block(path: Path, dtype: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    """``count`` items at a byte offset. Read, not mapped: the source never counts as resident."""
    try:
        with path.open("rb") as file:
            data = np.fromfile(file, dtype=dtype, count=count, offset=offset)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) != count:
        raise CorruptFile(f"{path}: ends early; it changed while it was read")
    return data


def widen(data: NDArray[Any], dtype: str) -> F32:
    """Stored F32, F16 or BF16 (as uint16) items as float32."""
    if dtype == "BF16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float32, copy=False)
