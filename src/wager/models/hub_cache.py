"""The cache of the hub's library, read as it lies: what any program fetched from the hub is here.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache. ``blobs`` holds the bytes
under their hash, ``snapshots/COMMIT`` the names (links to blobs), ``refs/REVISION`` a commit. The
library is not asked for it because loading its client takes longer than loading a small model.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wager.errors import ModelError
from wager.models.families import runs
from wager.models.gguf_parts import part_names, parts
from wager.models.hub_names import (
    HubName,
    choose_gguf,
    is_directory,
    models_in,
    quant_of,
)
from wager.models.safetensors_file import (
    INDEX,
    MAX_CONFIG,
    MAX_INDEX,
    SINGLE,
    check_index,
    read_json,
)

MAIN: Final = "main"
PARTIAL: Final = ".wager-part"
"""Ends the name of a blob that is not whole yet."""


class NotHere(ModelError):
    """A model of the hub that this machine does not have, or not whole."""


@dataclass(frozen=True, slots=True)
class Cached:
    """A model that the cache holds whole. ``path`` is its directory or its (first) GGUF file."""

    name: HubName
    path: Path
    quantisation: str

    @property
    def files(self) -> list[Path]:
        """All files of the model."""
        if self.path.is_dir():
            return [path for path in self.path.rglob("*") if path.is_file()]
        return parts(self.path)

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def repo_dir(repo: str) -> Path:
    """Where the cache keeps a repository (not created here)."""
    return _root() / f"models--{repo.replace('/', '--')}"


def find(name: HubName) -> Path:
    """The directory or the GGUF file that a name means; of a model in parts, the first.

    Raises NotHere, and CorruptFile for an index that is none.
    """
    fetch = f"run: wager pull {name}"
    root = snapshot(name)
    if root is None:
        raise NotHere(f"{name}: is not here yet; {fetch}")
    names = files_in(root)
    try:
        if is_directory(name, names):
            missing = _missing(root)
            if missing is not None:
                raise NotHere(f"{name}: is here only in part ({missing} is missing); {fetch}")
            return root
        chosen = choose_gguf(str(name), names, name.file, name.quant)
    except NotHere:
        raise
    except ModelError as error:
        here = models_in(names)
        if not here:
            raise NotHere(f"{name}: is not here yet; {fetch}") from None
        raise NotHere(f"{name}: is not here; here are {', '.join(here)}; {fetch}") from error
    absent = next((part for part in part_names(chosen) if part not in names), None)
    if absent is not None:
        raise NotHere(f"{name}: is here only in part ({absent} is missing); {fetch}")
    return root / chosen


def snapshot(name: HubName) -> Path | None:
    """The directory of a revision, whatever of it is there."""
    base = repo_dir(name.repo)
    revision = name.revision or MAIN
    commit = revision
    with contextlib.suppress(OSError, UnicodeDecodeError):
        commit = (base / "refs" / revision).read_text("ascii").strip()
    found = base / "snapshots" / commit
    return found if "/" not in commit and found.is_dir() else None


def files_in(root: Path) -> list[str]:
    """The files of a snapshot (links whose blob is gone are none), by their names on the hub."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def cached_models() -> list[Cached]:
    """Every model that the cache holds whole and that can be named here.

    Of directories those whose family runs: the cache holds what every other program fetched, too.
    """
    return [found for name in _names() for found in _cached(name)]


def remove(name: HubName) -> tuple[list[Path], int]:
    """Remove the files of a model from the cache: (what was removed, bytes freed).

    Bytes that another model or revision in the cache has too stay. What a pull left unfinished
    goes. Raises NotHere.
    """
    base = repo_dir(name.repo)
    found = Cached(name, find(name), "")
    blobs, freed = {file.resolve() for file in found.files}, 0
    for file in found.files:
        file.unlink()
    for blob in blobs - _linked(base):
        if blob.parent == base / "blobs":
            freed += blob.stat().st_size
            blob.unlink()
    for part in base.glob(f"blobs/*{PARTIAL}"):
        freed += part.stat().st_size
        part.unlink()
    if not any(path.is_file() for path in base.glob("snapshots/*/**/*")):
        shutil.rmtree(base)
    return [found.path], freed


def _linked(base: Path) -> set[Path]:
    return {path.resolve() for path in base.glob("snapshots/*/**/*") if path.is_symlink()}


def _root() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def _names() -> Iterator[HubName]:
    for base in sorted(_root().glob("models--*--*")):
        repo = base.name.removeprefix("models--").replace("--", "/", 1)
        refs = base / "refs"
        for ref in sorted(path for path in refs.rglob("*") if path.is_file()):
            revision = ref.relative_to(refs).as_posix()
            yield HubName(repo, None if revision == MAIN else revision)


def _cached(name: HubName) -> Iterator[Cached]:
    root = snapshot(name)
    if root is None:
        return
    names = files_in(root)
    if is_directory(name, names):
        with contextlib.suppress(ModelError):
            if _missing(root) is None and _runs(root):
                yield Cached(name, root, "")
    for file in models_in(names):
        if all(part in names for part in part_names(file)):
            yield Cached(_shortest(name, names, file), root / file, (quant_of(file) or "").upper())


def _shortest(name: HubName, names: list[str], file: str) -> HubName:
    """The name by which a GGUF file is found again."""
    quant = quant_of(file)
    by_quant = HubName(name.repo, name.revision, quant=quant)
    with contextlib.suppress(ModelError):
        if quant and choose_gguf(name.repo, names, None, quant) == file:
            return by_quant
    return HubName(name.repo, name.revision, file=file)


def _missing(root: Path) -> str | None:
    """The first weight file of a directory that is not there."""
    if (root / SINGLE).is_file():
        return None
    if (root / INDEX).is_file():
        place = check_index(read_json(root / INDEX, MAX_INDEX), root / INDEX)
        return next((n for n in sorted(set(place.values())) if not (root / n).is_file()), None)
    # Pickles: whoever opens the directory says why they are not read.
    return SINGLE if any(root.glob("*.safetensors")) else None


def _runs(root: Path) -> bool:
    classes = read_json(root / "config.json", MAX_CONFIG).get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    return isinstance(first, str) and runs(first, gguf=False)
