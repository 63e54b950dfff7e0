"""The header of a safetensors file and the index of a sharded model, parsed strictly.

Format: https://github.com/huggingface/safetensors#format. Nothing is believed before it was
checked against the size of the file; the data must be covered by the tensors without a gap or an
overlap, as the format demands.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.checkpoint import quoted

MAX_HEADER: Final = 1 << 24
MAX_INDEX: Final = 1 << 24
MAX_CONFIG: Final = 1 << 20
MAX_TENSORS: Final = 1 << 17
MAX_DIMENSIONS: Final = 8
MAX_ELEMENTS: Final = 1 << 40
SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

# Bits per item: of every type of the format, and of those whose items can be read here.
BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip
READABLE: Final = ("F32", "F16", "BF16")
WIDTHS: Final = {dtype: BITS[dtype] // 8 for dtype in READABLE}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file; ``offset`` is absolute, in bytes."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


def read_directory(
    directory: Path, dtypes: Collection[str] = READABLE
) -> tuple[dict[str, TensorInfo], str]:
    """Every tensor of a model directory, and a sha256 over its files' names, sizes, times, headers.

    A tensor of another type than ``dtypes`` is refused. Raises ModelError, CorruptFile or
    UnsupportedModel.
    """
    digest = hashlib.sha256()
    if (directory / SINGLE).exists():
        return read_safetensors(directory / SINGLE, digest, dtypes), digest.hexdigest()
    if not (directory / INDEX).exists():
        pickled = next(directory.glob("*.bin"), None) or next(directory.glob("*.pt*"), None)
        hint = f" ({pickled.name} is a pickle, which is never read)" if pickled else ""
        raise ModelError(f"{directory}: holds neither {SINGLE} nor {INDEX}{hint}")
    place = read_index(directory / INDEX)
    tensors: dict[str, TensorInfo] = {}
    for name in sorted(set(place.values())):
        for tensor, info in read_safetensors(directory / name, digest, dtypes).items():
            if place.get(tensor) != name:
                raise CorruptFile(
                    f"{directory / name}: tensor {quoted(tensor)} is not placed there by {INDEX}"
                )
            tensors[tensor] = info
    missing = next((tensor for tensor in place if tensor not in tensors), None)
    if missing is not None:
        raise CorruptFile(f"{directory / place[missing]}: tensor {quoted(missing)} is missing")
    return tensors, digest.hexdigest()


def pickles(names: Iterable[str]) -> list[str]:
    """Weight files that are pickles, of a list of file names."""
    return [
        name
        for name in names
        if name.endswith((".bin", ".pt", ".pth"))
        and "/" not in name
        and not name.startswith(("training_args", "optimizer", "scheduler", "rng_state"))
    ]


def read_index(path: Path) -> dict[str, str]:
    """The file of each tensor of a sharded model: plain names in the same directory."""
    place = check_index(read_json(path, MAX_INDEX), path)
    for name in set(place.values()):
        if not (path.parent / name).is_file():
            raise ModelError(f"{path.parent / name}: is missing; {INDEX} names it")
    return place


def check_index(index: Mapping[str, Any], path: Path) -> dict[str, str]:
    """As `read_index`, of an index that is read already; its files need not be here."""
    place = index.get("weight_map")
    if not isinstance(place, dict) or not place:
        raise CorruptFile(f"{path}: has no weight_map")
    for tensor, name in place.items():
        plain = isinstance(name, str) and name.endswith(".safetensors") and "\0" not in name
        if not plain or "/" in name or "\\" in name or name.startswith("."):
            raise CorruptFile(
                f"{path}: tensor {quoted(tensor)} lies in {quoted(name)}, which is no plain name"
            )
    return place


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """A JSON object of at most ``limit`` bytes. Raises ModelError or CorruptFile."""
    return parse_json(read_limited(path, limit), path)


def read_limited(path: Path, limit: int) -> bytes:
    """A whole file of at most ``limit`` bytes. Raises ModelError or CorruptFile."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > limit:
        raise CorruptFile(f"{path}: is larger than {limit} bytes")
    return raw


def parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    """A JSON object. Raises CorruptFile."""
    try:
        # Some editors put a byte order mark before a text.
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique)
    # RecursionError: nested too deep; ValueError also covers numbers that are too long.
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "too deep"
        raise CorruptFile(f"{path}: is not sound JSON: {reason}") from error
    if not isinstance(value, dict):
        raise CorruptFile(f"{path}: is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def read_safetensors(
    path: Path, digest: Any, dtypes: Collection[str] = READABLE
) -> dict[str, TensorInfo]:
    """The tensors of one file; ``digest`` is updated with its name, size, time and header."""
    try:
        status = path.stat()
        with path.open("rb") as file:
            tensors, header = parse_safetensors(file, status.st_size, path, dtypes)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode() + header)
    return tensors


def parse_safetensors(
    file: BinaryIO, size: int, path: Path, dtypes: Collection[str] = READABLE
) -> tuple[dict[str, TensorInfo], bytes]:
    """The tensors of an open file of ``size`` bytes at its beginning, and its header."""
    prefix = file.read(8)
    if size < 8 or len(prefix) < 8:
        raise CorruptFile(f"{path}: damaged or truncated: shorter than the 8 bytes of its length")
    (length,) = struct.unpack("<Q", prefix)
    if length > size - 8:
        raise CorruptFile(
            f"{path}: damaged or truncated: the header claims {length} bytes, {size - 8} follow"
        )
    if length > MAX_HEADER:
        raise CorruptFile(f"{path}: the header claims {length} bytes; {MAX_HEADER} is the limit")
    raw = file.read(length)
    if len(raw) < length:
        raise CorruptFile(f"{path}: damaged or truncated: ends inside the header")
    header = parse_json(raw, path)
    _check_metadata(path, header.pop("__metadata__", {}))
    if len(header) > MAX_TENSORS:
        raise CorruptFile(f"{path}: has {len(header)} tensors; {MAX_TENSORS} is the limit")
    ranges = {name: _entry(path, name, entry, dtypes) for name, entry in header.items()}
    _check_cover(path, ranges, size - 8 - length)
    return {name: TensorInfo(path, dtype, shape, 8 + length + begin)
            for name, (dtype, shape, begin, _) in ranges.items()}, raw  # fmt: skip


def _check_metadata(path: Path, metadata: Any) -> None:
    sound = isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    if not sound:
        raise CorruptFile(f"{path}: __metadata__ does not map text to text")


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _entry(
    path: Path, name: str, entry: Any, dtypes: Collection[str]
) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of one header entry, begin and end within the data."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CorruptFile(
            f"{path}: tensor {quoted(name)} is not described by dtype, shape, data_offsets"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        if isinstance(dtype, str) and dtype in BITS:
            raise UnsupportedModel(
                f"{path}: tensor {quoted(name)} is stored as {dtype}; what works: "
                + ", ".join(dtypes)
            )
        raise CorruptFile(f"{path}: tensor {quoted(name)} has the unknown dtype {quoted(dtype)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_natural, shape)):
        raise CorruptFile(f"{path}: tensor {quoted(name)} has no sound shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        raise CorruptFile(f"{path}: tensor {quoted(name)} has no sound data_offsets")
    elements = 1
    for item in shape:
        elements *= item
    if elements > MAX_ELEMENTS:
        raise CorruptFile(f"{path}: tensor {quoted(name)} has {elements} elements")
    begin, end = offsets
    nbytes, odd = divmod(elements * BITS[dtype], 8)
    if odd or end - begin != nbytes:
        raise CorruptFile(
            f"{path}: tensor {quoted(name)} takes {nbytes} bytes, "
            f"its data_offsets hold {end - begin}"
        )
    return dtype, tuple(shape), begin, end


def _check_cover(
    path: Path, ranges: Mapping[str, tuple[str, tuple[int, ...], int, int]], size: int
) -> None:
    """The tensors cover the data from its first byte to its last, once."""
    end = 0
    for name, (_, _, begin, stop) in sorted(ranges.items(), key=lambda item: item[1][2:]):
        if begin != end:
            raise CorruptFile(
                f"{path}: tensor {quoted(name)} begins at byte {begin} of the data, not at {end}"
            )
        end = stop
    if end != size:
        raise CorruptFile(
            f"{path}: damaged or truncated: the tensors take {end} bytes, the file holds {size}"
        )
