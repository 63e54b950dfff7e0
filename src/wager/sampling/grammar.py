"""Grammars: which tokens an answer may go on with, by llguidance.

A grammar is compiled once for a vocabulary and kept; requests walk through copies of it. A mask
says which tokens may follow by their bytes alone: no token is forced because the tokenizer would
have chosen it, so that the mask is a function of the answer's text.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from wager.config import StructuredOutput
from wager.errors import NoTokenLeft, RequestError
from wager.ops.base import F32

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from wager.models.tokenizer import Tokenizer
    from wager.sampling.processors import History

Mask: TypeAlias = NDArray[np.bool_]

KEPT: Final = 64
"""Compiled grammars per tokenizer."""
MAX_LEXER_STATES: Final = 20_000
"""Each takes 1 to 2 kB; those of all requests with one grammar add up."""
MAX_GRAMMAR_SIZE: Final = 200_000
# A model that is free to may write blanks for ever.
_JSON_OPTIONS: Final = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}"}
_OPTIONS: Final = '\n%llguidance {"no_forcing": true}\n'
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
    return kept.grammar(frozenset(eos_ids), structured)


class Grammar:
    """One compiled grammar over one vocabulary. ``eos_ids`` are the model's end tokens, which may
    stand where the grammar is satisfied, and are never taken for text."""

    def __init__(self, vocabulary: _Vocabulary, text: str) -> None:
        self.eos_ids = vocabulary.eos_ids
        self.size = vocabulary.size
        self._vocabulary = vocabulary
        self._text = text
        self._template = self._compile()
        self._check_start()

    def matcher(self) -> LLMatcher:
        """At the start; the lexer's states are shared with all that came from the same one."""
        return self._template.deep_copy()

    def renewed(self) -> LLMatcher:
        """At the start, with a lexer of its own, which later ones share."""
        self._template = self._compile()
        return self.matcher()

    def mask(self, matcher: LLMatcher) -> Mask:
        """Tokens that may come next, [size]; what it is where ``matcher`` has failed means
        nothing."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self.size, bitorder="little").view(np.bool_)

    def _compile(self) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SIZE,
            # Messages go to clients.
            verbose_errors=False,
        )
        matcher = LLMatcher(self._vocabulary.tokenizer, self._text, log_level=0, limits=limits)
        if matcher.is_error():
            raise RequestError(f"structured: {_line(matcher.get_error())}")
        return matcher

    def _check_start(self) -> None:
        matcher = self.matcher()
        first = self.mask(matcher)
        if matcher.is_error():
            raise RequestError(f"structured: no answer satisfies it: {_line(matcher.get_error())}")
        first[[token for token in self.eos_ids if token < self.size]] = False
        if not first.any():
            raise RequestError("structured: nothing but the empty answer satisfies it")


class GrammarMask:
    """A grammar along one sequence: a processor (see `wager.sampling.processors`), and what tells
    where the answer must end. It follows committed tokens only."""

    def __init__(self, grammar: Grammar, end_ids: Collection[int]) -> None:
        """``end_ids`` end this sequence: an end token that does not is no text either."""
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._tokens: list[int] = []
        self._ignored = [t for t in grammar.eos_ids if t not in end_ids and t < grammar.size]

    def __call__(self, row: F32, history: History) -> F32:
        """Behind the end of the grammar nothing is ever committed, and the row stays as it is."""
        allowed = self._allowed(list(history.ahead))
        if allowed is None:
            return row
        return np.where(allowed[: len(row)], row, _EXCLUDED)

    def advance(self, token: int) -> bool:
        """Take in a committed token that ends nothing by itself; True where the grammar is
        satisfied and no text can follow. Raises NoTokenLeft where it does not allow the token."""
        self._tokens.append(token)
        if self._matcher.try_consume_tokens([token]) != 1:
            self._restart()
        return self._matcher.is_stopped()

    def _allowed(self, ahead: list[int]) -> Mask | None:
        """None behind the end. Raises NoTokenLeft where the grammar fails at this place."""
        if any(token in self._grammar.eos_ids for token in ahead):
            return None
        for _ in range(2):
            taken = self._matcher.try_consume_tokens(ahead) if ahead else 0
            ended = self._matcher.is_stopped()
            allowed: Mask | None = None
            if not ended and taken < len(ahead):
                allowed = np.zeros(self._grammar.size, np.bool_)
            elif not ended:
                allowed = self._grammar.mask(self._matcher)
                allowed[self._ignored] = False
            if not self._matcher.is_error():
                if not self._matcher.rollback(taken):
                    self._restart()
                return allowed
            # Copies share their lexer, whose limits count what other requests looked at, too.
            why = self._matcher.get_error()
            self._restart()
        raise NoTokenLeft(f"the grammar lets nothing follow: {_line(why)}")

    def _restart(self) -> None:
        """The same place, with a lexer of its own."""
        self._matcher = self._grammar.renewed()
        if self._matcher.try_consume_tokens(self._tokens) != len(self._tokens):
            why = self._matcher.get_error() or "a token that it does not allow"
            raise NoTokenLeft(f"the grammar refuses the answer: {_line(why)}")


class _Vocabulary:
    """A tokenizer's tokens as llguidance wants them, with one set of end tokens."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.eos_ids = eos_ids
        self.size = tokenizer.vocab_size
        # Where no token ends an answer, one that does not exist stands for the end.
        ends = sorted(eos_ids) or [self.size]
        wrapper = TokenizerWrapper(_Words(tokenizer, ends))
        self.tokenizer: LLTokenizer = LLTokenizer(wrapper, eos_token=ends)


