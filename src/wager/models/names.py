"""From what people call a model to where it lies on this machine. Nothing is fetched.

In this order: a path, a name of the catalogue, ``ollama:NAME[:TAG]``, a name on the hub whose files
are in the cache of the hub's library, whoever put them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wager.errors import ModelError, UnsupportedModel
from wager.models import hub_cache, hub_names, ollama
from wager.models.catalogue import CATALOGUE, AnyEntry, Entry, HubEntry
from wager.models.gguf_parts import title
from wager.models.paths import models_dir

_MAGIC: Final = b"GGUF"


@dataclass(frozen=True, slots=True)
class Located:
    """A model on this machine: its name, and its directory or (first) GGUF file."""

    name: str
    path: Path


def locate(name: str) -> Located:
    """Where a model is. Raises ModelError (CorruptFile, UnsupportedModel)."""
    found = locate_file(name)
    if found is not None:
        return found
    entry = CATALOGUE.get(name)
    if entry is not None:
        return Located(name, _of_catalogue(entry))
    wanted = hub_names.parse(name)
    if wanted is not None:
        return Located(str(wanted), hub_cache.find(wanted))
    raise ModelError(
        f"model: there is no file or directory {name!r}, and no model of that name to pull (there "
        f"are: {', '.join(CATALOGUE)}; or {hub_names.FORM} on the hub)"
    )


def locate_file(name: str) -> Located | None:
    """As `locate`, of paths and of Ollama's models; None for any other name."""
    if not name.strip():
        raise ModelError("model: the name is empty; give a pulled name, a directory or a GGUF file")
    path = Path(name).expanduser()
    if path.is_dir():
        return Located(path.resolve().name, path)
    if path.is_file():
        if not is_gguf(path):
            raise UnsupportedModel(
                f"{path}: is neither a directory in Hugging Face layout nor a GGUF file"
            )
        return Located(title(path), path)
    return Located(name, ollama.find(name)) if name.startswith(ollama.PREFIX) else None


def is_gguf(path: Path) -> bool:
    """By its name, or by its first bytes: blobs of Ollama and of the hub's cache have no suffix."""
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def pulled_path(entry: Entry) -> Path:
    """Where the file of an entry is, or will be."""
    return models_dir() / entry.name / entry.filename


def hub_name(entry: HubEntry) -> hub_names.HubName:
    """The hub's name of an entry."""
    found = hub_names.parse(entry.hub)
    assert found is not None, entry.hub
    return found


def _of_catalogue(entry: AnyEntry) -> Path:
    if isinstance(entry, Entry):
        path = pulled_path(entry)
        if path.is_file():
            return path
    else:
        try:
            return hub_cache.find(hub_name(entry))
        except hub_cache.NotHere:
            pass
    raise ModelError(f"{entry.name}: is not here yet; run: wager pull {entry.name}")
