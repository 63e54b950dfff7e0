"""Drafting by looking the text's own tail up in the text: no model, no training.

Saxena, "Prompt Lookup Decoding", 2023; also LLMA (Yang et al., 2023). Of the suffixes of the text
with prompt_lookup_min to prompt_lookup_max tokens, the longest that occurs earlier counts; the
draft is what followed it there. An earlier occurrence is any that ends before the text does; it may
overlap the suffix. Of several, ``match: recent`` takes the one that ends last, ``earliest`` the one
that ends first (the order of vLLM's CPU drafter).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wager.config import SpeculationConfig
from wager.drafters.base import DrafterNeeds, DraftQuery
from wager.types import NO_DRAFT, Draft

SOURCE: Final = "ngram"


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

    needs = DrafterNeeds()

    def __init__(self, config: SpeculationConfig, vocab_size: int) -> None:
        self._index = index_class()(
            config.prompt_lookup_min,
            config.prompt_lookup_max,
            config.match == "recent",
            config.cyclic,
        )

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
        """Append the prompt, then each commit. Raises ValueError on a negative id."""
        self._index.observe(request, tokens)

    def release(self, request: int) -> None:
        """Forget a request and free its index."""
        self._index.release(request)

    def clear(self) -> None:
        """Forget all requests; nothing is learnt across them."""
        self._index.clear()
