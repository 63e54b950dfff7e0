"""What a step of one request takes on this machine: a table by (rows, context), measured.

A cell holds the shortest time of a whole step (forward and sampling) in milliseconds; between cells
the table is interpolated, beyond them it is extended along its last slope. It is a shape: what
steps take at the moment, and in a batch, is learnt from those that the engine makes
(`control/times.py`), and the table stays as it is meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wager.models.paths import replacing

ROWS: Final = (1, 2, 3, 5, 9, 17, 32)
CONTEXTS: Final = (64, 1024)
START_BUDGET_S: Final = 1.6
CHECK_BUDGET_S: Final = 0.4
"""For a table of an earlier start."""


Measure = Callable[[int, int], float]
"""(rows, context) -> milliseconds of one whole step of one request."""


@dataclass(slots=True)
class StepCosts:
    """Step-time table of one model, op set, thread count and KV type."""

    run_step: Measure
    cells: dict[tuple[int, int], float] = field(default_factory=dict)

    def measure(self, rows: int, context: int, repeats: int = 5) -> list[float]:
        """Milliseconds of ``repeats`` whole steps of one request with that many rows."""
        self.run_step(rows, context)
        return [self.run_step(rows, context) for _ in range(repeats)]

    def measure_start(self, room: int, budget_s: float = START_BUDGET_S) -> None:
        """Fill the table within ``budget_s`` seconds; ``room`` is the longest context possible.

        Goes from the cells that matter most to those that can be extrapolated, and then round
        again while time is left. The shortest time counts, and that of a table which was loaded:
        others that use the machine only ever make a step longer, and a cell that was measured
        beside them would mislead whoever goes by it for as long as it is kept.
        """
        end = time.perf_counter() + budget_s
        contexts = [c for c in CONTEXTS if c + max(ROWS) <= room] or [max(room - max(ROWS), 0)]
        order = [
            (rows, context)
            for context in contexts
            for rows in (1, 9, 5, 2, 17, 3, 32)
            if rows + context <= room
        ]
        if order:
            self.run_step(1, contexts[0])
        longest = 0.0
        while order:
            for rows, context in order:
                if time.perf_counter() + longest > end:
                    return
                ms = self.run_step(rows, context)
                longest = max(longest, ms / 1e3)
                key = (rows, _nearest(CONTEXTS, context))
                self.cells[key] = min(ms, self.cells.get(key, ms))

    def table(self, context: int = CONTEXTS[0]) -> dict[int, float]:
        """Milliseconds by rows at the nearest measured context; only what was measured."""
        near = _nearest(CONTEXTS, context)
        return {r: ms for (r, k), ms in sorted(self.cells.items()) if k == near}

    def predict(self, rows: int, context: int) -> float | None:
        """Expected milliseconds of a step, or None where too little was measured."""
        return interpolate(
            self.table(context) or {r: ms for (r, _), ms in sorted(self.cells.items())}, rows
        )

    def save(self, path: Path) -> None:
        """Write the table, atomically; a full or read-only disk is no error."""
        rows = [[r, k, ms] for (r, k), ms in sorted(self.cells.items())]
        text = json.dumps({"schema": 2, "cells": rows})
        with contextlib.suppress(OSError), replacing(path) as file:
            file.write(text.encode())

    def load(self, path: Path) -> bool:
        """Read a saved table; False (and nothing changed) if there is none that can be used."""
        try:
            saved = json.loads(path.read_text())
            if saved["schema"] != 2:
                return False
            cells = {(int(r), int(k)): float(ms) for r, k, ms in saved["cells"]}
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not cells or not all(0.0 < ms < 1e6 for ms in cells.values()):
            return False
        self.cells = cells
        return True


def _nearest(grid: tuple[int, ...], value: int) -> int:
    return min(grid, key=lambda g: abs(g - value))


def interpolate(known: Mapping[int, float], rows: int) -> float | None:
    """Milliseconds of a step between, or beyond, those known by rows; None where none is.

    Linear between neighbours, beyond the ends along the last slope; one time alone holds for all.
    """
    xs = sorted(known)
    if not xs:
        return None
    if len(xs) == 1 or rows in known:
        return known.get(rows, known[xs[0]])
    index = min(max(bisect_left(xs, rows), 1), len(xs) - 1)
    left, right = xs[index - 1], xs[index]
    slope = (known[right] - known[left]) / (right - left)
    return known[left] + slope * (rows - left)
