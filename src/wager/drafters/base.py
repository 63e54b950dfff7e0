"""The seam of drafting: what a drafter is told, what it returns, what it needs.

A drafter knows token ids and nothing else: no model, no KV, no sampling. The engine never asks
which method it has; what a method needs is data (`DrafterNeeds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wager.config import SpeculationConfig
from wager.types import Draft


@dataclass(frozen=True, slots=True)
class DrafterNeeds:
    """What the engine has to supply. Methods without a model need nothing."""

    hidden_layers: tuple[int, ...] = ()
    draft_kv: bool = False
    tokenizer: bool = False


@dataclass(frozen=True, slots=True)
class DraftQuery:
    """One request that may draft in this step.

    ``length`` is the number of tokens that the drafter has observed for it (prompt + committed);
    ``limit`` the most tokens that a draft may hold (>= 1), already clipped to what the request,
    its context and the step have room for.
    """

    request: int
    length: int
    limit: int


class Drafter(Protocol):
    """Life cycle per request: observe(prompt), then (propose, observe)*, then release."""

    needs: DrafterNeeds

    def __init__(self, config: SpeculationConfig, vocab_size: int) -> None: ...

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query, in order; NO_DRAFT where there is nothing to propose."""
        ...

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Tokens that became part of the request: its prompt at first, then each commit.

        Preemption does not show here: what was committed stays committed.
        """
        ...

    def release(self, request: int) -> None:
        """Forget a request; unknown ones are ignored."""
        ...

    def clear(self) -> None:
        """Forget everything learnt, across requests too (between the arms of a measurement)."""
        ...
