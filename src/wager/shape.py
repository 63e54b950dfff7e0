"""The shape and the constants of a decoder: what its computation depends on beside its weights.

One record for every architecture. It says what is computed, not what a family of models is called:
the readers of configs and of GGUF metadata turn a family into these fields, and nothing below them
asks for its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu_tanh"]
"""Of the gated MLP: silu(gate) * up, or GELU in its tanh form."""
NormPlace: TypeAlias = Literal["before", "after", "both"]
"""Where the RMS norms of attention and MLP stand: at their input, their output, or both."""
QkNorm: TypeAlias = Literal["none", "head", "width"]
"""RMS norm of queries and keys before they are turned: of each head, or of all heads together."""


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
