"""What a measurement collects: the answers of one workload at one load, by arm and prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wager.arms import PLAIN, Arm, arm_of
from wager.backend import Answer, Counters, Load, Prompt
from wager.bench.counters import total

DEFAULT_K: Final = 8
DEFAULT_ARM: Final = arm_of(
    {
        "method": "ngram",
        "num_speculative_tokens": DEFAULT_K,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
)


@dataclass(slots=True)
class Measurement:
    """One workload at one load. Filled part by part, so that an early end loses nothing finished.

    ``exact`` says that sampled replies must be equal too under one seed (the project's own
    engine); on others only greedy ones are compared. ``warm``: so many other prompts of the kind
    are answered first after every start.
    """

    workload: str
    load: Load
    prompts: Sequence[Prompt]
    arms: Sequence[Arm]
    engine: str = "own"
    exact: bool = True
    warm: int | None = None
    repeated_prompts: bool = False
    random_prompts: bool = False
    answers: dict[str, dict[str, list[Answer]]] = field(default_factory=dict)
    counted: dict[str, list[Counters]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def take(self, arm: Arm, answers: Sequence[Answer], counted: Counters, seconds: float) -> None:
        """Take in one finished part of an arm: all of its answers, failed ones included."""
        kept = self.answers.setdefault(arm.name, {})
        for answer in answers:
            kept.setdefault(answer.prompt_id, []).append(answer)
        self.counted.setdefault(arm.name, []).append(counted)
        self.seconds[arm.name] = self.seconds.get(arm.name, 0.0) + seconds

    def attempted(self, arm: Arm) -> list[Prompt]:
        """The prompts that plain decoding and this arm were asked equally often, at least once.

        All of them, unless the measurement ended early; see `balanced`.
        """
        plain, spec = (self.answers.get(name, {}) for name in (PLAIN, arm.name))
        return [
            prompt
            for prompt in self.prompts
            if 0 < len(plain.get(prompt.id, ())) == len(spec.get(prompt.id, ()))
        ]

    def balanced(self, arm: Arm) -> bool:
        """Whether each of these prompts was asked there and back (A B B A), not only there."""
        plain = self.answers.get(PLAIN, {})
        return not any(len(plain[prompt.id]) % 2 for prompt in self.attempted(arm))

    def sound(self, arm: str, prompt: Prompt) -> list[Answer]:
        """The answers to a prompt that did not fail."""
        return [a for a in self.answers.get(arm, {}).get(prompt.id, ()) if a.error is None]

    def measured(self, arm: Arm) -> list[Prompt]:
        """Of the attempted prompts, those with a sound answer in both arms."""
        return [
            prompt
            for prompt in self.attempted(arm)
            if self.sound(PLAIN, prompt) and self.sound(arm.name, prompt)
        ]

    def errors(self, arm: str) -> int:
        """Failed replies of an arm."""
        every = self.answers.get(arm, {}).values()
        return sum(answer.error is not None for answers in every for answer in answers)

    def failed_share(self, arm: str) -> float:
        """Share of an arm's replies that failed; 0 before anything was asked."""
        asked = sum(len(answers) for answers in self.answers.get(arm, {}).values())
        return self.errors(arm) / asked if asked else 0.0

    def counters(self, arm: str) -> Counters:
        """What the engine counted over all parts of an arm."""
        return total(self.counted.get(arm, ()))
