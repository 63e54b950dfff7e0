"""The step loop.

    scheduler.plan -> controller.looks, drafters observe, controller.draft (asks them)
    -> target.forward -> verify -> truncate what was refused -> the controller settles
    -> tokens to the streams

Knows neither text (the sequence's state does) nor which drafting method it has.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from wager.config import EngineConfig, SamplingParams
from wager.drafters.base import DraftHost
from wager.engine.bets import Bets
from wager.engine.control.times import StepTimes
from wager.engine.costs import StepCosts
from wager.engine.drafting import Drafters
from wager.engine.memory import block_bytes, choose_blocks, kv_kind
from wager.engine.prompts import score_prompt
from wager.engine.request import Request, Sequence, check_prompt, check_speculation
from wager.engine.scheduler import Scheduler, Work
from wager.engine.shares import share
from wager.engine.stats import EngineStats
from wager.errors import ConfigError, FormFault, FormLost, NoTokenLeft, RequestError
from wager.models.decoder import DecoderOutput
from wager.models.load import Model
from wager.runtime.kv import BlockPool, BlockTable, blocks_for
from wager.runtime.target import Span, Target
from wager.sampling.prepared import Prepared
from wager.sampling.rejection import Rule, rule
from wager.sampling.sampler import SequenceState
from wager.sampling.verify import verify
from wager.speculation import SpeculationConfig
from wager.types import (
    FORM_FAULT,
    FORM_LOST,
    NO_TOKEN_LEFT,
    CompletionOutput,
    Draft,
    RequestOutput,
)

log = logging.getLogger(__name__)

_GIVEN_UP = ((FormFault, FORM_FAULT), (FormLost, FORM_LOST), (NoTokenLeft, NO_TOKEN_LEFT))


class Engine:
    """Continuous batching with speculation over one model. Not thread-safe: one caller."""

    def __init__(
        self, model: Model, config: EngineConfig, speculation: SpeculationConfig | None
    ) -> None:
        if config.max_num_seqs > config.max_batch_tokens:
            raise ConfigError(
                f"max_num_seqs: {config.max_num_seqs} is larger than "
                f"max_batch_tokens: {config.max_batch_tokens}; each sequence needs "
                "a row of the step"
            )
        self._drafter_bytes = 0  # that drafters keep per block
        blocks = choose_blocks(model, config)
        self.model = model
        self.config = config
        self.max_model_len = model.config.max_context
        # Ids that may go in and come out: rows of the head that the tokenizer knows.
        self.vocab_size = min(model.config.vocab_size, model.tokenizer.vocab_size)
        self.kv = kv_kind(model, config)
        self.pool = BlockPool(blocks, config.prefix_cache)
        self.target = Target(model, blocks, self.kv)
        self.scheduler = Scheduler(self.pool, config.max_num_seqs, config.max_batch_tokens)
        self.stats = EngineStats()
        self.costs = StepCosts(self._measured_step)
        self.times = StepTimes(self.costs)
        self._requests: dict[str, Request] = {}
        self._numbers = itertools.count()
        self._ended: list[Sequence] = []  # aborted, not yet reported
        self._over: list[Sequence] = []  # ended, the drafters not yet told
        self.bets: Bets | None = None
        self.set_speculation(speculation)

    def close(self) -> None:
        """End the drafters, which write what is to last. Nothing is drafted afterwards."""
        if self.bets is not None:
            self.bets.drafters.close()
            self.bets = None

    @property
    def drafters(self) -> Drafters | None:
        """Those of the method in use; None while there is none."""
        return self.bets.drafters if self.bets is not None else None

    # Configuration, while idle

    def set_speculation(self, speculation: SpeculationConfig | None) -> None:
        """Change the method, or switch speculation off with None. Only while idle.

        ``kv_memory`` bounds the keys and values of a drafter too: with one the pool has fewer
        blocks. Where this raises, everything stays as it was but for the prefix cache.
        """
        self._require_idle("set_speculation")
        blocks, held = self.pool.blocks, self._drafter_bytes
        granted = blocks * (block_bytes(self.model, self.config) + held)

        def reserve(per_block: int) -> None:
            self._drafter_bytes += per_block
            self._resize(choose_blocks(self.model, self.config, self._drafter_bytes, granted))

        if self.bets is not None:
            # So that the next ones find what these learnt.
            self.bets.drafters.close()
        self._drafter_bytes = 0
        try:
            drafters = None if speculation is None else self._drafters_of(speculation, reserve)
            # Without drafters that keep anything the model has all of it.
            reserve(0)
        except BaseException:
            self._drafter_bytes = held
            self._resize(blocks)
            raise
        self.speculation = speculation
        self.bets = None
        self._verify: Rule = verify
        if speculation is not None and drafters is not None:
            self._verify = rule(speculation.verify, speculation.block_verification)
            self.bets = Bets(speculation, drafters, self.scheduler, self.times)

    def _drafters_of(
        self, speculation: SpeculationConfig, reserve: Callable[[int], None]
    ) -> Drafters:
        rows = self.config.max_batch_tokens
        host = DraftHost(self.model, self.pool, self.kv, rows, speculation.verify, reserve)
        return Drafters.create(speculation, self.vocab_size, host)

    def _resize(self, blocks: int) -> None:
        """Give the pool another number of blocks; what was cached is lost."""
        if blocks != self.pool.blocks:
            self.pool.resize(blocks)
            self.target = Target(self.model, blocks, self.kv)

    def reset_caches(self) -> None:
        """Empty the prefix cache and what drafters learnt across requests. Only while idle."""
        self._require_idle("reset_caches")
        self.pool.clear_cache()
        if self.bets is not None:
            self.bets.clear()

    # Requests

    def add_request(
        self,
        prompt_ids: Items[int],
        params: SamplingParams,
        request_id: str | None = None,
        cache_salt: str = "",
    ) -> str:
        """Queue a prompt. Raises RequestError, and nothing is queued, if it cannot be served."""
        prompt = [int(token) for token in prompt_ids]
        check_prompt(prompt, params, self.vocab_size, self.max_model_len)
        check_speculation(params.speculation, self.speculation)
        number = next(self._numbers)
        name = request_id if request_id is not None else f"request-{number}"
        if name in self._requests:
            raise RequestError(f"request_id: {name!r} is in use already")
        eos_ids = self.model.generation.eos_ids
        prepared = Prepared.of(params, self.model.tokenizer, eos_ids)
        request = Request(name, prompt, params, cache_salt)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        for choice in range(params.n):
            state = self._state(params, prompt, seed, choice, prepared)
            sequence = Sequence(
                next(self._numbers), request, state, list(prompt), BlockTable(self.pool, cache_salt)
            )
            request.sequences.append(sequence)
            self.scheduler.add(sequence)
        self._requests[name] = request
        return name

    def _state(
        self,
        params: SamplingParams,
        prompt: list[int],
        seed: int,
        choice: int,
        prepared: Prepared | None = None,
    ) -> SequenceState:
        return SequenceState(
            params,
            seed=seed & (2**64 - 1),
            choice=choice,
            prompt_ids=prompt,
            eos_ids=self.model.generation.eos_ids,
            tokenizer=self.model.tokenizer,
            max_total=self.max_model_len,
            prepared=prepared,
        )

    def abort(self, request_id: str) -> None:
        """End a request at any time; its last output comes with the next step. Unknown ids are
        ignored: the request may have ended meanwhile."""
        request = self._requests.get(request_id)
        if request is None or request.finished:
            return
        for sequence in request.sequences:
            if sequence.state.finish_reason is None:
                sequence.state.finish("abort")
                self._end(sequence)
                self._ended.append(sequence)
        self.stats.aborted += 1

    def has_work(self) -> bool:
        """True while a step would do or report something."""
        return self.scheduler.has_work() or bool(self._ended)

    def step(self) -> list[RequestOutput]:
        """Compute one step; returns what is new of each request that progressed."""
        started = time.perf_counter()
        bets = self.bets
        preempted = self.scheduler.preemptions
        progressed, self._ended = self._ended, []
        works = self.scheduler.plan(bets.rows() if bets else 0)
        if bets is not None:
            bets.draft(works)
        forward_started = time.perf_counter()
        passed = self._forward(works) if works else None
        forward_ended = time.perf_counter()
        if passed is not None:
            progressed.extend(self._commit(works, passed))
        sampled = time.perf_counter()
        over, self._over = self._over, []
        if bets is not None:
            bets.end(over)
        outputs = self._outputs(progressed)
        if self.config.check_integrity:
            self.check_integrity()
        self.stats.preemptions += self.scheduler.preemptions - preempted
        total = time.perf_counter() - started
        draft = 0.0
        if bets is not None:
            draft, failures = bets.settle(works, total)
            self.stats.drafter_failures += failures
        if works:
            self._record(
                works, total, forward_ended - forward_started, sampled - forward_ended, draft
            )
            share(works, outputs, draft, sampled - forward_started)
        return outputs

    # The parts of a step

    def _forward(self, works: list[Work]) -> DecoderOutput:
        """One pass; where a prompt is scored, with the last layer's output of all rows."""
        last = (len(self.model.layers),) if any(w.sequence.scoring for w in works) else ()
        return self.target.forward([w.span for w in works], last)

    def _commit(self, works: list[Work], passed: DecoderOutput) -> list[Sequence]:
        """Sample along each draft, keep what was committed, cut what was refused."""
        progressed = []
        row = end = 0
        for work in works:
            sequence, drafted = work.sequence, len(work.draft.tokens)
            first, end = end, end + work.rows + drafted
            # Rows of the head that pad the vocabulary are cut off: they are never picked.
            rows = passed.logits[row : row + (1 + drafted if work.samples else 0)]
            row += len(rows)
            try:
                if sequence.scoring:
                    hidden = passed.hidden[len(self.model.layers)]
                    score_prompt(self.model, self.vocab_size, work, hidden, first)
                if not work.samples:
                    sequence.computed += work.rows
                    sequence.table.publish(sequence.tokens, sequence.computed)
                    continue
                rows = rows[:, : self.vocab_size]
                verdict = self._verify(rows, work.draft, sequence.state, self.model.ops)
            except ValueError as error:
                # NaN or infinite logits, or nothing that may be picked: the others go on.
                self._give_up(sequence, error)
                progressed.append(sequence)
                continue
            if not verdict.committed:
                raise AssertionError("a step must commit at least one token per sampled request")
            sequence.computed = len(sequence.tokens) + verdict.accepted
            sequence.tokens.extend(verdict.committed)
            sequence.table.publish(sequence.tokens, sequence.computed)
            sequence.table.truncate(sequence.computed)
            flags = [j < verdict.accepted for j in range(len(verdict.committed))]
            sequence.fresh_flags.extend(flags)
            work.committed = verdict.committed
            counted = (len(work.draft.tokens), verdict.accepted, len(verdict.committed))
            sequence.counts.record(*counted)
            self.stats.record_draft(work.draft.source, *counted)
            progressed.append(sequence)
            if sequence.state.finish_reason is not None:
                self._end(sequence)
        return progressed

    def _give_up(self, sequence: Sequence, error: ValueError) -> None:
        log.warning("request %s ends: %s", sequence.request.request_id, error)
        what = next(
            (text for kind, text in _GIVEN_UP if isinstance(error, kind)),
            "the model gave no usable logits",
        )
        sequence.state.stop_reason = f"{what}: {error}"
        sequence.state.finish("abort")
        # What was committed before the bad row were accepted drafts.
        committed = len(sequence.state.output_ids) + sequence.request.prompt_length
        sequence.fresh_flags.extend([True] * (committed - len(sequence.tokens)))
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self._over.append(sequence)

    def _outputs(self, progressed: list[Sequence]) -> list[RequestOutput]:
        by_request: dict[str, list[CompletionOutput]] = {}
        for sequence in progressed:
            by_request.setdefault(sequence.request.request_id, []).append(sequence.take_output())
        outputs = []
        for name, choices in by_request.items():
            request = self._requests[name]
            outputs.append(request.output(choices))
            if request.finished:
                del self._requests[name]
                self.stats.finished += 1
                self.stats.cached_tokens += request.cached_tokens
        return outputs

    def _record(
        self, works: list[Work], total: float, forward: float, sample: float, draft: float
    ) -> None:
        prompt_rows = sum(w.rows for w in works if not w.decoding)
        draft_rows = sum(len(w.draft.tokens) for w in works)
        self.stats.record_step(
            total=total,
            forward=forward,
            sample=sample,
            draft=draft,
            prompt_rows=prompt_rows,
            draft_rows=draft_rows,
        )

    # Checks

    def check_integrity(self) -> None:
        """Raise AssertionError if blocks, tables and sequences disagree."""
        self.pool.check_integrity(s.table.blocks for s in self.scheduler.sequences())
        for sequence in self.scheduler.sequences():
            if sequence.state.finish_reason is not None:
                raise AssertionError("a finished sequence is still queued")
            if not 0 <= sequence.computed < len(sequence.tokens):
                raise AssertionError(f"computed {sequence.computed} of {len(sequence.tokens)}")
            if len(sequence.table.blocks) != blocks_for(sequence.computed):
                raise AssertionError("a table holds more or fewer blocks than its tokens need")
        if not self.scheduler.has_work() and self.pool.in_use:
            raise AssertionError(f"{self.pool.in_use} blocks are in use while nothing runs")

    def _require_idle(self, what: str) -> None:
        if self._requests:
            raise ConfigError(
                f"{what}: {len(self._requests)} request(s) are running; wait or abort"
            )

    def _measured_step(self, rows: int, context: int) -> float:
        """One whole step of an invented request of zeros: milliseconds of forward and sampling."""
        blocks = self.pool.take(blocks_for(context + rows))
        if blocks is None:
            raise ConfigError(f"kv_memory: no room to measure a step at a context of {context}")
        try:
            self.target.pool.keys[blocks] = 0
            self.target.pool.values[blocks] = 0
            tokens = [(7919 * (i + 1)) % self.vocab_size for i in range(rows)]
            started = time.perf_counter()
            logits = self.target.forward([Span(tokens, context, blocks, rows)]).logits
            forward_s = time.perf_counter() - started
            # The draft that is accepted throughout, so that every row is sampled.
            draft = Draft(tuple(int(t) for t in np.argmax(logits[:-1], axis=1)))
            state = self._state(SamplingParams(temperature=0.0, ignore_eos=True), tokens[:1], 0, 0)
            started = time.perf_counter()
            verify(logits, draft, state, self.model.ops)
            return 1e3 * (forward_s + time.perf_counter() - started)
        finally:
            self.pool.release(blocks)
