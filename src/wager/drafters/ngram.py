"""Drafting by looking the text's own tail up in the text: no model, no training.

Saxena, "Prompt Lookup Decoding", 2023; also LLMA (Yang et al., 2023). Of the suffixes of the text
with prompt_lookup_min to prompt_lookup_max tokens, the longest that occurs earlier counts; the
draft is what followed it there. An earlier occurrence is any that ends before the text does; it may
overlap the suffix. Of several, ``match: recent`` takes the one that ends last, ``earliest`` the one
that ends first (the order of vLLM's CPU drafter).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from wager.checks import choice, flag, whole
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.errors import ConfigError
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, Draft

SOURCE: Final = "ngram"
# The most recent match of long n-grams is kept current at a cost per token that grows with this.
MAX_LOOKUP: Final = 1024
_DEFAULT_LOOKUP: Final = 5


@dataclass(frozen=True, slots=True)
class NgramOptions:
    """Keys of the n-gram methods.

    As in vLLM, one lookup bound given alone is copied to the other, and 5 is taken for both when
    neither is given; made, the record holds both.
    """

    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    match: Literal["recent", "earliest"] = "recent"
    cyclic: bool = True

    def __post_init__(self) -> None:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        given = low if high is None else high
        for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
            value = value if value is not None else given
            value = _DEFAULT_LOOKUP if value is None else value
            whole(name, value, 1, MAX_LOOKUP)
            object.__setattr__(self, name, value)
        shortest, longest = self.bounds
        if shortest > longest:
            raise ConfigError(
                f"prompt_lookup_min: {shortest} is larger than prompt_lookup_max: {longest}"
            )
        choice("match", self.match, ("recent", "earliest"))
        flag("cyclic", self.cyclic)

    @property
    def bounds(self) -> tuple[int, int]:
        """The shortest and the longest n-gram that is looked up."""
        return self.prompt_lookup_min or 0, self.prompt_lookup_max or 0

    def describe(self) -> str:
        """The values in effect, for people."""
        shortest, longest = self.bounds
        cyclic = "cyclic" if self.cyclic else "not cyclic"
        return f"lookup {shortest} to {longest}, {self.match} match, {cyclic}"


def index_class() -> Any:
    """The index over the C++ extension, or its Python form where that was not built."""
    try:
        from wager._native import NgramIndex
    except ImportError:
        from wager.drafters.ngram_index import NgramIndex
    return NgramIndex


class NgramDrafter:
    """Copies what followed the last n tokens when they last occurred.

    Where the copy runs into the end of the text, ``cyclic`` goes on as if the text continued with
    the draft itself, so that a text of period p drafts all that is asked for; without it the draft
    ends there. A drafter knows no end tokens: a draft may hold one, and tokens behind it; the
    verifier commits nothing after an end token.

    The index is incremental: observing costs amortised O(1) per token (with ``match: recent`` at
    most one write more per n in range), proposing O(limit), in memory linear in the text.
    """

    Options = NgramOptions
    needs = DrafterNeeds()

    def __init__(self, config: MethodConfig, vocab_size: int) -> None:
        options: NgramOptions = config.options
        self._index = index_class()(*options.bounds, options.match == "recent", options.cyclic)

    def attach(self, host: DraftHost) -> None:
        """Token ids are all it needs."""

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """Index the prompt. Nothing is learnt across requests, so tenants need no care."""
        self._index.observe(request, prompt)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query; ``match_length`` is n.

        Raises ValueError if a query's length is not the number of tokens observed: the history was
        replaced without a release, or has grown unseen.
        """
        found = self._index.propose(
            [q.request for q in queries], [q.length for q in queries], [q.limit for q in queries]
        )
        return [Draft(tokens, SOURCE, n) if tokens else NO_DRAFT for tokens, n in found]

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Append a commit. Raises ValueError on a negative id."""
        self._index.observe(request, tokens)

    def release(self, request: int) -> None:
        """Forget a request and free its index."""
        self._index.release(request)

    def clear(self) -> None:
        """Forget all requests; nothing is learnt across them."""
        self._index.clear()
