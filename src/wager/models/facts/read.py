"""What a model is and how large, from its config and headers alone: no weights are read.

Takes a pulled name, a directory in Hugging Face layout, a GGUF file (of one or of many parts), or a
name on the model hub: ``org/name``, ``org/name@revision``, ``org/name:Q4_K_M`` or
``org/name/file.gguf``. Of a model on the hub, a few hundred kilobytes are fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wager.errors import ModelError
from wager.models import hub_names
from wager.models.catalogue import CATALOGUE, HubEntry
from wager.models.facts.records import (
    KV_BITS,
    LayerCache,
    ModelFacts,
    Source,
    TensorFact,
    is_mtp,
)

if TYPE_CHECKING:
    from wager.models.hub_names import HubName
    from wager.models.names import Located
    from wager.models.safetensors_file import TensorInfo

__all__ = ["KV_BITS", "LayerCache", "ModelFacts", "TensorFact", "is_mtp", "read_facts"]

MAX_CONFIG: Final = 1 << 22
MAX_INDEX: Final = 1 << 26
MAX_TOKENIZER: Final = 1 << 27


def read_facts(name: str, revision: str | None = None, *, tokenizer: bool = True) -> ModelFacts:
    """The facts of a model. ``tokenizer`` False leaves its hash out: on the hub that saves most.

    ``revision`` is a branch, tag or commit of a model on the hub. Raises ModelError (CorruptFile,
    UnsupportedModel) and ConfigError.
    """
    found = _find(name)
    if isinstance(found, hub_names.HubName):
        from wager.models.facts.hub import read_hub

        return read_hub(hub_names.at_revision(found, revision), tokenizer)
    path = found.path
    if revision is not None:
        raise ModelError(f"revision: {path} is on this machine; only names on the hub have any")
    if path.is_dir():
        return from_directory(path, found.name, "directory", str(path), tokenizer)
    from wager.models.facts import gguf as facts_gguf
    from wager.models.gguf_file import SIZES
    from wager.models.gguf_parts import read_whole

    return facts_gguf.build(
        read_whole(path, SIZES),
        name=found.name,
        source="gguf",
        location=str(path),
        tokenizer=tokenizer,
    )


def from_directory(
    path: Path, name: str, source: Source, location: str, tokenizer: bool
) -> ModelFacts:
    """The facts of a directory in Hugging Face layout."""
    from wager.models.facts import hf as facts_hf
    from wager.models.safetensors_file import read_json

    config = path / "config.json"
    if not config.is_file():
        found = sorted(path.glob("*.gguf"))
        hint = f"; it holds {found[0].name}: name that file" if found else ""
        raise ModelError(f"{path}: has no config.json, so it is no model directory{hint}")
    tensors, pickled = _directory_tensors(path)
    table = path / "tokenizer.json"
    hashed = None
    if tokenizer and table.is_file():
        hashed = facts_hf.tokenizer_hash(read_json(table, MAX_TOKENIZER), table)
    return facts_hf.build(
        name=name,
        source=source,
        location=location,
        raw=read_json(config, MAX_CONFIG),
        path=config,
        tensors=tensors,
        tokenizer_hash=hashed,
        pickled_bytes=pickled,
    )


def tensor_facts(infos: dict[str, TensorInfo]) -> list[TensorFact]:
    """The tensors of safetensors headers, as facts."""
    from wager.models.safetensors_file import BITS

    facts = []
    for name, info in infos.items():
        elements = 1
        for size in info.shape:
            elements *= size
        facts.append(TensorFact(name, info.dtype, info.shape, elements * BITS[info.dtype] // 8))
    return facts


def _find(name: str) -> Located | HubName:
    """Where a model is: on this machine, or its name on the hub."""
    from wager.models.names import hub_name, locate, locate_file

    found = locate_file(name)
    if found is not None:
        return found
    entry = CATALOGUE.get(name)
    if isinstance(entry, HubEntry):
        return hub_name(entry)
    if entry is not None:
        return locate(name)
    if Path(name).is_absolute() or name.startswith((".", "~")) or (
        name.endswith(".gguf") and "/" not in name
    ):  # fmt: skip
        raise ModelError(f"{Path(name).expanduser()}: there is no such file or directory")
    wanted = hub_names.parse(name)
    if wanted is None:
        raise ModelError(
            f"model: there is no file or directory {name!r}, and it is no name on the hub "
            f"(org/name) nor a model to pull ({', '.join(CATALOGUE)})"
        )
    return wanted


def _directory_tensors(path: Path) -> tuple[list[TensorFact], int | None]:
    """(tensors, None), or (nothing, bytes of the pickles)."""
    from wager.models.safetensors_file import (
        BITS,
        INDEX,
        SINGLE,
        pickles,
        read_directory,
        read_safetensors,
    )

    if (path / SINGLE).exists() or (path / INDEX).exists():
        return tensor_facts(read_directory(path, BITS)[0]), None
    infos: dict[str, Any] = {}
    for file in sorted(path.glob("*.safetensors")):
        infos.update(read_safetensors(file, _NoDigest(), BITS))
    if infos:
        return tensor_facts(infos), None
    files = pickles([file.name for file in path.iterdir() if file.is_file()])
    if not files:
        raise ModelError(f"{path}: holds no weights: neither *.safetensors nor *.bin")
    return [], sum((path / name).stat().st_size for name in files)


class _NoDigest:
    """Takes the place of a digest that nobody asks for."""

    def update(self, data: bytes) -> None:
        """Nothing is kept."""
