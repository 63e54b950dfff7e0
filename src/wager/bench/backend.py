"""The seam between the benchmark and an engine: start, stream, counters, stop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import TYPE_CHECKING, Protocol

from wager.bench.prompts import Prompt
from wager.config import SpeculationConfig
from wager.errors import ConfigError, RequestError
from wager.types import DraftCounts, RequestOutput

if TYPE_CHECKING:
    from wager.engine.llm import LLM


@dataclass(slots=True)
class Answer:
    """One reply as the client saw it. Times are seconds since the request was sent.

    ``counts`` is None where an engine does not tell what speculation did for a single request.
    """

    prompt_id: str
    token_ids: list[int]
    text: str
    first_token_s: float
    total_s: float
    counts: DraftCounts | None


@dataclass(frozen=True, slots=True)
class Counters:
    """Where the time of an arm went since it was started, in milliseconds; None is not known."""

    total_ms: float | None = None
    draft_ms: float | None = None


class Backend(Protocol):
    """An engine that can answer the same prompts with and without speculation."""

    def start(self, speculation: SpeculationConfig | None) -> None:
        """Make ready for one arm: every cache empty, counters at zero."""
        ...

    def stream(self, prompts: Sequence[Prompt], clients: int) -> Iterator[Answer]:
        """Answer every prompt, each as soon as it is finished, ``clients`` of them in flight."""
        ...

    def counters(self) -> Counters:
        """What was counted since `start`."""
        ...

    def stop(self) -> None:
        """End the arm: nothing of it goes on running."""
        ...


@dataclass(slots=True)
class _Open:
    """A request in flight. ``prompt`` is None for one that only keeps the load constant."""

    prompt: Prompt | None
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


class EngineBackend:
    """The project's own engine, in this process. One set of weights serves every arm."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._ids: dict[str, list[int]] = {}
        self._numbers = count()

    def start(self, speculation: SpeculationConfig | None) -> None:
        self._llm.set_speculation(speculation)
        self._llm.reset_caches()
        self._llm.engine.stats.reset()

    def stream(self, prompts: Sequence[Prompt], clients: int) -> Iterator[Answer]:
        """A closed loop: a client sends its next request when the last one is answered.

        Once the prompts run out, earlier ones are sent again, uncounted and without prefix hits,
        so that the last counted replies still meet the full load; those are aborted at the end.
        """
        engine = self._llm.engine
        waiting = deque(prompts)
        again = cycle(prompts)
        flying: dict[str, _Open] = {}
        counted = 0
        try:
            while waiting or counted:
                while len(flying) < clients:
                    prompt = waiting.popleft() if waiting else None
                    counted += prompt is not None
                    name = self._submit(prompt or next(again), filler=prompt is None)
                    flying[name] = _Open(prompt)
                for output in engine.step():
                    answer = _collect(output, flying)
                    if answer is not None:
                        counted -= 1
                        yield answer
        finally:
            for name in flying:
                engine.abort(name)
            while engine.has_work():
                engine.step()

    def counters(self) -> Counters:
        stats = self._llm.engine.stats
        return Counters(stats.plain_ms + stats.verify_ms + stats.prefill_ms, stats.draft_ms)

    def stop(self) -> None:
        """Nothing runs between two streams: the arms share the process."""

    def _submit(self, prompt: Prompt, filler: bool) -> str:
        try:
            return self._llm.engine.add_request(
                self._prompt_ids(prompt),
                prompt.params,
                f"{prompt.id}/{next(self._numbers)}",
                cache_salt="filler" if filler else "",
            )
        except RequestError as error:
            raise RequestError(f"{prompt.id}: {error}") from error

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if prompt.id not in self._ids:
            self._ids[prompt.id] = self._encode(prompt)
        return self._ids[prompt.id]

    def _encode(self, prompt: Prompt) -> list[int]:
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        if prompt.messages is None:
            return self._llm.prompt_ids(prompt.text or "")
        if not self._llm.tokenizer.has_chat_template:
            workload = prompt.id.rpartition("-")[0]
            raise ConfigError(
                f"workload: {workload} is a chat, and this model has no chat template; "
                "choose among copy, words, random"
            )
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        return self._llm.chat_ids(messages)


def _collect(output: RequestOutput, flying: dict[str, _Open]) -> Answer | None:
    """Take in what is new of a request; its answer once a counted one is finished."""
    request = flying.get(output.request_id)
    if request is None:
        return None
    choice = output.outputs[0]
    request.token_ids.extend(choice.token_ids)
    request.text.append(choice.text)
    if not output.finished:
        return None
    del flying[output.request_id]
    if request.prompt is None:
        return None
    return Answer(
        prompt_id=request.prompt.id,
        token_ids=request.token_ids,
        text="".join(request.text),
        first_token_s=output.first_token_s if output.first_token_s is not None else 0.0,
        total_s=output.total_s if output.total_s is not None else 0.0,
        counts=choice.counts,
    )
