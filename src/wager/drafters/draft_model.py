"""Drafting with a smaller model of the same vocabulary, or with the target's own weights rounded.

Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", 2023;
Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023.

The drafter picks with the request's own sampler, so with the target's noise for each position and
token (the coupling of Daliri, Musco and Suresh, 2024): where the two models' distributions are
close their tokens agree, at every temperature.

Its keys and values lie in a pool of its own under the block ids of the target's, so that what the
target shares between requests is shared here too. What is in place there is known from three facts:
a block whose version is the one noted when it was last filled is full of committed tokens; within
an epoch of a request's table the first ``valid`` tokens are in place; and of the last draft those
tokens that were committed are, unless their block was given back meanwhile. Anything else is
computed anew. That covers refusals, preemption, prefix hits and steps that the drafter took no part
in, with one rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, get_args

from wager.checks import choice, real
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.errors import ConfigError
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, Draft, WeightKind

# Options are read where no model is, and without numpy: the rest is imported when one comes.
if TYPE_CHECKING:
    from wager.models.load import Model
    from wager.ops.base import F32
    from wager.runtime.kv import BlockTable
    from wager.sampling.rejection import F64
    from wager.sampling.sampler import SequenceState

SOURCE: Final = "draft_model"
SELF: Final = "self"
_KINDS: Final[tuple[WeightKind, ...]] = get_args(WeightKind)
"""Finest first."""


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Keys of ``draft_model``.

    ``model`` is a pulled name, a directory, a GGUF file, or ``self``: the target's own weights,
    rounded to ``quantization``. ``draft_min_token_prob`` ends a draft before a token that the
    drafter itself thinks less likely than that.
    """

    model: str = ""
    quantization: WeightKind | None = None
    draft_min_token_prob: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(
                'model: draft_model needs one, e.g. "model": "self", "quantization": "int8"'
            )
        if self.quantization is not None:
            choice("quantization", self.quantization, _KINDS[1:])
        elif self.model == SELF:
            raise ConfigError(
                'quantization: "model": "self" needs one that is coarser than the target\'s '
                'weights, e.g. "int8"'
            )
        real("draft_min_token_prob", self.draft_min_token_prob, 0.0, 1.0)

    def describe(self) -> str:
        """The values in effect, for people."""
        said = self.model if self.quantization is None else f"{self.model} as {self.quantization}"
        if self.draft_min_token_prob:
            said += f", tokens of probability {self.draft_min_token_prob:g} and more"
        return said


@dataclass(slots=True)
class _Cursor:
    """What of a request is in place: the first ``valid`` tokens, in this epoch of its table.

    ``drafted`` are the tokens of the last draft that were fed behind them, each with the version of
    its block; the first ``noted`` blocks are known to be full.
    """

    epoch: int
    valid: int = 0
    noted: int = 0
    drafted: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Walk:
    """One request while its draft is made."""

    query: DraftQuery
    table: BlockTable
    sampler: SequenceState
    cursor: _Cursor
    limit: int
    tokens: list[int] = field(default_factory=list)
    distributions: list[F64] = field(default_factory=list)
    open: bool = False


