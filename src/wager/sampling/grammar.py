"""Grammars: which tokens an answer may go on with.

A grammar is compiled once for a vocabulary, in a process of its own (see `grammar_worker`), which
is asked for each mask. One that takes too long there ends its own requests, and nothing else. Who
holds a grammar keeps its process, so that nothing is compiled while an answer is written; but for
one whose process was ended from outside.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from wager.config import StructuredOutput
from wager.errors import FormFault, FormLost, RequestError, Unavailable
from wager.ops.base import F32
from wager.sampling import grammar_messages as messages
from wager.sampling.grammar_links import ASK_S, COMPILE_S, Link, Links, Lost
from wager.sampling.grammar_messages import Limits, Vocabulary

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer
    from wager.sampling.processors import History

log = logging.getLogger(__name__)

KEPT: Final = 256
"""Grammars that are known, per tokenizer. Fewer have a process."""
LIMITS: Final = Limits()
REFUSED_S: Final = 60.0
"""One that was over its limits is not tried again for so long."""
_TRIES: Final = 3
_EXCLUDED: Final = np.float32(-np.inf)


def prepare(
    tokenizer: Tokenizer, eos_ids: Collection[int], structured: StructuredOutput
) -> Grammar:
    """The compiled grammar: a kept one, or one made now, which may take long. Thread-safe.

    Raises RequestError, with a message that is fit for clients, where it cannot be compiled within
    the limits or no answer satisfies it; Unavailable where its processes end for other reasons.
    """
    found = known(tokenizer, eos_ids, structured)
    found.link()
    return found


def known(tokenizer: Tokenizer, eos_ids: Collection[int], structured: StructuredOutput) -> Grammar:
    """The same, which may not be compiled yet. Takes long only for the first one of a tokenizer."""
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
        self._refused = 0.0  # when

    @property
    def limits(self) -> Limits:
        """Of its process."""
        return self._links.limits

    @property
    def held(self) -> bool:
        """Whether somebody holds it."""
        return self._links.held(self)

    def hold(self) -> Hold | None:
        """Keep its process, once it has one. None where so many are held that it cannot be."""
        return Hold(self) if self._links.hold(self) else None

    def release(self) -> None:
        """What a `Hold` does at its end."""
        self._links.release(self)

    def link(self, patience_s: float = COMPILE_S) -> Link:
        """To its process, which is started and compiles the grammar if there is none. Raises
        RequestError, or Unavailable."""
        for _ in range(_TRIES):
            self._check()
            try:
                return self._links.of(self, patience_s)
            except Lost as lost:
                log.warning("the process of a grammar was lost while it was compiled: %s", lost)
                if lost.limited:
                    most = f"{self.limits.compile_s:g} s"
                    self.refuse(
                        f"takes more than {most} to compile, or too much memory; make it simpler"
                    )
                elif lost.stuck:
                    break
        self._check()
        raise Unavailable("structured: the process that compiles it was lost; try again")

    def refuse(self, why: str) -> None:
        """It is not tried again for a while: it may not be its fault alone after all."""
        self._refusal, self._refused = why, time.monotonic()

    def _check(self) -> None:
        if self._refusal and time.monotonic() - self._refused < REFUSED_S:
            raise RequestError(f"structured: {self._refusal}")


class Hold:
    """While it exists, its grammar keeps its process."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        weakref.finalize(self, grammar.release).atexit = False


