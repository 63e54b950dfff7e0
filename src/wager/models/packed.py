"""Packed weights: made once, kept on disk, mapped at every later start.

They are written piece by piece into a mapped file, so that making them needs their own size and one
piece more, never the whole model in float32. The file gets its name when it is whole. It is used
only if it was made from these very files, for this weight type and this packing, and if its bytes
are those that were written; else it is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from wager.errors import CorruptFile, ModelError
from wager.models.checkpoint import Checkpoint, StoredTensor
from wager.models.paths import packed_dir, replacing
from wager.ops.base import F32, GROUP, PACK_ROWS, Bytes, OpSet
from wager.shape import ModelConfig, joined, layer_shapes, piece_shapes
from wager.types import WeightKind

_log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 8 << 20
"""float32 bytes that are dequantised and packed at a time."""
_MAGIC: Final = b"WAGERPK1"
_DATA_START: Final = 1 << 16
_ALIGNMENT: Final = 64
SUFFIX: Final = ".packed"


@dataclass(frozen=True, slots=True)
class Piece:
    """One matrix [n, k] or vector [n] of the packed file, and the tensors that make it, by rows.

    ``kind`` is how it is stored; vectors are f32.
    """

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    kind: WeightKind
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PackedFile:
    """What a packed file says about itself."""

    path: Path
    source: str
    weights: str
    nbytes: int


class PackedWeights:
    """Packed bytes of a whole model, mapped or in memory. Keeps what it hands out alive."""

    def __init__(self, data: Bytes, pieces: Mapping[str, Piece]) -> None:
        self._data = data
        self._pieces = pieces
        self.nbytes = sum(piece.nbytes for piece in pieces.values())

    def matrix(self, name: str, ops: OpSet) -> Any:
        """The op set's handle of a matrix."""
        piece = self._pieces[name]
        n, k = piece.shape
        return ops.matrix(self._bytes(piece), n, k, piece.kind)

    def has(self, name: str) -> bool:
        return name in self._pieces

    def vector(self, name: str) -> F32:
        """A float32 vector (a copy: they are small)."""
        return np.array(self._bytes(self._pieces[name]).view(np.float32))

    def _bytes(self, piece: Piece) -> Bytes:
        return self._data[piece.offset : piece.offset + piece.nbytes]


def load_packed(checkpoint: Checkpoint, ops: OpSet, kind: WeightKind) -> PackedWeights:
    """The packed weights of a model, from the cache or made now (and kept, where that works).

    Raises ModelError when a tensor cannot be read or is not finite.
    """
    pieces = plan(checkpoint.config, ops, kind)
    total = max(piece.offset + piece.nbytes for piece in pieces.values())
    header = {
        "source": str(checkpoint.path.resolve()),
        "fingerprint": checkpoint.fingerprint,
        "weights": kind,
        "packing": packing_id(ops, kind),
        "plan": plan_id(pieces),
        "bytes": total,
    }
    key = "\0".join(str(header[part]) for part in ("source", "weights", "packing"))
    name = f"{checkpoint.path.stem}-{kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    path = packed_dir() / f"{name}{SUFFIX}"
    data = _mapped(path, header)
    if data is None:
        data = _made(checkpoint, ops, pieces, path, header)
    return PackedWeights(data, pieces)


def table_kind(kind: WeightKind) -> WeightKind:
    """How a model of that kind stores its embedding and its head: int8 where the layers are int4.

    The head takes part in every logit, so its rounding is not averaged out by later layers; 4-bit
    files keep the two in 6 to 8 bits as well.
    """
    return "int8" if kind == "int4" else kind