class _Words:
    """What `llguidance.TokenizerWrapper` wraps."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int]) -> None:
        self.eos_token_id = ends[0]
        count = max(tokenizer.vocab_size, max(ends) + 1)
        self.tokens = [tokenizer.token_bytes(token) for token in range(count)]
        self.special_token_ids = sorted(tokenizer.special_ids.union(ends))
        # What is kept for a tokenizer must not keep it alive.
        self._tokenizer = ref(tokenizer)

    def __call__(self, text: str) -> list[int]:
        tokenizer = self._tokenizer()
        return [] if tokenizer is None else tokenizer.encode(text, add_special=False)


class _Kept:
    """What was compiled for one tokenizer, the latest used last."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = ref(tokenizer)
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._vocabularies: dict[frozenset[int], _Vocabulary] = {}
        self._grammars: OrderedDict[tuple[frozenset[int], StructuredOutput], Grammar] = (
            OrderedDict()
        )

    def grammar(self, eos_ids: frozenset[int], structured: StructuredOutput) -> Grammar:
        key = (eos_ids, structured)
        with self._lock:
            found = self._grammars.get(key)
            if found is not None:
                self._grammars.move_to_end(key)
                return found
        # Neither lock is held while a grammar is compiled: other requests go on meanwhile.
        made = Grammar(self._vocabulary(eos_ids), _lark(structured))
        with self._lock:
            self._grammars[key] = made
            while len(self._grammars) > KEPT:
                self._grammars.popitem(last=False)
        return made

    def _vocabulary(self, eos_ids: frozenset[int]) -> _Vocabulary:
        with self._building:
            known = self._vocabularies.get(eos_ids)
            if known is None:
                tokenizer = self._tokenizer()
                if tokenizer is None:
                    raise RuntimeError("the tokenizer is gone")
                known = self._vocabularies[eos_ids] = _Vocabulary(tokenizer, eos_ids)
            return known


_LOCK: Final = threading.Lock()
_KEPT: Final[WeakKeyDictionary[Tokenizer, _Kept]] = WeakKeyDictionary()


def _lark(structured: StructuredOutput) -> str:
    """The grammar in llguidance's dialect of Lark. Raises RequestError."""
    from llguidance import grammar_from, regex_to_lark

    value = structured.value
    if not isinstance(value, str):
        body = "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value)
    elif structured.kind == "regex":
        body = f"start: /{regex_to_lark(value)}/"
    elif structured.kind == "grammar":
        try:
            body = grammar_from("grammar", value)
        except ValueError as error:
            raise RequestError(f"structured: {_line(str(error))}") from error
    else:
        body = "start: %json " + json.dumps(_schema(value))
    return body + _OPTIONS


def _schema(text: str) -> dict[str, Any]:
    """The schema; "" is any object. What it says of blanks itself goes before ours."""
    schema: dict[str, Any] = json.loads(text) if text else {"type": "object"}
    own = schema.get("x-guidance", {})
    if isinstance(own, dict) and "whitespace_flexible" not in own:
        schema["x-guidance"] = {**_JSON_OPTIONS, **own}
    return schema


def _line(text: str) -> str:
    """What an error of llguidance says, without the picture of the place, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[:1] + [line for line in lines[1:] if line.startswith("error:")]
    return "; ".join(line[:160] for line in said) or "unknown"
