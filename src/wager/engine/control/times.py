"""What the step at hand takes, with drafts and without, in milliseconds.

The shape is that of the engine's cost table, which one request measured:

    ms = W(rows) + read * (KV tokens) + attend * (sum over rows of their context)

Real steps correct it: a factor for all follows the machine's clock as plain steps show it, slower
ones by the number of requests say what plain steps take beyond that, and verify steps, which are
expected to take as much more as their rows do, have slow ones by their size. What is compared are
plain and verify steps, and an error of one would be a loss; so what a plain step takes is told by
plain steps alone. Where verify steps turn out otherwise than expected, it is time for some plain
ones (`doubtful`).
"""

from __future__ import annotations

import math
from statistics import linear_regression, median
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wager.engine.costs import CONTEXTS, StepCosts

F64: TypeAlias = NDArray[np.float64]

_CLOCK_SHARE: Final = 0.1
_PLAIN_SHARE: Final = 0.02
_VERIFY_SHARE: Final = 0.05
_MOST: Final = 0.2
"""A step that took longer than e ** 0.2 times what was expected counts as that."""
CALIBRATION: Final = 3
"""Plain steps of a size after which it is known what one takes; until then their median counts."""
_DOUBT_SHARE: Final = 0.1
_DOUBT: Final = 0.06
_LEAST_RUN: Final = 25
"""Verify steps until what they took may ask for plain ones."""


