"""The loss account: how far behind plain decoding speculation may ever be.

It is kept in plain steps: what one more plain step would have brought is 1, and so is its time.
A step that commits n tokens for N requests in the time of c plain steps moves it by n/N - c, and
every step by the loss budget. A bet is allowed only while the balance covers its worst case, that
nothing of it is accepted; so speculation pays for its failures out of what it earned, and out of
the budget (a conservative bandit: Wu, Shariff, Lattimore and Szepesvari, "Conservative Bandits",
2016).

Over every window of steps the loss is at most budget * time + credit + the cap + the error of the
costs of one step, all in plain steps; what others took of the machine is left out (`pauses.py`).
The cap is such that over a window of 8 seconds or 400 plain steps, whichever is longer, that is
twice the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

WINDOW_MS: Final = 8000.0
WINDOW_STEPS: Final = 400
RESERVE_FADES: Final = 0.99
CREDIT: Final = 0.75
"""How far below zero the balance may fall, in plain steps."""
ERROR: Final = 0.25
"""What the costs of one step may be wrong by, in plain steps."""


def savings(budget: float, plain_ms: float) -> float:
    """How much may be saved up where a plain step takes so long; what is earned beyond it is kept
    by the user."""
    return max(budget * max(WINDOW_STEPS, WINDOW_MS / plain_ms) - CREDIT - ERROR, 0.0)


class LossAccount:
    """One balance for all requests, or, by request, one for each: then the lowest decides."""

    def __init__(self, budget: float, by_request: bool = False) -> None:
        self.budget = budget
        self.cap = 0.0
        self.reserve = 0.0
        """What a bet that comes in one large piece has to be saved up for; the cap is no lower.
        It fades, unless it is asked for again."""
        self.by_request = by_request
        self.balance = 0.0
        self.lost = 0.0
        """Plain steps that bets cost beyond what they brought, of the steps that lost."""
        self.gained = 0.0
        self._own: dict[int, float] = {}

    def plain_step(self, ms: float) -> None:
        """From now on a plain step takes so many milliseconds."""
        self.reserve *= RESERVE_FADES
        self.cap = max(savings(self.budget, ms), self.reserve)

    def room(self, requests: Iterable[int]) -> float:
        """Plain steps that a bet may lose now."""
        lowest = self.balance
        if self.by_request:
            # A request that nothing is known of must not be another way to lose what all may lose.
            lowest = min((self._own.get(r, 0.0) for r in requests), default=lowest)
            lowest = min(lowest, self.balance)
        return lowest + CREDIT

    def settle(self, tokens: Mapping[int, int], extra: float, time: float, steps: int = 1) -> None:
        """Book a step, or several.

        ``tokens`` is what each request that sampled committed; ``extra`` the time beyond that of
        plain steps, ``time`` all of it, both in plain steps. In a step of prompts alone
        nobody samples; its time counts all the same.
        """
        if not tokens:
            self._earn(self.budget * time - extra)
            return
        more = sum(tokens.values()) / len(tokens) - steps
        change = more - extra
        self.lost += max(-change, 0.0)
        self.gained += max(change, 0.0)
        granted = self.budget * time - extra
        self._earn(granted + more)
        if self.by_request:
            for request, count in tokens.items():
                own = self._own.get(request, 0.0) + granted + count - steps
                self._own[request] = min(own, self.cap)

    def release(self, request: int) -> None:
        """Forget a request."""
        self._own.pop(request, None)

    def _earn(self, change: float) -> None:
        self.balance = min(self.balance + change, self.cap)
