"""What a workload is made of: one prompt with its own sampling settings and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from wager.config import SamplingParams

Messages: TypeAlias = tuple[tuple[str, str], ...]
"""(role, content) pairs of a chat."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a workload: a chat, a raw text or token ids (exactly one of them is set).

    ``expected`` is the text that a reply which follows the instruction puts in its code block;
    None where a workload has no such check.
    """

    id: str
    params: SamplingParams
    messages: Messages | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one prompt is drawn: ``(random numbers, vocabulary size)`` to the parts of a Prompt."""

    name: str
    summary: str
    chat: bool
    draw: Callable[[Random, int], Drawn]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The parts of a Prompt that a recipe decides; the seed and the id come from the workload."""

    max_tokens: int
    temperature: float
    content: str | tuple[int, ...]
    ignore_eos: bool = False
    expected: str | None = None
