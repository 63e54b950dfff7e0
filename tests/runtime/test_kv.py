"""The block pool against a model of it, and what the prefix cache may and may not share."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wager.runtime.kv import BlockPool, BlockTable, block_hash, blocks_for, root_hash

PREFIX = list(range(100, 164))


class PoolMachine(RuleBasedStateMachine):
    """Random growth, truncation, sharing and release of tables: the books always agree."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.tables: list[tuple[BlockTable, list[int]]] = []

    @rule(variant=st.integers(0, 2), length=st.integers(1, 60), salt=st.sampled_from(["", "a"]))
    def start(self, variant: int, length: int, salt: str) -> None:
        tokens = [t + variant for t in PREFIX[:length]]
        table = BlockTable(self.pool, salt)
        found = table.reuse_prefix(tokens)
        assert found < len(tokens)
        assert found % 16 == 0
        if table.grow(len(tokens)):
            table.publish(tokens, len(tokens))
            self.tables.append((table, tokens))
        else:
            assert self.pool.available < blocks_for(len(tokens)) - found // 16
            table.release()

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), extra=st.integers(1, 20))
    def draft_and_refuse(self, data: st.DataObject, extra: int) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        held = len(table.blocks)
        if table.grow(len(tokens) + extra):
            table.truncate(len(tokens))
        assert len(table.blocks) == held

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, _ = self.tables.pop(index)
        table.release()

    @rule()
    def clear(self) -> None:
        self.pool.clear_cache()
        table = BlockTable(self.pool, "")
        assert table.reuse_prefix(PREFIX) == 0

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity(table.blocks for table, _ in self.tables)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def cached(pool: BlockPool, tokens: list[int], salt: str = "") -> None:
    table = BlockTable(pool, salt)
    assert table.grow(len(tokens))
    table.publish(tokens, len(tokens))
    table.release()


def test_a_prefix_is_found_by_full_blocks_and_never_the_last_token() -> None:
    pool = BlockPool(16)
    cached(pool, PREFIX[:48])
    for length, expected in [(49, 48), (48, 32), (47, 32), (33, 32), (32, 16), (17, 16), (16, 0)]:
        table = BlockTable(pool, "")
        assert table.reuse_prefix(PREFIX[:length]) == expected
        table.release()


def test_salts_share_nothing() -> None:
    pool = BlockPool(16)
    cached(pool, PREFIX[:48], salt="tenant a")
    assert BlockTable(pool, "tenant b").reuse_prefix(PREFIX[:48]) == 0
    assert BlockTable(pool, "").reuse_prefix(PREFIX[:48]) == 0
    assert BlockTable(pool, "tenant a").reuse_prefix(PREFIX[:48]) == 32


def test_a_hash_covers_everything_before_it() -> None:
    first = block_hash(root_hash(""), PREFIX[:16])
    other = block_hash(root_hash(""), [0, *PREFIX[1:16]])
    assert block_hash(first, PREFIX[16:32]) != block_hash(other, PREFIX[16:32])
    assert len(first) == 32


def test_kept_blocks_are_forgotten_oldest_first_and_ends_before_starts() -> None:
    pool = BlockPool(4)
    cached(pool, PREFIX[:32])
    cached(pool, [t + 1 for t in PREFIX[:32]])
    table = BlockTable(pool, "")
    assert table.grow(16)
    again = BlockTable(pool, "")
    assert again.reuse_prefix(PREFIX[:33]) == 16, "the end of the older chain went first"
    other = BlockTable(pool, "")
    assert other.reuse_prefix([t + 1 for t in PREFIX[:33]]) == 32


def test_nothing_is_taken_when_too_few_blocks_are_left() -> None:
    pool = BlockPool(3)
    assert pool.take(4) is None
    assert pool.available == 3
    blocks = pool.take(3)
    assert blocks is not None
    assert sorted(blocks) == [0, 1, 2]
    assert pool.take(1) is None


def test_the_integrity_check_sees_a_leak() -> None:
    pool = BlockPool(4)
    blocks = pool.take(2)
    assert blocks is not None
    pool.check_integrity([blocks])
    with pytest.raises(AssertionError, match="references"):
        pool.check_integrity([blocks[:1]])
    with pytest.raises(AssertionError, match="twice"):
        pool.check_integrity([[blocks[0], blocks[0]]])


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    pool = BlockPool(8, prefix_cache=False)
    cached(pool, PREFIX[:48])
    assert BlockTable(pool, "").reuse_prefix(PREFIX[:48]) == 0
    assert pool.available == 8


def test_a_version_is_new_with_each_taking_and_with_nothing_else() -> None:
    pool = BlockPool(3)
    assert pool.versions == [0, 0, 0]
    table = BlockTable(pool, "")
    assert table.grow(33)
    first = [pool.versions[block] for block in table.blocks]
    table.publish(PREFIX[:33], 32)
    blocks = list(table.blocks)
    table.release()
    again = BlockTable(pool, "")
    assert again.reuse_prefix(PREFIX[:33]) == 32
    assert [pool.versions[block] for block in blocks] == first
    # The third one is taken anew: its number is none that a block had before.
    assert again.grow(33)
    assert again.blocks == blocks
    assert pool.versions[blocks[2]] not in first
    assert [pool.versions[block] for block in blocks[:2]] == first[:2]
    assert len({*first, *pool.versions}) == 4


def test_a_table_keeps_its_epoch_until_it_gives_everything_back() -> None:
    pool = BlockPool(4)
    table = BlockTable(pool, "")
    assert table.grow(40)
    table.publish(PREFIX[:40], 32)
    table.truncate(20)
    assert table.grow(50)
    assert table.epoch == 0
    table.release()
    assert table.epoch == 1
    assert table.reuse_prefix(PREFIX[:40]) == 32
    assert table.epoch == 1


def test_a_pool_of_another_size_has_nothing_cached() -> None:
    pool = BlockPool(4)
    cached(pool, PREFIX[:48])
    versions, latest = pool.versions, max(pool.versions)
    for size in (2, 6):
        pool.resize(size)
        assert pool.versions is versions
        assert (pool.blocks, pool.available, len(versions)) == (size, size, size)
        table = BlockTable(pool, "")
        assert table.reuse_prefix(PREFIX[:48]) == 0
        assert pool.take(size + 1) is None
        assert table.grow(16 * size)
        assert min(versions) > latest
        pool.check_integrity([table.blocks])
        with pytest.raises(AssertionError, match="in use"):
            pool.resize(size + 1)
        latest = max(versions)
        table.release()
