"""What is to be measured, and in which order. Pure: the same options give the same schedule.

Arms run there and back (A B B A), so that neither a machine that slows down nor one that warms up
favours one of them. How finely they alternate depends on what a fresh start costs:

- Where it costs little (the project's own engine) each group of prompts is a round of its own:
  plain, speculative, speculative, plain, and the next group starts from the other end (B A A B).
  Groups are as small as the number of clients allows: one prompt for one client, so that a
  disturbance of some seconds strikes one prompt, and shows in the interval, rather than one arm of
  them all; two prompts per client for more clients.
- Where it means a new server, a block is one server that runs every cell of the plan. Its first
  batch, of other prompts, is dropped.

A drafter that learns across requests is cold at the start of a block. In a warm cell every block
begins with other prompts of the same kind, and its timed prompts are one group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from wager.arms import PLAIN, Arm
from wager.backend import Load, Prompt
from wager.bench.measure import Measurement
from wager.errors import ConfigError

_GROUP: Final = 2
_WARM_UP_TOKENS: Final = 16
_SERVER_WARM_UP_TOKENS: Final = 64
_TOP_LOGPROBS: Final = 2

Kind: TypeAlias = Literal["warm-up", "dropped", "timed", "identity"]


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One workload at one load, and its prompts.

    ``dropped`` are prompts of their own that every arm answers before the timed ones, at the same
    load and uncounted; ``warm`` are such prompts that come first after every start of an arm.
    ``batch`` is how many timed prompts make a part; None leaves it to the schedule.
    """

    workload: str
    load: Load
    prompts: tuple[Prompt, ...]
    random_prompts: bool = False
    dropped: tuple[Prompt, ...] = ()
    batch: int | None = None
    warm: tuple[Prompt, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is asked of an engine.

    ``arms`` starts with plain decoding. ``warm_up`` are prompts of no cell. ``identity`` are
    greedy prompts that every arm answers once per block, untimed and with log-probabilities.
    ``settings`` are what else makes two runs comparable (options of the engine).
    """

    engine: str
    model: str
    arms: tuple[Arm, ...]
    cells: tuple[PlannedCell, ...]
    repeats: int
    warm_up: tuple[Prompt, ...]
    identity: tuple[Prompt, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """SHA-256 over everything: equal digests mean the same measurement."""
        text = json.dumps(asdict(self), sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()

    def measurements(self) -> list[Measurement]:
        """One per cell, empty. A server that is not ours lives on between the blocks."""
        sent: dict[object, int] = {}
        for cell in self.cells:
            for prompt in cell.prompts:
                sent[content(prompt)] = sent.get(content(prompt), 0) + 1
        own = self.engine == "own"
        return [
            Measurement(
                workload=cell.workload,
                load=cell.load,
                prompts=cell.prompts,
                arms=self.arms,
                engine=self.engine,
                exact=own,
                warm=len(cell.warm) or None,
                repeated_prompts=self.engine == "url"
                or (
                    _repeats((*cell.warm, *cell.prompts))
                    if own
                    else any(sent[content(p)] > 1 for p in cell.prompts)
                ),
                random_prompts=cell.random_prompts,
            )
            for cell in self.cells
        ]


def content(prompt: Prompt) -> object:
    """What a prompt says, whatever its id and sampling."""
    return (prompt.messages, prompt.text, prompt.token_ids)


def _repeats(prompts: Sequence[Prompt]) -> bool:
    return len({content(prompt) for prompt in prompts}) < len(prompts)


@dataclass(frozen=True, slots=True)
class Part:
    """Prompts that run together in a started arm; ``cell`` is an index of the plan's cells."""

    kind: Kind
    prompts: tuple[Prompt, ...]
    load: Load
    cell: int | None = None

    @property
    def counts(self) -> bool:
        """Whether its answers are kept."""
        return self.kind in ("timed", "identity")


@dataclass(frozen=True, slots=True)
class Block:
    """One start of an arm and what runs until it is stopped."""

    arm: Arm
    parts: tuple[Part, ...]


def schedule(plan: Plan, fresh_start_is_cheap: bool) -> list[Block]:
    """Every block in order. Raises ConfigError for a plan without anything to compare."""
    if not plan.arms or plan.arms[0].name != PLAIN or len(plan.arms) < 2:
        raise ConfigError("arms: name at least one beside plain, e.g. --arms plain,ngram:k=4")
    return _many_small(plan) if fresh_start_is_cheap else _few_large(plan)


def _many_small(plan: Plan) -> list[Block]:
    """A short run of each arm that is not counted, then group by group of each cell."""
    one = Load(clients=1)
    short = tuple(_short(prompt, _WARM_UP_TOKENS) for prompt in plan.warm_up[:1])
    blocks = [Block(arm, (Part("warm-up", short, one),)) for arm in plan.arms]
    for index, cell in enumerate(plan.cells):
        for number, group in enumerate(_groups(cell)):
            order = plan.arms if number % 2 == 0 else plan.arms[::-1]
            part = Part("timed", group, cell.load, index)
            for repeat in range(plan.repeats):
                first = number == 0 and repeat == 0
                blocks += [Block(arm, (*_before(cell, first), part)) for arm in order]
                blocks += [Block(arm, (*_before(cell, False), part)) for arm in order[::-1]]
    if plan.identity:
        told = Part("identity", _with_logprobs(plan.identity), one)
        blocks += [Block(arm, (told,)) for arm in (*plan.arms, *plan.arms[::-1])]
    return blocks


def _groups(cell: PlannedCell) -> list[tuple[Prompt, ...]]:
    clients = cell.load.clients
    # With a rate of arrivals there is one group: its length is what makes the load a rate. Of a
    # warm cell too: what comes before each group takes longer than the group.
    if clients is None or cell.warm:
        return _batches(cell.prompts, None)
    return _batches(cell.prompts, 1 if clients == 1 else cell.batch or _GROUP * clients)


def _batches(prompts: tuple[Prompt, ...], size: int | None) -> list[tuple[Prompt, ...]]:
    size = size or max(1, len(prompts))
    return [prompts[i : i + size] for i in range(0, len(prompts), size)]


def _before(cell: PlannedCell, first: bool) -> tuple[Part, ...]:
    """What is answered before a group of a cell, and not counted; ``first``: before all others."""
    prompts = (*(cell.dropped if first else ()), *cell.warm)
    return (Part("dropped", prompts, cell.load),) if prompts else ()


def _few_large(plan: Plan) -> list[Block]:
    """Per repeat every arm there and back, each time a fresh server that runs all cells."""
    most = max((cell.load.clients or 1 for cell in plan.cells), default=1)
    short = tuple(_short(prompt, _SERVER_WARM_UP_TOKENS) for prompt in plan.warm_up)
    warm = Part("warm-up", short, Load(clients=max(1, min(most, len(short)))))
    timed: list[Part] = []
    for index, cell in enumerate(plan.cells):
        timed += _before(cell, True)
        groups = _batches(cell.prompts, cell.batch)
        timed += [Part("timed", group, cell.load, index) for group in groups]
    blocks = []
    for repeat in range(plan.repeats):
        for arm in (*plan.arms, *plan.arms[::-1]):
            parts = [warm, *timed]
            if plan.identity and repeat == 0:
                parts.append(Part("identity", _with_logprobs(plan.identity), Load(clients=1)))
            blocks.append(Block(arm, tuple(parts)))
    return blocks


def _short(prompt: Prompt, limit: int) -> Prompt:
    asked = prompt.params.max_tokens
    limit = limit if asked is None else min(limit, asked)
    params = replace(
        prompt.params, max_tokens=limit, min_tokens=min(prompt.params.min_tokens, limit)
    )
    return replace(prompt, params=params)


def _with_logprobs(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    return tuple(
        replace(prompt, params=replace(prompt.params, logprobs=_TOP_LOGPROBS)) for prompt in prompts
    )
