"""Runs the engine's controller in an invented world, step by step, in no time.

What is simulated are the steps and the drafts; the controller is the real one. Every figure that
comes of it is estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from wager.bench.worlds import Device, Rule, World
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.engine.control.base import Candidate, Controller, FixedLength, StepResult, StepView
from wager.engine.control.noloss import NoLoss
from wager.engine.control.times import StepTimes
from wager.engine.costs import CONTEXTS, ROWS, StepCosts
from wager.engine.drafting import Drafters, GuardedDrafter
from wager.speculation import SpeculationConfig
from wager.types import NO_DRAFT, Draft

VOCABULARY: Final = 1 << 30
_SOURCE: Final = "ngram"
MOST_ROWS: Final = 4096


@dataclass(slots=True)
class Trace:
    """By step: milliseconds, those of a plain step, committed tokens, requests, draft rows."""

    ms: list[float] = field(default_factory=list)
    plain_ms: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

    @property
    def speed_up(self) -> float:
        """Time that plain decoding would have taken for the same tokens / time."""
        plain = sum(
            n * c / r for n, c, r in zip(self.tokens, self.plain_ms, self.requests, strict=True)
        )
        return plain / sum(self.ms)

    def losses(self) -> Iterator[tuple[float, float]]:
        """(loss, time) of each step in plain steps; a gain is a negative loss."""
        for ms, plain, tokens, requests in zip(
            self.ms, self.plain_ms, self.tokens, self.requests, strict=True
        ):
            yield ms / plain - tokens / requests, ms / plain

    def worst_window(self, budget: float) -> float:
        """The most that any window lost beyond its share ``budget`` of time, in plain steps."""
        worst = run = 0.0
        for loss, time in self.losses():
            run = max(run + loss - budget * time, 0.0)
            worst = max(worst, run)
        return worst

    def worst_share(self, steps: int) -> float:
        """The largest loss of any window of so many steps, as a share of its plain time."""
        values = [loss for loss, _ in self.losses()]
        if len(values) < steps:
            return 0.0
        run = sum(values[:steps])
        worst = run
        for old, new in zip(values, values[steps:], strict=False):
            run += new - old
            worst = max(worst, run)
        return worst / steps


@dataclass(slots=True)
class _Request:
    number: int
    kind: int
    tokens: int
    chance: Random
    ends: int


class _Text:
    """A drafter whose proposals are right as far as the world's rule says.

    The token at position p is p + 1; a wrong one is 0.
    """

    needs = DrafterNeeds()

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: dict[int, _Request] = {}
        self.searched = 0

    def attach(self, host: DraftHost) -> None:
        raise AssertionError("it needs no host")

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None: ...

    def observe(self, request: int, tokens: Sequence[int]) -> None: ...

    def release(self, request: int) -> None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        self.searched += len(queries)
        return [self._draft(q) for q in queries]

    def _draft(self, query: DraftQuery) -> Draft:
        one = self.requests[query.request]
        position = one.tokens - self._world.prompt
        match, right = self._world.rule(one.kind, position, one.chance)
        if match == 0:
            return NO_DRAFT
        tokens = tuple(one.tokens + j + 1 if j < right else 0 for j in range(query.limit))
        return Draft(tokens, _SOURCE, match)


class Simulation:
    """One run of a world; ``k`` is a fixed draft length, None the controller."""

    def __init__(
        self, world: World, *, k: int | None = None, seed: int = 0, **keys: object
    ) -> None:
        self.world = world
        self.trace = Trace()
        self._seed = seed
        self._chance = Random(seed)
        self._text = _Text(world)
        self._drafters = Drafters([GuardedDrafter(self._text, VOCABULARY, _SOURCE)])
        self._running: list[_Request] = []
        self._numbers = 0
        self._resting = 0
        self._rest_ms: list[float] = []
        self._rested: dict[int, list[int]] = {}
        self.controller: Controller
        if k is not None:
            self.controller = FixedLength(k, evenly=False)
        else:
            config = SpeculationConfig.parse({"method": "ngram", **keys})
            if config is None:
                raise AssertionError("there is a config")
            self.controller = NoLoss(config, StepTimes(_costs(world.told)))

    def run(self, steps: int) -> Trace:
        """So many steps more."""
        for _ in range(steps):
            self._step(len(self.trace.ms))
        return self.trace

    def _step(self, at: int) -> None:
        world = self.world
        self._fill(world.clients(at))
        running = self._running
        view = StepView(
            requests=len(running),
            kv_tokens=sum(r.tokens for r in running),
            prompt_rows=0,
            rows=MOST_ROWS,
            candidates=[c for r in running if (c := _candidate(r)) is not None],
        )
        if self._resting and [r.number for r in running] != list(self._rested):
            self._wake()
        rests, self._text.searched = self._resting > 0, 0
        looks = not rests and self.controller.looks(replace(view, candidates=()))
        if not looks:
            view = replace(view, candidates=())
        drafts = self.controller.draft(view, self._drafters) if looks else []
        by_number = {c.number: d for c, d in zip(view.candidates, drafts, strict=True)}
        committed = {r.number: _verify(r, by_number.get(r.number, NO_DRAFT)) for r in running}
        drafted = sum(len(d.tokens) for d in drafts)
        attended = view.kv_tokens + sum(
            c.context * len(d.tokens) for c, d in zip(view.candidates, drafts, strict=True)
        )
        device = world.true(at)
        plain = device.ms(len(running), view.kv_tokens, view.kv_tokens)
        noise = self._chance.gauss(0.0, world.noise) if world.noise else 0.0
        step = device.ms(len(running) + drafted, view.kv_tokens, attended) * (1.0 + noise)
        often, pause = world.pauses
        if often and self._chance.random() < often:
            step += pause
        search = world.search_ms * self._text.searched
        self.trace.ms.append(step + search)
        self.trace.plain_ms.append(plain)
        self.trace.tokens.append(sum(map(len, committed.values())))
        self.trace.requests.append(len(running))
        self.trace.drafted.append(drafted)
        for request in running:
            request.tokens += len(committed[request.number])
        if rests:
            self._resting -= 1
            self._rest_ms.append(step)
            for number, tokens in committed.items():
                self._rested[number] += tokens
        else:
            rows = {number: len(d.tokens) for number, d in by_number.items() if d.tokens}
            self.controller.settle(view, StepResult((step,), search, rows, committed))
            self._resting = self.controller.resting
            self._rested = {r.number: [] for r in running}
        ended = [r for r in running if r.tokens >= r.ends]
        if ended or not self._resting:
            self._wake()
        for request in ended:
            self._end(request)

    def _wake(self) -> None:
        """Tell the controller of the steps that it was not asked about, as the engine does."""
        steps, self._rest_ms, self._resting = self._rest_ms, [], 0
        if not steps:
            return
        size = len(self._rested)
        known = sum(self._text.requests[n].tokens for n in self._rested)
        view = StepView(size, known - size * (len(steps) // 2), prompt_rows=0, rows=0)
        self.controller.settle(view, StepResult(steps, 0.0, {}, self._rested))

    def _fill(self, clients: int) -> None:
        while len(self._running) > clients:
            self._wake()
            self._end(self._running[-1])
        while len(self._running) < clients:
            number = self._numbers
            self._numbers += 1
            start = self.world.prompt + 1
            ends = start + self.world.answer
            one = _Request(number, number, start, Random(f"{self._seed} {number}"), ends)
            self._text.requests[number] = one
            self._running.append(one)

    def _end(self, request: _Request) -> None:
        self._running.remove(request)
        self._text.requests.pop(request.number)
        self.controller.release(request.number)


def _candidate(request: _Request) -> Candidate | None:
    limit = request.ends - request.tokens - 1
    if limit < 1:
        return None

    def query(most: int, blocks: bool) -> DraftQuery:
        return DraftQuery(request.number, request.tokens, most)

    return Candidate(request.number, request.tokens, limit, query, lambda token: False)


def _verify(request: _Request, draft: Draft) -> list[int]:
    """Plain decoding writes p + 1 at position p."""
    committed: list[int] = []
    for token in (*draft.tokens, None):
        right = request.tokens + len(committed) + 1
        committed.append(right)
        if token != right:
            break
    return committed[: request.ends - request.tokens]


def _costs(device: Device) -> StepCosts:
    """The table that the engine would have measured on the device."""
    costs = StepCosts(_never)
    for context in CONTEXTS:
        for rows in ROWS:
            costs.cells[rows, context] = device.ms(rows, context, rows * context)
    return costs


def _never(rows: int, context: int) -> float:
    raise AssertionError("nothing is measured here")


@dataclass(frozen=True, slots=True)
class Expected:
    """The estimated speed-up of decode at a number of clients.

    ``fixed`` by draft length; ``controlled`` is the controller, which chooses step by step.
    """

    clients: int
    fixed: Mapping[int, float]
    controlled: float

    @property
    def best_k(self) -> int:
        """The best fixed length; 0 where none is faster than plain decoding."""
        k = max(self.fixed, key=lambda length: self.fixed[length])
        return k if self.fixed[k] > 1.0 else 0


def expected(
    device: Device, rule: Rule, clients: int, lengths: Sequence[int], *, steps: int = 2000
) -> Expected:
    """Simulate a device whose drafts follow a rule, with fixed draft lengths and the controller."""
    here = World("given", device, lambda at: device, rule, lambda at: clients)
    fixed = {k: Simulation(here, k=k).run(steps).speed_up for k in lengths}
    most = max(lengths)
    controlled = Simulation(here, num_speculative_tokens=most).run(steps).speed_up
    return Expected(clients, fixed, controlled)
