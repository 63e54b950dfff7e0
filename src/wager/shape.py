"""The shape and the constants of a decoder: what its computation depends on beside its weights.

One record for every architecture. It says what is computed, not what a family of models is called:
the readers of configs and of GGUF metadata turn a family into these fields, and nothing below them
asks for its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu_tanh"]
"""Of the gated MLP: silu(gate) * up, or GELU in its tanh form."""
NormPlace: TypeAlias = Literal["before", "after", "both"]
"""Where the RMS norms of attention and MLP stand: at their input, their output, or both."""
QkNorm: TypeAlias = Literal["none", "head", "width"]
"""RMS norm of queries and keys before they are turned: of each head, or of all heads together."""

QKV: Final = ("q", "k", "v")
GATE_UP: Final = ("gate", "up")
_PIECES: Final = {
    **dict.fromkeys(QKV, "qkv"),
    **dict.fromkeys((f"{part}_bias" for part in QKV), "qkv_bias"),
    **dict.fromkeys(GATE_UP, "gate_up"),
}


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary table.

    ``factors`` divide the frequencies, one per turned pair; where the context is set to more than
    ``original_context`` tokens, ``long_factors`` do, if there are any. ``scale`` multiplies cosines
    and sines (the attention factor of YaRN and LongRoPE). The first ``dims`` values of a head are
    turned (0: all of them).
    """

    theta: float = 10000.0
    factors: tuple[float, ...] | None = None
    scale: float = 1.0
    dims: int = 0
    long_factors: tuple[float, ...] | None = None
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class LayerKind:
    """In what the layers of one model differ.

    A row sees the last ``window`` positions, its own included (0: all of them). ``rope`` is the
    index of its rotary table (None: queries and keys are not turned).
    """

    window: int = 0
    rope: int | None = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """Several MLPs in place of one. Each row goes through the ``used`` of ``count`` that its router
    scores highest, the lowest among equals; their outputs are weighed by the softmax over all
    scores, divided by the sum of the chosen where ``normalised``.
    """

    count: int
    used: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: embedding, layers of attention and gated MLP, final norm, head.

    ``kinds`` has one entry per layer, or none where all are `LayerKind()`. ``attention_scale``
    multiplies q . k (None: 1 / sqrt(head_dim)). A cap c turns x into c * tanh(x / c) (0: none).
    ``embed_scale``, ``residual_scale`` and ``logit_scale`` multiply the embedding, what a block
    adds to its input, and the logits (before their cap). With ``experts``, ``intermediate_size`` is
    that of one of them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float
    tied_head: bool
    ropes: tuple[Rope, ...] = (Rope(),)
    kinds: tuple[LayerKind, ...] = ()
    norms: NormPlace = "before"
    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    out_bias: bool = False
    activation: Activation = "silu"
    attention_scale: float | None = None
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    experts: Experts | None = None

    def kind(self, index: int) -> LayerKind:
        """What sets layer ``index`` apart."""
        return self.kinds[index] if self.kinds else LayerKind()

    @property
    def score_scale(self) -> float:
        """What q . k is multiplied by."""
        scale = self.attention_scale
        return float(self.head_dim) ** -0.5 if scale is None else scale


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer: those of `piece_shapes`, with q, k, v, gate and up apart.

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


def joined(names: Iterable[str]) -> dict[str, list[str]]:
    """The pieces of a layer, and the tensors that make each, one below the other.

    Those of experts stand in the order of their numbers.
    """
    pieces: dict[str, list[str]] = {}
    for name in names:
        part = name.partition(".")[0]
        pieces.setdefault(_PIECES.get(part, part), []).append(name)
    return pieces


def piece_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """What a layer is computed with: q, k and v are one matrix, and so are gate and up, and those
    of all experts."""
    shapes = layer_shapes(config)
    return {
        piece: (sum(shapes[part][0] for part in parts), *shapes[parts[0]][1:])
        for piece, parts in joined(shapes).items()
    }
