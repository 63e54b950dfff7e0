"""Drafting by what most often followed: in this request, and in answers to past ones.

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024.
The contexts are the last 1, 2, ... tokens of the text. For each of them that occurred before, the
walk along the most frequent next token gives a draft: at most ``factor`` * length of the context +
offset tokens, for as long as its probability (the product of the shares of the counts) is at least
``min_token_prob``. The draft whose tokens' probabilities sum highest is proposed: that sum is the
number of tokens it expects to get right. So a long match drafts far, and a short or ambiguous one
hardly at all.

Keys and defaults are vLLM's. Where it differs from arctic-inference, which vLLM uses: a token's
probability is its share among the tokens that followed (there the text's own end counts as an
occurrence too), and past answers are dropped half at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wager.checks import real, whole
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.drafters.memory_options import KEY, MemoryOptions
from wager.errors import ConfigError
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, Draft

if TYPE_CHECKING:
    from wager.drafters.remember import LiveMemory

SOURCE: Final = "suffix"
PAST_SOURCE: Final = "suffix (past answers)"
MAX_DEPTH: Final = 1024
MAX_REQUESTS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SuffixOptions(MemoryOptions):
    """Keys of ``suffix``. ``suffix_decoding_max_cached_requests`` 0 keeps no past answers.

    ``suffix_decoding_max_bytes``, wager's own, bounds the memory of past answers.
    """

    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_max_spec_offset: float = 0.0
    suffix_decoding_min_token_prob: float = 0.1
    suffix_decoding_max_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        stem = "suffix_decoding_"
        depth, requests = f"{stem}max_tree_depth", f"{stem}max_cached_requests"
        whole(depth, self.suffix_decoding_max_tree_depth, 1, MAX_DEPTH)
        whole(requests, self.suffix_decoding_max_cached_requests, 0, MAX_REQUESTS)
        whole(f"{stem}max_bytes", self.suffix_decoding_max_bytes, 0, 1 << 50)
        for name in ("max_spec_factor", "max_spec_offset"):
            real(f"{stem}{name}", getattr(self, f"{stem}{name}"), 0.0, 1e6)
        real(f"{stem}min_token_prob", self.suffix_decoding_min_token_prob, 0.0, 1.0)
        MemoryOptions.__post_init__(self)
        for name in ("max_cached_requests", "max_bytes"):
            if self.draft_memory is not None and not getattr(self, f"{stem}{name}"):
                raise ConfigError(f"{KEY}: {stem}{name} 0 keeps no past answers; leave out either")

    def describe(self) -> str:
        """The values in effect, for people."""
        parts = [
            f"depth {self.suffix_decoding_max_tree_depth}",
            f"at most {self.suffix_decoding_max_spec_factor:g} tokens per token matched",
            f"probability at least {self.suffix_decoding_min_token_prob:g}",
        ]
        kept = self.suffix_decoding_max_cached_requests
        parts.append(f"{kept} past answers" if kept else "no past answers")
        parts.append(self.described())
        return ", ".join(filter(None, parts))


def index_class() -> Any:
    """The index over the C++ extension, or its Python form where that was not built."""
    try:
        from wager._native import SuffixIndex
    except ImportError:
        from wager.drafters.suffix_index import SuffixIndex
    return SuffixIndex


class SuffixDrafter:
    """Proposes the most frequent continuation. Tenants share no past answers.

    Observing costs O(depth) per token, proposing O(depth * draft), each a few hash lookups; memory
    is linear in the text.
    """

    Options = SuffixOptions
    needs = DrafterNeeds()

    def __init__(self, config: MethodConfig, vocab_size: int) -> None:
        options: SuffixOptions = config.options
        self._options = options
        self._vocab_size = vocab_size
        self._memory: LiveMemory | None = None
        if options.draft_memory is not None:
            self.needs = DrafterNeeds(host=True)
        self._index = index_class()(
            options.suffix_decoding_max_tree_depth,
            options.suffix_decoding_max_cached_requests,
            float(options.suffix_decoding_max_spec_factor),
            float(options.suffix_decoding_max_spec_offset),
            float(options.suffix_decoding_min_token_prob),
            options.suffix_decoding_max_bytes,
        )

    def attach(self, host: DraftHost) -> None:
        """Load the draft memory. Raises ConfigError where its file could not even be made."""
        from wager.drafters.remember import LiveMemory

        self._memory = LiveMemory(self._options, host, self._vocab_size)
        self._load(self._memory)

    def _load(self, memory: LiveMemory) -> None:
        half = (self._options.suffix_decoding_max_cached_requests + 1) // 2
        # One more, and the index would drop the older half.
        for tenant, answer in memory.load(2 * half - 1):
            self._index.learn(answer, tenant)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query; ``match_length`` is the length of its context.

        Raises ValueError if a query's length is not the number of tokens observed.
        """
        found = self._index.propose(
            [q.request for q in queries], [q.length for q in queries], [q.limit for q in queries]
        )
        return [
            Draft(tokens, PAST_SOURCE if past else SOURCE, match) if tokens else NO_DRAFT
            for tokens, match, past, _ in found
        ]

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """Index the prompt; only answers of this tenant will be looked at."""
        if self._memory is not None:
            tenant = self._memory.start(request, tenant)
        self._index.start(request, prompt, tenant)

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Append a commit. Raises ValueError on a negative id."""
        self._index.observe(request, tokens)
        if self._memory is not None:
            self._memory.observe(request, tokens)

    def release(self, request: int) -> None:
        """Forget a request and keep its answer."""
        self._index.release(request)
        if self._memory is not None:
            self._memory.release(request)

    def clear(self) -> None:
        """Forget all requests, and all past answers but those that the draft memory holds."""
        if self._memory is not None and self._memory.fresh:
            return
        self._index.clear()
        if self._memory is not None:
            self._memory.clear()
            self._load(self._memory)

    def close(self) -> None:
        """Write the draft memory."""
        if self._memory is not None:
            self._memory.close()
