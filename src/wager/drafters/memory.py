"""Past answers on disk: the file through which a drafter's memory outlives its process.

A file holds answers as token ids, oldest first, each with its tenant. Numbers are little-endian:

    header    magic, version, vocabulary, tokenizer, time, bound, counts, checksum     112 bytes
    tenants   a SHA-256 for each, never the name                                        32 bytes
    answers   the number of its tenant and its length, for each                          8 bytes
    tokens    of all answers, one answer behind the other                                4 bytes

The checksum is the SHA-256 of everything else. Nothing is believed before it is checked, and a file
that is wrong in anything is refused whole. Files are replaced at once, never changed in place, and
are their owner's alone (mode 0600): tokens are text.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wager.drafters.memory_options import MAX_BYTES, MIN_BYTES
from wager.errors import ConfigError
from wager.models.paths import replacing

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

Ids: TypeAlias = NDArray[np.uint32]
Answer: TypeAlias = tuple[bytes, Sequence[int]]
"""(`tenant_id`, token ids)."""

MAGIC: Final = b"WAGERMEM"
VERSION: Final = 1
DEFAULT_BYTES: Final = 16_000_000
MAX_ANSWERS: Final = 1 << 20
LOCK_SECONDS: Final = 10.0

# Magic, version, vocabulary size, tokenizer, seconds since 1970, bound in bytes, tokens, tenants,
# answers, checksum.
_HEADER: Final = struct.Struct("<8sII32sQQQII32s")
_CHECKSUM: Final = 32
_TENANT: Final = 32
_ENTRY: Final = np.dtype([("owner", "<u4"), ("length", "<u4")])
_TOKEN: Final = np.dtype("<u4")
_YEAR_9999: Final = 253_370_764_800
_DOMAIN: Final = b"wager draft memory, tenant\0"


class UnusableMemory(ConfigError):
    """A file that is no draft memory, or is damaged, or another tokenizer's; says which."""


def _no_ids() -> Ids:
    return np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class DraftMemory:
    """Answers of one tokenizer, oldest first.

    ``tokenizer`` is `Tokenizer.hash`. Answer i belongs to ``tenants[owners[i]]`` and has
    ``lengths[i]`` of ``tokens``; ``max_bytes`` bounds the file. ``saved`` is when it was last
    written, in seconds since 1970; 0: never.
    """

    tokenizer: str
    vocab_size: int
    max_bytes: int = DEFAULT_BYTES
    saved: int = 0
    tenants: tuple[bytes, ...] = ()
    owners: Ids = field(default_factory=_no_ids)
    lengths: Ids = field(default_factory=_no_ids)
    tokens: Ids = field(default_factory=_no_ids)

    @property
    def nbytes(self) -> int:
        """Of its file."""
        return _file_bytes(len(self.tenants), len(self.owners), len(self.tokens))

    def answers(self, most: int | None = None) -> Iterator[Answer]:
        """Oldest first; of more than ``most`` the newest ones."""
        first = 0 if most is None else max(0, len(self.owners) - most)
        start = int(self.lengths[:first].sum(dtype=np.int64))
        owners, lengths = self.owners[first:].tolist(), self.lengths[first:].tolist()
        for owner, length in zip(owners, lengths, strict=True):
            yield self.tenants[owner], self.tokens[start : start + length].tolist()
            start += length

    def by_tenant(self) -> list[tuple[bytes, int, int]]:
        """(tenant, answers, tokens) of each, most tokens first."""
        answers = np.bincount(self.owners, minlength=len(self.tenants))
        tokens = np.bincount(self.owners, weights=self.lengths, minlength=len(self.tenants))
        found = zip(self.tenants, answers.tolist(), tokens.astype(np.int64).tolist(), strict=True)
        return sorted(found, key=lambda row: (-row[2], row[0]))


def tenant_id(tenant: str) -> bytes:
    """What stands for a tenant in a file."""
    return hashlib.sha256(_DOMAIN + tenant.encode("utf-8", "surrogatepass")).digest()


def _file_bytes(tenants: int, answers: int, tokens: int) -> int:
    return _HEADER.size + _TENANT * tenants + _ENTRY.itemsize * answers + _TOKEN.itemsize * tokens


# Adding


