"""Drafting by looking the text's own tail up in the text: no model, no training.

Saxena, "Prompt Lookup Decoding", 2023; also LLMA (Yang et al., 2023). Of the suffixes of the text
with prompt_lookup_min to prompt_lookup_max tokens, the longest that occurs earlier counts; the
draft is what followed it there. An earlier occurrence is any that ends before the text does; it may
overlap the suffix. Of several, ``match: recent`` takes the one that ends last, ``earliest`` the one
that ends first (the order of vLLM's CPU drafter).

With a draft memory, a text in which nothing matches is looked up among past answers: the longest of
the same suffixes that occurs there, and what most often followed it, token by token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from wager.checks import choice, flag, whole
from wager.drafters import suffix
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.drafters.memory_options import MemoryOptions
from wager.errors import ConfigError
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, Draft

if TYPE_CHECKING:
    from wager.drafters.remember import LiveMemory

SOURCE: Final = "ngram"
MEMORY_SOURCE: Final = "ngram (memory)"
# Of what is indexed of a draft memory.
MEMORY_BYTES: Final = 1 << 28
# The most recent match of long n-grams is kept current at a cost per token that grows with this.
MAX_LOOKUP: Final = 1024
_DEFAULT_LOOKUP: Final = 5


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """Keys of every n-gram method.

    As in vLLM, one lookup bound given alone is copied to the other, and 5 is taken for both when
    neither is given; made, the record holds both.
    """

    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    match: Literal["recent", "earliest"] = "recent"
    cyclic: bool = True

    def __post_init__(self) -> None:
        bounds = {name: getattr(self, name) for name in ("prompt_lookup_min", "prompt_lookup_max")}
        given = {name: value for name, value in bounds.items() if value is not None}
        for name, value in given.items():
            whole(name, value, 1, MAX_LOOKUP)
        other = next(iter(given.values()), _DEFAULT_LOOKUP)
        for name in bounds:
            object.__setattr__(self, name, given.get(name, other))
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


@dataclass(frozen=True, slots=True)
class NgramOptions(LookupOptions, MemoryOptions):
    """Keys of ``ngram``."""

    def __post_init__(self) -> None:
        LookupOptions.__post_init__(self)
        MemoryOptions.__post_init__(self)

    def describe(self) -> str:
        """The values in effect, for people."""
        return ", ".join(filter(None, (LookupOptions.describe(self), self.described())))


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
        self._options = options
        self._vocab_size = vocab_size
        self._index = index_class()(*options.bounds, options.match == "recent", options.cyclic)
        self._memory: _Memory | None = None
        if options.draft_memory is not None:
            self.needs = DrafterNeeds(host=True)

    def attach(self, host: DraftHost) -> None:
        """Load the draft memory. Raises ConfigError where its file could not even be made."""
        from wager.drafters.remember import LiveMemory

        live = LiveMemory(self._options, host, self._vocab_size)
        self._memory = _Memory(live, *self._options.bounds)

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """Index the prompt. Only what a draft memory holds is learnt across requests, by tenant."""
        self._index.observe(request, prompt)
        if self._memory is not None:
            self._memory.start(request, prompt, tenant)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query; ``match_length`` is n.

        Raises ValueError if a query's length is not the number of tokens observed: the history was
        replaced without a release, or has grown unseen.
        """
        found = self._index.propose(
            [q.request for q in queries], [q.length for q in queries], [q.limit for q in queries]
        )
        drafts = [Draft(tokens, SOURCE, n) if tokens else NO_DRAFT for tokens, n in found]
        if self._memory is not None:
            for i, query in enumerate(queries):
                if not drafts[i].tokens:
                    drafts[i] = self._memory.draft(query)
        return drafts

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Append a commit. Raises ValueError on a negative id."""
        self._index.observe(request, tokens)
        if self._memory is not None:
            self._memory.observe(request, tokens)

    def release(self, request: int) -> None:
        """Forget a request and free its index; a draft memory keeps its answer."""
        self._index.release(request)
        if self._memory is not None:
            self._memory.release(request)

    def clear(self) -> None:
        """Forget all requests, and what was learnt since the draft memory was loaded."""
        self._index.clear()
        if self._memory is not None:
            self._memory.clear()

    def close(self) -> None:
        """Write the draft memory."""
        if self._memory is not None:
            self._memory.close()


class _Memory:
    """Past answers, where the ends of running texts are looked up."""

    def __init__(self, live: LiveMemory, shortest: int, longest: int) -> None:
        self._live = live
        self._shortest, self._longest = shortest, longest
        # Counted as suffix decoding counts them; its rule of how far to draft is not used.
        bounds = (suffix.MAX_REQUESTS, 0.0, 0.0, 0.0, MEMORY_BYTES)
        self._index = suffix.index_class()(longest + 1, *bounds)
        self._ends: dict[int, tuple[str, deque[int]]] = {}
        self._load()

    def _load(self) -> None:
        for tenant, answer in self._live.load():
            self._index.learn(answer, tenant)

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        key = self._live.start(request, tenant)
        self._ends[request] = key, deque(prompt[-self._longest :], maxlen=self._longest)

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        self._live.observe(request, tokens)
        self._ends[request][1].extend(tokens)

    def draft(self, query: DraftQuery) -> Draft:
        tenant, end = self._ends[query.request]
        tokens, match = self._index.look_up(list(end), tenant, self._shortest, query.limit)
        return Draft(tokens, MEMORY_SOURCE, match) if tokens else NO_DRAFT

    def release(self, request: int) -> None:
        self._ends.pop(request, None)
        answer = self._live.release(request)
        if answer is not None:
            tenant, tokens = answer
            self._index.learn(tokens, tenant)

    def clear(self) -> None:
        self._ends.clear()
        if self._live.fresh:
            return
        self._live.clear()
        self._index.clear()
        self._load()

    def close(self) -> None:
        self._live.close()
