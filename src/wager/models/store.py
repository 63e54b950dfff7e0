"""What is kept on this machine, for ``wager ls`` and ``wager rm``: models and packed weights."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from wager.errors import ModelError
from wager.models.catalogue import CATALOGUE
from wager.models.gguf_parts import parts
from wager.models.packed import PackedFile, packed_files
from wager.models.paths import models_dir
from wager.models.pull import is_pulled, pulled_path


@dataclass(frozen=True, slots=True)
class Kept:
    """A model that is here, or whose packed weights are.

    ``nbytes`` is the size of its file (None for a directory or file of the user's own, which is
    not counted); ``quantisation`` that of the file.
    """

    name: str
    path: Path
    quantisation: str
    nbytes: int | None
    packed: tuple[PackedFile, ...]


def kept_models() -> list[Kept]:
    """Pulled models first, then models of the user's own that left packed weights."""
    packed: dict[str, list[PackedFile]] = {}
    for file in packed_files():
        packed.setdefault(file.source, []).append(file)
    found = []
    for entry in CATALOGUE.values():
        path = pulled_path(entry)
        own = tuple(packed.pop(str(path.resolve()), ()))
        if is_pulled(entry) or own:
            size = path.stat().st_size if path.is_file() else None
            found.append(Kept(entry.name, path, entry.quantisation, size, own))
    for source, files in sorted(packed.items()):
        found.append(Kept(source, Path(source), "", None, tuple(files)))
    return found


def remove(name: str) -> tuple[list[Path], int]:
    """Remove a pulled model and its packed weights: (what was removed, bytes freed).

    For a path of the user's own only the packed weights go. Raises ModelError.
    """
    entry = CATALOGUE.get(name)
    # Of a model in parts the first one is what packed weights are kept under.
    source = pulled_path(entry) if entry else parts(Path(name).expanduser())[0]
    removed, freed = [], 0
    for file in packed_files():
        if file.source == str(source.resolve()):
            file.path.unlink(missing_ok=True)
            removed.append(file.path)
            freed += file.nbytes
    if entry is not None and source.parent.is_dir():
        freed += sum(path.stat().st_size for path in source.parent.iterdir() if path.is_file())
        shutil.rmtree(source.parent)
        removed.append(source.parent)
    if not removed:
        here = ", ".join(kept.name for kept in kept_models()) or "nothing"
        raise ModelError(
            f"rm: nothing of {name!r} is kept in {models_dir().parent}; there is: {here}"
        )
    return removed, freed
