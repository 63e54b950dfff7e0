"""Suites: fixed measurements that are run as one, and the tables that belong to them.

`article` is the classic measurement of articles on n-gram speculation: what copies and what cannot
be foreseen, k = 2, 4 and 8, 1, 8 and 32 clients, four batches of which the first is dropped. It is
a plan like any other, so limits of time, the journal and the JSON are those of `wager bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

from wager.arms import PLAIN, Arm, parse_arms
from wager.backend import Answer, Backend, Counters, Load, Prompt, Started
from wager.bench.plan import Part, Plan, PlannedCell, schedule
from wager.bench.spelling import spelt
from wager.bench.workloads.generated import RECIPES, prompts
from wager.bench.workloads.sources import IDENTITY_PROMPTS, Drawn, Wanted
from wager.bench.workloads.sources import draw as draw_any
from wager.errors import ConfigError

ARTICLE: Final = "article"
SUITES: Final = (ARTICLE,)

GROUPS: Final = (("copy", "words", "random"), ("copy", "rename", "explain", "random"))
WORKLOADS: Final = tuple(dict.fromkeys(name for group in GROUPS for name in group))
CLIENTS: Final = (1, 8, 32)
LENGTHS: Final = (2, 4, 8)
ARMS: Final = ",".join([PLAIN, *(f"ngram:k={k},min=2,max=5" for k in LENGTHS)])
BATCHES: Final = 4
MAX_TOKENS: Final = 128
MAX_MODEL_LEN: Final = 1024
"""Prompts are of some 400 tokens; 32 of them at once must find room."""

_BATCH: Final = 4
_FIXED_SEED: Final = 0
_PROBE_SEED: Final = 3_000_009
_PROBE_TOKENS: Final = 16
_SET: Final = ("workload", "arms", "speculative_config", "rate", "demo", "warm", "draft_memory")
_ENGINES_WITHOUT: Final = ("url", "ollama")


def settle(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `wager bench` with what the suite sets filled in. Raises ConfigError for one
    that it sets itself, and for an engine that it cannot tell how to draft."""
    if given["suite"] not in SUITES:
        known = ", ".join(SUITES)
        raise ConfigError(f"suite: {given['suite']!r} is unknown; there is: {known}")
    if given["engine"] in _ENGINES_WITHOUT:
        raise ConfigError(
            f"suite: it compares n-gram drafts of several lengths, which {given['engine']} cannot "
            "be told; use own, vllm, llamacpp or sglang"
        )
    for name in _SET:
        if given.get(name):
            option = name.replace("_", "-")
            raise ConfigError(f"{option}: --suite {given['suite']} has its own; leave it out")
    settled = {
        "workload": ",".join(WORKLOADS),
        "arms": ARMS,
        "clients": ",".join(map(str, CLIENTS)),
        "max_tokens": MAX_TOKENS,
        "max_model_len": MAX_MODEL_LEN,
        "identity": IDENTITY_PROMPTS,
    }
    return {**given, **{k: v for k, v in settled.items() if given[k] is None}}


def arms() -> list[Arm]:
    """Plain decoding and the n-gram arms."""
    return parse_arms(ARMS)


def batch_size(load: Load, least: int | None = None) -> int:
    """Prompts of one batch: one per client, and no fewer than ``least`` (4)."""
    return max(least or _BATCH, load.clients or 1)


def draw(
    wanted: Wanted,
    vocab_size: Callable[[], int],
    *,
    same_for_all_loads: bool,
    identity: int = IDENTITY_PROMPTS,
) -> Drawn:
    """As `sources.draw` of the workloads; ``count`` of ``wanted`` is the least size of a batch.

    Each load has prompts of its own, so that one batch of them can be dropped and the others are
    all new. The prompts of the identity pass do not follow the seed: they are fixed.
    """
    fixed = replace(wanted, names=wanted.names[:1], count=1, seed=_FIXED_SEED)
    other = draw_any(fixed, vocab_size, same_for_all_loads=same_for_all_loads, identity=identity)
    cells = []
    for name in wanted.names:
        sizes = [batch_size(load, wanted.count) for load in wanted.loads]
        vocabulary = vocab_size() if name == "random" else 0
        pool = prompts(
            RECIPES[name], BATCHES * sum(sizes), vocabulary, wanted.seed, wanted.max_tokens
        )
        for load, size in zip(wanted.loads, sizes, strict=True):
            taken, pool = tuple(pool[: BATCHES * size]), pool[BATCHES * size :]
            cells.append(
                PlannedCell(
                    name, load, taken[size:], name == "random", dropped=taken[:size], batch=size
                )
            )
    return replace(other, cells=tuple(cells))


@dataclass(frozen=True, slots=True)
class Speed:
    """Of plain decoding at one load, in seconds: to the first token, and per token after it."""

    first: float
    token: float


