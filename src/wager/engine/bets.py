"""What a step does for speculation: ask the controller, later tell it and the drafters.

Everything here is work that there would not be without speculation, so its time is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

from wager.drafters.base import DraftQuery
from wager.engine.control.base import Candidate, Controller, FixedLength, StepResult, StepView
from wager.engine.control.noloss import NoLoss
from wager.engine.control.times import StepTimes
from wager.engine.drafting import Drafters
from wager.engine.request import Sequence
from wager.engine.scheduler import Scheduler, Work
from wager.speculation import SpeculationConfig


class Bets:
    """The drafters and the controller of an engine."""

    def __init__(
        self,
        config: SpeculationConfig,
        drafters: Drafters,
        scheduler: Scheduler,
        times: StepTimes,
    ) -> None:
        self.config = config
        self.drafters = drafters
        self._scheduler = scheduler
        self.times = times
        self.controller: Controller = self._fresh()
        self._step = StepView(0, 0, 0, 0)
        self._seconds = 0.0
        self._settling = 0.0  # what closing the last step took: it belongs to the next one
        self._resting = 0  # steps in which the controller need not be asked
        self._rested: list[float] = []  # milliseconds of those that it was not told about
        self._resters: list[tuple[Sequence, int]] = []  # their requests, and tokens before
        self._reported = (0.0, 0)  # seconds and failures of the drafters
        self._gone: list[int] = []  # ended, the controller not yet told

    def _fresh(self) -> Controller:
        if self.config.controller == "on":
            return NoLoss(self.config, self.times)
        evenly = self.drafters.needs_blocks or self.config.verify != "match"
        return FixedLength(self.config.num_speculative_tokens, evenly)

    def clear(self) -> None:
        """Forget what drafters and controller learnt."""
        self.drafters.clear()
        self.controller = self._fresh()

    def rows(self) -> int:
        """How many rows of the next step drafts will want."""
        if self._resting:
            return 0
        return self.controller.rows(sum(1 for s in self._scheduler.running if s.decoding))

    def draft(self, works: list[Work]) -> None:
        """Attach to the step's requests what is to be verified."""
        self._seconds = 0.0
        if self._resting and works and len(works) == len(self._resters) and works[-1].decoding:
            # Nothing is bet for a while: such a step must cost next to nothing.
            return
        started = time.perf_counter()
        self._wake()
        decoding = [w for w in works if w.decoding]
        self._step = StepView(
            requests=len(decoding),
            kv_tokens=sum(w.sequence.computed for w in decoding),
            prompt_rows=sum(w.rows for w in works if not w.decoding),
            rows=self._scheduler.draft_room(works),
        )
        if decoding and self.controller.looks(self._step):
            self._look(decoding)
        self._seconds = time.perf_counter() - started

    def _look(self, decoding: list[Work]) -> None:
        pairs = []
        for work in decoding:
            # Drafters are told when they are asked, and at the end: that is cheaper than each step.
            self._tell(work.sequence)
            candidate = self._candidate(work)
            if candidate is not None:
                pairs.append((work, candidate))
        self._step = replace(self._step, candidates=[c for _, c in pairs])
        drafts = self.controller.draft(self._step, self.drafters)
        for (work, _), draft in zip(pairs, drafts, strict=True):
            if draft.tokens:
                self._scheduler.place_draft(work, draft)

    def end(self, over: Items[Sequence]) -> None:
        """Tell the drafters of requests that have ended."""
        if not over:
            return
        started = time.perf_counter()
        for sequence in over:
            if len(sequence.tokens) > sequence.request.prompt_length:
                self._tell(sequence)
            self.drafters.release(sequence.number)
        self._gone.extend(s.number for s in over)
        self._seconds += time.perf_counter() - started

    def settle(self, works: Items[Work], total: float) -> tuple[float, int]:
        """Close the step that took ``total`` seconds: (seconds of the drafters in it, requests
        that one of them was switched off for)."""
        if self._resting:
            self._resting -= 1
            self._rested.append(1e3 * total)
            if not self._gone:
                return 0.0, 0
        started = time.perf_counter()
        if self._rested:
            self._rested[-1] -= 1e3 * self._seconds
            self._wake()
        else:
            result = StepResult(
                steps=(1e3 * (total - self._seconds),),
                betting=1e3 * (self._seconds + self._settling),
                drafted={w.sequence.number: len(w.draft.tokens) for w in works if w.draft.tokens},
                committed=_committed(works, decoding=True),
                started=_committed(works, decoding=False),
            )
            self.controller.settle(self._step, result)
            if self.controller.resting and not self._gone:
                self._rest(works)
        for number in self._gone:
            self.controller.release(number)
        self._gone.clear()
        self._settling = time.perf_counter() - started
        before, self._reported = self._reported, (self.drafters.seconds, self.drafters.failures)
        return self._reported[0] - before[0], self._reported[1] - before[1]

    def _rest(self, works: Items[Work]) -> None:
        """Leave the controller alone while these requests go on."""
        if works and all(w.decoding for w in works):
            self._resting = self.controller.resting
            self._resters = [(w.sequence, len(w.sequence.tokens)) for w in works]

    def _wake(self) -> None:
        """Tell the controller of the steps that it was not told about."""
        rested, self._rested = self._rested, []
        self._resting = 0
        if not rested:
            return
        size = len(self._resters)
        before = sum(length for _, length in self._resters)
        step = StepView(size, before + size * (len(rested) // 2), prompt_rows=0, rows=0)
        betting = 1e3 * (self._seconds + self._settling)
        self._settling = 0.0
        committed = {s.number: s.tokens[length:] for s, length in self._resters}
        self.controller.settle(step, StepResult(rested, betting, {}, committed))

    def _candidate(self, work: Work) -> Candidate | None:
        sequence = work.sequence
        own = sequence.request.params.speculation
        limit = sequence.state.room - 1
        method = ""
        if own is not None:
            if not own.enabled:
                return None
            limit = min(limit, own.num_speculative_tokens or limit)
            method = own.method or ""
        if limit < 1:
            return None
        return Candidate(
            number=sequence.number,
            context=sequence.computed,
            limit=limit,
            query=self._query(work, method),
            ends_with=sequence.state.ends_with,
            method=method,
        )

    def _query(self, work: Work, method: str) -> Callable[[int, bool], DraftQuery | None]:
        sequence = work.sequence

        def query(limit: int, blocks: bool) -> DraftQuery | None:
            length = len(sequence.tokens)
            if not blocks:
                return DraftQuery(sequence.number, length, limit, method=method)
            limit = self._scheduler.grow_for_draft(work, limit)
            if limit < 1:
                return None
            return DraftQuery(
                sequence.number,
                length,
                limit,
                sequence.tokens,
                sequence.table,
                sequence.state,
                method,
            )

        return query

    def _tell(self, sequence: Sequence) -> None:
        """Of the prompt a drafter hears behind the first token, which never waits for an index."""
        request, size = sequence.request, len(sequence.tokens)
        if sequence.observed == 0:
            self.drafters.start(sequence.number, request.prompt_ids, request.cache_salt)
            sequence.observed = request.prompt_length
        self.drafters.observe(sequence.number, sequence.tokens[sequence.observed : size])
        sequence.observed = size


def _committed(works: Items[Work], decoding: bool) -> dict[int, list[int]]:
    return {w.sequence.number: w.committed for w in works if w.decoding == decoding and w.committed}