def merged(memory: DraftMemory, learnt: Iterable[Answer]) -> DraftMemory:
    """The memory with newer answers; the oldest are dropped until all fit the bounds.

    An answer that is too long to fit alone is left out. Raises ValueError for a token outside the
    vocabulary.
    """
    room = memory.max_bytes - _file_bytes(1, 1, 0)
    fitting = [a for a in learnt if 0 < _TOKEN.itemsize * len(a[1]) <= room]
    numbers = {tenant: number for number, tenant in enumerate(memory.tenants)}
    owners = [numbers.setdefault(tenant, len(numbers)) for tenant, _ in fitting]
    added = [np.asarray(tokens, dtype=np.int64) for _, tokens in fitting]
    if any(a.min() < 0 or a.max() >= memory.vocab_size for a in added):
        raise ValueError(f"a token is outside the vocabulary of {memory.vocab_size}")
    grown = replace(
        memory,
        tenants=tuple(numbers),
        owners=np.concatenate([memory.owners, np.asarray(owners, np.uint32)]),
        lengths=np.concatenate([memory.lengths, np.asarray([len(a) for a in added], np.uint32)]),
        tokens=np.concatenate([memory.tokens, *(a.astype(np.uint32) for a in added)]),
    )
    return _newest(grown)


def _newest(memory: DraftMemory) -> DraftMemory:
    """As many of the newest answers as the bounds allow, and no tenant without one."""
    count = len(memory.owners)
    sizes = _ENTRY.itemsize + _TOKEN.itemsize * memory.lengths.astype(np.int64)
    # A tenant is in the file for as long as its newest answer is.
    newest = np.zeros(len(memory.tenants), np.int64)
    np.maximum.at(newest, memory.owners, np.arange(count))
    sizes[newest[np.unique(memory.owners)]] += _TENANT
    fit = np.searchsorted(np.cumsum(sizes[::-1]), memory.max_bytes - _HEADER.size, side="right")
    first = count - min(int(fit), MAX_ANSWERS)
    kept, owners = np.unique(memory.owners[first:], return_inverse=True)
    return replace(
        memory,
        tenants=tuple(memory.tenants[number] for number in kept),
        owners=owners.astype(np.uint32).reshape(-1),
        lengths=memory.lengths[first:],
        tokens=memory.tokens[int(memory.lengths[:first].sum(dtype=np.int64)) :],
    )


# Writing


def write(path: Path, memory: DraftMemory) -> None:
    """Replace the file at once; readers see the old one or the whole new one. Raises OSError."""
    entries = np.empty(len(memory.owners), _ENTRY)
    entries["owner"], entries["length"] = memory.owners, memory.lengths
    body = (b"".join(memory.tenants), entries.tobytes(), memory.tokens.astype(_TOKEN).tobytes())
    head = _HEADER.pack(
        MAGIC, VERSION, memory.vocab_size, bytes.fromhex(memory.tokenizer), int(time.time()),
        memory.max_bytes, len(memory.tokens), len(memory.tenants), len(memory.owners),
        bytes(_CHECKSUM),
    )[:-_CHECKSUM]  # fmt: skip
    digest = hashlib.sha256(head)
    for part in body:
        digest.update(part)
    # Its temporary file is the owner's alone from the start.
    with replacing(path) as file:
        for part in (head, digest.digest(), *body):
            file.write(part)


