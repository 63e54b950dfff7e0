"""Invented worlds to try a controller in: what a step takes, and what becomes of drafts.

A world decides without a model and without chance from outside: the same seed, the same run. Step
times are those of a device (published or measured coefficients, named where they are from);
acceptance follows from a rule, by request and position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from wager.engine.costs import interpolate


@dataclass(frozen=True, slots=True)
class Device:
    """Step times: ``rows`` at no context, and milliseconds per KV token (read, and per row)."""

    name: str
    rows: Mapping[int, float]
    read: float
    attend: float = 0.0

    def ms(self, rows: int, kv_tokens: float, attended: float) -> float:
        """A step of ``rows`` rows; ``attended`` is the sum over them of their context."""
        base = interpolate(self.rows, rows)
        if base is None:
            raise AssertionError("a device without step times")
        return base + self.read * kv_tokens + self.attend * attended

    def scaled(self, factor: float) -> Device:
        """All times longer by a factor."""
        rows = {r: ms * factor for r, ms in self.rows.items()}
        return Device(self.name, rows, self.read * factor, self.attend * factor)


def _linear(fixed: float, per_row: float, free: int = 1, most: int = 512) -> dict[int, float]:
    """Rows cost nothing up to ``free``."""
    return {1: fixed, free: fixed, most: fixed + per_row * (most - free)}


TWO_CORES: Final = Device(
    # SmolLM2-135M int8 on two cores, measured with this engine.
    "2-core CPU",
    {1: 6.0, 2: 6.9, 3: 7.8, 5: 9.6, 9: 13.4, 17: 21.5, 32: 37.0},
    read=0.0006,
    attend=0.0009,
)
LAPTOP: Final = Device("laptop GPU", _linear(22.0, 0.35, free=8), read=0.0004)
# Llama-3.1-8B in bf16 on one H100: coefficients of a published fit.
H100: Final = Device("H100", _linear(7.09, 0.021), read=39.3e-6)
DEVICES: Final = (TWO_CORES, LAPTOP, H100)

Verdict: TypeAlias = tuple[int, int]
"""(length of the match, draft tokens that are right); a match of 0: nothing is proposed."""
Rule: TypeAlias = Callable[[int, int, Random], Verdict]
"""(request, position in the answer, chance) -> what a draft made there would be."""


def never(request: int, position: int, chance: Random) -> Verdict:
    """Always a proposal, never right."""
    return 4, 0


def always(request: int, position: int, chance: Random) -> Verdict:
    return 9, 1 << 20


def flip(length: int) -> Rule:
    """Copies for ``length`` tokens, then writes freely for as many, and so on."""

    def rule(request: int, position: int, chance: Random) -> Verdict:
        turn, at = divmod(position, length)
        left = length - at
        return (min(at + 1, 9), left) if turn % 2 == 0 else (3, 0)

    return rule


def trap(good: int, bad: int) -> Rule:
    """The look of a copy stays: ``good`` drafts are right, then none for ``bad`` tokens."""

    def rule(request: int, position: int, chance: Random) -> Verdict:
        at = position % (good * 8 + bad)
        return 9, (good * 8 - at if at < good * 8 else 0)

    return rule


def drift(falls_by: int) -> Rule:
    """Conditional acceptance falls from 0.95 to 0.2 over so many tokens."""

    def rule(request: int, position: int, chance: Random) -> Verdict:
        share = max(0.95 - 0.75 * position / falls_by, 0.2)
        return 6, _run(share, chance)

    return rule


def steady(chances: Sequence[float], coverage: float = 1.0, match: int = 5) -> Rule:
    """Conditional acceptance by position, the last for all behind; a draft in this share of
    steps."""

    def rule(request: int, position: int, chance: Random) -> Verdict:
        if chance.random() >= coverage:
            return 0, 0
        right = 0
        while chance.random() < chances[min(right, len(chances) - 1)] and right < 1024:
            right += 1
        return match, right

    return rule


def mixed(rules: Sequence[Rule]) -> Rule:
    """Requests take turns."""

    def rule(request: int, position: int, chance: Random) -> Verdict:
        return rules[request % len(rules)](request, position, chance)

    return rule


def _run(share: float, chance: Random) -> int:
    right = 0
    while chance.random() < share and right < 64:
        right += 1
    return right


@dataclass(frozen=True, slots=True)
class World:
    """``clients`` at each step; answers of ``answer`` tokens behind prompts of ``prompt`` tokens.

    ``told`` is the device as the controller's cost table has it, which may be wrong; ``true`` what
    steps take, by step number. ``search_ms`` is one look-up of one request.
    """

    name: str
    told: Device
    true: Callable[[int], Device]
    rule: Rule
    clients: Callable[[int], int]
    search_ms: float = 0.004
    prompt: int = 300
    answer: int = 400
    noise: float = 0.0
    pauses: tuple[float, float] = (0.0, 0.0)
    """(share of the steps, milliseconds): others use the machine meanwhile, drafts or not."""
