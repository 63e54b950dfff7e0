"""What a model file offers, whatever its format: a config, and matrices that are read by rows.

Tensors carry the names of `wager.models.tensors`, and rotary pairs are rows i and i + D/2 of a
head, whatever the file holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.ops.base import F32
from wager.shape import ModelConfig, Rope
from wager.types import WeightKind

if TYPE_CHECKING:
    from wager.models.generation import GenerationConfig
    from wager.models.tokenizer import Tokenizer

# Bounds that no sound model of this kind reaches; they keep a lie in a file from costing memory.
MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 20
MAX_VOCAB: Final = 1 << 22
MAX_CONTEXT: Final = 1 << 20

WHAT_WORKS: Final = (
    "what works: Llama, Mistral, Mixtral, Qwen2, Qwen3, SmolLM3, Phi-3, Gemma 2 and 3, OLMo 2 and "
    "Granite, as a directory in Hugging Face layout (safetensors) or a GGUF file "
    "(F32, F16, BF16, Q4_0 to Q8_0, Q4_K to Q6_K, IQ4_NL)"
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, under its name there.

    ``read(first, count)`` gives rows (elements of a vector), float32.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[int, int], F32]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, checked but not read.

    ``weights`` is how it is run where nobody says: as it is stored, bf16 or f32, or in int8 where
    that is in 8 bits or fewer. ``fingerprint`` is a
    sha256 over paths, sizes, times and headers: it changes whenever the files do.
    """

    name: str
    path: Path
    config: ModelConfig
    tensors: Mapping[str, StoredTensor]
    weights: WeightKind
    fingerprint: str
    tokenizer: Callable[[], Tokenizer]
    generation: Callable[[Tokenizer], GenerationConfig]


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
    scales = ("norm_eps", "score_scale", "embed_scale", "residual_scale", "logit_scale")
    numbers = {field: getattr(config, field) for field in scales}
    numbers |= {f: getattr(config, f) or 1.0 for f in ("attention_cap", "logit_cap")}
    for field, number in numbers.items():
        _check_number(path, field, number)
    for rope in config.ropes:
        check_rope(path, rope, config.head_dim)


def check_rope(path: Path, rope: Rope, head_dim: int) -> None:
    """Raise CorruptFile or UnsupportedModel where a rotary table cannot be made."""
    if not 0 <= rope.dims <= head_dim or rope.dims % 2:
        raise CorruptFile(f"{path}: {rope.dims} of {head_dim} values of a head cannot be turned")
    pairs = (rope.dims or head_dim) // 2
    for field, number in (("rope_theta", rope.theta), ("the attention factor", rope.scale)):
        _check_number(path, field, number)
    for factors in (rope.factors, rope.long_factors):
        if factors is None:
            continue
        if len(factors) != pairs:
            raise CorruptFile(
                f"{path}: {len(factors)} rotary factors for a head of {2 * pairs}; there must be "
                f"{pairs}"
            )
        for factor in factors:
            _check_number(path, "a rotary factor", factor)


def _check_number(path: Path, field: str, number: float) -> None:
    """Positive, and far from where its use in float32 would overflow."""
    if not 1e-30 < number < 1e30:
        raise CorruptFile(f"{path}: {field} is {number}, not a positive number below 1e30")


def quoted(value: object, limit: int = 60) -> str:
    """Text from a file for a message: escaped, so that it stays on one line, and cut."""
    text = repr(value[: 2 * limit] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def weights_of(dtypes: Iterable[str]) -> WeightKind:
    """How matrices of these types are run where nobody says."""
    found = set(dtypes)
    if found - set(STORED_DTYPES):
        return "int8"
    return "bf16" if found == {"BF16"} else "f32"


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