def seconds(
    plan: Plan, speeds: Mapping[Load, Speed], startup_s: float, *, cheap: bool
) -> float | None:
    """How long a plan takes if every arm is as fast as plain decoding and every reply as long as
    it may be; None where a load's speed is not known."""
    total = 0.0
    for block in schedule(plan, cheap):
        total += startup_s
        for part in block.parts:
            # Before the cells come a few prompts at some load, which is that of no cell.
            speed = speeds.get(part.load) or (None if part.counts else _nearest(part.load, speeds))
            if speed is None:
                return None
            total += _part_seconds(part, speed)
    return total


def _part_seconds(part: Part, speed: Speed) -> float:
    together = min(part.load.clients or 1, max(1, len(part.prompts)))
    each = (speed.first + speed.token * (p.params.max_tokens or 0) for p in part.prompts)
    return sum(each) / together


def _nearest(load: Load, speeds: Mapping[Load, Speed]) -> Speed | None:
    wanted = load.clients or 1
    nearest = min(speeds, key=lambda other: abs((other.clients or 1) - wanted), default=None)
    return None if nearest is None else speeds[nearest]


@dataclass
class Estimating:
    """A backend that, once plain decoding has been started for the first time, asks it a little at
    each load of the plan and says how long the whole will take."""

    inner: Backend
    plan: Plan
    say: Callable[[str], None]
    name: str = field(init=False)
    fresh_start_is_cheap: bool = field(init=False)
    _known: bool = False

    def __post_init__(self) -> None:
        self.name = self.inner.name
        self.fresh_start_is_cheap = self.inner.fresh_start_is_cheap

    def check(self, arm: Arm) -> str:
        """See `wager.backend.Backend`."""
        return self.inner.check(arm)

    def start(self, arm: Arm) -> Started:
        """See `wager.backend.Backend`; the estimate comes with the first start."""
        started = self.inner.start(arm)
        if not self._known and arm.name == PLAIN:
            self._known = True
            try:
                self._estimate(started)
            except BaseException:
                self.inner.stop()
                raise
            if self.fresh_start_is_cheap:
                # Which empties the caches again; in a server's is no prompt of the plan.
                self.inner.stop()
                return self.inner.start(arm)
        return started

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        """See `wager.backend.Backend`."""
        return self.inner.stream(prompts, load)

    def counters(self) -> Counters:
        """See `wager.backend.Backend`."""
        return self.inner.counters()

    def stop(self) -> None:
        """See `wager.backend.Backend`."""
        self.inner.stop()

    def _estimate(self, started: Started) -> None:
        speeds = {}
        # The identity pass has one client.
        for load in dict.fromkeys([Load(clients=1), *(cell.load for cell in self.plan.cells)]):
            asked = probe_prompts(load)
            speed = speed_of(list(self.inner.stream(asked, load)))
            if speed is not None:
                speeds[load] = speed
        startup = 0.0 if self.fresh_start_is_cheap else started.startup_s or 0.0
        found = seconds(self.plan, speeds, startup, cheap=self.fresh_start_is_cheap)
        for line in outlook(self.plan, found, cheap=self.fresh_start_is_cheap):
            self.say(line)


def probe_prompts(load: Load) -> list[Prompt]:
    """A short request for each client, of no cell."""
    count = load.clients or 1
    return prompts(RECIPES["words"], count, 0, _PROBE_SEED, _PROBE_TOKENS)


def speed_of(answers: Sequence[Answer]) -> Speed | None:
    """Medians over the answers; None if none of them tells."""
    sound = [a for a in answers if a.error is None and a.first_token_s is not None]
    known = [(a, a.tokens) for a in sound if a.tokens is not None and a.tokens > 1]
    if not known:
        return None
    first = median(a.first_token_s or 0.0 for a, _ in known)
    token = median((a.total_s - (a.first_token_s or 0.0)) / (n - 1) for a, n in known)
    return Speed(first, token)


def outlook(plan: Plan, estimated_s: float | None, *, cheap: bool) -> list[str]:
    """What is to come, in two lines."""
    blocks = schedule(plan, cheap)
    parts = [part for block in blocks for part in block.parts]
    timed = sum(len(part.prompts) for part in parts if part.kind == "timed")
    dropped = sum(len(part.prompts) for part in parts if part.kind == "dropped")
    servers = "" if cheap else f", {len(blocks)} servers"
    loads = ", ".join(dict.fromkeys(spelt(c.load.clients, c.load.rate) for c in plan.cells))
    line = (
        f"article: {len(plan.arms)} arms, {len(plan.cells)} cells ({loads}){servers}; "
        f"{timed} requests are timed and {dropped} dropped"
    )
    how = "if every arm is as fast as plain decoding, by a short look at each load"
    if estimated_s is None:
        return [line, "time needed: n/a, plain decoding did not answer the short look"]
    return [line, f"time needed: about {_time(estimated_s)}, {how}"]


def _time(total: float) -> str:
    minutes = round(total / 60)
    if minutes < 2:
        return f"{max(1, round(total))} s"
    return f"{minutes} min" if minutes < 120 else f"{total / 3600:.1f} h"
