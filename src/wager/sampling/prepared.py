"""What a request's options become once the tokenizer is known, made once for all its choices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wager.config import SamplingParams
from wager.errors import RequestError
from wager.sampling.grammar import Grammar, Hold, known

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prepared:
    """``bad_words`` are the token sequences not to be completed. ``hold`` keeps the grammar's
    process; None where too many are kept already."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None
    hold: Hold | None = None

    @classmethod
    def of(cls, params: SamplingParams, tokenizer: Tokenizer, eos_ids: Collection[int]) -> Prepared:
        """Raises RequestError, or Unavailable. May take long where a grammar is not compiled
        yet."""
        words = sequences_of(params.bad_words, tokenizer) if params.bad_words else ()
        if params.structured is None:
            return cls(words)
        grammar = known(tokenizer, eos_ids, params.structured)
        # Before there is one to be kept: what is there now may make room meanwhile.
        hold = grammar.hold()
        grammar.link()
        return cls(words, grammar, hold)


def sequences_of(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word alone and behind a space, as it stands within a text.

    Raises RequestError for a word that has none.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        found = [
            tuple(tokenizer.encode(text, add_special=False))
            for text in ((bare, f" {bare}") if bare else (word,))
        ]
        if not any(found):
            raise RequestError(f"bad_words: {word!r} has no tokens in this model's vocabulary")
        sequences.update((ids, None) for ids in found if ids)
    return tuple(sequences)
