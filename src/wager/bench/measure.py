"""The order of a measurement: plain and speculative runs alternate over small groups of prompts.

For each group the arms run forwards and then backwards (A B B A), and the next group starts from
the other end (B A A B), so that neither a machine that slows down nor one that warms up favours an
arm. Every run starts with empty caches. Groups are as small as the number of clients allows: one
prompt for one client, so that a disturbance of some seconds strikes one prompt, and shows in the
interval, rather than one arm of them all; two prompts per client for more clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wager.bench.backend import Answer, Backend
from wager.bench.prompts import Prompt
from wager.config import SpeculationConfig
from wager.errors import ConfigError

PLAIN: Final = "plain"
DEFAULT_SPECULATION: Final = SpeculationConfig("ngram", 8, prompt_lookup_min=2, prompt_lookup_max=5)
_GROUP: Final = 2
_WARM_UP_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of answering the prompts; ``speculation`` None is plain decoding."""

    name: str
    speculation: SpeculationConfig | None


def arms(configs: Sequence[SpeculationConfig]) -> list[Arm]:
    """The plain arm and one per config, named by method, and by k and lookup where that repeats."""
    methods = [config.method for config in configs]
    out = [Arm(PLAIN, None)]
    for config in configs:
        name = config.method
        if methods.count(name) > 1:
            name = (
                f"{name} k={config.num_speculative_tokens} "
                f"lookup={config.prompt_lookup_min}-{config.prompt_lookup_max}"
            )
        if any(arm.name == name for arm in out):
            raise ConfigError(f"speculative-config: two arms would both be called {name!r}")
        out.append(Arm(name, config))
    return out


@dataclass(slots=True)
class Measurement:
    """The answers of one workload at one number of clients: by arm name, then by prompt id."""

    workload: str
    clients: int
    prompts: list[Prompt]
    arms: list[Arm]
    answers: dict[str, dict[str, list[Answer]]] = field(default_factory=dict)
    total_ms: dict[str, float] = field(default_factory=dict)
    draft_ms: dict[str, float] = field(default_factory=dict)

    def measured(self) -> list[Prompt]:
        """The prompts that every arm answered equally often: all, unless it was interrupted."""
        by_arm = [self.answers.get(arm.name, {}) for arm in self.arms]

        def complete(prompt: Prompt) -> bool:
            times = {len(answers.get(prompt.id, ())) for answers in by_arm}
            return len(times) == 1 and 0 not in times

        return [prompt for prompt in self.prompts if complete(prompt)]


def warm_up(backend: Backend, prompt: Prompt, every: Sequence[Arm]) -> None:
    """A short run of each arm that is not counted: pages, caches and threads come to life."""
    short = replace(prompt, params=replace(prompt.params, max_tokens=_WARM_UP_TOKENS))
    for arm in every:
        backend.start(arm.speculation)
        for _ in backend.stream([short], 1):
            pass
        backend.stop()


def measure(
    backend: Backend,
    measurement: Measurement,
    repeats: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Fill ``measurement`` in place, so that an interrupted one still holds what was finished.

    Each of the ``repeats`` runs every prompt twice in every arm. ``progress`` hears how many
    (prompt, arm) runs are done, of how many.
    """
    prompts = measurement.prompts
    size = 1 if measurement.clients == 1 else _GROUP * measurement.clients
    groups = [prompts[i : i + size] for i in range(0, len(prompts), size)]
    total = 2 * repeats * len(prompts) * len(measurement.arms)
    done = 0
    for number, group in enumerate(groups):
        order = measurement.arms if number % 2 == 0 else measurement.arms[::-1]
        for _ in range(repeats):
            for arm in [*order, *reversed(order)]:
                _run(backend, measurement, arm, group)
                done += len(group)
                progress(done, total)


def _run(backend: Backend, measurement: Measurement, arm: Arm, group: Sequence[Prompt]) -> None:
    backend.start(arm.speculation)
    try:
        answers = list(backend.stream(group, measurement.clients))
        counters = backend.counters()
    finally:
        backend.stop()
    # Taken in only when the whole run is there: a broken one leaves no unpaired answers.
    kept = measurement.answers.setdefault(arm.name, {})
    for answer in answers:
        kept.setdefault(answer.prompt_id, []).append(answer)
    for sums, value in (
        (measurement.total_ms, counters.total_ms),
        (measurement.draft_ms, counters.draft_ms),
    ):
        if value is not None:
            sums[arm.name] = sums.get(arm.name, 0.0) + value
