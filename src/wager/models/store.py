"""What is kept on this machine, for ``wager ls`` and ``wager rm``: models and packed weights."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wager.errors import ModelError
from wager.models import hub_cache, hub_names, ollama
from wager.models.catalogue import CATALOGUE, Entry, HubEntry
from wager.models.gguf_parts import parts
from wager.models.names import hub_name, pulled_path
from wager.models.packed import PackedFile, packed_files
from wager.models.paths import models_dir
from wager.models.pull import is_pulled


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
    """Pulled models first, then those of the hub's cache and of Ollama, then models of the user's
    own that left packed weights."""
    packed: dict[str, list[PackedFile]] = {}
    for file in packed_files():
        packed.setdefault(file.source, []).append(file)
    found = []
    for name, path, quantisation, nbytes in (*_wheels(), *_hub(), *_ollama()):
        own = tuple(packed.pop(str(path.resolve()), ()))
        if nbytes is not None or own:
            found.append(Kept(name, path, quantisation, nbytes, own))
    for source, files in sorted(packed.items()):
        found.append(Kept(source, Path(source), "", None, tuple(files)))
    return found


def short_names() -> dict[str, str]:
    """The catalogue's names of models on the hub, by those that they have there."""
    entries = (entry for entry in CATALOGUE.values() if isinstance(entry, HubEntry))
    return {str(hub_name(entry)).lower(): entry.name for entry in entries}


def remove(name: str) -> tuple[list[Path], int]:
    """Remove a pulled model and its packed weights: (what was removed, bytes freed).

    Of a path of the user's own and of a model of Ollama only the packed weights go. Raises
    ModelError.
    """
    entry = CATALOGUE.get(name)
    source = _source(name)
    removed, freed = [], 0
    for file in packed_files():
        if file.source == str(source.resolve()):
            file.path.unlink(missing_ok=True)
            removed.append(file.path)
            freed += file.nbytes
    if isinstance(entry, Entry):
        folder = pulled_path(entry).parent
        if folder.is_dir():
            freed += sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
            shutil.rmtree(folder)
            removed.append(folder)
    elif (wanted := _on_hub(name)) is not None:
        with contextlib.suppress(hub_cache.NotHere):
            gone, nbytes = hub_cache.remove(wanted)
            removed, freed = [*removed, *gone], freed + nbytes
    if not removed:
        here = ", ".join(kept.name for kept in kept_models()) or "nothing"
        raise ModelError(
            f"rm: nothing of {name!r} is kept in {models_dir().parent}; there is: {here}"
        )
    return removed, freed


def _source(name: str) -> Path:
    """What packed weights of a model are kept under."""
    entry = CATALOGUE.get(name)
    if isinstance(entry, Entry):
        return pulled_path(entry)
    if name.startswith(ollama.PREFIX):
        return ollama.find(name)
    wanted = _on_hub(name)
    if wanted is not None:
        with contextlib.suppress(hub_cache.NotHere):
            return hub_cache.find(wanted)
    # A path, which may be gone by now. Of a model in parts it is the first one's.
    return parts(Path(name).expanduser())[0]


def _on_hub(name: str) -> hub_names.HubName | None:
    """The name on the hub that is meant; a path is none."""
    entry = CATALOGUE.get(name)
    if isinstance(entry, HubEntry):
        return hub_name(entry)
    return None if entry or Path(name).expanduser().exists() else hub_names.parse(name)


def _wheels() -> Iterator[tuple[str, Path, str, int | None]]:
    for entry in CATALOGUE.values():
        if isinstance(entry, Entry):
            path = pulled_path(entry)
            size = path.stat().st_size if is_pulled(entry) else None
            yield entry.name, path, entry.quantisation, size


def _hub() -> Iterator[tuple[str, Path, str, int | None]]:
    short = short_names()
    for model in hub_cache.cached_models():
        name = str(model.name)
        yield short.get(name.lower(), name), model.path, model.quantisation, model.nbytes


def _ollama() -> Iterator[tuple[str, Path, str, int | None]]:
    names: list[str] = []
    # A store or a model that cannot be opened says why when it is named.
    with contextlib.suppress(ModelError):
        names = ollama.names()
    for name in names:
        with contextlib.suppress(ModelError):
            path = ollama.find(name)
            yield name, path, "", path.stat().st_size
