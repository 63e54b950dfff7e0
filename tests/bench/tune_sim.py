"""An engine whose acceptance and step costs are given, so that the best draft length is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from wager.arms import Arm
from wager.backend import Answer, Counters, EngineError, Load, Prompt, Started
from wager.bench.tune.search import Outcome, Tuner, Wish
from wager.bench.tune.space import SCHEDULE, K, families
from wager.bench.workloads.sources import Wanted
from wager.types import DraftCounts

TOKENS = 120
STEP_S = 0.01
PREFILL_S = 0.02


def k_of(arm: Arm, clients: int) -> int:
    """The draft length in effect with so many requests, by vLLM's rule for schedules."""
    if arm.speculation is None:
        return 0
    options = arm.speculation.options
    for low, high, k in options.get(SCHEDULE, ()):
        if low <= clients <= high:
            return int(k)
    return int(options[K])


def tokens_per_step(p: float, k: int) -> float:
    return 1.0 + sum(p**j for j in range(1, k + 1))


@dataclass
class Simulated:
    """``accept(workload)`` is the conditional acceptance of every position, ``cost(clients, k)`` of
    a step in plain steps. Times vary by ``noise`` from start to start, and grow by ``drift``."""

    accept: Callable[[str], float] = lambda workload: 0.8
    cost: Callable[[int, int], float] = lambda clients, k: 1.0 + 0.1 * k
    name: str = "vllm"
    fresh_start_is_cheap: bool = False
    noise: float = 0.0
    drift: float = 0.0
    slow: Callable[[str, int], float] = lambda arm, start: 1.0
    seed: int = 0
    tells: bool = True
    fail_start_of: str | None = None
    fail_at_run: int | None = None
    error: BaseException = field(default_factory=KeyboardInterrupt)
    starts: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    arm: Arm = field(default_factory=lambda: Arm("plain"))
    runs: int = 0
    pace: float = 1.0

    def check(self, arm: Arm) -> str:
        return arm.name

    def start(self, arm: Arm) -> Started:
        if self.fail_start_of is not None and arm.name.startswith(self.fail_start_of):
            raise EngineError(f"{arm.name}: no such library")
        self.arm = arm
        self.starts.append(arm.name)
        random = Random(f"{self.seed}/{len(self.starts)}")
        self.pace = random.gauss(1.0, self.noise) * (1.0 + self.drift * len(self.starts))
        self.pace *= self.slow(arm.name, len(self.starts))
        return Started(["serve", arm.name], "9.9", 2.0, False, 1000)

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        self.runs += 1
        if self.runs == self.fail_at_run:
            raise self.error
        for prompt in prompts:
            self.asked.append((prompt.id, self.arm.name))
            yield self._answer(prompt, load.clients or 1)

    def _answer(self, prompt: Prompt, clients: int) -> Answer:
        workload = prompt.id.rpartition("-")[0]
        k = k_of(self.arm, clients)
        chance = Random(f"{prompt.params.seed}/{self.arm.name}")
        counts = DraftCounts()
        chunks: list[tuple[float, int | None]] = [(PREFILL_S, 1)]
        counts.record(0, 0, 1)
        now, made = PREFILL_S, 1
        # Easy and hard prompts, so that intervals have a width.
        p = min(0.99, self.accept(workload) * (0.95 + 0.1 * Random(prompt.id).random()))
        while made < TOKENS:
            accepted = 0
            while accepted < k and chance.random() < p:
                accepted += 1
            committed = min(accepted + 1, TOKENS - made)
            now += STEP_S * self.pace * self.cost(clients, k)
            made += committed
            counts.record(k, min(accepted, committed), committed)
            chunks.append((now, committed))
        return Answer(
            prompt.id, "", PREFILL_S, now, TOKENS, list(range(TOKENS)), chunks=chunks,
            counts=counts if self.tells else None, finish_reason="length",
        )  # fmt: skip

    def counters(self) -> Counters:
        return Counters()

    def stop(self) -> None:
        pass


def wish(methods: str = "draft_model:model=D", clients: str = "1", **more: Any) -> Wish:
    engine = more.pop("engine", "vllm")
    loads = tuple(Load(clients=int(n)) for n in clients.split(","))
    names = more.pop("workloads", ("words",))
    return Wish(
        engine=engine,
        model="model",
        families=tuple(families(engine, methods)),
        wanted=Wanted(names, loads, more.pop("count", 8)),
        **more,
    )


def tune(backend: Simulated, asked: Wish | None = None, **more: Any) -> Outcome:
    return Tuner(backend, asked or wish(), lambda: 100, **more).tune()