class GrammarMask:
    """A grammar along one sequence: a processor (see `wager.sampling.processors`), and what tells
    where the answer must end. It follows committed tokens only."""

    def __init__(
        self, grammar: Grammar, end_ids: Collection[int], hold: Hold | None = None
    ) -> None:
        """``end_ids`` end this sequence: an end token that does not is no text either. ``hold`` is
        kept until it is closed."""
        self._grammar = grammar
        self._hold = hold
        self._tokens: list[int] = []
        self._ignored = [t for t in grammar.eos_ids if t not in end_ids and t < grammar.size]
        self._walk: _Walk | None = None
        self._scout: _Walk | None = None

    def __call__(self, row: F32, history: History) -> F32:
        """Behind the end of the grammar nothing is ever committed, and the row stays as it is."""
        if any(token in self._grammar.eos_ids for token in history.ahead):
            return row
        reply = self._look_ahead(history.ahead) if history.ahead else self._follow(mask=True)
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
        satisfied and no text can follow. Raises FormFault where it does not allow the token."""
        self._tokens.append(token)
        return self._follow(mask=False) == messages.ENDED

    def close(self) -> None:
        """Nothing more is asked."""
        self._walk = self._scout = self._hold = None

    def _follow(self, *, mask: bool) -> bytes:
        """What the committed tokens come to, or, as a mask, what may come behind them. Raises
        FormFault, or FormLost."""
        grammar = self._grammar
        for _ in range(_TRIES):
            try:
                link = grammar.link(ASK_S)
                if self._walk is None or self._walk.link is not link:
                    self._walk = _Walk(link)
                reply = self._walk.follow(self._tokens)
                return self._walk.mask(()) if mask else reply
            except RequestError as error:
                raise FormFault(f"the grammar {_reason(error)}") from error
            except Unavailable as error:
                raise FormLost(_reason(error)) from error
            except Lost as lost:
                log.warning("the process of a grammar was lost: %s", lost)
                if lost.limited:
                    why = "takes too long to follow, or too much memory; make it simpler"
                    grammar.refuse(why)
                    raise FormFault(f"the grammar {why}") from lost
                if lost.stuck:
                    break
        raise FormLost("its process was lost; try again")

    def _look_ahead(self, ahead: Sequence[int]) -> bytes:
        """What may come behind a draft: asked of another process, which may be lost. Then there
        are no such drafts any more, and nothing else changes."""
        try:
            link = self._grammar.link(ASK_S).scout()
            if self._scout is None or self._scout.link is not link:
                self._scout = _Walk(link)
            self._scout.follow(self._tokens)
            return self._scout.mask(ahead)
        except (Lost, RequestError, Unavailable) as error:
            raise FormFault(f"the grammar cannot be asked ahead: {_reason(error)}") from error


class _Walk:
    """One answer in one process."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._number = link.number()
        self._count = -1  # of the tokens that it stands behind; not begun yet
        self._last = messages.DONE
        # Before it is begun: one that cannot be is dropped like others.
        weakref.finalize(self, link.drop, self._number).atexit = False

    def follow(self, tokens: Sequence[int]) -> bytes:
        """Go on until it stands behind these tokens; what the last of them came to. Raises
        FormFault, or Lost."""
        if self._count < len(tokens):
            what = messages.OPEN if self._count < 0 else messages.TAKE
            fresh = tokens[max(self._count, 0) :]
            self._last = _understood(self.link.ask(what, self._number, fresh))
            self._count = len(tokens)
        return self._last

    def mask(self, ahead: Sequence[int]) -> bytes:
        """What may come behind these, which are not taken in. Raises FormFault, or Lost."""
        return _understood(self.link.ask(messages.MASK, self._number, ahead))


def _reason(error: Exception) -> str:
    """Without the field, which only the library has."""
    return str(error).removeprefix("structured: ")


def _understood(reply: bytes) -> bytes:
    if reply[:1] == messages.FAILED:
        raise FormFault(reply[1:].decode())
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
                self._make_room()
                self._grammars[key] = found
            self._grammars.move_to_end(key)
            return found

    def close(self) -> None:
        for links in self._links.values():
            links.close()

    def _make_room(self) -> None:
        """Forget the one used longest ago. Not one that is held: it would be compiled anew for the
        next who asks for the same."""
        many = len(self._grammars) + 1 - KEPT
        if many > 0:
            free = [key for key, grammar in self._grammars.items() if not grammar.held]
            for key in free[:many]:
                del self._grammars[key]

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
