"""What the controller decided, and why: counters, and the last decisions in full."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

KEPT: Final = 256

BET: Final = "bet"
NO_TIMES: Final = "no step times are known"
NO_PROPOSAL: Final = "nothing to propose"
NO_GAIN: Final = "no gain expected"
ACCOUNT: Final = "the loss account does not cover it"
RESTING: Final = "looked often enough"
PLAIN: Final = "a plain step, to know what one takes"


@dataclass(slots=True)
class Decision:
    """One step that could have had drafts.

    ``gain``, ``risk`` and ``balance`` are in plain steps; ``expected`` are tokens of the whole
    step.
    """

    step: int
    reason: str
    requests: int
    proposals: int = 0
    lengths: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    expected: float = 0.0
    gain: float = 0.0
    risk: float = 0.0
    balance: float = 0.0
    plain_ms: float = 0.0
    verify_ms: float = 0.0

    def describe(self) -> str:
        """In a line for people."""
        said = f"step {self.step}: {self.reason}"
        if self.reason == BET:
            sources = "+".join(sorted(set(self.sources)))
            said = (
                f"step {self.step}: {_counted(sum(self.lengths), 'token')} of {sources} "
                f"for {_counted(self.requests, 'request')}; {self.expected:.2f} tokens expected in "
                f"{self.verify_ms:.1f} ms, a plain step takes {self.plain_ms:.1f} ms"
            )
        return f"{said}; account {self.balance:+.2f} plain steps"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@dataclass(slots=True)
class Decisions:
    """``reasons`` counts steps by what was decided, ``lengths`` drafts by how many tokens of them
    were verified."""

    reasons: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    last: deque[Decision] = field(default_factory=lambda: deque(maxlen=KEPT))

    def count(self, reason: str, lengths: Iterable[int] = (), steps: int = 1) -> None:
        """One step, and the draft lengths of its requests; or several."""
        self.reasons[reason] += steps
        self.lengths.update(n for n in lengths if n)

    def tells(self, reason: str) -> bool:
        """Of idle steps only those are kept where the reason changes."""
        return reason == BET or not self.last or self.last[-1].reason != reason

    def keep(self, decision: Decision) -> None:
        self.last.append(decision)

    def describe(self) -> str:
        """What was decided how often, and the last decisions, a line each."""
        total = sum(self.reasons.values())
        if not total:
            return "no step could have had drafts"
        shares = [f"{reason} {count}" for reason, count in self.reasons.most_common()]
        lines = [f"of {total} steps: {', '.join(shares)}"]
        if self.lengths:
            lengths = [f"{length}: {count}" for length, count in sorted(self.lengths.items())]
            lines.append(f"draft lengths: {', '.join(lengths)}")
        return "\n".join([*lines, *(one.describe() for one in self.last)])

    def reset(self) -> None:
        """Back to nothing."""
        self.reasons.clear()
        self.lengths.clear()
        self.last.clear()