class DraftModelDrafter:
    """Drafts for all requests of a step together, one pass per token.

    Where the drafter's context ends, drafting ends and the request goes on without. A long prompt
    is caught up with over several steps, ``max_rows`` rows in each.
    """

    Options = DraftModelOptions
    needs = DrafterNeeds(host=True, blocks=True)

    def __init__(self, config: MethodConfig, vocab_size: int) -> None:
        self._options: DraftModelOptions = config.options
        self._vocab_size = vocab_size
        self._cursors: dict[int, _Cursor] = {}

    def attach(self, host: DraftHost) -> None:
        """Load the model over the target's op set. Raises ModelError and ConfigError."""
        from wager.models.vocabulary import common_ids
        from wager.ops.base import BLOCK
        from wager.runtime.target import Target, kv_block_bytes

        self._block = BLOCK
        self._model = _load(self._options, host.target)
        common = common_ids(host.target.tokenizer, self._model.tokenizer)
        # Rows that pad either vocabulary are never drafted.
        self._vocab_size = min(self._vocab_size, common, self._model.config.vocab_size)
        host.reserve(kv_block_bytes(self._model.config, host.kv))
        self._versions = host.pool.versions
        self._filled = [-1] * host.pool.blocks
        self._max_rows = host.max_rows
        self._verify = host.verify
        self._target = Target(self._model, host.pool.blocks, host.kv)

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """Nothing: a query carries the tokens. Blocks are shared as the target shares them."""

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Nothing, as `start`."""

    def release(self, request: int) -> None:
        """Forget a request; its blocks may still serve another one."""
        self._cursors.pop(request, None)

    def behind(self, request: int, length: int) -> int:
        """Tokens beyond those that are in place, the last draft taken to have come true."""
        cursor = self._cursors.get(request)
        return length if cursor is None else max(length - cursor.valid - len(cursor.drafted), 1)

    def clear(self) -> None:
        """Forget all requests and all blocks."""
        self._cursors.clear()
        self._filled = [-1] * len(self._filled)

    def close(self) -> None:
        """Nothing lasts."""

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query; none where the context is too long or not caught up with yet."""
        from wager.runtime.target import Span

        walks = self._catch_up(queries)
        active = [w for w in walks.values() if w.open]
        while active:
            spans = [
                Span(w.tokens[-1:], w.query.length + len(w.tokens) - 1, w.table.blocks, 1)
                for w in active
            ]
            rows = self._target.forward(spans).logits
            for walk, row, span in zip(active, rows, spans, strict=True):
                version = self._versions[walk.table.blocks[span.start // self._block]]
                walk.cursor.drafted.append((walk.tokens[-1], version))
                self._pick(walk, row)
            active = [w for w in active if w.open]
        return [self._draft(walks.get(index)) for index in range(len(queries))]

    def _draft(self, walk: _Walk | None) -> Draft:
        if walk is None or not walk.tokens:
            return NO_DRAFT
        return Draft(tuple(walk.tokens), SOURCE, 0, tuple(walk.distributions) or None)

    def _catch_up(self, queries: Sequence[DraftQuery]) -> dict[int, _Walk]:
        """Compute what is missing of each text; the walks that may go on, by query index."""
        from wager.runtime.target import Span

        budget = self._max_rows
        spans: list[Span] = []
        reached: list[tuple[_Walk, int]] = []
        ready: dict[int, _Walk] = {}
        written: set[int] = set()
        for index, query in enumerate(queries):
            walk = self._walk(query)
            if walk is None or budget == 0:
                continue
            valid = walk.cursor.valid
            rows = min(query.length - valid, budget)
            first, last = valid // self._block, (valid + rows - 1) // self._block
            blocks = walk.table.blocks[first : last + 1]
            # A prefix that two requests share is computed by the first of them.
            if not written.isdisjoint(blocks):
                continue
            written.update(blocks)
            budget -= rows
            whole = valid + rows == query.length
            spans.append(
                Span(query.tokens[valid : valid + rows], valid, walk.table.blocks, int(whole))
            )
            reached.append((walk, valid + rows))
            if whole:
                ready[index] = walk
        if not spans:
            return {}
        logits = self._target.forward(spans).logits
        for walk, count in reached:
            self._advance(walk, count)
        for walk, row in zip(ready.values(), logits, strict=True):
            self._pick(walk, row)
        return ready

    def _walk(self, query: DraftQuery) -> _Walk | None:
        """None where the drafter's context ends before the request's text."""
        # The newest token takes position length - 1, the last drafted one is never fed.
        limit = min(query.limit, self._model.config.max_context - query.length + 1)
        if limit < 1 or query.table is None or query.sampler is None:
            self._cursors.pop(query.request, None)
            return None
        cursor = self._cursor(query, query.table)
        return _Walk(query, query.table, query.sampler, cursor, limit)

    def _cursor(self, query: DraftQuery, table: BlockTable) -> _Cursor:
        """With all that is in place; of the tokens but the newest, whose logits are needed."""
        last = query.length - 1
        cursor = self._cursors.get(query.request)
        if cursor is None or cursor.epoch != table.epoch:
            cursor = self._cursors[query.request] = _Cursor(table.epoch)
        for token, version in cursor.drafted:
            at = cursor.valid
            if at >= last or query.tokens[at] != token:
                break
            if self._versions[table.blocks[at // self._block]] != version:
                break
            cursor.valid += 1
        cursor.drafted.clear()
        for block in table.blocks[cursor.valid // self._block : last // self._block]:
            if self._filled[block] != self._versions[block]:
                break
            cursor.valid = (cursor.valid // self._block + 1) * self._block
        return cursor

    def _advance(self, walk: _Walk, valid: int) -> None:
        cursor = walk.cursor
        cursor.valid = valid
        for block in walk.table.blocks[cursor.noted : valid // self._block]:
            self._filled[block] = self._versions[block]
        cursor.noted = valid // self._block

    def _pick(self, walk: _Walk, row: F32) -> None:
        """Add the drafter's next token, and close the walk where the draft must end."""
        row = row[: self._vocab_size]
        walk.open = False
        try:
            token = self._drawn(walk, row) if self._draws(walk) else self._agreed(walk, row)
        except ValueError:
            return  # its own logits are not finite: no more of this draft
        if token is None:
            return
        walk.tokens.append(token)
        walk.open = len(walk.tokens) < walk.limit and not walk.sampler.ends_with(token)

    def _draws(self, walk: _Walk) -> bool:
        return self._verify != "match" and walk.sampler.selection.temperature > 0.0

    def _agreed(self, walk: _Walk, row: F32) -> int | None:
        """The token that the target would pick if these were its logits; None if unlikely."""
        ops, least = self._model.ops, self._options.draft_min_token_prob
        token = walk.sampler.pick(row, ops, walk.tokens)
        if least and ops.log_softmax(row, [token])[0] < math.log(least):
            return None
        return token

    def _drawn(self, walk: _Walk, row: F32) -> int | None:
        """A token drawn with noise of its own; its distribution is kept for the verification."""
        from wager.sampling.rejection import DRAFT, distribution, draw, uniform

        q = distribution(row, walk.sampler, walk.tokens)
        # By the distribution, never by the token drawn: what is verified must not depend on it.
        if q.max() < self._options.draft_min_token_prob:
            return None
        walk.distributions.append(q)
        return draw(q, uniform(walk.sampler, DRAFT, len(walk.tokens)))


def _load(options: DraftModelOptions, target: Model) -> Model:
    from wager.models.load import load_model, open_checkpoint

    context = target.config.max_context
    if options.model != SELF:
        context = min(context, open_checkpoint(options.model).config.max_context)
        return load_model(options.model, target.ops, options.quantization or "auto", context)
    rounded = options.quantization or target.weights
    if _KINDS.index(rounded) <= _KINDS.index(target.weights):
        raise ConfigError(
            f"quantization: {rounded} is not coarser than the target's weights, which are "
            f"{target.weights}, so such a drafter would be as slow as the target itself"
        )
    name = target.name if not target.path.exists() else str(target.path)
    return load_model(name, target.ops, rounded, target.config.max_context)
