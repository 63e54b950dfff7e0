"""How much of what was proposed is verified: the place where a bet is taken or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wager.types import Draft


class Controller(Protocol):
    """Decides draft lengths, before (caps) and after (admission) the drafter has spoken."""

    def cap(self) -> int:
        """The most tokens that one request may draft in the next step; 0: do not ask at all."""
        ...

    def admit(self, drafts: Sequence[Draft], rows: int) -> list[Draft]:
        """Trim drafts to what pays within the row budget; order and count stay."""
        ...


class FixedLength:
    """Always ``k``: what engines without a controller do, and what a measured arm means."""

    def __init__(self, k: int) -> None:
        self.k = k

    def cap(self) -> int:
        return self.k

    def admit(self, drafts: Sequence[Draft], rows: int) -> list[Draft]:
        """All of it; where the rows do not suffice, an equal share for everybody."""
        wanted = sum(len(d.tokens) for d in drafts)
        if wanted <= rows:
            return list(drafts)
        share = max(rows, 0) // max(sum(1 for d in drafts if d.tokens), 1)
        return [d.cut(share) for d in drafts]
