"""The arithmetic of speculation: what follows from acceptance and step times. Pure.

Everything that comes out of here is *estimated*: it follows from measured inputs by a formula and
was not measured itself. Say so wherever a figure is shown (`KIND`). Positions count from 0.

For a chain of draft tokens S_j, the unconditional acceptance of position j, is the share of drafts
whose positions 0 to j were all accepted; p_j = S_j / S_(j-1) is the conditional one. A step commits
1 + sum(S_j) tokens. The time formula is that of Leviathan et al. (2023) with the verify cost put
in, which they take as 1. docs/arithmetic.md works through published figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wager.engine.costs import StepCosts, interpolate
from wager.errors import ConfigError

KIND: Final = "estimated"
MAX_ROWS: Final = 1 << 20


# Acceptance


def conditional(unconditional: Sequence[float]) -> list[float | None]:
    """p_j = S_j / S_(j-1); None where no draft got that far.

    Exact where all drafts are of one length. Drafts that end early make it too low, since nothing
    was tried behind their end. Raises ValueError where the values cannot be shares of a chain.
    """
    _check_survival(unconditional)
    before = [1.0, *unconditional]
    return [s / b if b > 0.0 else None for s, b in zip(unconditional, before, strict=False)]


def survival(conditional: Sequence[float]) -> list[float]:
    """S_j, the product of p_0 to p_j: the unconditional acceptance by position."""
    for p in conditional:
        _share("conditional acceptance", p)
    out, product = [], 1.0
    for p in conditional:
        product *= p
        out.append(product)
    return out


def acceptance_rate(unconditional: Sequence[float]) -> float | None:
    """Accepted / drafted tokens of drafts of one length: the mean of S. None without positions.

    It falls with the length although the drafter is the same, so compare it at equal k only.
    """
    _check_survival(unconditional)
    return math.fsum(unconditional) / len(unconditional) if unconditional else None


def accepted_per_draft(unconditional: Sequence[float]) -> float:
    """Accepted tokens of the mean draft: sum(S)."""
    _check_survival(unconditional)
    return math.fsum(unconditional)


def tokens_per_step(unconditional: Sequence[float], coverage: float = 1.0) -> float:
    """1 + coverage * sum(S) tokens, over all steps; ``coverage``: share of steps with a draft."""
    _share("coverage", coverage)
    return 1.0 + coverage * accepted_per_draft(unconditional)


def tokens_per_step_from_rate(rate: float, k: int) -> float:
    """1 + rate * k: from accepted / drafted tokens, when every step drafts k tokens."""
    _share("acceptance rate", rate)
    return 1.0 + rate * k


# Time


def speed_up(tokens: float, verify_cost: float, draft_cost: float = 0.0) -> float:
    """Of decode: ``tokens`` per step / (verify cost + draft cost), both in plain steps."""
    cost = break_even(verify_cost, draft_cost)
    return tokens / cost


def break_even(verify_cost: float, draft_cost: float = 0.0) -> float:
    """Tokens per step from which on speculation pays: v + d. Raises ValueError unless it is > 0."""
    cost = verify_cost + draft_cost
    if not cost > 0.0 or draft_cost < 0.0:
        raise ValueError(f"costs must be positive, got {verify_cost} and {draft_cost}")
    return cost


@dataclass(frozen=True, slots=True)
class StepTable:
    """Milliseconds of one step by its rows, over all requests of the step. ``known`` has row 1.

    Between known rows it is interpolated and beyond them extended along the last slope, by the rule
    of the engine's own table, but never below the last known time. ``source`` says where it is
    from.
    """

    known: Mapping[int, float]
    source: str

    def ms(self, rows: int) -> float:
        """Raises ValueError for less than one row."""
        if rows < 1:
            raise ValueError(f"a step has at least 1 row, got {rows}")
        value = interpolate(self.known, rows)
        if value is None:
            raise AssertionError("a step table is never empty")
        return max(value, self.known[self.last]) if rows > self.last else value

    @property
    def last(self) -> int:
        """The most rows that were measured."""
        return max(self.known)

    def verify_cost(self, k: int, clients: int = 1) -> float:
        """v(k): a step of ``clients`` requests with k draft tokens each / one without drafts."""
        return self.ms(clients * (1 + k)) / self.ms(clients)

    def mean_ms(self, clients: int, lengths: Mapping[int, float]) -> float:
        """Mean time of a step of ``clients`` requests that draft independently of each other.

        ``lengths`` gives the probability of each draft length (0: no draft), as replay counts them.
        """
        import numpy as np

        one = np.zeros(max(lengths) + 1)
        for length, probability in lengths.items():
            one[length] += probability
        if not math.isclose(float(one.sum()), 1.0, abs_tol=1e-9):
            raise ValueError(f"draft lengths: probabilities add up to {one.sum()}, not 1")
        # The sum of the lengths of all clients: their distribution folded with itself.
        size = clients * (len(one) - 1) + 1
        rows = (
            one if clients == 1 else np.fft.irfft(np.fft.rfft(one, 2 * size) ** clients, 2 * size)
        )
        likely = np.flatnonzero(rows > 1e-12)
        return math.fsum(float(rows[d]) * self.ms(clients + int(d)) for d in likely)


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft length and the decode speed-up it is estimated to give; k 0 is plain decoding."""

    k: int
    speed_up: float


