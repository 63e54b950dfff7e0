"""A backend whose every time and token is scripted, so that the right figures are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from wager.arms import PLAIN, Arm, Speculation
from wager.backend import Answer, Counters, Load, Prompt, Started
from wager.bench.plan import Plan, PlannedCell
from wager.config import SamplingParams
from wager.types import DraftCounts

ON = Arm("ngram:k=4", Speculation("ngram", {"num_speculative_tokens": 4}))
OTHER = Arm("other:k=8", Speculation("other", {"num_speculative_tokens": 8}))
ARMS = (Arm(PLAIN), ON)


def prompt(name: str, expected: str | None = None, temperature: float = 0.0) -> Prompt:
    params = SamplingParams(max_tokens=8, temperature=temperature)
    return Prompt(name, params, text=name, expected=expected)


def prompts(count: int, name: str = "w") -> tuple[Prompt, ...]:
    return tuple(prompt(f"{name}-{i}") for i in range(count))


def plan(
    *cells: PlannedCell, arms: tuple[Arm, ...] = ARMS, repeats: int = 1, engine: str = "own"
) -> Plan:
    return Plan(engine, "model", arms, cells, repeats, prompts(2, "warm"))


def planned(count: int, clients: int = 1, name: str = "w") -> PlannedCell:
    return PlannedCell(name, Load(clients=clients), prompts(count, name))


def counted(drafts: Sequence[tuple[int, int]]) -> DraftCounts:
    """Counts of steps given as (drafted, accepted); each commits one token more."""
    counts = DraftCounts()
    for drafted, accepted in drafts:
        counts.record(drafted, accepted, accepted + 1)
    return counts


def reply(
    name: str,
    tokens: Sequence[int] = (1, 2, 3),
    first: float | None = 0.1,
    total: float = 1.0,
    drafts: Sequence[tuple[int, int]] | None = ((4, 2), (0, 0)),
    text: str = "",
    chunks: Sequence[tuple[float, int | None]] = (),
) -> Answer:
    return Answer(
        name, text, first, total, len(tokens), list(tokens), chunks=list(chunks),
        counts=None if drafts is None else counted(drafts),
    )  # fmt: skip


def silent(answer: Answer) -> Answer:
    """The same reply from an engine that tells neither ids nor counts."""
    return replace(answer, token_ids=None, counts=None)


Script = Callable[[str, Arm, int], Answer]
"""(prompt id, arm, how often that pair ran before) to the answer."""


@dataclass
class ScriptedBackend:
    """Answers from a script and writes down what it was asked to do."""

    script: Script = lambda name, arm, times: reply(name)
    name: str = "own"
    fresh_start_is_cheap: bool = True
    events: list[str] = field(default_factory=list)
    arm: Arm = ARMS[0]
    fail_at_run: int | None = None
    fail_start_of: str | None = None
    error: BaseException | type[BaseException] = RuntimeError
    runs: int = 0
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    kv_tokens: dict[str, int] = field(default_factory=dict)

    def check(self, arm: Arm) -> str:
        return f"checked {arm.name}"

    def start(self, arm: Arm) -> Started:
        self.arm = arm
        self.events.append(f"start {arm.name}")
        if arm.name == self.fail_start_of:
            self.events.append("stop")
            raise self.error
        return Started(["serve", arm.name], "1.0", 2.0, True, self.kv_tokens.get(arm.name))

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        self.runs += 1
        self.loads.append(load)
        for one in prompts:
            if self.runs == self.fail_at_run:
                raise self.error
            key = (one.id, self.arm.name)
            times = self.seen.get(key, 0)
            self.seen[key] = times + 1
            self.events.append(one.id)
            yield self.script(one.id, self.arm, times)

    def counters(self) -> Counters:
        """Cumulative, as an engine's are: 10 ms and one draft per batch."""
        return Counters(total_ms=10.0 * self.runs, draft_ms=1.0 * self.runs, drafted=self.runs)

    def stop(self) -> None:
        self.events.append("stop")