def plan(config: ModelConfig, ops: OpSet, kind: WeightKind) -> dict[str, Piece]:
    """Every piece by name: embed, norm, head (when not tied), and ``INDEX.part`` of the layers."""
    pieces: dict[str, Piece] = {}
    end = 0

    def add(name: str, shape: tuple[int, ...], *parts: str, stored: WeightKind = kind) -> None:
        nonlocal end
        matrix = len(shape) == 2
        size = ops.packed_bytes(shape[0], shape[1], stored) if matrix else 4 * shape[0]
        pieces[name] = Piece(name, parts, shape, stored if matrix else "f32", end, size)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT

    tables = table_kind(kind)
    shapes, parts_of = piece_shapes(config), joined(layer_shapes(config))
    add("embed", (config.vocab_size, config.hidden_size), "embed", stored=tables)
    for i in range(config.num_layers):
        for name, shape in shapes.items():
            # What chooses an expert is not rounded.
            stored = "f32" if name == "router" else kind
            add(f"{i}.{name}", shape, *(f"{i}.{part}" for part in parts_of[name]), stored=stored)
    add("norm", (config.hidden_size,), "norm")
    if not config.tied_head:
        add("head", (config.vocab_size, config.hidden_size), "head", stored=tables)
    return pieces


def plan_id(pieces: Mapping[str, Piece]) -> str:
    """Names what lies where: a file whose pieces stand in other places is another file."""
    places = [(p.name, p.shape, p.kind, p.offset, p.nbytes) for p in pieces.values()]
    return hashlib.sha256(repr(places).encode()).hexdigest()[:16]


def packing_id(ops: OpSet, kind: WeightKind) -> str:
    """Names how an op set packs a model of that kind, by what it makes of one known matrix.

    A packing that changes gets another name without a version number that somebody has to raise.
    """
    n, k = 2 * PACK_ROWS + 5, 3 * GROUP
    values = np.arange(n * k, dtype=np.uint32) * np.uint32(2654435761)
    weight = (values.astype(np.float32) / np.float32(1 << 31) - 1).reshape(n, k)
    digest = hashlib.sha256()
    if kind == "int4":
        # Groups that are in 4 bits already have a way of their own.
        weight[::2] = np.rint(weight[::2] * 6) / 8
    for used in dict.fromkeys((kind, table_kind(kind))):
        out = np.zeros(ops.packed_bytes(n, k, used), dtype=np.uint8)
        ops.pack_into(out, weight, 0, n, used)
        digest.update(out.tobytes())
    return f"{ops.name}-{digest.hexdigest()[:16]}"


def packed_files() -> list[PackedFile]:
    """What is in the cache; files that cannot be read are left out."""
    found = []
    directory = packed_dir()
    for path in sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else []:
        try:
            with path.open("rb") as file:
                header, _ = _read_header(file)
            found.append(
                PackedFile(path, str(header["source"]), str(header["weights"]), path.stat().st_size)
            )
        except (OSError, ValueError, KeyError):
            continue
    return found


def _mapped(path: Path, expected: dict[str, Any]) -> Bytes | None:
    """The data of a sound packed file that was made from ``expected``, else None with a note."""
    try:
        with path.open("rb") as file:
            header, checksum = _read_header(file)
            if header != expected:
                _log.info("%s: the model changed; packing its weights again", path)
                return None
            if os.fstat(file.fileno()).st_size != _DATA_START + expected["bytes"]:
                raise ValueError("it is not as long as it should be")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s: %s; packing the weights again", path, error)
        return None
    data = np.frombuffer(mapped, dtype=np.uint8, offset=_DATA_START)
    if zlib.crc32(data.data) != checksum:
        _log.warning("%s: is damaged; packing the weights again", path)
        return None
    return data


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """(header, checksum of the data). Raises ValueError when it is not one, or damaged."""
    start = file.read(_DATA_START)
    if len(start) < _DATA_START or start[:8] != _MAGIC:
        raise ValueError("is not a file of packed weights")
    length, checksum = struct.unpack_from("<II", start, 8)
    if length > _DATA_START - 48:
        raise ValueError("has a damaged header")
    raw = start[48 : 48 + length]
    if hashlib.sha256(start[8:16] + raw).digest() != start[16:48]:
        raise ValueError("has a damaged header")
    header = json.loads(raw)
    if not isinstance(header, dict):
        raise ValueError("has a damaged header")
    return header, checksum