def best_k(
    unconditional: Sequence[float],
    steps: StepTable,
    clients: int = 1,
    coverage: float = 1.0,
    draft_ms: Sequence[float] | None = None,
) -> Choice:
    """The draft length with the highest estimated speed-up; 0 where none is above 1.

    A shorter draft is taken to be the beginning of a longer one. ``draft_ms[k]`` is the time that
    drafting k tokens adds to a step (None: nothing). One that is best at the end of
    ``unconditional`` says only that a longer one should be tried.
    """
    _share("coverage", coverage)
    best, plain = Choice(0, 1.0), steps.ms(clients)
    for k in range(1, len(unconditional) + 1):
        with_drafts = steps.mean_ms(clients, {0: 1.0 - coverage, k: coverage})
        extra = 0.0 if draft_ms is None else draft_ms[k]
        tokens = tokens_per_step(unconditional[:k], coverage)
        gain = speed_up(tokens, with_drafts / plain, extra / plain)
        if gain > best.speed_up:
            best = Choice(k, gain)
    return best


# Step tables that people give


def step_table(text: str, context: int | None = None) -> StepTable:
    """``plain=5.7,9=7.8`` (rows of the step = milliseconds; plain is 1 row), or a file.

    A file is the engine's saved cost table (nearest measured ``context`` tokens) or what
    ``wager bench --json`` wrote. Raises ConfigError.
    """
    if "=" in text and not Path(text).is_file():
        return _from_pairs(text)
    return _from_file(Path(text).expanduser(), context)


def _from_pairs(text: str) -> StepTable:
    known: dict[int, float] = {}
    for part in text.split(","):
        left, _, right = (piece.strip() for piece in part.partition("="))
        try:
            rows = 1 if left == "plain" else int(left)
            ms = float(right.removesuffix("ms"))
        except ValueError:
            raise ConfigError(
                f"steps: {part.strip()!r} is not ROWS=MILLISECONDS; write plain=5.7,9=7.8"
            ) from None
        if rows in known:
            raise ConfigError(f"steps: {rows} row{'s' if rows > 1 else ''} given twice")
        known[rows] = ms
    return _checked(known, "steps", "given")


def _from_file(path: Path, context: int | None) -> StepTable:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"steps: {str(path)!r} is neither a table such as plain=5.7,9=7.8 nor a file that can "
            f"be read: {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"steps: {path} is not JSON: {error}") from error
    if isinstance(saved, dict) and "cells" in saved and "step_ms" not in saved:
        costs = StepCosts(_never)
        if costs.load(path):
            table = costs.table() if context is None else costs.table(context)
            return _checked(table, f"steps: {path}", str(path))
    step_ms = saved.get("step_ms") if isinstance(saved, dict) else None
    if not isinstance(step_ms, dict):
        raise ConfigError(
            f"steps: {path} holds no step times; give the engine's cost table or the file of "
            "wager bench --json"
        )
    return _checked(_rows(path, step_ms), f"steps: {path}", str(path))


def _rows(path: Path, step_ms: Mapping[str, Any]) -> dict[int, float]:
    """What was measured of a benchmark's table; null is not."""
    try:
        return {int(rows): float(ms) for rows, ms in step_ms.items() if ms is not None}
    except (TypeError, ValueError):
        raise ConfigError(f"steps: {path}: step_ms is not rows to milliseconds") from None


def _checked(known: Mapping[int, float], name: str, source: str) -> StepTable:
    for rows, ms in known.items():
        if not 1 <= rows <= MAX_ROWS or not 0.0 < ms < math.inf:
            raise ConfigError(f"{name}: {rows}={ms:g} cannot be rows and milliseconds of a step")
    if 1 not in known:
        raise ConfigError(f"{name}: the time of a plain step (1 row) is missing; add plain=MS")
    return StepTable(dict(sorted(known.items())), source)


def _never(rows: int, context: int) -> float:
    raise AssertionError("a saved table is read, never measured")


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: must be from 0 to 1, got {value}")


def _check_survival(values: Sequence[float]) -> None:
    before = 1.0
    for value in values:
        _share("unconditional acceptance", value)
        if value > before + 1e-12:
            raise ValueError(
                f"unconditional acceptance cannot rise along a draft ({before} to {value}); "
                "these may be conditional values"
            )
        before = value
