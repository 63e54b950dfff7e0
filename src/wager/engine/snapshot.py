"""The engine's state after a step, frozen: what other threads may look at.

Made in the engine's thread, many times a second, so it has to be cheap (microseconds): lists are
copied, and nothing is computed that whoever reads it can compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wager.engine.control.noloss import NoLoss
from wager.engine.stats import EngineStats, Histogram
from wager.types import DraftCounts

if TYPE_CHECKING:
    from wager.engine.bets import Bets
    from wager.engine.control.decisions import Decision
    from wager.engine.engine import Engine

_NEAR: Final = 64
"""KV tokens that a batch may grow by, before it is reckoned anew what a plain step of it takes."""
_OFTEN: Final = 32
"""Steps after which it is reckoned anew in any case: the machine's clock may have changed."""
_LAST: Final = 32
"""Decisions that a snapshot shows."""


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What a step without drafts is expected to take: ``ms`` for ``requests`` that decode, with
    ``kv_tokens`` of context together; as of step number ``step``."""

    requests: int
    kv_tokens: int
    ms: float
    step: int


@dataclass(frozen=True, slots=True)
class ControlState:
    """The controller: steps by what was decided, drafts by how many of their tokens were verified,
    and, where there is one, the loss account in plain steps.

    ``cap`` is how much may be saved up, ``lost`` and ``gained`` what bets cost and brought.
    """

    kind: str
    reasons: Mapping[str, int]
    lengths: Mapping[int, int]
    last: tuple[Decision, ...] = ()
    balance: float | None = None
    cap: float | None = None
    lost: float | None = None
    gained: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Sums since the engine was made, and the state of the moment.

    ``running`` and ``waiting`` are sequences (one per choice), ``decoding`` those of them that have
    nothing of a prompt left to compute. ``kv_used`` of ``kv_blocks`` are in
    use; what is kept for later prefixes is not. ``prefix_queries`` are prompt tokens that were
    needed, ``prefix_hits`` those of them that came from the cache; None without one.

    ``decoded`` and ``decoded_tokens`` are of steps without prompts (`EngineStats`). ``plain`` is
    what a plain step of the batch takes, or took when something ran last; None where nothing is
    drafted, or no step times are known. Of the decode steps since, ``compared_ms`` is the time and
    ``estimated_plain_ms`` what plain decoding is expected to have taken for the same tokens.
    """

    running: int
    waiting: int
    kv_blocks: int
    kv_used: int
    prefix_hits: int | None
    prefix_queries: int | None
    steps: int
    plain_steps: int
    verify_steps: int
    prefill_steps: int
    plain_ms_total: float
    verify_ms_total: float
    prefill_ms_total: float
    draft_ms_total: float
    looked_ms_total: float
    prompt_tokens: int
    finished: int
    aborted: int
    preemptions: int
    drafter_failures: int
    decoded: int
    decoded_tokens: int
    counts: DraftCounts
    by_source: Mapping[str, DraftCounts]
    plain_times: Histogram
    verify_times: Histogram
    prefill_times: Histogram
    draft_times: Histogram
    methods: tuple[str, ...] = ()
    plain: PlainStep | None = None
    estimated_plain_ms: float = 0.0
    compared_ms: float = 0.0
    control: ControlState | None = None
    decoding: int = 0

    @property
    def plain_ms(self) -> float | None:
        """Milliseconds of a plain step of the batch, estimated."""
        return self.plain.ms if self.plain is not None else None

    @property
    def decode_steps(self) -> int:
        """Steps without prompts."""
        return self.plain_steps + self.verify_steps

    @property
    def decode_ms(self) -> float:
        """The time of steps without prompts."""
        return self.plain_ms_total + self.verify_ms_total

    @classmethod
    def of(cls, engine: Engine, before: Snapshot | None = None) -> Snapshot:
        """The state now; only for the engine's own thread.

        ``before`` is the last one. Without it nothing is known of plain decoding while nothing
        runs, and nothing is compared with it.
        """
        stats, pool, bets = engine.stats.snapshot(), engine.pool, engine.bets
        decoding = [s.computed for s in engine.scheduler.running if s.decoding]
        plain = _plain(engine, bets, decoding, before)
        estimated, compared = _compared(stats, before)
        cached = pool.prefix_cache
        return cls(
            running=len(engine.scheduler.running),
            waiting=len(engine.scheduler.waiting),
            kv_blocks=pool.blocks,
            kv_used=pool.in_use,
            prefix_hits=stats.cached_tokens if cached else None,
            prefix_queries=stats.cached_tokens + stats.prompt_tokens if cached else None,
            steps=stats.steps,
            plain_steps=stats.plain_steps,
            verify_steps=stats.verify_steps,
            prefill_steps=stats.prefill_steps,
            plain_ms_total=stats.plain_ms,
            verify_ms_total=stats.verify_ms,
            prefill_ms_total=stats.prefill_ms,
            draft_ms_total=stats.draft_ms,
            looked_ms_total=stats.looked_ms,
            prompt_tokens=stats.prompt_tokens,
            finished=stats.finished,
            aborted=stats.aborted,
            preemptions=stats.preemptions,
            drafter_failures=stats.drafter_failures,
            decoded=stats.decoded,
            decoded_tokens=stats.decoded_tokens,
            counts=stats.counts,
            by_source=stats.by_source,
            plain_times=stats.plain_times,
            verify_times=stats.verify_times,
            prefill_times=stats.prefill_times,
            draft_times=stats.draft_times,
            methods=_methods(engine),
            plain=plain,
            estimated_plain_ms=estimated,
            compared_ms=compared,
            control=_control(bets) if bets is not None else None,
            decoding=len(decoding),
        )


