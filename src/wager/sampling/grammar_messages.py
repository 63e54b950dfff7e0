"""What the engine's process and those of its grammars say to each other: see `grammar_worker`."""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# What is asked, of a walk by its number, with tokens:
OPEN: Final = 0
"""Begin, behind these tokens."""
MASK: Final = 1
"""What may follow behind these, which are not taken in."""
TAKE: Final = 2
"""Go on behind this one."""
DROP: Final = 3
"""It is over. Without an answer."""
SCOUT: Final = 4
"""Fork one that answers on the second socket. Without an answer."""
# What is answered:
DONE: Final = b"\0"
ENDED: Final = b"\1"
"""The grammar is satisfied, and no text can follow."""
BITS: Final = b"\2"
"""One bit per token, the lowest first; none at all: nothing may follow."""
FAILED: Final = b"\3"
"""With the reason."""
GONE: Final = b"\4"
"""In place of an answer, by the process that forked it: this one has ended."""
LIMITED: Final = b"\1"
"""Behind `GONE`: at one of its limits."""

_HEAD: Final = struct.Struct("<BI")
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one grammar's process, for all its walks together. ``lexer_states`` take 1 to 2 kB each.
    Seconds are of processor time: to compile; what may be saved up; and what each question adds.
    ``memory`` is in bytes."""

    lexer_states: int = 20_000
    grammar_size: int = 200_000
    row_items: int = 8_000
    compile_s: float = 1.5
    burst_s: float = 0.3
    steady_s: float = 0.01
    memory: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer's tokens, with one set of end tokens; ``ends`` has at least one, which is beyond
    the ``size`` of the vocabulary where no token ends an answer."""

    size: int
    tokens: Sequence[bytes]
    special: Sequence[int]
    ends: Sequence[int]


def question(what: int, number: int, tokens: Iterable[int]) -> bytes:
    return _HEAD.pack(what, number) + array("i", tokens).tobytes()


def read_question(message: bytes) -> tuple[int, int, list[int]]:
    """What is asked, the number of the walk, and tokens."""
    return *_HEAD.unpack_from(message), array("i", message[_HEAD.size :]).tolist()


def send(link: socket.socket, message: bytes) -> None:
    link.sendall(_LENGTH.pack(len(message)) + message)


def receive(link: socket.socket) -> bytes:
    """The next message. Raises EOFError where the other side is gone."""
    return _exactly(link, _LENGTH.unpack(_exactly(link, _LENGTH.size))[0])


def _exactly(link: socket.socket, count: int) -> bytes:
    found = link.recv(count)
    while len(found) < count:
        more = link.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found
