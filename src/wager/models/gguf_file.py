"""The header of a GGUF file, parsed strictly: nothing in it is believed before it was checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Counts, lengths, offsets and
types are checked against the file's size and against limits before anything is allocated for them,
so that a damaged file costs one line and no memory. Arrays stay bytes until somebody asks: a
vocabulary is 50,000 strings, of which most starts need none.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import numpy as np

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.checkpoint import quoted

MAX_HEADER: Final = 1 << 27
MAX_ENTRIES: Final = 1 << 16
MAX_NAME: Final = 1 << 16
MAX_STRING: Final = 1 << 24
MAX_ARRAY: Final = 1 << 22
MAX_TENSOR_NAME: Final = 256
MAX_DIMENSIONS: Final = 4
MAX_ELEMENTS: Final = 1 << 40
MAX_ALIGNMENT: Final = 1 << 16
_PAGE: Final = 1 << 20

# Scalar value types: struct code and numpy type.
_SCALARS: Final = {
    0: ("<B", "u1"), 1: ("<b", "i1"), 2: ("<H", "<u2"), 3: ("<h", "<i2"), 4: ("<I", "<u4"),
    5: ("<i", "<i4"), 6: ("<f", "<f4"), 7: ("<B", "u1"), 10: ("<Q", "<u8"), 11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Tensor types: name, items and bytes per block.
_TYPES: Final = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}  # fmt: skip
TENSOR_TYPES: Final = {number: name for number, (name, _, _) in _TYPES.items()}
# Items and bytes per block: of every type, and of those whose items can be read here.
SIZES: Final = {name: (items, width) for name, items, width in _TYPES.values()}
READABLE: Final = (
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_0", "Q5_1", "Q4_K", "Q4_0", "Q4_1", "IQ4_NL",
)  # fmt: skip
BLOCKS: Final = {name: SIZES[name] for name in READABLE}

_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


@dataclass(frozen=True, slots=True)
class ArrayField:
    """An array that is still bytes of the header: value type, length, and where it starts."""

    type: int
    count: int
    start: int


Value: TypeAlias = int | float | bool | str | ArrayField


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file. ``shape`` is row-major ([rows, columns]); ``offset`` is absolute."""

    path: Path
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked header. ``digest`` is the sha256 of its bytes."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]
    header: bytes
    digest: str

    def strings(self, key: str) -> list[str]:
        """The strings of an array field. Raises CorruptFile if they are not UTF-8."""
        field = self._array(key)
        if field.type != _STRING:
            raise CorruptFile(f"{self.path}: {key} is not an array of strings")
        data, position, texts = self.header, field.start, []
        try:
            for _ in range(field.count):
                (length,) = _U64(data, position)
                position += 8 + length
                texts.append(data[position - length : position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise CorruptFile(f"{self.path}: {key} holds text that is not UTF-8") from error
        return texts

    def numbers(self, key: str) -> np.ndarray:
        """The numbers of an array field, read-only."""
        field = self._array(key)
        if field.type not in _SCALARS:
            raise CorruptFile(f"{self.path}: {key} is not an array of numbers")
        dtype = np.dtype(_SCALARS[field.type][1])
        return np.frombuffer(self.header, dtype, field.count, field.start)

    def _array(self, key: str) -> ArrayField:
        field = self.metadata.get(key)
        if not isinstance(field, ArrayField):
            raise CorruptFile(f"{self.path}: {key} is {'not an array' if field else 'missing'}")
        return field


def read_gguf(path: Path, types: Collection[str] = tuple(BLOCKS)) -> GgufFile:
    """Parse and check the header of a file. A tensor of another type than ``types`` is refused.

    Raises ModelError, CorruptFile, UnsupportedModel.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return parse_gguf(file, size, path, types)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_gguf(
    file: BinaryIO, size: int, path: Path, types: Collection[str] = tuple(BLOCKS)
) -> GgufFile:
    """As `read_gguf`, from an open file of ``size`` bytes at its beginning."""
    parser = _Parser(file, size, path, types)
    tensor_count, entry_count = parser.start()
    metadata = parser.entries(entry_count)
    tensors = parser.tensors(tensor_count, metadata)
    header = bytes(parser.data[: parser.position])
    return GgufFile(path, metadata, tensors, header, hashlib.sha256(header).hexdigest())


class _Parser:
    """Walks the header. ``data`` holds what was read so far; `need` reads on, up to the limits."""

    def __init__(self, file: BinaryIO, size: int, path: Path, types: Collection[str]) -> None:
        self._types = types
        self._file = file
        self._size = size
        self._limit = min(size, MAX_HEADER)
        self._path = path
        self.data = bytearray()
        self.position = 0

    def fail(self, what: str) -> CorruptFile:
        return CorruptFile(f"{self._path}: {what} (at byte {self.position})")

    def need(self, end: int, what: str) -> None:
        """Have the bytes up to ``end`` in ``data``."""
        if end > self._limit:
            reason = "the file ends" if self._limit == self._size else "the header is too long"
            raise self.fail(f"damaged or truncated: {reason} inside {what}")
        while len(self.data) < end:
            piece = self._file.read(min(self._limit - len(self.data), _PAGE))
            if not piece:
                raise self.fail(f"damaged or truncated: the file ends inside {what}")
            self.data += piece

    def u32(self, what: str) -> int:
        self.need(self.position + 4, what)
        (value,) = _U32(self.data, self.position)
        self.position += 4
        return int(value)

    def u64(self, what: str, high: int) -> int:
        self.need(self.position + 8, what)
        (value,) = _U64(self.data, self.position)
        if value > high:
            raise self.fail(f"damaged: {what} is {value}, which cannot be")
        self.position += 8
        return int(value)

    def text(self, what: str, high: int) -> str:
        length = self.u64(f"the length of {what}", high)
        self.need(self.position + length, what)
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"damaged: {what} is not UTF-8") from error

    def start(self) -> tuple[int, int]:
        """Magic, version and counts: (tensors, metadata entries)."""
        self.need(4, "the magic")
        if self.data[:4] != b"GGUF":
            raise self.fail("not a GGUF file: it does not begin with 'GGUF'")
        self.position = 4
        version = self.u32("the version")
        if version not in (2, 3):
            if version & 0xFFFF == 0 and version:
                raise UnsupportedModel(
                    f"{self._path}: is a big-endian GGUF; little-endian works: convert the model "
                    "with the gguf package's gguf-convert-endian"
                )
            # Version 1 counts in 32 bits; it was written for some weeks of 2023.
            todo = (
                "convert the model again with a newer llama.cpp" if version < 2 else "update wager"
            )
            raise UnsupportedModel(f"{self._path}: is GGUF version {version}; 2 and 3 work: {todo}")
        tensors = self.u64("the number of tensors", MAX_ENTRIES)
        return tensors, self.u64("the number of metadata entries", MAX_ENTRIES)

    def entries(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self.text("a metadata key", MAX_NAME)
            if key in metadata:
                raise self.fail(f"damaged: metadata key {quoted(key)} appears twice")
            metadata[key] = self.value(self.u32("a value type"), key)
        return metadata

    def value(self, kind: int, key: str) -> Value:
        if kind == _STRING:
            return self.text(f"the value of {quoted(key)}", MAX_STRING)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.fail(f"damaged: {quoted(key)} has the unknown value type {kind}")
        code = _SCALARS[kind][0]
        self.need(self.position + struct.calcsize(code), f"the value of {quoted(key)}")
        (value,) = struct.unpack_from(code, self.data, self.position)
        self.position += struct.calcsize(code)
        if kind == _BOOL:
            if value > 1:
                raise self.fail(f"damaged: {quoted(key)} is neither true nor false")
            return bool(value)
        return value  # type: ignore[no-any-return]

    def array(self, key: str) -> ArrayField:
        """Check an array and step over it."""
        kind = self.u32(f"the array type of {quoted(key)}")
        count = self.u64(f"the array length of {quoted(key)}", MAX_ARRAY)
        start = self.position
        if kind == _STRING:
            self.skip_strings(key, count)
        elif kind in _SCALARS:
            end = start + count * struct.calcsize(_SCALARS[kind][0])
            self.need(end, f"the array {quoted(key)}")
            self.position = end
        else:
            nested = "an array of arrays" if kind == _ARRAY else f"of the unknown type {kind}"
            raise self.fail(f"damaged: the array {quoted(key)} is {nested}")
        return ArrayField(kind, count, start)

    def skip_strings(self, key: str, count: int) -> None:
        # The hot loop of a start: 50,000 tokens and as many merges.
        position, data, what = self.position, self.data, f"the array {quoted(key)}"
        self.need(position + 8 * count, what)
        read, have = _U64, len(data)
        for _ in range(count):
            if position + 8 > have:
                self.need(position + 8, what)
                have = len(data)
            position += 8 + read(data, position)[0]
            if position > have:
                if position > self._limit:
                    break
                self.need(position, what)
                have = len(data)
        self.need(position, what)
        self.position = position

    def tensors(self, count: int, metadata: dict[str, Value]) -> dict[str, TensorInfo]:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT:
            raise self.fail(f"damaged: general.alignment is {quoted(alignment)}")
        if alignment & (alignment - 1):
            raise self.fail(f"damaged: general.alignment {alignment} is not a power of two")
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            name = self.text("a tensor name", MAX_TENSOR_NAME)
            if name in found:
                raise self.fail(f"damaged: tensor {quoted(name)} appears twice")
            found[name] = self.tensor(name, alignment)
        start = -(-self.position // alignment) * alignment
        return self.place(found, start)

    def tensor(self, name: str, alignment: int) -> TensorInfo:
        """One entry of the tensor list; its offset still counts from the start of the data."""
        rank = self.u32(f"the rank of tensor {quoted(name)}")
        if not 1 <= rank <= MAX_DIMENSIONS:
            raise self.fail(f"damaged: tensor {quoted(name)} has {rank} dimensions")
        sizes = [self.u64(f"a size of tensor {quoted(name)}", MAX_ELEMENTS) for _ in range(rank)]
        number = self.u32(f"the type of tensor {quoted(name)}")
        offset = self.u64(f"the offset of tensor {quoted(name)}", 1 << 62)
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            raise self.fail(
                f"damaged, or newer than this reader: tensor {quoted(name)} has type {number}"
            )
        if kind not in self._types:
            raise UnsupportedModel(
                f"{self._path}: tensor {quoted(name)} is stored as {kind}; what works: "
                + ", ".join(self._types)
            )
        items, width = SIZES[kind]
        elements = 1
        for size in sizes:
            elements *= size
        if not 1 <= elements <= MAX_ELEMENTS:
            raise self.fail(f"damaged: tensor {quoted(name)} has {elements} elements")
        if sizes[0] % items:
            raise self.fail(
                f"damaged: tensor {quoted(name)} has rows of {sizes[0]} values; {kind} comes in "
                f"blocks of {items}"
            )
        if offset % alignment:
            raise self.fail(f"damaged: the offset of tensor {quoted(name)} is not aligned")
        shape = tuple(reversed(sizes))
        return TensorInfo(self._path, kind, shape, offset, elements // items * width)

    def place(self, tensors: dict[str, TensorInfo], start: int) -> dict[str, TensorInfo]:
        """Make offsets absolute; every tensor lies within the file, and none on another."""
        placed, end, before = {}, 0, ""
        for name, info in sorted(tensors.items(), key=lambda item: item[1].offset):
            if info.offset < end:
                raise self.fail(f"damaged: tensors {quoted(before)} and {quoted(name)} overlap")
            end, before = info.offset + info.nbytes, name
            if start + end > self._size:
                raise self.fail(
                    f"damaged or truncated: tensor {quoted(name)} ends at byte {start + end}, "
                    f"the file at {self._size}"
                )
            placed[name] = replace(info, offset=start + info.offset)
        return placed
