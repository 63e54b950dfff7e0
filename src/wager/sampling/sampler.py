"""One choice of one request while it is decoded: picks tokens, commits them, knows when it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wager.config import SamplingParams
from wager.errors import NoTokenLeft
from wager.models.tokenizer import Detokenizer
from wager.ops.base import F32, OpSet, SelectParams
from wager.sampling.grammar import GrammarMask
from wager.sampling.prepared import Prepared
from wager.sampling.processors import History, processors_for
from wager.sampling.stop import StopSearch
from wager.types import FinishReason, TokenLogprob

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a sequence gained between two looks at it."""

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A history with the first tokens of a draft behind it."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    ahead: Sequence[int]


class SequenceState:
    """The sampling state of one sequence. Rows go in through `pick` and `commit`, nowhere else.

    A committed token ends the sequence when it is

    1. an end token of the model, unless ``ignore_eos``: ``stop``, no stop reason;
    2. one of ``stop_token_ids``: ``stop``, the id is the stop reason;
    3. the one that completes a stop string: ``stop``, the string is the stop reason;
    4. the one behind which its grammar is satisfied and lets nothing follow: ``stop``, no reason;
    5. the last one that ``max_tokens`` or the context has room for: ``length``;

    the first of these that holds, as in vLLM. With ``min_tokens`` 1 and 2 are never picked among
    the first ``min_tokens`` tokens, and a stop string that is completed among them is plain text;
    4 holds all the same, since there is no other token.

    ``output_ids`` keeps every committed token: the end token, and all tokens of a stop string. The
    text leaves out an end token and is cut before the stop string (which may begin anywhere, also
    in the first ``min_tokens`` tokens), unless ``include_stop_str_in_output``. Bytes of a character
    that is unfinished when the sequence ends become U+FFFD, except behind a stop string.
    """

    ahead: Sequence[int] = ()
    """As a history, see `wager.sampling.processors`."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        prompt_ids: Sequence[int],
        eos_ids: Collection[int],
        tokenizer: Tokenizer,
        max_total: int,
        prepared: Prepared | None = None,
    ) -> None:
        """``seed`` is in [0, 2**64); ``max_total``, larger than the prompt, is the most tokens that
        prompt and output may have together. ``prepared`` is made here unless it is given."""
        self.params = params
        self.choice = choice
        self.prompt_ids = prompt_ids
        self.output_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        room = max_total - len(prompt_ids)
        self.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if self.max_tokens < 1:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens leaves no room in {max_total}")
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._end_ids = self._eos_ids.union(params.stop_token_ids)
        if prepared is None:
            prepared = Prepared.of(params, tokenizer, eos_ids)
        grammar = prepared.grammar
        self._grammar = (
            None if grammar is None else GrammarMask(grammar, self._end_ids, prepared.hold)
        )
        self._processors = processors_for(
            params, self._end_ids, prompt_ids, prepared.bad_words, self._grammar
        )
        self.selection = SelectParams(
            params.temperature, params.top_k, params.top_p, params.min_p, seed, choice
        )
        self._detokenizer = (
            tokenizer.stream(prompt_ids)
            if params.skip_special_tokens
            else Detokenizer(tokenizer, skip_special=False, at_start=not prompt_ids)
        )
        self._stops = StopSearch(params.stop, params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self._taken_ids = self._taken_pieces = 0

    @property
    def text(self) -> str:
        """The text that is final: all of it once finished, before that without what is held back
        (a character's first bytes, the beginning of a stop string)."""
        return "".join(self._pieces)

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return self.max_tokens - len(self.output_ids)

    @property
    def position(self) -> int:
        """Of the token that comes next: how many there are, the prompt's among them."""
        return len(self.prompt_ids) + len(self.output_ids)

    def ends_with(self, token: int) -> bool:
        """Whether this token, when committed, is an end token or stop token of this sequence."""
        return token in self._end_ids

    def pick(self, row: F32, ops: OpSet, ahead: Sequence[int] = ()) -> int:
        """The token that comes next, from a model's logits [V]; the row is not changed.

        ``ahead`` are tokens that a draft puts behind the committed ones. Raises ValueError on NaN
        or +inf, NoTokenLeft where the options exclude all. The noise depends on the token's
        absolute position alone, not on how the row came to be nor on whose logits they are: a
        drafter that picks with it agrees with the target wherever their distributions let it.
        """
        processed = self.process(row, ahead)
        token = ops.select(processed, self.selection, self.position + len(ahead))
        # One that no model has would end the engine, not this sequence, when it is fed back.
        if not 0 <= token < len(row):
            raise ValueError(f"token {token} was picked from a row of {len(row)}")
        return token

    def process(self, row: F32, ahead: Sequence[int] = ()) -> F32:
        """The logits [V] after the request's processors, with ``ahead`` as part of the history.
        Raises NoTokenLeft."""
        if not self._processors:
            return row
        history: History = _Ahead(self.prompt_ids, self.output_ids, ahead) if ahead else self
        for process in self._processors:
            row = process(row, history)
        if row.max() == -np.inf:
            raise NoTokenLeft("every token is excluded")
        return row

    def commit(self, token: int, row: F32, ops: OpSet) -> None:
        """Make a token part of the sequence; ``row`` [V] is what the model gave for its place.

        Log-probabilities are the model's own: before temperature, filters and processors. Raises
        ValueError where the sequence's grammar does not allow the token.
        """
        if self.finish_reason is not None:
            raise ValueError(f"the sequence ended already ({self.finish_reason})")
        self.output_ids.append(token)
        if self.logprobs is not None:
            self.logprobs.append(token_logprob(row, token, self.params.logprobs or 0, ops))
        if token in self._end_ids:
            if self.params.include_stop_str_in_output:
                self._add(self._stops.flush() + self._detokenizer.push(token))
            self.stop_reason = None if token in self._eos_ids else token
            self.finish("stop")
            return
        armed = len(self.output_ids) > self.params.min_tokens
        self._add(self._stops.push(self._detokenizer.push(token), armed))
        if self._stops.found is not None:
            self.stop_reason = self._stops.found
            self._end("stop")
        elif self._grammar is not None and self._grammar.advance(token):
            self.finish("stop")
        elif self.room == 0:
            self.finish("length")

    def finish(self, reason: FinishReason) -> None:
        """End the sequence and release the text that was held back; no effect on an ended one."""
        if self.finish_reason is None:
            self._end(reason)
            self._add(self._stops.flush() + self._detokenizer.flush())

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if self._grammar is not None:
            # Not when the garbage is collected: others wait for its place.
            self._grammar.close()

    def take_fresh(self) -> Fresh:
        """What was committed since the last call; text that is held back comes in a later one."""
        ids, pieces = self._taken_ids, self._taken_pieces
        self._taken_ids, self._taken_pieces = len(self.output_ids), len(self._pieces)
        logprobs = None if self.logprobs is None else self.logprobs[ids:]
        return Fresh(self.output_ids[ids:], "".join(self._pieces[pieces:]), logprobs)

    def _add(self, text: str) -> None:
        if text:
            self._pieces.append(text)


def token_logprob(row: F32, token: int, alternatives: int, ops: OpSet) -> TokenLogprob:
    """Log-probability of a token and of the most likely ones under raw logits [V].

    ``alternatives`` most likely tokens, best first, the lower id first among equals; the token is
    one of them only if it is that likely. Its own value is always there.
    """
    best = _most_likely(row, min(alternatives, len(row)))
    values = ops.log_softmax(row, [token, *best])
    return TokenLogprob(token, values[0], tuple(zip(best, values[1:], strict=True)))


def _most_likely(row: F32, count: int) -> list[int]:
    if count == 0:
        return []
    # The count-th largest of the chunks' maxima is no larger than the count-th largest value, and
    # finding it is ten times cheaper than partitioning a whole row.
    tops = np.maximum.reduceat(row, np.arange(0, len(row), max(1, min(256, len(row) // count))))
    least = np.partition(tops, len(tops) - count)[len(tops) - count]
    candidates = np.flatnonzero(row >= least)
    order = np.argsort(-row[candidates], kind="stable")
    return [int(i) for i in candidates[order[:count]]]
