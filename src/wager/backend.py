"""The seam between measuring and an engine: what is asked, what comes back, start and stop.

The project's own engine and the external ones satisfy `Backend`; whoever measures knows nothing
else of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from wager.arms import Arm
from wager.config import SamplingParams
from wager.errors import WagerError
from wager.types import DraftCounts, TokenLogprob

Messages: TypeAlias = tuple[tuple[str, str], ...]
"""(role, content) pairs of a chat."""


class EngineError(WagerError):
    """An engine did not start, died, or answered with something that cannot be used."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a workload: a chat, a raw text or token ids (exactly one of them is set).

    ``expected`` is the text that a reply which follows the instruction puts in its code block;
    None where a workload has no such check.
    """

    id: str
    params: SamplingParams
    messages: Messages | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive: ``clients`` in a closed loop, or ``rate`` per second (Poisson)."""

    clients: int | None = None
    rate: float | None = None
    seed: int = 0


@dataclass(slots=True)
class Answer:
    """One reply as the client saw it. Times are seconds since the request was sent.

    ``token_ids`` is None where an engine does not tell ids; ``tokens`` is then its own count.
    ``first_token_s`` is the time of the first token of any kind, reasoning included; None if none
    came. ``chunks`` has one (time, tokens) pair per piece of the stream that carried text or
    tokens; its tokens are None where an engine does not tell them. ``counts`` is None where an
    engine does not say what speculation did for a single request. ``error`` is set where the
    request failed: such an answer takes part in no figure but the number of errors. ``notes`` are
    doubts that the client had about it (a server's figures that cannot be right, events of the
    stream that could not be read), in a sentence each.
    """

    prompt_id: str
    text: str
    first_token_s: float | None
    total_s: float
    tokens: int | None
    token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    chunks: list[tuple[float, int | None]] = field(default_factory=list)
    counts: DraftCounts | None = None
    logprobs: list[TokenLogprob] | None = None
    error: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """What one source of drafts did: a method, or a part of one.

    ``drafts`` counts the steps (of one request) that carried a draft of it.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    def plus(self, other: SourceCounts) -> SourceCounts:
        """Both together."""
        return SourceCounts(
            self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted
        )

    def less(self, other: SourceCounts) -> SourceCounts:
        """What is left without ``other``."""
        return SourceCounts(
            self.drafts - other.drafts, self.drafted - other.drafted, self.accepted - other.accepted
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """An engine's own cumulative counters, over all its labels; None is not known, never 0.

    ``total_ms`` and ``draft_ms`` say where the time went, where an engine tells it.
    ``drafts`` counts the steps (of one request) that carried a draft. ``accepted_at[j]`` counts
    the drafts whose position j was accepted. ``generated`` counts output tokens of all requests,
    those of other clients included. ``by_source`` has the drafts by what proposed them.
    ``resets`` is how often the counters were seen to start again.
    """

    total_ms: float | None = None
    draft_ms: float | None = None
    steps: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_at: tuple[int, ...] | None = None
    preemptions: int | None = None
    generated: int | None = None
    by_source: Mapping[str, SourceCounts] | None = None
    resets: int = 0

    def since(self, before: Counters) -> Counters:
        """What was counted after ``before``. Not known where either side is not; nothing is known
        once the counters started again in between (``resets`` of the result is then above 0)."""
        resets = self.resets - before.resets
        if resets:
            return Counters(resets=max(resets, 1))
        found: dict[str, Any] = {
            name: _less(getattr(self, name), getattr(before, name)) for name in _SUMS
        }
        if any(value is not None and value < 0 for value in found.values()):
            return Counters(resets=1)
        at, at_before = self.accepted_at, before.accepted_at
        if at_before is None and before.drafts == 0:
            # Some engines show positions from the first draft on.
            at_before = ()
        if at is not None and at_before is not None:
            padded = at_before + (0,) * (len(at) - len(at_before))
            at = tuple(a - b for a, b in zip(at, padded, strict=False))
            if len(padded) > len(at) or any(count < 0 for count in at):
                return Counters(resets=1)
        else:
            at = None
        by_source = None
        if self.by_source is not None and before.by_source is not None:
            nothing = SourceCounts()
            by_source = {
                source: counts.less(before.by_source.get(source, nothing))
                for source, counts in self.by_source.items()
            }
        return Counters(**found, accepted_at=at, by_source=by_source)


_SUMS: Final = (
    "total_ms", "draft_ms", "steps", "drafts", "drafted", "accepted", "preemptions", "generated",
)  # fmt: skip


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


@dataclass(slots=True)
class Started:
    """What is known of an arm once its engine is ready.

    ``effective`` are the option values in effect, as the engine itself reported them where it
    does; ``warnings`` are lines of its log that matter to a measurement. ``kv_tokens`` is the room
    for keys and values that the engine reports. ``cold`` says that its start-up caches were empty.
    """

    command: list[str] | None = None
    version: str | None = None
    startup_s: float | None = None
    cold: bool | None = None
    kv_tokens: int | None = None
    effective: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Backend(Protocol):
    """An engine that can answer the same prompts with and without speculation."""

    name: str
    """own, vllm, llamacpp, sglang, ollama or url."""
    fresh_start_is_cheap: bool
    """Whether `start` takes so little that it can be done for every group of prompts."""

    def check(self, arm: Arm) -> str:
        """The values in effect for an arm, in a line for people, before anything is started.

        Raises ConfigError where the engine cannot do it: with the reason and what to do instead.
        """
        ...

    def start(self, arm: Arm) -> Started:
        """Make ready for one arm: every cache empty. Raises EngineError with the log's end."""
        ...

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        """Answer every prompt, each as soon as it is finished.

        In a closed loop a client sends its next request when its last one is answered. Once the
        prompts run out, earlier ones are sent again, uncounted, so that the last counted replies
        still meet the full load; those are cancelled at the end.
        """
        ...

    def counters(self) -> Counters:
        """The counters as they stand; whoever measures takes differences."""
        ...

    def stop(self) -> None:
        """End the arm: nothing of it goes on running. Never raises for an engine that is gone."""
        ...
