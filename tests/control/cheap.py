"""A controller in the engine whose decisions do not depend on what this machine takes."""

from __future__ import annotations

from dataclasses import replace

from wager import LLM
from wager.engine.control.base import StepResult, StepView
from wager.engine.control.noloss import NoLoss
from wager.engine.control.times import StepTimes
from wager.engine.costs import CONTEXTS, ROWS, StepCosts
from wager.engine.drafting import Drafters
from wager.speculation import SpeculationConfig
from wager.types import Draft


class Cheap(NoLoss):
    """Told that rows are nearly free, whatever this machine takes for a tiny model."""

    look_ms = 0.0
    """What a look is said to take."""
    looked = False

    def __init__(self, config: SpeculationConfig) -> None:
        costs = StepCosts(lambda rows, context: 0.0)
        costs.cells = {(r, c): milliseconds(r) for r in ROWS for c in CONTEXTS}
        super().__init__(config, StepTimes(costs), clock=lambda: 0.0)

    def draft(self, step: StepView, drafters: Drafters) -> list[Draft]:
        self.looked = True
        return super().draft(step, drafters)

    def settle(self, step: StepView, result: StepResult) -> None:
        ms = milliseconds(step.requests + sum(result.drafted.values()))
        count = len(result.steps)
        betting = 0.01 * count + self.looked * self.look_ms
        self.looked = False
        super().settle(step, replace(result, steps=[ms] * count, betting=betting))


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
