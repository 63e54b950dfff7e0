"""What the files of a model say about its size, as plain records. See `wager.models.facts.read`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Source: TypeAlias = Literal["gguf", "directory", "hub"]
CacheKind: TypeAlias = Literal["full", "window", "none"]

# Bits that one item of keys or values takes, by the names that engines give the types. The
# quantised ones are llama.cpp's: a block of 32 items and its scale.
KV_BITS: Final[Mapping[str, float]] = {
    "f32": 32, "f16": 16, "bf16": 16, "fp8": 8, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5,
    "q4_0": 4.5, "iq4_nl": 4.5,
}  # fmt: skip

_MTP_NAMES: Final = re.compile(r"^(?:model\.)?(?:mtp|mtp_layers|mtp_block|nextn)\.")


@dataclass(frozen=True, slots=True)
class TensorFact:
    """A tensor in the files: stored dtype, row-major shape, bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps of the tokens that it has seen.

    ``values`` items per token, of every token (``full``) or of the last ``window`` (``window``).
    ``heads`` is the number of key-value heads that they are split into; ``latent`` says that it is
    one compressed vector (multi-head latent attention), which cannot be split over devices.
    ``extra_bytes`` per token come on top, whatever the type of keys and values.
    ``state_values`` items in the type of the model, and ``state_f32`` in 32 bits, are kept once per
    sequence, however long it is (linear attention, state space models, convolutions).
    """

    kind: CacheKind
    values: int = 0
    heads: int = 0
    latent: bool = False
    window: int | None = None
    extra_bytes: int = 0
    state_values: int = 0
    state_f32: int = 0

    def tokens(self, context: int) -> int:
        """How many tokens of a context are kept."""
        if self.kind == "none":
            return 0
        return min(context, self.window) if self.window is not None else context


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What config.json and the headers of safetensors, or GGUF metadata, say. No weights read.

    ``location`` is a path, or ``org/name@commit``. ``dtype`` is the stored type that holds most
    bytes; ``quantisation`` says how its weights are packed, None where they are plain floats;
    ``model_dtype`` is the type that the config asks to compute in. ``parameters`` and
    ``weight_bytes`` are sums over ``tensors``, a head that repeats the tied embedding left out;
    ``tensors`` is empty where they cannot be listed without running a pickle: then both follow from
    the sizes of the files, and ``notes`` says so. ``mtp_layers`` counts layers for multi-token
    prediction whose tensors are there; they are not in ``num_layers``. ``tokenizer_hash`` is a
    sha256 over (id, token) pairs, the same for every format; None where no tokenizer is there or
    none was asked for. ``speculative`` describes a draft head: its ``kind`` and the keys of its
    config that matter; None for a model that can write on its own. ``expert_size`` is the inner
    width of one expert.
    """

    name: str
    source: Source
    location: str
    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    tied_head: bool
    dtype: str
    quantisation: str | None
    model_dtype: str | None
    parameters: int
    weight_bytes: int
    kv_layers: tuple[LayerCache, ...]
    experts: int | None
    experts_per_token: int | None
    mtp_layers: int
    tokenizer_hash: str | None
    tensors: tuple[TensorFact, ...]
    speculative: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()
    expert_size: int | None = None

    def kv_bytes_per_token(self, kv_dtype: str = "f16") -> float:
        """Bytes of keys and values per token while the context fits every window (KV_BITS)."""
        return self.kv_bytes(1, kv_dtype)

    def kv_bytes(self, tokens: int, kv_dtype: str = "f16") -> float:
        """Bytes of keys and values of a sequence of ``tokens``; recurrent state not counted."""
        width = KV_BITS[kv_dtype] / 8
        return sum(
            layer.tokens(tokens) * (layer.values * width + layer.extra_bytes)
            for layer in self.kv_layers
        )

    def state_bytes(self, width: int = 2) -> int:
        """Bytes of recurrent state per sequence; ``width`` bytes per item of the model's type."""
        return sum(layer.state_values * width + layer.state_f32 * 4 for layer in self.kv_layers)

    @property
    def mtp_bytes(self) -> int:
        """Bytes of the tensors of multi-token prediction, which only drafting needs."""
        return sum(t.nbytes for t in self.tensors if is_mtp(t.name, self.num_layers))

    def bytes_in(self, width: float | None) -> float:
        """Bytes of the weights where plain floats are held in ``width`` bytes (None: as stored)."""
        if width is None or self.quantisation is not None:
            return self.weight_bytes
        return self.parameters * width


def is_mtp(name: str, num_layers: int) -> bool:
    """Whether a tensor belongs to multi-token prediction: by its prefix, or by a layer number that
    follows the model's own (DeepSeek, GLM; GGUF's ``blk.N``)."""
    if _MTP_NAMES.match(name):
        return True
    found = re.match(r"(?:model\.(?:language_model\.)?layers|blk)\.(\d+)\.", name)
    return found is not None and int(found.group(1)) >= num_layers > 0


def most_bytes(tensors: Iterable[TensorFact]) -> str:
    """The stored type that holds most bytes; empty without tensors."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else ""
