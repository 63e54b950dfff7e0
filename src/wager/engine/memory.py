"""How many KV blocks: settled once, at start, against real memory."""

from __future__ import annotations

from typing import Final

from wager.config import EngineConfig
from wager.errors import ConfigError
from wager.memory import host_memory
from wager.models.load import Model
from wager.ops.base import BLOCK
from wager.runtime.kv import blocks_for
from wager.runtime.target import kv_block_bytes
from wager.types import KvKind

DEFAULT_KV_BYTES: Final = 1 << 29
"""Bound of KV and prefix cache when none is given; the pool is touched only as it is used."""


def kv_kind(model: Model, config: EngineConfig) -> KvKind:
    """f16 unless the weights are f32."""
    if config.kv != "auto":
        return config.kv
    return "f32" if model.weights == "f32" else "f16"


def block_bytes(model: Model, config: EngineConfig) -> int:
    """Keys and values of the model, of BLOCK tokens in all layers."""
    return kv_block_bytes(model.config, kv_kind(model, config))


def choose_blocks(
    model: Model, config: EngineConfig, drafter_bytes: int = 0, granted: int = 0
) -> int:
    """Blocks of the pool: ``kv_memory`` bounds what the model and its drafters keep in them.

    Drafters keep ``drafter_bytes`` per block; ``granted`` is how many bytes the engine may use
    already. Raises ConfigError if one context does not fit, or if the machine has not that much
    memory.
    """
    size = block_bytes(model, config) + drafter_bytes
    whose = " of the model and its drafter" if drafter_bytes else ""
    needed = blocks_for(model.config.max_context)
    useful = needed * config.max_num_seqs
    if config.kv_memory is None:
        blocks = min(useful, max(needed, DEFAULT_KV_BYTES // size))
    else:
        blocks = min(config.kv_memory // size, 1 << 24)
        if blocks < needed:
            raise ConfigError(
                f"kv_memory: {config.kv_memory} bytes hold {blocks * BLOCK} tokens{whose}, but one "
                f"context of max_model_len {model.config.max_context} takes {needed * size} bytes; "
                "raise kv_memory or lower max_model_len"
            )
    memory = host_memory()
    if memory is None:
        return blocks
    available = memory.total if memory.free is None else memory.free
    if blocks * size - granted > available:
        raise ConfigError(
            f"kv_memory: {blocks * size >> 20} MiB for {blocks * BLOCK} tokens{whose}, but this "
            f"machine has {available >> 20} MiB free; lower kv_memory or max_model_len"
        )
    return blocks
