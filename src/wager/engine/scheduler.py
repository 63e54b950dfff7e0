"""Who takes part in a step, with how many rows.

Knows tokens and blocks, not the model and not the drafter. Sequences that decode come first, one
row each; then prompts (or what a preemption lost) in order of arrival, in chunks, while rows are
left.
When blocks run out the latest arrival is preempted: its blocks are given back and its tokens are
computed anew later, to the same values. The earliest arrival is never preempted by a later one, so
it ends, and then the next: nothing waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from wager.engine.request import Sequence
from wager.ops.base import BLOCK
from wager.runtime.kv import BlockPool, blocks_for
from wager.runtime.target import Span
from wager.types import NO_DRAFT, Draft


@dataclass(slots=True, eq=False)
class Work:
    """The part of one sequence in one step: ``rows`` committed tokens, then the draft.

    ``samples``: the newest committed token is among the rows, so that a token follows.
    ``decoding``: it is the only one, and not the end of a prompt. ``committed`` is what followed.
    """

    sequence: Sequence
    rows: int
    samples: bool
    decoding: bool
    draft: Draft = NO_DRAFT
    committed: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, sequence: Sequence, rows: int) -> Work:
        return cls(sequence, rows, rows == sequence.missing, sequence.decoding)

    @property
    def span(self) -> Span:
        start = self.sequence.computed
        tokens = self.sequence.tokens[start : start + self.rows]
        tokens.extend(self.draft.tokens)
        logits = 1 + len(self.draft.tokens) if self.samples else 0
        return Span(tokens, start, self.sequence.table.blocks, logits)


class Scheduler:
    """Queues of sequences over one block pool."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_batch_tokens: int) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_batch_tokens = max_batch_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def sequences(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.waiting

    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def plan(self, draft_rows: int) -> list[Work]:
        """The work of the next step. ``draft_rows`` is the most rows that drafts will ask for.

        While prompts are due, drafts leave them at least half of the step's rows.
        """
        works: dict[Sequence, Work] = {}
        before = self.preemptions
        budget = self.max_batch_tokens
        for sequence in [s for s in self.running if s.missing == 1]:
            budget -= self._plan_running(sequence, 1, works)
        prompts = [s for s in self.running if s.missing > 1]
        if works and draft_rows:
            budget -= min(draft_rows, budget // 2 if prompts or self.waiting else budget)
        for sequence in prompts:
            if budget > 0:
                budget -= self._plan_running(sequence, min(sequence.missing, budget), works)
        # After a preemption nobody is admitted: the blocks go back to those who lost them first.
        if self.preemptions == before:
            self._admit_waiting(works, budget)
        return list(works.values())

    def draft_room(self, works: list[Work]) -> int:
        """Rows of this step that drafts may use."""
        return self.max_batch_tokens - sum(work.rows for work in works)

    def grow_for_draft(self, work: Work, tokens: int) -> int:
        """Make room for a draft before it is made, without preempting anybody.

        Returns how many of the ``tokens`` it has room for; what is not used goes back when the step
        commits.
        """
        end = work.sequence.computed + work.rows
        table = work.sequence.table
        room = (len(table.blocks) + self.pool.available) * BLOCK - end
        tokens = max(0, min(tokens, room))
        table.grow(end + tokens)
        return tokens

    def place_draft(self, work: Work, draft: Draft) -> None:
        """Attach a draft, cut to the blocks that are to be had without preempting anybody."""
        work.draft = draft.cut(self.grow_for_draft(work, len(draft.tokens)))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and give back its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.table.release()
        sequence.computed = 0

    def _plan_running(self, sequence: Sequence, rows: int, works: dict[Sequence, Work]) -> int:
        """Make room for the rows, preempting later arrivals if need be; returns rows taken."""
        if sequence not in self.running:
            return 0
        freed = 0
        while not sequence.table.grow(sequence.computed + rows):
            victim = self.running[-1]
            self._preempt(victim)
            planned = works.pop(victim, None)
            freed += planned.rows if planned else 0
            if victim is sequence:
                return -freed
        works[sequence] = Work.of(sequence, rows)
        return rows - freed

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.table.release()
        sequence.computed = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _admit_waiting(self, works: dict[Sequence, Work], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            cached = sequence.table.reuse_prefix(sequence.reusable)
            needed = blocks_for(len(sequence.tokens)) - len(sequence.table.blocks)
            if needed > self.pool.available:
                sequence.table.release()
                return
            self.waiting.popleft()
            sequence.request.start()
            sequence.computed = cached
            if not sequence.state.output_ids:
                sequence.request.cached_tokens = max(sequence.request.cached_tokens, cached)
            rows = min(sequence.missing, budget)
            sequence.table.grow(cached + rows)
            self.running.append(sequence)
            works[sequence] = Work.of(sequence, rows)
            budget -= rows
