"""A controller in the engine whose decisions do not depend on what this machine takes."""

from __future__ import annotations

from dataclasses import replace

from wager import LLM
from wager.engine.control.base import StepResult, StepView
from wager.engine.control.noloss import NoLoss
from wager.engine.control.times import StepTimes
from wager.engine.costs import CONTEXTS, ROWS, Cell, StepCosts
from wager.speculation import SpeculationConfig


class Cheap(NoLoss):
    """Told that rows are nearly free, whatever this machine takes for a tiny model."""

    def __init__(self, config: SpeculationConfig) -> None:
        costs = StepCosts(lambda rows, context: 0.0)
        costs.cells = {(r, c): Cell(milliseconds(r)) for r in ROWS for c in CONTEXTS}
        super().__init__(config, StepTimes(costs), clock=lambda: 0.0)

    def settle(self, step: StepView, result: StepResult) -> None:
        ms = milliseconds(step.requests + result.drafted)
        super().settle(step, replace(result, total=ms, betting=0.01))


def milliseconds(rows: int) -> float:
    return 10.0 + 0.05 * rows


def cheapen(llm: LLM, saved: float = 0.0) -> None:
    """Give the engine such a controller, new. ``saved``: plain steps that are in its account."""
    bets = llm.engine.bets
    assert bets is not None
    controller = Cheap(bets.config)
    controller.account.plain_step(milliseconds(1))
    controller.account.balance = saved
    bets.controller = controller
