"""The project's own engine as a backend: in this process, one set of weights for every arm."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from wager import __version__
from wager.arms import Arm
from wager.backend import Answer, Counters, Load, Prompt, SourceCounts, Started
from wager.bench.results import STEP_CONTEXT, STEP_ROWS
from wager.bench.statistics import median
from wager.drafters import memory_options
from wager.drafters.memory import read
from wager.errors import ConfigError, RequestError
from wager.speculation import SpeculationConfig
from wager.types import RequestOutput

if TYPE_CHECKING:
    from wager.engine.bets import Bets
    from wager.engine.control.base import Controller
    from wager.engine.llm import LLM

_STEP_ROUNDS: Final = 3


@dataclass(slots=True)
class _Open:
    """A request in flight. ``prompt`` is None for one that only keeps the load constant.

    ``due`` is when it was to be sent, of time.perf_counter(): a step of the engine cannot be broken
    off for an arrival, and that wait belongs to the request.
    """

    prompt: Prompt | None
    due: float
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    chunks: list[tuple[float, int | None]] = field(default_factory=list)


class EngineBackend:
    """Nothing is carried over from one start to the next but the weights, and what the controller
    of an arm learnt: as in a server that goes on, it knows no text, but what drafts are worth."""

    name = "own"
    fresh_start_is_cheap = True

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._ids: dict[str, list[int]] = {}
        self._numbers = count()
        self._controllers: dict[str, Controller] = {}

    def check(self, arm: Arm) -> str:
        said, config = check_arm(arm), _config(arm)
        # An answer goes on without its memory; a measurement of that would mislead.
        for name in _memories(config) if config is not None else ():
            path = Path(name).expanduser()
            if read(path, self._llm.tokenizer.hash, self._llm.engine.vocab_size) is None:
                raise ConfigError(f"{memory_options.KEY}: {name} is not there")
        return said

    def start(self, arm: Arm) -> Started:
        config = _config(arm)
        self._llm.set_speculation(config)
        self._llm.reset_caches()
        bets = self._llm.engine.bets
        if bets is not None:
            if arm.name not in self._controllers:
                self._controllers[arm.name] = self.controller(arm, bets)
            bets.controller = self._controllers[arm.name]
        self._llm.engine.stats.reset()
        return Started(
            version=__version__,
            kv_tokens=self._llm.engine.pool.blocks * self._llm.engine.config.block_size,
            effective={} if config is None else config.values(),
        )

    def controller(self, arm: Arm, bets: Bets) -> Controller:
        """The controller of an arm, at its first start."""
        return bets.controller

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        """See `wager.backend.Backend`. What fills the load hits no prefix of a counted request."""
        if load.clients is not None:
            return self._closed_loop(prompts, load.clients)
        if load.rate is None:
            raise ConfigError("clients: give a number of clients or a rate")
        return self._arrivals(prompts, load.rate, load.seed)

    def _closed_loop(self, prompts: Sequence[Prompt], clients: int) -> Iterator[Answer]:
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
                    self._send(flying, prompt or next(again), filler=prompt is None)
                outputs = engine.step()
                now = time.perf_counter()
                for output in outputs:
                    answer = _collect(output, flying, now)
                    if answer is not None:
                        counted -= 1
                        yield answer
        finally:
            self._abort(flying)

    def _arrivals(self, prompts: Sequence[Prompt], rate: float, seed: int) -> Iterator[Answer]:
        """Poisson arrivals: independent gaps of 1 / rate seconds on average."""
        engine = self._llm.engine
        gaps = Random(seed)
        waiting = deque(prompts)
        flying: dict[str, _Open] = {}
        due = time.perf_counter() + gaps.expovariate(rate)
        try:
            while waiting or flying:
                while waiting and (late := time.perf_counter() - due) >= 0.0:
                    self._send(flying, waiting.popleft(), late=late)
                    due += gaps.expovariate(rate)
                if not flying:
                    time.sleep(max(0.0, due - time.perf_counter()))
                    continue
                outputs = engine.step()
                now = time.perf_counter()
                for output in outputs:
                    answer = _collect(output, flying, now)
                    if answer is not None:
                        yield answer
        finally:
            self._abort(flying)

    def _abort(self, flying: dict[str, _Open]) -> None:
        engine = self._llm.engine
        for name in flying:
            engine.abort(name)
        while engine.has_work():
            engine.step()

    def counters(self) -> Counters:
        stats = self._llm.engine.stats
        counts = stats.counts
        return Counters(
            total_ms=stats.plain_ms + stats.verify_ms + stats.prefill_ms,
            draft_ms=stats.draft_ms,
            steps=counts.steps,
            drafts=counts.drafted_steps,
            drafted=counts.drafted,
            accepted=counts.accepted,
            accepted_at=tuple(counts.accepted_at),
            preemptions=stats.preemptions,
            generated=counts.committed,
            by_source={
                source: SourceCounts(own.drafted_steps, own.drafted, own.accepted)
                for source, own in stats.by_source.items()
            },
        )

    def stop(self) -> None:
        """Nothing runs between two streams: the arms share the process."""

    def step_times(self) -> dict[str, float | None]:
        """Median milliseconds of a whole step (with sampler) of one request by rows, context 512.

        None where the context of the model has no room for it.
        """
        engine = self._llm.engine
        fitting = [rows for rows in STEP_ROWS if STEP_CONTEXT + rows <= engine.max_model_len]
        times: dict[int, list[float]] = {rows: [] for rows in STEP_ROWS}
        # Round by round, so that a disturbance does not strike all steps of one size.
        for _ in range(_STEP_ROUNDS):
            for rows in fitting:
                times[rows] += engine.costs.measure(rows, STEP_CONTEXT, repeats=3)
        return {str(rows): median(found) for rows, found in times.items()}

    def _send(
        self, flying: dict[str, _Open], prompt: Prompt, *, filler: bool = False, late: float = 0.0
    ) -> None:
        ids, sent = self._prompt_ids(prompt), time.perf_counter()
        try:
            name = self._llm.engine.add_request(
                ids,
                prompt.params,
                f"{prompt.id}/{next(self._numbers)}",
                cache_salt="filler" if filler else "",
            )
        except RequestError as error:
            raise RequestError(f"{prompt.id}: {error}") from error
        flying[name] = _Open(None if filler else prompt, sent - late)

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
                "choose among copy, agent, words, random"
            )
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        return self._llm.chat_ids(messages)


def check_arm(arm: Arm) -> str:
    """The values in effect, in a line for people. Raises ConfigError before a model is loaded."""
    config = _config(arm)
    if config is None:
        return "no drafts"
    return config.describe()


def _config(arm: Arm) -> SpeculationConfig | None:
    if arm.speculation is None:
        return None
    config = SpeculationConfig.measured(arm.speculation.config())
    if _memories(config):
        # One that grew would hold the answers to the prompts that come again in the next round.
        config = SpeculationConfig.measured({**config.values(), memory_options.READ_ONLY: True})
    return config


def _memories(config: SpeculationConfig) -> set[str]:
    """The draft memories that a config names."""
    named = (getattr(one.options, memory_options.KEY, None) for one in config.methods)
    return {name for name in named if name is not None}


def _collect(output: RequestOutput, flying: dict[str, _Open], now: float) -> Answer | None:
    """Take in what is new of a request; its answer once a counted one is finished."""
    request = flying.get(output.request_id)
    if request is None:
        return None
    choice = output.outputs[0]
    if choice.token_ids:
        request.chunks.append((now - request.due, len(choice.token_ids)))
    request.token_ids.extend(choice.token_ids)
    request.text.append(choice.text)
    if not output.finished:
        return None
    del flying[output.request_id]
    if request.prompt is None:
        return None
    return Answer(
        prompt_id=request.prompt.id,
        text="".join(request.text),
        first_token_s=request.chunks[0][0] if request.chunks else None,
        total_s=now - request.due,
        tokens=len(request.token_ids),
        token_ids=request.token_ids,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.cached_tokens,
        finish_reason=choice.finish_reason,
        chunks=request.chunks,
        counts=choice.counts,
        logprobs=choice.logprobs,
    )
