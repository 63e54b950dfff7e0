"""The tensors of a decoder, under names of our own, and where a file keeps each of them.

A format says under which name it stores a tensor, or in which rows of a larger one; what is found
there is checked against the config and handed on as a `StoredTensor`. Rows of q and k are put into
an order in which i and i + D/2 of a head are a rotary pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.checkpoint import WHAT_WORKS, StoredTensor, quoted
from wager.ops.base import F32
from wager.shape import ModelConfig

Read = Callable[[int, int], F32]

QKV: Final = ("q", "k", "v")
GATE_UP: Final = ("gate", "up")


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model: ``embed``, ``norm``, ``head`` when not tied, ``INDEX.part``."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden)}
    layer = layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {f"{index}.{part}": shape for part, shape in layer.items()}
    shapes["norm"] = (hidden,)
    if not config.tied_head:
        shapes["head"] = (config.vocab_size, hidden)
    return shapes


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer: those of `LayerWeights`, with q, k, v, gate and up apart.

    Those of experts are ``gate.NUMBER`` and so on.
    """
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    rows = dict(zip(QKV, (config.num_heads * dim, *[config.num_kv_heads * dim] * 2), strict=True))
    shapes: dict[str, tuple[int, ...]] = {}
    if config.norms != "after":
        shapes |= {"attn_norm": (hidden,), "mlp_norm": (hidden,)}
    if config.norms != "before":
        shapes |= {"attn_post_norm": (hidden,), "mlp_post_norm": (hidden,)}
    shapes |= {part: (count, hidden) for part, count in rows.items()}
    if config.qkv_bias:
        shapes |= {f"{part}_bias": (count,) for part, count in rows.items()}
    if config.qk_norm != "none":
        whole = config.qk_norm == "width"
        shapes |= {f"{part}_norm": (rows[part] if whole else dim,) for part in ("q", "k")}
    shapes["out"] = (hidden, rows["q"])
    if config.out_bias:
        shapes["out_bias"] = (hidden,)
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    if config.experts is None:
        return shapes | mlp
    shapes["router"] = (config.experts.count, hidden)
    for number in range(config.experts.count):
        shapes |= {f"{part}.{number}": shape for part, shape in mlp.items()}
    return shapes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file keeps a tensor: rows from ``first`` on of the tensor ``name``, of ``rows``.

    ``rows`` None: it is the whole of it.
    """

    name: str
    first: int = 0
    rows: int | None = None


def within(
    name: str, part: str, together: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> Place:
    """The place of a part of a tensor in which ``together`` stand one below the other."""
    rows = [shapes[each][0] for each in together]
    return Place(name, sum(rows[: list(together).index(part)]), sum(rows))


def collect(
    path: Path,
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    place: Callable[[str], Place],
    hint: str = "",
) -> dict[str, StoredTensor]:
    """The tensors of the model out of those of a file.

    Raises ModelError where one is missing, UnsupportedModel where the file has others beside them,
    CorruptFile where a shape is not that of the config.
    """
    expected = tensor_shapes(config)
    places = {name: place(name) for name in expected}
    # Sizes that lie ask for tensors that are not there: say so before anything is allocated.
    missing = next((at.name for at in places.values() if at.name not in stored), None)
    if missing is not None:
        raise ModelError(f"{path}: tensor {missing} is missing{hint}")
    known = {at.name for at in places.values()}
    extra = next((name for name in stored if name not in known), None)
    if extra is not None:
        kind = "a bias" if extra.endswith(".bias") else f"not part of a {config.architecture} model"
        raise UnsupportedModel(f"{path}: tensor {quoted(extra)} is {kind}; {WHAT_WORKS}")
    found = {}
    for name, shape in expected.items():
        at = places[name]
        whole = stored[at.name]
        asked = (at.rows, *shape[1:]) if at.rows is not None else shape
        if whole.shape != asked:
            raise CorruptFile(
                f"{path}: tensor {at.name} is {list(whole.shape)}, the config asks for "
                f"{list(asked)}"
            )
        found[name] = whole if at.rows is None else _rows_of(whole, at.first, shape)
    return found


def _rows_of(whole: StoredTensor, first: int, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(whole.name, shape, lambda row, count: whole.read(first + row, count))


def in_head_order(
    tensors: Mapping[str, StoredTensor], order: Sequence[int]
) -> dict[str, StoredTensor]:
    """Rows of q and k (and of their biases) of each head in another order.

    Row j of a head becomes the one that is stored as its row ``order[j]``.
    """
    turned = tuple(f"{part}{suffix}" for part in ("q", "k") for suffix in ("", "_bias"))
    return {
        name: replace(tensor, read=_reordered(tensor, order))
        if name.partition(".")[2] in turned
        else tensor
        for name, tensor in tensors.items()
    }


def _reordered(tensor: StoredTensor, order: Sequence[int]) -> Read:
    """Rows of a tensor that is made of heads, each of them in another order."""
    dim, rows, picked = len(order), tensor.shape[0], np.array(order)

    def read(first: int, count: int) -> F32:
        low = first // dim * dim
        high = min(-(-(first + count) // dim) * dim, rows)
        whole = tensor.read(low, high - low)
        heads = whole.reshape(-1, dim, *whole.shape[1:])
        ordered: F32 = heads[:, picked].reshape(whole.shape)
        return ordered[first - low : first - low + count]

    return read


def neighbours(dim: int) -> list[int]:
    """The order in which pairs that are stored as neighbours (2i, 2i + 1) become halves."""
    return [*range(0, dim, 2), *range(1, dim, 2)]


def partial_halves(dim: int, turned: int) -> list[int]:
    """The order of a head of which the first ``turned`` rows are turned, as pairs of halves.

    The pairs of those come first, then the pairs of the rows that stay.
    """
    half, rest = turned // 2, (dim - turned) // 2
    return [
        *range(half),
        *range(turned, turned + rest),
        *range(half, turned),
        *range(turned + rest, dim),
    ]


def shifted(tensor: StoredTensor, by: float) -> StoredTensor:
    """A vector that is stored less ``by``."""
    return replace(tensor, read=lambda first, count: tensor.read(first, count) + np.float32(by))
