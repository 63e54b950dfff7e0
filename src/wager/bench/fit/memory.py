"""What is reckoned: uses of memory, a drafter, an engine's options; and what all engines share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from wager.models.facts.read import KV_BITS, LayerCache, ModelFacts

Kind: TypeAlias = Literal["given", "from files", "read from the machine", "estimated"]
Device: TypeAlias = Literal["cpu", "gpu"]

MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """One use of memory, in bytes, and where the figure comes from."""

    name: str
    nbytes: int
    kind: Kind
    how: str


@dataclass(frozen=True, slots=True)
class Drafter:
    """What drafting adds. ``layers`` keep keys and values of their own; ``facts`` is None for a
    method without a model, and for layers that lie in the target's files (mtp)."""

    label: str
    method: str
    k: int
    weight_bytes: int = 0
    layers: tuple[LayerCache, ...] = ()
    facts: ModelFacts | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of an engine that memory depends on.

    ``width`` is the bytes of a plain float weight, None where the engine keeps what is stored.
    ``kv_dtype`` is a key of KV_BITS. ``memory`` is that of one device.
    """

    engine: str
    device: Device
    memory: int
    utilization: float
    max_model_len: int
    clients: int
    kv_dtype: str
    width: float | None
    tensor_parallel: int = 1


class Engine:
    """Memory of one engine with one setting, without a drafter or with one."""

    block = 16
    # Bytes per token that drafters without a model keep. Measured: wager's n-gram index up to 100,
    # arctic-inference 0.1.1 (vLLM's suffix) 324 with random tokens.
    index_bytes: Mapping[str, int] = {}

    def __init__(self, target: ModelFacts, drafter: Drafter | None, setting: Setting) -> None:
        self.target = target
        self.drafter = drafter
        self.setting = setting

    def weights(self) -> list[Part]:
        """Weights of the target and of the drafter, on one device."""
        tp = self.setting.tensor_parallel
        own = self._held(self.target, self.target.weight_bytes - self.target.mtp_bytes)
        shared = f", one of {tp} shares" if tp > 1 else ""
        kept = "as stored" if self._as_stored(self.target) else f"{self.setting.width:g} B each"
        parts = [
            Part("weights", own // tp, "from files",
                 f"{self.target.parameters:,} weights, {kept}{shared}"),
        ]  # fmt: skip
        if self.drafter is not None and self.drafter.weight_bytes:
            held = self.drafter.weight_bytes
            if self.drafter.facts is not None:
                held = self._held(self.drafter.facts, held)
            parts.append(
                Part("draft weights", held // tp, "from files", f"{self.drafter.label}{shared}")
            )
        return parts

    def _as_stored(self, facts: ModelFacts) -> bool:
        return self.setting.width is None or facts.quantisation is not None

    def _held(self, facts: ModelFacts, stored: int) -> int:
        if self._as_stored(facts) or not facts.weight_bytes:
            return stored
        return int(stored / facts.weight_bytes * facts.bytes_in(self.setting.width))

    def reserve(self, context: int, clients: int) -> list[Part]:
        """What else is kept beside keys and values."""
        raise NotImplementedError

    def host(self) -> list[Part]:
        """Memory of the machine that a drafter without a model uses, beside the device's."""
        each = self.index_bytes.get(self.drafter.method, 0) if self.drafter else 0
        if not each:
            return []
        clients, context = self.setting.clients, self.setting.max_model_len
        how = f"at most {each} B per token of {clients} x {context:,}"
        if self.drafter is not None and self.drafter.method == "suffix":
            how += ", and as much per token of answers that it remembers"
        return [Part("index of past tokens", clients * context * each, "estimated", how)]

    # Keys and values

    def layers(self) -> list[tuple[LayerCache, float]]:
        """Layers that keep keys and values, with their bytes per kept token on one device: the
        target's, then the drafter's."""
        kept = [layer for layer in self.target.kv_layers if layer.kind != "none"]
        found = [(layer, self._bytes(layer, self.setting.kv_dtype)) for layer in kept]
        if self.drafter is not None:
            found += [(layer, self._bytes(layer, self._draft_kv)) for layer in self.drafter.layers]
        return found

    @property
    def _draft_kv(self) -> str:
        return self.setting.kv_dtype

    def _bytes(self, layer: LayerCache, kv_dtype: str) -> float:
        tp = self.setting.tensor_parallel
        # Heads are shared out; with more devices than heads they are repeated, and a latent
        # vector is whole everywhere.
        share = 1.0 if layer.latent or not layer.heads else 1 / min(tp, layer.heads)
        return layer.values * share * KV_BITS[kv_dtype] / 8 + layer.extra_bytes

    def per_token(self) -> float:
        """Bytes of keys and values per token while the context fits every window."""
        return sum(width for _, width in self.layers())

    def state(self) -> int:
        """Bytes of recurrent state per sequence, one more copy per draft token: a refused draft
        takes the state back."""
        width = int(self.setting.width or 2)
        copies = 1 + (self.drafter.k if self.drafter else 0)
        return self.target.state_bytes(width) * copies // self.setting.tensor_parallel

    def sequence(self, context: int) -> int:
        """Bytes of keys, values and state of one sequence of ``context`` tokens."""
        total = float(self.state())
        for layer, width in self.layers():
            total += up(layer.tokens(context), self.block) * width
        return math.ceil(total)

    def lookahead(self) -> int:
        """Slots per request past its committed tokens, that drafts need while they are checked."""
        return self.drafter.k if self.drafter else 0

    def tokens(self, kv_bytes: int) -> int:
        """How many tokens a pool of this size holds, in sequences of the longest context."""
        one = self.sequence(self.setting.max_model_len)
        return int(kv_bytes / one * self.setting.max_model_len) if one else 0

    def usable(self) -> int:
        """What the engine takes of the device's memory."""
        return int(self.setting.memory * self.setting.utilization)


def up(value: int, step: int) -> int:
    return -(-value // step) * step


def total(parts: Sequence[Part]) -> int:
    """Bytes of several parts together."""
    return sum(part.nbytes for part in parts)
