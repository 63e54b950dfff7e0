"""A GGUF model that is stored in parts: ``NAME-00001-of-00003.gguf`` and so on, as one file.

The first part holds the metadata; each says how many there are (``split.count``), which it is
(``split.no``, from 0) and how many tensors they hold together (``split.tensors.count``). As in
llama.cpp's ``gguf-split``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.checkpoint import quoted
from wager.models.gguf_file import READABLE, GgufFile, TensorInfo, read_gguf

MAX_PARTS: Final = 1000
_PART: Final = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")
_NO, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def part_names(name: str) -> list[str]:
    """The names of all files of a model, in order; ``name`` may be that of any of them."""
    found = _PART.match(name)
    if not found:
        return [name]
    stem, number, total = found.group(1), int(found.group(2)), int(found.group(3))
    if not 1 <= number <= total <= MAX_PARTS:
        return [name]
    return [f"{stem}-{i + 1:05d}-of-{total:05d}.gguf" for i in range(total)]


def parts(path: Path) -> list[Path]:
    """As `part_names`, of paths."""
    return [path.parent / name for name in part_names(path.name)]


def title(path: Path) -> str:
    """The name of the file without its end, and without the number of a part."""
    found = _PART.match(path.name)
    return found.group(1) if found else path.stem


def read_parts(path: Path, types: Collection[str] = READABLE) -> list[GgufFile]:
    """The headers of all parts. Raises ModelError, CorruptFile or UnsupportedModel."""
    found = parts(path)
    for part in found:
        if not part.is_file():
            raise ModelError(f"{part}: is missing; {path.name} is one of {len(found)} parts")
    return [read_gguf(part, types) for part in found]


def read_whole(path: Path, types: Collection[str] = READABLE) -> GgufFile:
    """The header of a model, of which ``path`` is the file or any part. Raises as `read_parts`."""
    return joined(read_parts(path, types))


def joined(files: Sequence[GgufFile]) -> GgufFile:
    """The headers of all parts as one: the metadata of the first, the tensors of all.

    Raises CorruptFile where they do not belong together, UnsupportedModel for a lone part.
    """
    first = files[0]
    if len(files) == 1:
        count = first.metadata.get(_COUNT, 1)
        if not isinstance(count, int) or count not in (0, 1):
            raise UnsupportedModel(
                f"{first.path}: is one of {quoted(count)} parts ({_COUNT}), and its name does not "
                "say so; name them as gguf-split does, NAME-00001-of-00003.gguf and so on"
            )
        return first
    tensors: dict[str, TensorInfo] = {}
    for index, file in enumerate(files):
        _check_part(file, first, index, len(files))
        for name, info in file.tensors.items():
            if name in tensors:
                raise CorruptFile(f"{file.path}: tensor {quoted(name)} is in another part too")
            tensors[name] = info
    stated = first.metadata.get(_TENSORS, len(tensors))
    if stated != len(tensors):
        raise CorruptFile(
            f"{first.path}: the parts hold {len(tensors)} tensors, and there are {quoted(stated)} "
            f"({_TENSORS})"
        )
    digest = hashlib.sha256("".join(file.digest for file in files).encode()).hexdigest()
    return replace(first, tensors=tensors, digest=digest)


def _check_part(file: GgufFile, first: GgufFile, index: int, total: int) -> None:
    for key in (_COUNT, _NO):
        if key not in file.metadata:
            raise CorruptFile(f"{file.path}: {key} is missing; it is no part of a model in parts")
    count, number = file.metadata[_COUNT], file.metadata[_NO]
    if count != total:
        raise CorruptFile(
            f"{file.path}: says that there are {quoted(count)} parts ({_COUNT}), its name that "
            f"there are {total}"
        )
    if not isinstance(number, int) or number != index:
        stated = number + 1 if isinstance(number, int) else quoted(number)
        raise CorruptFile(
            f"{file.path}: says that it is part {stated} ({_NO}), its name that it is {index + 1}"
        )
    architecture = file.metadata.get("general.architecture")
    expected = first.metadata.get("general.architecture")
    if architecture is not None and architecture != expected:
        raise CorruptFile(
            f"{file.path}: is of architecture {quoted(architecture)}, the first part of "
            f"{quoted(expected)}"
        )
