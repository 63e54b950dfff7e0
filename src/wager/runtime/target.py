"""The target: a loaded model with its KV pool. No prefill, no decode: a step closes the gap between
the tokens that a sequence has computed and those that it wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wager.models import decoder
from wager.models.load import Model
from wager.ops.base import BLOCK, KvPool, RaggedBatch
from wager.shape import ModelConfig
from wager.types import KvKind


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a step.

    ``tokens`` take the positions ``start``, ``start + 1``, ...; ``blocks`` is the sequence's block
    table and covers them; logits are wanted of the last ``logits`` rows.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    logits: int


def kv_block_bytes(shape: ModelConfig, kv: KvKind) -> int:
    """Keys and values of BLOCK tokens in all layers of a model."""
    width = 2 if kv == "f16" else 4
    return 2 * BLOCK * shape.num_layers * shape.num_kv_heads * shape.head_dim * width


class Target:
    """Ragged forward over a paged KV pool."""

    def __init__(self, model: Model, blocks: int, kv: KvKind) -> None:
        self.model = model
        self.pool: KvPool = model.ops.kv_pool(model.config, blocks, kv)

    def forward(
        self, spans: Sequence[Span], hidden_layers: Sequence[int] = ()
    ) -> decoder.DecoderOutput:
        """One pass; logits of the spans, span after span, in row order."""
        return decoder.forward(self.model, ragged_batch(spans), self.pool, hidden_layers)


def ragged_batch(spans: Sequence[Span]) -> RaggedBatch:
    """Lay spans out as the arrays of one step."""
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    rows: list[int] = []
    for span in spans:
        tokens.extend(span.tokens)
        end = len(tokens)
        positions.extend(range(span.start, span.start + len(span.tokens)))
        rows.extend(range(end - span.logits, end))
        starts.append(end)
    widest = max(len(span.blocks) for span in spans)
    tables = np.full((len(spans), widest), -1, np.int32)
    for index, span in enumerate(spans):
        tables[index, : len(span.blocks)] = span.blocks
    return RaggedBatch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        row_starts=np.array(starts, np.int32),
        block_tables=tables,
        logit_rows=np.array(rows, np.int32),
    )