class StepTimes:
    """Expected times of plain and of verify steps of a batch, kept current by `record`."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._clock = 0.0
        self._plain: dict[int, _Factor] = {}
        self._verify: dict[int, _Factor] = {}
        self._doubt = 0.0
        self._verified = 0
        self._scalar: dict[float, float] = {}
        self._rows: F64 = np.empty(0)
        self._ms: F64 = np.empty(0)
        self._slope = self._read = self._attend = 0.0
        self.refresh()

    @property
    def known(self) -> bool:
        """False while no cost table was measured: then nothing can be expected."""
        if len(self._rows) < 2 and self._costs.cells:
            self.refresh()
        return len(self._rows) > 1

    def refresh(self) -> None:
        """Take over the cost table, once it is measured."""
        self._scalar.clear()
        near, far = (self._costs.table(c) for c in CONTEXTS)
        self._read, self._attend = _per_token(near, far)
        shortest = CONTEXTS[0]
        table = {r: ms - shortest * (self._read + self._attend * r) for r, ms in near.items()}
        self._rows = np.array(sorted(table), np.float64)
        # A step with more rows takes no less time.
        self._ms = np.maximum.accumulate(np.array([table[int(r)] for r in self._rows]))
        if len(self._rows) > 1:
            self._slope = (self._ms[-1] - self._ms[-2]) / (self._rows[-1] - self._rows[-2])

    def calibrated(self, requests: int, prompts: bool) -> bool:
        """Whether plain steps of about that many requests were measured. ``prompts``: of any
        number, since beside prompts none can be."""
        if prompts:
            return bool(self._plain)
        found = self._plain.get(requests.bit_length())
        return found is not None and found.count >= CALIBRATION

    @property
    def doubtful(self) -> bool:
        """Whether verify steps took so much more, or less, than expected that plain ones may do so
        too."""
        return self._verified >= _LEAST_RUN and abs(self._doubt) > _DOUBT

    def weights(self, rows: float) -> float:
        """W(rows), uncorrected: the shape of a pass without its context."""
        found = self._scalar.get(rows)
        if found is None:
            every = np.array([float(rows)])
            found = self._scalar[rows] = float(
                _weights(self._rows, self._ms, self._slope, every)[0]
            )
        return found

    def plain(self, requests: int, kv_tokens: int) -> float:
        """Milliseconds of a step in which each request has one row."""
        shape = self._plain_shape(requests, kv_tokens)
        return shape * math.exp(self._clock + _log_of(self._plain, requests))

    def _plain_shape(self, requests: int, kv_tokens: int) -> float:
        return self.weights(requests) + (self._read + self._attend) * kv_tokens

    def curve(self, requests: int, kv_tokens: int, beside: int = 0) -> Curve:
        """What verify steps of a batch take, by their rows.

        With ``beside`` rows of prompts in the step, what the drafts add is reckoned on top of
        those; the prompts' own time is left out.
        """
        base = (self._read + self._attend) * kv_tokens
        # What plain steps take longer than the table says, a verify step takes longer too, but what
        # its rows add need not.
        shape = self._plain_shape(requests, kv_tokens)
        base += shape * (math.exp(_log_of(self._plain, requests)) - 1.0)
        if beside:
            base += self.weights(requests) - self.weights(requests + beside)
        terms = (self._slope, beside, base, self._attend)
        return Curve(self._rows, self._ms, terms, *self._corrections())

    def _corrections(self) -> tuple[F64, F64]:
        """(rows, logarithm of the correction there), rising: an entry for each size seen."""
        if not self._verify:
            return np.ones(1), np.full(1, self._clock)
        seen = [self._verify[size] for size in sorted(self._verify)]
        return np.array([f.rows for f in seen]), np.array([self._clock + f.log for f in seen])

    def verify(
        self, requests: int, kv_tokens: int, drafted: int, attended: float, beside: int = 0
    ) -> float:
        """Milliseconds of a step with ``drafted`` rows more, which look at ``attended`` tokens."""
        curve = self.curve(requests, kv_tokens, beside)
        return float(curve.ms(np.array([requests + drafted]), np.array([attended]))[0])

    def record_plain(self, requests: int, kv_tokens: int, *measured: float) -> None:
        """Take in measured plain steps, without what drafting took of them."""
        start = _Factor(requests, _log_of(self._plain, requests))
        factor = self._plain.setdefault(requests.bit_length(), start)
        for ms in measured:
            error = math.log(ms / self.plain(requests, kv_tokens))
            if factor.count >= CALIBRATION:
                self._clock += _CLOCK_SHARE * min(max(error, -_MOST), _MOST)
            factor.move(requests, error, _PLAIN_SHARE)
        self._doubt, self._verified = 0.0, 0

    def record_verify(self, requests: int, expected: float, drafted: int, ms: float) -> None:
        """Take in a measured verify step, without what drafting took of it."""
        rows = requests + drafted
        corrected = float(np.interp(rows, *self._corrections())) - self._clock
        factor = self._verify.setdefault(rows.bit_length(), _Factor(rows, corrected))
        error = math.log(ms / expected)
        if factor.count >= CALIBRATION:
            self._doubt += _DOUBT_SHARE * (error - self._doubt)
            self._verified += 1
        # Not by the error of what was expected, in which the neighbours had a share: a factor would
        # go on and on to make up for theirs.
        factor.move(rows, error + corrected - factor.log, _VERIFY_SHARE)


class Curve(NamedTuple):
    """Milliseconds of a step by its rows, and by the context that the drafted ones look at."""

    table_rows: F64
    table_ms: F64
    terms: tuple[float, float, float, float]
    """(milliseconds per row beyond the table, rows of prompts, milliseconds on top of the table,
    milliseconds per row and token of its context)"""
    correction_rows: F64
    correction_log: F64
    """The logarithm of the correction at some numbers of rows; between two it goes evenly, beyond
    them it stays."""

    def ms(self, rows: F64, attended: F64) -> F64:
        """For several sizes of step at once, in rising order; a larger one takes no less time."""
        slope, beside, base, attend = self.terms
        ms = _weights(self.table_rows, self.table_ms, slope, rows + beside) + base
        log = np.interp(rows, self.correction_rows, self.correction_log)
        return np.maximum.accumulate((ms + attend * attended) * np.exp(log))


def _weights(known: F64, ms: F64, slope: float, rows: F64) -> F64:
    beyond = ms[-1] + slope * (rows - known[-1])
    return np.where(rows > known[-1], beyond, np.interp(rows, known, ms))


class _Factor:
    """The logarithm of how much longer steps of a size take than the table says; ``rows`` is how
    many they had on average."""

    __slots__ = ("_first", "count", "log", "rows")

    def __init__(self, rows: int, log: float) -> None:
        self.rows = float(rows)
        self.log = log
        self.count = 0
        # What it starts from counts for two: nothing would be bet, and so nothing learnt, for ever
        # if the first step of a size was one that a pause of the machine fell on.
        self._first = [log, log]

    def move(self, rows: int, error: float, share: float) -> None:
        """``error``: of the time that was expected with this factor."""
        self.count += 1
        moves = max(1.0 / (1 + self.count), share)
        self.rows += moves * (rows - self.rows)
        if self.count <= CALIBRATION:
            self._first.append(self.log + error)
            self.log = median(self._first)
        else:
            self.log += moves * min(max(error, -_MOST), _MOST)


def _log_of(factors: dict[int, _Factor], rows: int) -> float:
    """The correction for a size, or for the nearest one that was seen."""
    size = rows.bit_length()
    found = factors.get(size)
    if found is None:
        if not factors:
            return 0.0
        found = factors[min(factors, key=lambda known: abs(known - size))]
    return found.log


def _per_token(near: dict[int, float], far: dict[int, float]) -> tuple[float, float]:
    """(milliseconds per KV token read, per KV token and row), from the table's two contexts."""
    rows = [r for r in near if r in far]
    if not rows:
        return 0.0, 0.0
    further = CONTEXTS[1] - CONTEXTS[0]
    each = [(far[r] - near[r]) / further for r in rows]
    # Not numpy's: its first fit takes milliseconds.
    attend = max(linear_regression(rows, each).slope, 0.0) if len(rows) > 1 else 0.0
    return max(median(y - attend * r for r, y in zip(rows, each, strict=True)), 0.0), attend