def _header_bytes(header: dict[str, Any], checksum: int) -> bytes:
    raw = json.dumps(header).encode()
    numbers = struct.pack("<II", len(raw), checksum)
    whole = _MAGIC + numbers + hashlib.sha256(numbers + raw).digest() + raw
    if len(whole) > _DATA_START:
        raise OSError("the path of the model is too long for the header")
    return whole


def _made(
    checkpoint: Checkpoint, ops: OpSet, pieces: Mapping[str, Piece], path: Path,
    header: dict[str, Any],
) -> Bytes:  # fmt: skip
    try:
        with replacing(path) as file:
            _write(file, checkpoint, ops, pieces, header)
        data = _mapped(path, header)
        if data is not None:
            return data
        _log.warning("%s: does not read back what was written; keeping the weights in memory", path)
    except OSError as error:
        reason = error.strerror or error
        _log.warning("%s: cannot keep packed weights (%s); every start packs again", path, reason)
    data = np.zeros(header["bytes"], dtype=np.uint8)
    _pack(data, checkpoint, ops, pieces)
    return data


def _write(
    file: BinaryIO, checkpoint: Checkpoint, ops: OpSet, pieces: Mapping[str, Piece],
    header: dict[str, Any],
) -> None:  # fmt: skip
    size = _DATA_START + header["bytes"]
    file.truncate(size)
    if hasattr(os, "posix_fallocate"):
        # A full disk must show here as an error, not later as a signal at a mapped page.
        os.posix_fallocate(file.fileno(), 0, size)
    # Not closed by hand: that insists on no view being left; it goes with its last reference.
    mapped = mmap.mmap(file.fileno(), size)
    data = np.frombuffer(mapped, dtype=np.uint8, offset=_DATA_START)
    _pack(data, checkpoint, ops, pieces)
    start = _header_bytes(header, zlib.crc32(data.data))
    mapped[: len(start)] = start
    mapped.flush()


def _pack(data: Bytes, checkpoint: Checkpoint, ops: OpSet, pieces: Mapping[str, Piece]) -> None:
    """Pack every tensor of the model, each exactly once."""
    left = dict(checkpoint.tensors)
    for piece in pieces.values():
        parts = [left.pop(part) for part in piece.parts]
        out = data[piece.offset : piece.offset + piece.nbytes]
        try:
            if len(piece.shape) == 1:
                _pack_vector(out, parts)
            else:
                _pack_matrix(out, parts, piece, ops)
        except CorruptFile:
            raise
        except ModelError as error:
            names = " + ".join(dict.fromkeys(part.name for part in parts))
            raise CorruptFile(f"{checkpoint.path}: tensor {names}: {error}") from error
    if left:
        raise ModelError(f"{checkpoint.path}: tensor {next(iter(left))} was not loaded")


def _pack_vector(out: Bytes, parts: list[StoredTensor]) -> None:
    values = np.concatenate([part.read(0, part.shape[0]) for part in parts])
    if not np.isfinite(values).all():
        raise ModelError("holds a value that is not finite")
    out[:] = np.ascontiguousarray(values, dtype=np.float32).view(np.uint8)


def _pack_matrix(out: Bytes, parts: list[StoredTensor], piece: Piece, ops: OpSet) -> None:
    n, k = piece.shape
    rows = max(CHUNK_BYTES // (4 * k) // PACK_ROWS, 1) * PACK_ROWS
    for first in range(0, n, rows):
        weight = _rows(parts, first, min(rows, n - first))
        ops.pack_into(out, weight, first, n, piece.kind)


def _rows(parts: list[StoredTensor], first: int, count: int) -> F32:
    """Rows of tensors that stand one below the other."""
    pieces, start = [], 0
    for part in parts:
        low, high = max(first - start, 0), min(first + count - start, part.shape[0])
        if low < high:
            pieces.append(part.read(low, high - low))
        start += part.shape[0]
    whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return np.ascontiguousarray(whole, dtype=np.float32)
