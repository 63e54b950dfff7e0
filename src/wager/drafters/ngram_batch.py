"""n-gram lookup for a whole batch at once: arrays in, arrays out, no index.

The answers are those of ``wager.drafters.ngram`` (Saxena, "Prompt Lookup Decoding", 2023), where
the rule is explained. Instead of keeping an index current, each text is scanned: O(context) per
request and step, in one call, in a form that a device can run. It is registered under the name that
vLLM gives to its lookup on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.drafters.ngram import LookupOptions
from wager.ops.base import I32
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, Draft

SOURCE: Final = "ngram_gpu"


class Lookup(Protocol):
    """What `lookup` is, in whatever form."""

    def __call__(
        self,
        tokens: I32,
        lengths: I32,
        limits: I32,
        shortest: int,
        longest: int,
        recent: bool,
        cyclic: bool,
        k: int,
    ) -> tuple[I32, I32, I32]: ...


def lookup(
    tokens: I32,
    lengths: I32,
    limits: I32,
    shortest: int,
    longest: int,
    recent: bool,
    cyclic: bool,
    k: int,
) -> tuple[I32, I32, I32]:
    """Look the ends of B texts up in themselves.

    ``tokens`` [B, L] holds the texts, ``lengths`` [B] how many tokens of each row count, ``limits``
    [B] the most tokens to draft (0 to k; 0: the row is left out). Returns drafts [B, k], padded
    with -1, the number of tokens in each [B], and the length of the n-gram that matched, 0 for none
    [B]; all int32.

    This is the numpy form: one pass over the matrix per token of the longest match. Raises
    ValueError where a length, a limit or a lookup length is out of range.
    """
    rows, columns = tokens.shape
    if not 1 <= shortest <= longest:
        raise ValueError("lookup lengths must satisfy 1 <= min <= max")
    if np.any((lengths < 0) | (lengths > columns)):
        raise ValueError("a length is out of range")
    if np.any((limits < 0) | (limits > k)):
        raise ValueError("a limit is out of range")
    matches, ends = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    # equal[b, e]: the last n tokens of text b stand before e too, and end there.
    equal = (np.arange(columns) < lengths[:, None] - 1) & (limits[:, None] > 0)
    for n in range(1, min(longest, columns - 1) + 1):
        token = np.take_along_axis(tokens, np.maximum(lengths - n, 0)[:, None], axis=1)
        equal[:, : n - 1] = False
        equal[:, n - 1 :] &= tokens[:, : columns - n + 1] == token
        found = equal.any(axis=1)
        if not found.any():
            break
        if n >= shortest:
            first = columns - 1 - equal[:, ::-1].argmax(axis=1) if recent else equal.argmax(axis=1)
            ends[found], matches[found] = first[found], n
    return *_copies(tokens, lengths, limits, matches, ends + 1, cyclic, k), matches


def _copies(
    tokens: I32, lengths: I32, limits: I32, matches: I32, starts: I32, cyclic: bool, k: int
) -> tuple[I32, I32]:
    """What stands in the texts from ``starts`` on, where something matched: drafts, and counts."""
    if not matches.any():
        return np.full((len(tokens), k), -1, np.int32), np.zeros(len(tokens), np.int32)
    periods = np.maximum(lengths - starts, 1)
    counts = np.where(matches > 0, limits if cyclic else np.minimum(limits, periods), 0)
    steps = np.arange(k)
    places = starts[:, None] + steps % periods[:, None]
    found = np.take_along_axis(tokens, np.minimum(places, tokens.shape[1] - 1), axis=1)
    drafts = np.where(steps < counts[:, None], found, -1)
    return drafts.astype(np.int32), counts.astype(np.int32)


def lookup_form() -> Lookup:
    """`lookup` over the C++ extension, or the numpy form where that was not built.

    The compiled form goes through each text once, from its end, whatever the lookup lengths are. It
    takes C-contiguous int32 arrays only.
    """
    try:
        from wager._native import ngram_lookup
    except ImportError:
        return lookup

    def compiled(
        tokens: I32,
        lengths: I32,
        limits: I32,
        shortest: int,
        longest: int,
        recent: bool,
        cyclic: bool,
        k: int,
    ) -> tuple[I32, I32, I32]:
        rows = len(tokens)
        drafts = np.empty((rows, k), np.int32)
        counts, matches = np.empty(rows, np.int32), np.empty(rows, np.int32)
        ngram_lookup(
            tokens, lengths, limits, shortest, longest, recent, cyclic, drafts, counts, matches
        )
        return drafts, counts, matches

    return compiled


class TokenRows:
    """The texts of running requests as one matrix, a row each.

    ``tokens`` int32 [rows, columns] and ``lengths`` int32 [rows]; a row that no request has is of
    length 0. Both dimensions are powers of two, and after a release less than four times what the
    requests need. What was never written takes no memory on systems that allocate by the page.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.tokens: I32 = np.empty((0, 0), np.int32)
        self.lengths: I32 = np.zeros(0, np.int32)
        self._rows: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def bytes(self) -> int:
        return self.tokens.nbytes + self.lengths.nbytes

    def row(self, request: int, length: int) -> int:
        """Where its text is. Raises ValueError unless that has this many tokens."""
        row = self._rows.get(request)
        observed = 0 if row is None else int(self.lengths[row])
        if row is None or observed != length:
            raise ValueError(
                f"request {request}: observed {observed} tokens, asked at {length}; "
                "release it and observe its tokens anew"
            )
        return row

    def append(self, request: int, tokens: Sequence[int]) -> None:
        """To the text of a request, which is made if it is not there.

        Raises ValueError on a negative id; nothing is appended then.
        """
        least = min(tokens, default=0)
        if least < 0:
            raise ValueError(f"token id {least} is negative")
        rows, columns = self.tokens.shape
        if request not in self._rows:
            if not self._free:
                self._move(_room(rows + 1), columns)
            self._rows[request] = self._free.pop()
        size = int(self.lengths[self._rows[request]])
        end = size + len(tokens)
        if end > columns:
            self._move(len(self.tokens), _room(end))
        row = self._rows[request]
        self.tokens[row, size:end] = tokens
        self.lengths[row] = end

    def release(self, request: int) -> None:
        """Forget a text; an unknown one is ignored."""
        row = self._rows.pop(request, None)
        if row is None:
            return
        self.lengths[row] = 0
        self._free.append(row)
        rows, columns = self.tokens.shape
        longest = int(self.lengths.max())
        if 4 * len(self) <= rows or 4 * longest <= columns:
            self._move(_room(len(self)), _room(longest))

    def _move(self, rows: int, columns: int) -> None:
        """All texts to a matrix of this shape, where they have the first rows."""
        tokens, lengths = self.tokens, self.lengths
        self.tokens, self.lengths = np.empty((rows, columns), np.int32), np.zeros(rows, np.int32)
        for new, (request, old) in enumerate(self._rows.items()):
            size = self.lengths[new] = lengths[old]
            self.tokens[new, :size] = tokens[old, :size]
            self._rows[request] = new
        self._free = list(range(rows - 1, len(self._rows) - 1, -1))


