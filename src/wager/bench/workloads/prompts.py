"""What a workload is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from wager.backend import Messages, Prompt

__all__ = ["Drawn", "Messages", "Prompt", "Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How prompts are drawn: ``(random numbers, vocabulary size)`` to the parts of one, or of all
    the turns of one session."""

    name: str
    summary: str
    chat: bool
    draw: Callable[[Random, int], Sequence[Drawn]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The parts of a Prompt that a recipe decides; the seed and the id come from the workload."""

    max_tokens: int
    temperature: float
    content: str | tuple[int, ...]
    ignore_eos: bool = False
    expected: str | None = None
