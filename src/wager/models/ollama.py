"""Models in a store of Ollama on this machine: ``ollama:NAME[:TAG]``, opened where they lie.

A manifest (JSON) names the layers of a model; the one of kind ``model`` is a GGUF file among the
blobs. Its chat template is the GGUF file's own: Ollama's template layer is written in Go's
language. Nothing here writes to the store.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.checkpoint import quoted
from wager.models.safetensors_file import read_json

PREFIX: Final = "ollama:"
_REGISTRY: Final = "registry.ollama.ai"
_LIBRARY: Final = "library"
_LATEST: Final = "latest"
_MAX_MANIFEST: Final = 1 << 20
_KIND: Final = "application/vnd.ollama.image."
_PART: Final = re.compile(r"(?!\.+$)[\w.-]+")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class OllamaName:
    """``[[HOST/]USER/]NAME[:TAG]``, with what Ollama puts where a part is left out."""

    parts: tuple[str, ...]
    tag: str

    def __str__(self) -> str:
        host, user, model = self.parts
        shown = (
            self.parts if host != _REGISTRY else self.parts[1:] if user != _LIBRARY else (model,)
        )
        return f"{PREFIX}{'/'.join(shown)}:{self.tag}"


def parse(name: str) -> OllamaName:
    """Of a name that begins with ``ollama:``. Raises ModelError."""
    model, _, tag = name.removeprefix(PREFIX).partition(":")
    given = model.split("/")
    parts = [*[_REGISTRY, _LIBRARY][: 3 - len(given)], *given]
    tag = tag or _LATEST
    if len(given) > 3 or not all(_PART.fullmatch(part) for part in (*given, tag)):
        raise ModelError(f"model: {name!r} is no name of Ollama; they look like {PREFIX}NAME:TAG")
    return OllamaName(tuple(parts), tag)


def find(name: str) -> Path:
    """The GGUF file of a model. Raises ModelError, CorruptFile or UnsupportedModel."""
    wanted = parse(name)
    stores = _stores()
    if not any(_is_dir(store / "manifests") for store in stores):
        looked = ", ".join(map(str, stores))
        raise ModelError(
            f"{name}: there is no store of Ollama here ({looked}); OLLAMA_MODELS names another"
        )
    for store in stores:
        manifest = store.joinpath("manifests", *wanted.parts, wanted.tag)
        if _is_file(manifest):
            return _model_file(store, manifest, name)
    raise ModelError(f"{name}: Ollama has no such model here; {_there(stores, wanted)}")


def names() -> list[str]:
    """Every model of the stores, by the name that it has here."""
    found = []
    for store in _stores():
        base = store / "manifests"
        if _is_dir(base):
            for manifest in base.glob("*/*/*/*"):
                host, user, model, tag = manifest.relative_to(base).parts
                found.append(str(OllamaName((host, user, model), tag)))
    return sorted(set(found))


def _stores() -> list[Path]:
    given = os.environ.get("OLLAMA_MODELS")
    if given:
        return [Path(given).expanduser()]
    # The second is where the service that its installer sets up keeps them.
    return [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]


def _there(stores: list[Path], wanted: OllamaName) -> str:
    every = names()
    tags = [name for name in every if name.rpartition(":")[0] == str(wanted).rpartition(":")[0]]
    shown = tags or every
    if not shown:
        return f"the store ({', '.join(map(str, stores))}) is empty"
    return f"there are: {', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}"


def _model_file(store: Path, manifest: Path, name: str) -> Path:
    layers = read_json(manifest, _MAX_MANIFEST).get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise CorruptFile(f"{manifest}: has no list of layers")
    kinds = [str(layer.get("mediaType")).removeprefix(_KIND) for layer in layers]
    if "adapter" in kinds:
        raise UnsupportedModel(
            f"{name}: is a model with an adapter (LoRA), which is not applied here; merge the two "
            "into one GGUF file"
        )
    models = [layer for layer, kind in zip(layers, kinds, strict=True) if kind == "model"]
    if len(models) != 1:
        kept = ", ".join(sorted(set(kinds))) or "nothing"
        raise UnsupportedModel(
            f"{name}: is not one GGUF file; its manifest names {len(models)} of them ({kept})"
        )
    return _blob(store, manifest, name, models[0])


def _blob(store: Path, manifest: Path, name: str, layer: dict[str, Any]) -> Path:
    digest = layer.get("digest")
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise CorruptFile(f"{manifest}: {quoted(digest)} is no digest of a layer")
    blob = store / "blobs" / f"sha256-{found[1]}"
    again = f"run: ollama pull {name.removeprefix(PREFIX)}"
    if not _is_file(blob):
        raise ModelError(f"{blob}: is missing; it is the file of {name}; {again}")
    size = layer.get("size")
    if isinstance(size, int) and blob.stat().st_size != size:
        raise CorruptFile(
            f"{blob}: has {blob.stat().st_size} bytes, and the manifest of {name} says {size}; "
            f"{again}"
        )
    return blob


def _is_dir(path: Path) -> bool:
    return _allowed(path, Path.is_dir)


def _is_file(path: Path) -> bool:
    return _allowed(path, Path.is_file)


def _allowed(path: Path, ask: Any) -> bool:
    """Raises ModelError where this user may not look: the service's store may be its own."""
    try:
        return bool(ask(path))
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); let its owner allow it, or name "
            "another store with OLLAMA_MODELS"
        ) from error