def _methods(engine: Engine) -> tuple[str, ...]:
    asked = engine.speculation
    return tuple(one.method for one in asked.methods) if asked is not None else ()


def _plain(
    engine: Engine, bets: Bets | None, decoding: list[int], before: Snapshot | None
) -> PlainStep | None:
    """What a plain step of the requests that decode takes, the last known one where none does."""
    if bets is None:
        return None
    last = before.plain if before is not None else None
    if not decoding:
        return last
    requests, kv_tokens, step = len(decoding), sum(decoding), engine.stats.steps
    if (
        last is not None
        and last.requests == requests
        and abs(kv_tokens - last.kv_tokens) < _NEAR
        and step - last.step < _OFTEN
    ):
        return last
    if not engine.times.known:
        return None
    return PlainStep(requests, kv_tokens, engine.times.plain(requests, kv_tokens), step)


def _compared(stats: EngineStats, before: Snapshot | None) -> tuple[float, float]:
    """(plain decoding's estimated time for what was decoded so far, the time it took).

    Plain steps are what plain decoding does: they count as what they took without the drafters.
    """
    if before is None:
        return 0.0, 0.0
    estimated, compared = before.estimated_plain_ms, before.compared_ms
    requests = stats.decoded - before.decoded
    if before.plain is None or not before.decoding or requests <= 0:
        return estimated, compared
    steps = stats.plain_steps + stats.verify_steps - before.decode_steps
    plain_steps = stats.plain_steps - before.plain_steps
    # Of one request, by steps of both kinds; a plain step brings one.
    tokens = steps * (stats.decoded_tokens - before.decoded_tokens) / requests
    estimated += (tokens - plain_steps) * before.plain.ms
    estimated += stats.plain_ms - before.plain_ms_total
    estimated -= stats.looked_ms - before.looked_ms_total
    return estimated, compared + stats.plain_ms + stats.verify_ms - before.decode_ms


def _control(bets: Bets) -> ControlState:
    controller = bets.controller
    decisions = controller.decisions
    reasons, lengths = dict(decisions.reasons), dict(decisions.lengths)
    if not isinstance(controller, NoLoss):
        return ControlState("fixed length", reasons, lengths)
    account = controller.account
    return ControlState(
        kind="no loss",
        reasons=reasons,
        lengths=lengths,
        last=tuple(decisions.last)[-_LAST:],
        balance=account.balance,
        cap=account.cap,
        lost=account.lost,
        gained=account.gained,
    )
