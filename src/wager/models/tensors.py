"""The tensors of a decoder, under names of our own, and where a file keeps each of them.

A format says under which name it stores a tensor, or in which rows of a larger one; what is found
there is checked against the config and handed on as a `StoredTensor`. Rows of q and k are put into
an order in which i and i + D/2 of a head are a rotary pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.checkpoint import WHAT_WORKS, StoredTensor, quoted
from wager.ops.base import F32
from wager.shape import ModelConfig, layer_shapes

Read = Callable[[int, int], F32]


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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file keeps a tensor: rows from ``first`` on of the tensor ``name``, of ``rows``.

    ``rows`` None: it is the whole of it.
    """

    name: str
    first: int = 0
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Naming:
    """How the files of a format name tensors: those of the whole model, and those of a layer behind
    ``layer`` (``{}`` is its number).

    ``experts`` stand in place of an MLP's: a name with ``#`` is that of one expert, whose number it
    is; under a name without, the rows of all of them stand one below the other. ``fused`` are
    tensors in which several of ours do.
    """

    top: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]
    experts: Mapping[str, str] = field(default_factory=dict)
    fused: Sequence[tuple[Sequence[str], str]] = ()

    def places(self, config: ModelConfig) -> dict[str, Place]:
        """Where such files keep each tensor of a model."""
        layer = layer_shapes(config)
        places = {part: self._place(part, layer, config) for part in layer}
        found = {"embed": Place(self.top["embed"])}
        for index in range(config.num_layers):
            prefix = self.layer.format(index)
            for part, at in places.items():
                found[f"{index}.{part}"] = replace(at, name=prefix + at.name)
        found["norm"] = Place(self.top["norm"])
        if not config.tied_head:
            found["head"] = Place(self.top["head"])
        return found

    def _place(
        self, part: str, shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
    ) -> Place:
        for together, name in self.fused:
            if part in together:
                rows = [shapes[each][0] for each in together]
                return Place(name, sum(rows[: list(together).index(part)]), sum(rows))
        of, _, number = part.partition(".")
        if config.experts is None or of not in self.experts:
            return Place(self.parts[of])
        name = self.experts[of]
        if "#" in name or not number:
            return Place(name.replace("#", number))
        own = shapes[part][0]
        return Place(name, int(number) * own, config.experts.count * own)


def collect(
    path: Path,
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    naming: Naming,
    hint: str = "",
) -> dict[str, StoredTensor]:
    """The tensors of the model out of those of a file.

    Raises ModelError where one is missing, UnsupportedModel where the file has others beside them,
    CorruptFile where a shape is not that of the config.
    """
    expected, places = tensor_shapes(config), naming.places(config)
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