def save(
    path: Path, blank: DraftMemory, learnt: Iterable[Answer], max_bytes: int | None = None
) -> DraftMemory:
    """Add answers to a file; what others wrote meanwhile stays. Returns what it holds then.

    ``blank`` is the memory that a new file begins with; the file's own bound holds, unless
    ``max_bytes`` is given. Raises OSError, and UnusableMemory where what is there cannot be read
    (it is left as it is).
    """
    with _locked(path):
        there = read(path, blank.tokenizer, blank.vocab_size) or blank
        bound = there.max_bytes if max_bytes is None else max_bytes
        found = merged(replace(there, vocab_size=blank.vocab_size, max_bytes=bound), learnt)
        write(path, found)
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold FILE.lock; the system frees it when the process is gone. Raises TimeoutError.

    The lock is a file of its own, because the memory's own file is another one after each save.
    """
    side = path.with_name(f"{path.name}.lock")
    handle = os.open(side, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise TimeoutError(None, f"{side} is held by another process")
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


# Reading


def read(
    path: Path, tokenizer: str | None = None, vocab_size: int | None = None
) -> DraftMemory | None:
    """What a file holds; None where there is none.

    ``tokenizer`` and ``vocab_size`` are those that its tokens must be of; None takes any. Raises
    UnusableMemory with the reason.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _unusable(path, "is not a file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER.size)
            memory, counts = _read_header(path, head, size)
            body = file.read(size - len(head))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror or error}") from error
    digest = hashlib.sha256(head[:-_CHECKSUM])
    digest.update(body)
    if len(body) != size - len(head) or digest.digest() != head[-_CHECKSUM:]:
        raise _unusable(path, "is damaged: its checksum is wrong")
    memory = _read_body(path, memory, body, *counts)
    if tokenizer is not None and tokenizer != memory.tokenizer:
        raise _unusable(
            path,
            f"is of another tokenizer, {memory.tokenizer[:12]}; this model's is {tokenizer[:12]}",
        )
    _check_tokens(path, memory, vocab_size)
    return memory


def _read_header(path: Path, head: bytes, size: int) -> tuple[DraftMemory, tuple[int, int, int]]:
    """Without its answers; and how many tenants, answers and tokens the body must hold."""
    if not head:
        raise _unusable(path, "is empty")
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise _unusable(path, "is no draft memory: it begins otherwise")
    if len(head) < _HEADER.size:
        raise _unusable(path, f"ends within its header, after {len(head)} bytes")
    _, version, vocab_size, tokenizer, saved, bound, tokens, tenants, answers, _ = _HEADER.unpack(
        head
    )
    if version != VERSION:
        newer = ", of a newer wager" if version > VERSION else ""
        raise _unusable(path, f"is of format {version}{newer}; this wager reads format {VERSION}")
    told = _file_bytes(tenants, answers, tokens)
    if told != size:
        raise _unusable(path, f"has {size} bytes, but its header tells of {told}")
    if size > MAX_BYTES:
        raise _unusable(path, f"has {size} bytes, more than the {MAX_BYTES} that are read")
    memory = DraftMemory(tokenizer.hex(), vocab_size, bound, saved)
    return memory, (tenants, answers, tokens)


def _read_body(
    path: Path, memory: DraftMemory, body: bytes, tenants: int, answers: int, tokens: int
) -> DraftMemory:
    """The body has the size that these counts make."""
    at = _TENANT * tenants
    names = tuple(body[start : start + _TENANT] for start in range(0, at, _TENANT))
    entries = np.frombuffer(body, _ENTRY, answers, at)
    ids = np.frombuffer(body, _TOKEN, tokens, at + entries.nbytes)
    owners, lengths = entries["owner"].astype(np.uint32), entries["length"].astype(np.uint32)
    if not MIN_BYTES <= memory.max_bytes <= MAX_BYTES:
        raise _unusable(path, f"contradicts itself: its bound is {memory.max_bytes} bytes")
    if memory.saved > _YEAR_9999:
        raise _unusable(path, f"contradicts itself: it was written at {memory.saved}")
    if lengths.sum(dtype=np.uint64) != tokens or (answers and not lengths.min()):
        raise _unusable(path, "contradicts itself: the lengths of its answers are not its tokens")
    if answers and owners.max() >= tenants:
        raise _unusable(path, f"contradicts itself: tenant {owners.max()} is not among {tenants}")
    if len(set(names)) < tenants:
        raise _unusable(path, "contradicts itself: a tenant is there twice")
    ids = ids.astype(np.uint32, copy=False)
    return replace(memory, tenants=names, owners=owners, lengths=lengths, tokens=ids)


def _check_tokens(path: Path, memory: DraftMemory, vocab_size: int | None) -> None:
    size = memory.vocab_size if vocab_size is None else min(vocab_size, memory.vocab_size)
    if len(memory.tokens) and memory.tokens.max() >= size:
        raise _unusable(
            path, f"holds token {memory.tokens.max()}, outside the vocabulary of {size}"
        )


def _unusable(path: Path, reason: str) -> UnusableMemory:
    return UnusableMemory(f"draft_memory: {path} {reason}")
