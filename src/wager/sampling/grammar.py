"""Grammars: which tokens an answer may go on with.

A grammar is compiled once for a vocabulary, in a process of its own (see `grammar_worker`), which
is asked for each mask. One that takes too long there ends its own requests, and nothing else.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from wager.config import StructuredOutput
from wager.errors import NoTokenLeft, RequestError
from wager.ops.base import F32
from wager.sampling import grammar_messages as messages
from wager.sampling.grammar_links import Link, Links, Lost
from wager.sampling.grammar_messages import Limits, Vocabulary

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer
    from wager.sampling.processors import History

KEPT: Final = 256
"""Grammars that are known, per tokenizer. Fewer have a process."""
LIMITS: Final = Limits()
_EXCLUDED: Final = np.float32(-np.inf)


def prepare(
    tokenizer: Tokenizer, eos_ids: Collection[int], structured: StructuredOutput
) -> Grammar:
    """The compiled grammar: a kept one, or one made now, which may take long. Thread-safe.

    Raises RequestError, with a message that is fit for clients, where it cannot be compiled within
    the limits or no answer satisfies it.
    """
    with _LOCK:
        kept = _KEPT.get(tokenizer)
        if kept is None:
            kept = _KEPT[tokenizer] = _Kept(tokenizer)
            weakref.finalize(tokenizer, kept.close)
    return kept.grammar(frozenset(eos_ids), structured)


class Grammar:
    """One grammar over one vocabulary. ``eos_ids`` are the model's end tokens, which may stand
    where the grammar is satisfied, and are never taken for text."""

    def __init__(
        self, links: Links, eos_ids: Collection[int], structured: StructuredOutput
    ) -> None:
        self.size = links.size
        self.eos_ids = eos_ids
        self.structured = structured
        self._links = links
        self._refusal = ""

    @property
    def limits(self) -> Limits:
        """Of its process."""
        return self._links.limits

    def link(self) -> Link:
        """To its process, which is started and compiles the grammar if there is none. Raises
        RequestError."""
        for _ in range(2):
            if self._refusal:
                break
            try:
                return self._links.of(self)
            except Lost as lost:
                if lost.seconds >= self.limits.compile_s:
                    break
        if not self._refusal:
            most = f"{self.limits.compile_s:g} s"
            self.refuse(f"takes more than {most} to compile, or too much memory; make it simpler")
        raise RequestError(f"structured: {self._refusal}")

    def refuse(self, why: str) -> None:
        """It is not tried again."""
        self._refusal = why


class GrammarMask:
    """A grammar along one sequence: a processor (see `wager.sampling.processors`), and what tells
    where the answer must end. It follows committed tokens only."""

    def __init__(self, grammar: Grammar, end_ids: Collection[int]) -> None:
        """``end_ids`` end this sequence: an end token that does not is no text either."""
        self._grammar = grammar
        self._tokens: list[int] = []
        self._ignored = [t for t in grammar.eos_ids if t not in end_ids and t < grammar.size]
        self._link: Link | None = None
        self._number = 0

    def __call__(self, row: F32, history: History) -> F32:
        """Behind the end of the grammar nothing is ever committed, and the row stays as it is."""
        if any(token in self._grammar.eos_ids for token in history.ahead):
            return row
        reply = self._ask(messages.MASK, history.ahead)
        if reply == messages.ENDED:
            return row
        allowed = np.zeros(self._grammar.size, np.bool_)
        bits = np.frombuffer(reply, np.uint8, offset=1)
        if len(bits):
            allowed |= np.unpackbits(bits, count=len(allowed), bitorder="little").view(np.bool_)
            allowed[self._ignored] = False
        return np.where(allowed[: len(row)], row, _EXCLUDED)

    def advance(self, token: int) -> bool:
        """Take in a committed token that ends nothing by itself; True where the grammar is
        satisfied and no text can follow. Raises NoTokenLeft where it does not allow the token."""
        ended = self._ask(messages.TAKE, (token,)) == messages.ENDED
        self._tokens.append(token)
        return ended

    def _ask(self, what: int, tokens: Sequence[int]) -> bytes:
        """Raises NoTokenLeft where there is no way on."""
        grammar = self._grammar
        for _ in range(3):
            try:
                link = grammar.link()
                if link is not self._link:
                    self._open(link)
                return _understood(link.ask(what, self._number, tokens))
            except RequestError as error:
                raise NoTokenLeft(str(error)) from error
            except Lost as lost:
                # One that was ended to make room is started anew; not so one that took its time.
                if lost.seconds >= grammar.limits.steady_s:
                    break
        grammar.refuse("takes too long to follow, or too much memory; make it simpler")
        raise NoTokenLeft("the grammar takes too long to follow")

    def _open(self, link: Link) -> None:
        """Begin in a new process, where the answer stands."""
        self._number = link.number()
        _understood(link.ask(messages.OPEN, self._number, self._tokens))
        self._link = link
        weakref.finalize(self, link.drop, self._number).atexit = False


def _understood(reply: bytes) -> bytes:
    if reply[:1] == messages.FAILED:
        raise NoTokenLeft(reply[1:].decode())
    return reply


class _Kept:
    """What is known of one tokenizer's grammars, the latest used last."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # What is kept for a tokenizer must not keep it alive.
        self._tokenizer = weakref.ref(tokenizer)
        self._lock = threading.Lock()
        self._links: dict[frozenset[int], Links] = {}
        self._grammars: OrderedDict[tuple[frozenset[int], StructuredOutput], Grammar] = (
            OrderedDict()
        )

    def grammar(self, eos_ids: frozenset[int], structured: StructuredOutput) -> Grammar:
        key = (eos_ids, structured)
        with self._lock:
            found = self._grammars.get(key)
            if found is None:
                links = self._links_of(eos_ids)
                found = Grammar(links, eos_ids, structured)
                self._grammars[key] = found
                while len(self._grammars) > KEPT:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(key)
        found.link()
        return found

    def close(self) -> None:
        for links in self._links.values():
            links.close()

    def _links_of(self, eos_ids: frozenset[int]) -> Links:
        known = self._links.get(eos_ids)
        if known is None:
            tokenizer = self._tokenizer()
            if tokenizer is None:
                raise RuntimeError("the tokenizer is gone")
            known = self._links[eos_ids] = Links(_vocabulary(tokenizer, eos_ids), LIMITS)
        return known


def _vocabulary(tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Vocabulary:
    size = tokenizer.vocab_size
    # Where no token ends an answer, one that does not exist stands for the end.
    ends = sorted(eos_ids) or [size]
    return Vocabulary(
        size=size,
        tokens=[tokenizer.token_bytes(token) for token in range(max(size, ends[-1] + 1))],
        special=sorted(tokenizer.special_ids.union(ends)),
        ends=ends,
    )


_LOCK: Final = threading.Lock()
_KEPT: Final[weakref.WeakKeyDictionary[Tokenizer, _Kept]] = weakref.WeakKeyDictionary()
