"""Paged KV: who owns which block, which blocks hold a known prefix, which may be taken.

Knows block ids, token ids and hashes; the numbers in the blocks belong to the op set. A block is in
exactly one of three places:

    in use      references > 0, in the table of one sequence or of several (a shared prefix)
    kept        no references, but its content is still findable by its hash (prefix cache)
    free        no references, no content

Taking a block prefers *free* ones and then forgets the *kept* one that was released longest ago.
Only full blocks of committed tokens are ever findable, so a refused draft is never reused.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from wager.ops.base import BLOCK

_ROOT: Final = b"wager kv v1\0"


def root_hash(salt: str) -> bytes:
    """Start of the chain; requests with different ``cache_salt`` share no block."""
    return sha256(_ROOT + salt.encode()).digest()


def block_hash(previous: bytes, tokens: Sequence[int]) -> bytes:
    """SHA-256 of the chain so far and of the BLOCK token ids of one block.

    Cryptographic, since a collision would hand one tenant's keys and values to another.
    """
    return sha256(previous + array("q", tokens).tobytes()).digest()


def blocks_for(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // BLOCK)


class BlockPool:
    """Reference-counted blocks with a prefix cache."""

    def __init__(self, blocks: int, prefix_cache: bool = True) -> None:
        self.blocks = blocks
        self.prefix_cache = prefix_cache
        # A number that is new each time a block is taken, never that of another block: what others
        # keep under an id is stale when it changes.
        self.versions = [0] * blocks
        self._takes = 0
        self._references = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken now, kept ones included."""
        return len(self._free) + len(self._kept)

    @property
    def in_use(self) -> int:
        return self.blocks - self.available

    def take(self, count: int) -> list[int] | None:
        """``count`` blocks with one reference each, or None (and nothing taken) if too few."""
        if count > self.available:
            return None
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._kept.popitem(last=False)
                self._forget(block)
            self._references[block] = 1
            self._takes += 1
            self.versions[block] = self._takes
            taken.append(block)
        return taken

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Take the longest cached run of blocks for a chain of hashes (references + 1 each)."""
        found: list[int] = []
        if not self.prefix_cache:
            return found
        for value in hashes:
            block = self._block_of.get(value)
            if block is None:
                break
            if self._references[block] == 0:
                del self._kept[block]
            self._references[block] += 1
            found.append(block)
        return found

    def publish(self, block: int, value: bytes) -> None:
        """Make a full block of committed tokens findable; the first with a hash wins."""
        if self.prefix_cache and value not in self._block_of and block not in self._hash_of:
            self._block_of[value] = block
            self._hash_of[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference of each block of a table.

        The end of the table is released first, so that the end of a prefix is forgotten before its
        start: a chain without its start cannot be found.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._kept[block] = None
                else:
                    self._free.append(block)

    def clear_cache(self) -> None:
        """Forget every cached prefix; blocks in use stay, but are no longer findable."""
        self._free.extend(self._kept)
        self._kept.clear()
        self._hash_of.clear()
        self._block_of.clear()

    def resize(self, blocks: int) -> None:
        """Have another number of blocks, and nothing cached. Only while none is in use."""
        if self.in_use:
            raise AssertionError(f"{self.in_use} blocks are in use")
        self.clear_cache()
        self.blocks = blocks
        self.versions[:] = [0] * blocks
        self._references = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))

    def _forget(self, block: int) -> None:
        del self._block_of[self._hash_of.pop(block)]

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the books agree with the tables of all sequences."""
        expected = [0] * self.blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise AssertionError(f"a block occurs twice in one table: {table}")
            for block in table:
                expected[block] += 1
        if expected != self._references:
            wrong = [b for b in range(self.blocks) if expected[b] != self._references[b]]
            raise AssertionError(f"references of blocks {wrong[:8]} do not match the tables")
        idle = [b for b in range(self.blocks) if expected[b] == 0]
        if sorted([*self._free, *self._kept]) != idle:
            raise AssertionError("the free and kept lists are not the blocks without references")
        if {h: b for b, h in self._hash_of.items()} != self._block_of:
            raise AssertionError("the hash maps are not inverse to each other")
        if any(b not in self._hash_of for b in self._kept):
            raise AssertionError("a kept block has no hash")
        if any(b in self._hash_of for b in self._free):
            raise AssertionError("a free block is still findable")


class BlockTable:
    """The blocks of one sequence, by logical position, and the hash chain of its full blocks."""

    def __init__(self, pool: BlockPool, salt: str) -> None:
        self.pool = pool
        self.blocks: list[int] = []
        # How often everything was given back: blocks stay where they are in between.
        self.epoch = 0
        self._root = root_hash(salt)
        self._hashes: list[bytes] = []
        self._published = 0

    def reuse_prefix(self, tokens: Sequence[int]) -> int:
        """Fill an empty table from the cache; returns the number of tokens found.

        The last token is never taken from the cache: its logits are needed.
        """
        full = (len(tokens) - 1) // BLOCK
        self._extend_hashes(tokens, full)
        self.blocks = self.pool.find(self._hashes[:full])
        self._published = len(self.blocks)
        return len(self.blocks) * BLOCK

    def grow(self, tokens: int) -> bool:
        """Make room for this many tokens in all; False (nothing taken) if the pool is short."""
        missing = blocks_for(tokens) - len(self.blocks)
        if missing <= 0:
            return True
        taken = self.pool.take(missing)
        if taken is None:
            return False
        self.blocks.extend(taken)
        return True

    def truncate(self, tokens: int) -> None:
        """Give back the blocks beyond this many tokens (refused drafts)."""
        keep = blocks_for(tokens)
        if keep < len(self.blocks):
            surplus = self.blocks[keep:]
            del self.blocks[keep:]
            self.pool.release(surplus)

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Make the blocks findable that ``computed`` committed tokens fill."""
        full = computed // BLOCK
        if full > self._published:
            self._extend_hashes(tokens, full)
            for index in range(self._published, full):
                self.pool.publish(self.blocks[index], self._hashes[index])
            self._published = full

    def release(self) -> None:
        """Give back everything; the hash chain stays known, the tokens have not changed."""
        self.pool.release(self.blocks)
        self.blocks = []
        self.epoch += 1
        self._published = 0

    def _extend_hashes(self, tokens: Sequence[int], count: int) -> None:
        while len(self._hashes) < count:
            start = len(self._hashes) * BLOCK
            previous = self._hashes[-1] if self._hashes else self._root
            self._hashes.append(block_hash(previous, tokens[start : start + BLOCK]))
