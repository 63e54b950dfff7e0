"""Draft memory on disk: what comes back, what is refused, and what is found in it."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drafters.test_suffix import followers, most_frequent
from wager.drafters import memory, suffix_index
from wager.drafters.memory import DraftMemory, UnusableMemory, merged, read, save, tenant_id, write
from wager.drafters.memory_options import MAX_BYTES, MIN_BYTES, MemoryOptions
from wager.engine.drafting import Drafters
from wager.errors import ConfigError
from wager.models import paths
from wager.speculation import SpeculationConfig

try:
    from wager._native import SuffixIndex as NativeIndex
except ImportError:
    NativeIndex = None

HASH = hashlib.sha256(b"a tokenizer").hexdigest()
OTHER = hashlib.sha256(b"another tokenizer").hexdigest()
ONE, TWO = tenant_id("one"), tenant_id("two")
BLANK = DraftMemory(HASH, 1000)
ANSWERS = [(ONE, [1, 2, 3]), (TWO, [999]), (ONE, [4, 0, 5, 6])]


def told(found: DraftMemory | None) -> list[tuple[bytes, list[int]]]:
    assert found is not None
    return [(tenant, list(tokens)) for tenant, tokens in found.answers()]


# The file


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    assert read(path) is None
    before = int(time.time())
    save(path, BLANK, ANSWERS)
    found = read(path, HASH, 1000)
    assert told(found) == ANSWERS
    assert found is not None
    assert (found.tokenizer, found.vocab_size, found.max_bytes) == (HASH, 1000, 16_000_000)
    assert before <= found.saved <= time.time()
    assert found.nbytes == path.stat().st_size == 112 + 2 * 32 + 3 * 8 + 8 * 4
    assert found.by_tenant() == [(ONE, 2, 7), (TWO, 1, 1)]
    assert list(found.answers(2)) == ANSWERS[1:]


def test_the_file_is_its_owners_alone_and_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    old = os.umask(0)
    try:
        save(path, BLANK, [(tenant_id("alice@example.org"), [7, 8])])
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("memory.lock").stat().st_mode) == 0o600
    assert b"alice" not in path.read_bytes()
    # A domain of its own: the plain SHA-256 of the name is not there either.
    assert hashlib.sha256(b"alice@example.org").digest() not in path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.lists(
            st.tuples(st.sampled_from([ONE, TWO, tenant_id("")]),
                      st.lists(st.integers(0, 999), max_size=400)),
            max_size=6,
        ),
        max_size=6,
    ),
    bound=st.integers(MIN_BYTES, 3 * MIN_BYTES),
)  # fmt: skip
def test_the_newest_answers_that_fit_are_kept(
    parts: list[list[tuple[bytes, list[int]]]], bound: int
) -> None:
    found = DraftMemory(HASH, 1000, bound)
    for part in parts:
        found = merged(found, part)
        assert found.nbytes <= bound
        assert set(found.tenants) == {tenant for tenant, _ in told(found)}
    every = [(t, a) for part in parts for t, a in part if a]
    kept = told(found)
    assert kept == every[len(every) - len(kept) :]
    if len(kept) < len(every):
        # There was no room for one more, which has 400 tokens at most.
        assert found.nbytes > bound - 32 - 8 - 4 * 400


def test_answers_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_ANSWERS", 3)
    found = BLANK
    for number in range(5):
        found = merged(found, [(ONE if number < 3 else TWO, [number])])
    assert told(found) == [(ONE, [2]), (TWO, [3]), (TWO, [4])]


def test_what_cannot_fit_alone_pushes_nothing_out() -> None:
    found = merged(DraftMemory(HASH, 1000, MIN_BYTES), ANSWERS)
    assert told(merged(found, [(ONE, [1] * 2000), (ONE, [])])) == ANSWERS


@pytest.mark.parametrize("token", [-1, 1000, 1 << 40])
def test_tokens_outside_the_vocabulary_are_not_taken(token: int) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary of 1000"):
        merged(BLANK, [(ONE, [3, token])])


def packed(
    body: bytes, counts: tuple[int, int, int], *, version: int = 1, bound: int = 16_000_000,
    saved: int = 0,
) -> bytes:  # fmt: skip
    """A file with a right checksum, whatever it says. Counts are of tokens, tenants, answers."""
    head = struct.pack(
        "<8sII32sQQQII", b"WAGERMEM", version, 1000, bytes.fromhex(HASH), saved, bound, *counts
    )
    return head + hashlib.sha256(head + body).digest() + body


def entries(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<II", *pair) for pair in pairs)


def ids(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda d: b"", "is empty"),
    "another file": (lambda d: b"GGUF" + d[4:], "is no draft memory"),
    "text": (lambda d: b"hi", "is no draft memory"),
    "truncated header": (lambda d: d[:60], "ends within its header, after 60 bytes"),
    "truncated body": (lambda d: d[:-5], "bytes, but its header tells of"),
    "header alone": (lambda d: d[:112], "bytes, but its header tells of"),
    "more behind it": (lambda d: d + b"\0\0\0\0", "bytes, but its header tells of"),
    "magic flipped": (lambda d: flipped(d, 3), "is no draft memory"),
    "newer version": (lambda d: packed(b"", (0, 0, 0), version=2), "is of format 2, of a newer"),
    "older version": (lambda d: packed(b"", (0, 0, 0), version=0), "is of format 0;"),
    "byte of the header": (lambda d: flipped(d, 20), "its checksum is wrong"),
    "byte of the checksum": (lambda d: flipped(d, 100), "its checksum is wrong"),
    "byte of the body": (lambda d: flipped(d, 150), "its checksum is wrong"),
    "last byte": (lambda d: flipped(d, len(d) - 1), "its checksum is wrong"),
    "counts beyond the file": (lambda d: packed(ONE, (1 << 61, 1, 0)), "its header tells of"),
    "fewer tokens than lengths": (
        lambda d: packed(ONE + entries((0, 3)) + ids(1, 2), (2, 1, 1)), "the lengths of its answers"
    ),
    "lengths that overflow": (
        lambda d: packed(ONE + entries((0, 2**32 - 1), (0, 3)) + ids(1, 2), (2, 1, 2)),
        "the lengths of its answers",
    ),
    "an answer of nothing": (
        lambda d: packed(ONE + entries((0, 0), (0, 2)) + ids(1, 2), (2, 1, 2)),
        "the lengths of its answers",
    ),
    "a tenant that is not there": (
        lambda d: packed(ONE + entries((1, 2)) + ids(1, 2), (2, 1, 1)), "tenant 1 is not among 1"
    ),
    "a tenant twice": (
        lambda d: packed(ONE + ONE + entries((1, 2)) + ids(1, 2), (2, 2, 1)), "is there twice"
    ),
    "tokens without answers": (
        lambda d: packed(ONE + ids(1, 2), (2, 1, 0)), "the lengths of its answers"
    ),
    "an impossible bound": (lambda d: packed(b"", (0, 0, 0), bound=7), "its bound is 7 bytes"),
    "an impossible time": (lambda d: packed(b"", (0, 0, 0), saved=1 << 60), "it was written at"),
    "a token outside": (
        lambda d: packed(ONE + entries((0, 2)) + ids(1, 1000), (2, 1, 1)),
        "holds token 1000, outside the vocabulary of 1000",
    ),
}  # fmt: skip


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    write(path, merged(BLANK, ANSWERS))
    return path


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_wrong_file_is_refused_with_the_reason(kind: str, sound: Path) -> None:
    damage, reason = DAMAGE[kind]
    sound.write_bytes(damage(sound.read_bytes()))
    with pytest.raises(UnusableMemory, match=reason) as caught:
        read(sound)
    assert str(caught.value).startswith(f"draft_memory: {sound} ")
    # And it is not written over.
    before = sound.read_bytes()
    with pytest.raises(UnusableMemory):
        save(sound, BLANK, ANSWERS)
    assert sound.read_bytes() == before


def test_what_is_no_file_or_not_this_models_is_refused(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(UnusableMemory, match=f"another tokenizer, {HASH[:12]}; .* {OTHER[:12]}"):
        read(sound, OTHER)
    with pytest.raises(UnusableMemory, match="token 999, outside the vocabulary of 900"):
        read(sound, HASH, 900)
    with pytest.raises(UnusableMemory, match="is not a file"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnusableMemory, match="is not a file"):
        read(tmp_path / "pipe")
    with pytest.raises(UnusableMemory, match="cannot be read"):
        read(sound / "below")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_damage_goes_unseen(data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "memory"
    write(path, merged(BLANK, ANSWERS))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    for damaged in (whole[:cut], whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(UnusableMemory):
            read(path)


def test_a_crash_while_writing_leaves_the_old_file(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sound.read_bytes()

    def crash(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paths.os, "fsync", crash)
    with pytest.raises(OSError, match="No space left"):
        save(sound, BLANK, [(TWO, [5, 5, 5])])
    assert sound.read_bytes() == before
    assert sorted(p.name for p in sound.parent.iterdir()) == ["memory", "memory.lock"]


def test_ids_of_a_file_are_plain_numbers(sound: Path) -> None:
    found = read(sound)
    assert found is not None
    assert found.tokens.dtype == np.uint32
    assert all(type(t) is int for _, tokens in found.answers() for t in tokens)


def test_random_files_come_back_whole(tmp_path: Path) -> None:
    rng = random.Random(4)
    answers = [
        (tenant_id(str(rng.randrange(9))), [rng.randrange(1000) for _ in range(rng.randint(1, 99))])
        for _ in range(300)
    ]
    save(tmp_path / "memory", BLANK, answers[:200])
    save(tmp_path / "memory", BLANK, answers[200:])
    assert told(read(tmp_path / "memory")) == answers


WRITER = """
import sys
from pathlib import Path
from wager.drafters.memory import DraftMemory, save, tenant_id
path, tokenizer, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(first, first + 60):
    save(path, DraftMemory(tokenizer, 1000), [(tenant_id(str(first)), [number, number])])
