"""A backend whose every time and token is scripted, so that the right figures are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from wager.bench.backend import Answer, Counters
from wager.bench.prompts import Prompt
from wager.config import SamplingParams, SpeculationConfig
from wager.types import DraftCounts


def prompt(name: str, expected: str | None = None) -> Prompt:
    return Prompt(name, SamplingParams(max_tokens=8), text=name, expected=expected)


def counted(drafts: Sequence[tuple[int, int]]) -> DraftCounts:
    """Counts of steps given as (drafted, accepted); each commits one token more."""
    counts = DraftCounts()
    for drafted, accepted in drafts:
        counts.record(drafted, accepted, accepted + 1)
    return counts


def reply(
    name: str,
    tokens: Sequence[int] = (1, 2, 3),
    first: float = 0.1,
    total: float = 1.0,
    drafts: Sequence[tuple[int, int]] = ((0, 0),),
    text: str = "",
) -> Answer:
    return Answer(name, list(tokens), text, first, total, counted(drafts))


Script = Callable[[str, "SpeculationConfig | None", int], Answer]
"""(prompt id, arm, how often that pair ran before) to the answer."""


@dataclass
class ScriptedBackend:
    """Answers from a script and writes down what it was asked to do."""

    script: Script
    events: list[str] = field(default_factory=list)
    arm: SpeculationConfig | None = None
    fail_at_run: int | None = None
    error: type[BaseException] = RuntimeError
    runs: int = 0
    seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def start(self, speculation: SpeculationConfig | None) -> None:
        self.arm = speculation
        self.events.append(f"start {speculation.method if speculation else 'plain'}")

    def stream(self, prompts: Sequence[Prompt], clients: int) -> Iterator[Answer]:
        self.runs += 1
        for one in prompts:
            if self.runs == self.fail_at_run:
                raise self.error
            key = (one.id, self.arm.method if self.arm else "plain")
            times = self.seen.get(key, 0)
            self.seen[key] = times + 1
            self.events.append(one.id)
            yield self.script(one.id, self.arm, times)

    def counters(self) -> Counters:
        return Counters(total_ms=10.0, draft_ms=1.0)

    def stop(self) -> None:
        self.events.append("stop")
