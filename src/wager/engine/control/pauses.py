"""Steps that took oddly long, because others used the machine: what of it is no bet's fault.

Plain steps tell how much time is lost in that way. As much as that of the time of verify steps is
not charged to them; what goes beyond it is, since drafts may be what made them slow.
"""

from __future__ import annotations

from typing import Final

ODD: Final = 1.5
"""So many times what was expected is odd."""
RARE: Final = 50
"""One odd verify step in so many is put down to the machine, whatever plain steps say."""
_KEEPS: Final = 0.995
"""By plain step."""
_LEAST: Final = 20.0
"""Plain steps that it takes to tell how often something happens."""
_STALE: Final = 0.998
"""By verify step: what plain steps said is old by then."""
_KEPT: Final = 4.0
"""Of the longest pauses that plain steps had, what may be held ready."""


class Pauses:
    """Times are in plain steps."""

    def __init__(self) -> None:
        self._seen = self._lost = 0.0
        self._longest = 0.0
        self._ready = 0.0
        self._since = RARE

    def plain(self, took: float) -> None:
        """A plain step took so many times what is usual."""
        lost = took - 1.0 if took > ODD else 0.0
        self._seen = _KEEPS * self._seen + 1.0
        self._lost = _KEEPS * self._lost + lost
        self._longest = max(_KEEPS * self._longest, lost)

    def charged(self, took: float, expected: float) -> float:
        """What a verify step is charged that took so long."""
        self._since += 1
        self._seen *= _STALE
        self._lost *= _STALE
        self._longest *= _STALE
        # One pause is no rate: the longest does not count.
        rate = max(self._lost - self._longest, 0.0) / max(self._seen, _LEAST)
        self._ready = min(self._ready + rate * expected, _KEPT * self._longest)
        lost = took - expected
        if took <= ODD * expected:
            return took
        if lost <= self._ready:
            self._ready -= lost
        elif self._since >= RARE:
            self._since = 0
        else:
            return took
        return expected
