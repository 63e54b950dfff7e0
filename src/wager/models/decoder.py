"""A transformer decoder, written once over the op set.

Knows the order of the blocks and nothing else: not where the weights came from, not how KV blocks
are shared, not what a draft is. Adds no arithmetic of its own, so what holds for the op set (row
invariance) holds for the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wager.models.load import Model
from wager.ops.base import F32, I32, KvPool, RaggedBatch


@dataclass(slots=True)
class DecoderOutput:
    """logits [L, V] of the rows asked for; hidden[j] [T, H], the output after j layers."""

    logits: F32
    hidden: dict[int, F32] = field(default_factory=dict)


def forward(
    model: Model, batch: RaggedBatch, pool: KvPool, hidden_layers: Sequence[int] = ()
) -> DecoderOutput:
    """One pass of all rows over all layers; writes keys and values of every row to the pool.

    ``hidden_layers`` names hidden states to return: 0 is the embedding, j the output of layer
    j - 1.
    """
    ops = model.ops
    x = ops.embed(model.embed, batch.tokens, model.config.embed_scale)
    hidden: dict[int, F32] = {}
    done = 0
    for cut in sorted({*hidden_layers, len(model.layers)}):
        if cut > done:
            ops.run_layers(model.layers[done:cut], done, x, batch, model.ropes, pool)
            done = cut
        if cut in hidden_layers:
            hidden[cut] = x.copy()
    return DecoderOutput(head_logits(model, x, batch.logit_rows), hidden)


def head_logits(model: Model, x: F32, rows: I32) -> F32:
    """Logits of some rows of the last layer's output, [L, V]."""
    config = model.config
    return model.ops.logits(
        model.final_norm, config.norm_eps, model.head, x, rows, config.logit_scale,
        config.logit_cap,
    )  # fmt: skip
