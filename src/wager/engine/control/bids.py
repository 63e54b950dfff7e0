"""What methods have to say in a step, and by request the draft that is expected to bring most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wager.engine.control.acceptance import Acceptance
from wager.engine.control.allocate import Offer, Proposal
from wager.engine.control.base import Candidate

CAUTION: Final = 1.0
"""Standard errors that the chances of a draft are put lower, since they are estimates."""
ENOUGH: Final = 0.85
"""Share of what may be drafted: where a draft is expected to bring it, nobody else is asked."""


class Bids:
    """All ``proposals``; ``offers`` and ``values`` (expected tokens) have a place per candidate."""

    def __init__(self, candidates: Sequence[Candidate], acceptance: Acceptance) -> None:
        self._candidates = candidates
        self._acceptance = acceptance
        self.proposals: list[Proposal] = []
        self.offers = [Offer((), c.context) for c in candidates]
        self.values = [0.0] * len(candidates)

    def add(self, proposals: Sequence[Proposal]) -> None:
        """Take in what a method proposes."""
        self.proposals += proposals
        for one in proposals:
            candidate, draft = self._candidates[one.place], one.draft
            survival = self._acceptance.survival(
                candidate.number, draft.source, draft.match_length, one.length, CAUTION
            )
            value = sum(survival)
            if value > self.values[one.place]:
                self.offers[one.place] = Offer(survival, candidate.context, one)
                self.values[one.place] = value

    def enough(self, place: int, most: int) -> bool:
        """Whether there is little that another draft of ``most`` tokens could add."""
        return self.values[place] >= ENOUGH * most