def _room(needed: int) -> int:
    """The power of two that is enough; 0 for nothing."""
    return 1 << (needed - 1).bit_length() if needed else 0


class BatchedNgramDrafter:
    """Drafts as ``ngram`` does, with its keys, by one lookup for the whole batch.

    Observing costs O(1) per token, proposing O(context) per request; memory is the token ids.
    """

    Options = LookupOptions
    needs = DrafterNeeds()

    def __init__(self, config: MethodConfig, vocab_size: int) -> None:
        options: LookupOptions = config.options
        self._rule = (*options.bounds, options.match == "recent", options.cyclic)
        self._lookup = lookup_form()
        self._texts = TokenRows()

    def attach(self, host: DraftHost) -> None:
        """Token ids are all it needs."""

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """Keep the prompt. Nothing is learnt across requests, so tenants need no care."""
        self._texts.append(request, prompt)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query; ``match_length`` is n.

        Raises ValueError if a query's length is not the number of tokens observed.
        """
        if not queries:
            return []
        texts = self._texts
        rows = [texts.row(q.request, q.length) for q in queries]
        limits = np.zeros_like(texts.lengths)
        limits[rows] = [q.limit for q in queries]
        found = self._lookup(texts.tokens, texts.lengths, limits, *self._rule, int(limits.max()))
        drafts, counts, matches = (array.tolist() for array in found)
        return [
            Draft(tuple(drafts[r][: counts[r]]), SOURCE, matches[r]) if counts[r] else NO_DRAFT
            for r in rows
        ]

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Append a commit. Raises ValueError on a negative id."""
        self._texts.append(request, tokens)

    def release(self, request: int) -> None:
        """Forget a request; its row is for another one."""
        self._texts.release(request)

    def clear(self) -> None:
        """Forget all requests; nothing is learnt across them."""
        self._texts.clear()

    def close(self) -> None:
        """Nothing lasts."""
