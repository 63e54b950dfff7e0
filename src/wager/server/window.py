"""Rates, out of snapshots of counters: what happened within the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wager.types import DraftCounts

if TYPE_CHECKING:
    from wager.engine.snapshot import Snapshot

SPAN_S: Final = 300.0
_APART_S: Final = 0.9
"""Snapshots that come faster than this are not all kept."""


class Window:
    """Snapshots of the last minutes. ``clock`` gives seconds that never go back.

    It sees only what it is shown, so what it says covers less where nobody looked for a while.
    """

    def __init__(self, span_s: float = SPAN_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._span_s = span_s
        self._clock = clock
        self._kept: deque[tuple[float, Snapshot]] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Take in the state of now."""
        now = self._clock()
        if not self._kept or now - self._kept[-1][0] >= _APART_S:
            self._kept.append((now, snapshot))
        while now - self._kept[0][0] > self._span_s:
            self._kept.popleft()

    def change(self, snapshot: Snapshot, seconds: float) -> Change | None:
        """What happened up to ``snapshot``, the state of now, in the last ``seconds``; None where
        nothing was seen within them.

        ``change.seconds`` says how far back it goes."""
        now = self._clock()
        for then, before in self._kept:
            if now - then <= seconds:
                passed = now - then
                return Change(passed, before, snapshot) if passed >= _APART_S else None
        return None


@dataclass(frozen=True, slots=True)
class Change:
    """From one snapshot to another, ``seconds`` later. None: nothing to tell it by."""

    seconds: float
    before: Snapshot
    after: Snapshot

    @property
    def tokens(self) -> int:
        """Committed, in steps of all kinds."""
        return self.after.counts.committed - self.before.counts.committed

    @property
    def tokens_per_second(self) -> float | None:
        """Delivered, idle times included."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Of steps without prompts, by the time of those steps."""
        ms = self.after.decode_ms - self.before.decode_ms
        tokens = self.after.decoded_tokens - self.before.decoded_tokens
        return 1e3 * tokens / ms if ms > 0.0 else None

    @property
    def speedup(self) -> float | None:
        """Estimated: of decode steps, what plain decoding would have taken / what they took."""
        took = self.after.compared_ms - self.before.compared_ms
        plain = self.after.estimated_plain_ms - self.before.estimated_plain_ms
        return plain / took if took > 0.0 else None

    @property
    def plain_tokens_per_second(self) -> float | None:
        """Estimated: what the same steps would have brought without drafts."""
        speed, speedup = self.decode_tokens_per_second, self.speedup
        return speed / speedup if speed is not None and speedup else None

    @property
    def step_ms(self) -> float | None:
        """Mean time of a step without prompts."""
        steps = self.after.decode_steps - self.before.decode_steps
        return (self.after.decode_ms - self.before.decode_ms) / steps if steps else None

    @property
    def draft_ms(self) -> float | None:
        """Mean time of the drafters in a step, of all kinds."""
        steps = self.after.steps - self.before.steps
        return (self.after.draft_ms_total - self.before.draft_ms_total) / steps if steps else None

    @property
    def counts(self) -> DraftCounts:
        """What speculation did in between."""
        return difference(self.after.counts, self.before.counts)

    @property
    def reasons(self) -> dict[str, int]:
        """Steps by what the controller decided."""
        before = _reasons(self.before)
        found = {reason: n - before.get(reason, 0) for reason, n in _reasons(self.after).items()}
        return {reason: n for reason, n in found.items() if n > 0}


def difference(after: DraftCounts, before: DraftCounts) -> DraftCounts:
    """What was counted in between."""
    return DraftCounts(
        steps=after.steps - before.steps,
        drafted_steps=after.drafted_steps - before.drafted_steps,
        committed=after.committed - before.committed,
        committed_drafted=after.committed_drafted - before.committed_drafted,
        drafted=after.drafted - before.drafted,
        accepted=after.accepted - before.accepted,
        drafted_at=_positions(after.drafted_at, before.drafted_at),
        accepted_at=_positions(after.accepted_at, before.accepted_at),
    )


def _positions(after: list[int], before: list[int]) -> list[int]:
    """Without the positions at the end that were not reached in between."""
    found = [n - (before[j] if j < len(before) else 0) for j, n in enumerate(after)]
    while found and not found[-1]:
        found.pop()
    return found


def _reasons(snapshot: Snapshot) -> Mapping[str, int]:
    return snapshot.control.reasons if snapshot.control is not None else {}