"""


def test_processes_that_write_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), HASH, str(first)])
        for first in (0, 300, 600)
    ]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    found = told(read(path, HASH, 1000))
    for first in (0, 300, 600):
        own = [tokens for tenant, tokens in found if tenant == tenant_id(str(first))]
        assert own == [[n, n] for n in range(first, first + 60)]


def test_a_lock_that_is_never_given_back_is_an_error(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LOCK_SECONDS", 0.05)
    before = sound.read_bytes()
    with memory._locked(sound), pytest.raises(TimeoutError, match="held by another process"):
        save(sound, BLANK, ANSWERS)
    assert sound.read_bytes() == before


# Options


@pytest.mark.parametrize("method", ["suffix", "ngram"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"draft_memory": ""}, "^draft_memory: "),
        ({"draft_memory": 3}, "^draft_memory: "),
        ({"draft_memory": "a\0b"}, "^draft_memory: "),
        ({"draft_memory_size": 1 << 20}, "^draft_memory_size: .* none is named"),
        ({"draft_memory_read_only": True}, "^draft_memory_read_only: .* none is named"),
        ({"draft_memory": "x", "draft_memory_read_only": 1}, "^draft_memory_read_only: "),
        ({"draft_memory": "x", "draft_memory_size": MIN_BYTES - 1}, "^draft_memory_size: "),
        ({"draft_memory": "x", "draft_memory_size": MAX_BYTES + 1}, "^draft_memory_size: "),
        ({"draft_memory": "x", "draft_memory_size": "256"}, "^draft_memory_size: "),
        ({"draft_memory": "x", "draft_memory_size": 1e6}, "^draft_memory_size: "),
        ({"draft_memory": "x", "draft_memory_size": "1MB", "draft_memory_read_only": True},
         "^draft_memory_size: "),
    ],
)  # fmt: skip
def test_bad_keys_are_refused_by_name(method: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SpeculationConfig.of(method, 4, **options)


@pytest.mark.parametrize("bound", ["max_cached_requests", "max_bytes"])
def test_a_memory_beside_none_is_refused(bound: str) -> None:
    key = f"suffix_decoding_{bound}"
    with pytest.raises(ConfigError, match=f"^draft_memory: {key} 0 keeps no past answers"):
        SpeculationConfig.of("suffix", 4, draft_memory="x", **{key: 0})


@pytest.mark.parametrize("method", ["ngram_gpu", "draft_model"])
def test_methods_without_one_know_no_such_key(method: str) -> None:
    with pytest.raises(ConfigError, match="unknown key 'draft_memory'"):
        SpeculationConfig.of(method, 4, draft_memory="x")


def test_sizes_as_people_write_them() -> None:
    config = SpeculationConfig.of("ngram", 4, draft_memory="x", draft_memory_size="256MB")
    assert config.methods[0].options.max_bytes == 256_000_000
    assert config.describe().endswith("cyclic, memory x")
    assert MemoryOptions(draft_memory="x").max_bytes is None


def test_without_an_engine_there_is_none() -> None:
    config = SpeculationConfig.of("suffix", 4, draft_memory="x")
    with pytest.raises(ConfigError, match="'suffix' has a memory on disk"):
        Drafters.create(config, 100)
    assert not Drafters.create(SpeculationConfig.of("suffix", 4), 100).needs_blocks


# Looking up


def by_definition(
    texts: Sequence[Sequence[int]], end: Sequence[int], low: int, high: int, limit: int
) -> tuple[tuple[int, ...], int]:
    for length in range(min(high, len(end)), low - 1, -1):
        context, draft = list(end[len(end) - length :]), []
        while len(draft) < limit and (found := followers(texts, context)):
            token, _ = most_frequent(found)
            draft.append(token)
            context = [*context, token][-high:]
        if draft:
            return tuple(draft), length
    return (), 0


FORMS = [suffix_index.SuffixIndex] + ([NativeIndex] if NativeIndex else [])


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=5),
    end=st.lists(st.integers(0, 2), max_size=8),
    low=st.integers(1, 4),
    more=st.integers(0, 4),
    limit=st.integers(1, 8),
)
def test_the_longest_end_and_what_most_often_followed(
    texts: list[list[int]], end: list[int], low: int, more: int, limit: int
) -> None:
    for form in FORMS:
        index = form(low + more + 1, 1_000_000, 0.0, 0.0, 0.0, 1 << 40)
        for text in texts:
            index.learn(text, "one")
        index.learn([0, 1, 2] * 9, "two")
        found = index.look_up(end, "one", low, limit)
        assert (tuple(found[0]), found[1]) == by_definition(texts, end, low, low + more, limit)
        assert index.look_up(end, "three", low, limit) == ((), 0)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__module__)
def test_of_two_generations_the_longer_context_counts(form: Callable[..., Any]) -> None:
    index = form(4, 4, 0.0, 0.0, 0.0, 1 << 40)
    index.learn([1, 2, 3, 4], "")
    index.learn([8], "")  # the two are the older generation now
    index.learn([9, 3, 5], "")
    assert index.look_up([1, 2, 3], "", 1, 9) == ((4,), 3)
    assert index.look_up([7, 7, 3], "", 1, 9) == ((5,), 1)
    with pytest.raises(ValueError, match="shortest must be at least 1"):
        index.look_up([1], "", 0, 9)
