"""Facts of a model on the hub: its config, and headers by range requests. No weights are fetched.

Goes through huggingface_hub, so that HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE mean what
they mean everywhere. Offline, what the cache holds is read.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wager.errors import CorruptFile, ModelError
from wager.models import hub_cache
from wager.models.facts import gguf as facts_gguf
from wager.models.facts import hf as facts_hf
from wager.models.facts import read as facts
from wager.models.facts.records import ModelFacts, TensorFact
from wager.models.gguf_file import SIZES, GgufFile, parse_gguf
from wager.models.gguf_parts import joined, part_names, read_whole
from wager.models.hub_errors import hub_errors, unreachable
from wager.models.hub_names import HubName, choose_gguf, is_directory
from wager.models.safetensors_file import (
    BITS,
    INDEX,
    SINGLE,
    check_index,
    parse_json,
    parse_safetensors,
    pickles,
)

if TYPE_CHECKING:
    from huggingface_hub import HfFileSystem

# Bytes of one range request: most headers of a shard are smaller, and a GGUF header with its
# vocabulary takes a few.
_SAFETENSORS_RANGE: Final = 1 << 17
_GGUF_RANGE: Final = 1 << 21
_TOGETHER: Final = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Repo:
    """A repository at one commit: its files with their sizes (None where the hub tells none)."""

    fs: HfFileSystem
    repo: str
    commit: str
    files: dict[str, int | None]

    @property
    def location(self) -> str:
        return f"{self.repo}@{self.commit}"

    def url(self, file: str) -> Path:
        """How messages name a file."""
        return Path(self.location) / file

    def open(self, file: str, block: int) -> Any:
        """A file that is read by ranges of ``block`` bytes, as far as it is read."""
        path = f"{self.repo}@{self.commit.replace('/', '%2F')}/{file}"
        return self.fs.open(path, "rb", block_size=block, cache_type="readahead")

    def json(self, file: str, limit: int) -> dict[str, Any]:
        """A whole JSON file, through the cache of the hub's library."""
        from huggingface_hub import hf_hub_download

        size = self.files.get(file)
        if size is not None and size > limit:
            raise CorruptFile(f"{self.url(file)}: is larger than {limit} bytes")
        path = Path(hf_hub_download(self.repo, file, revision=self.commit))
        return parse_json(path.read_bytes(), self.url(file))


def read_hub(name: HubName, tokenizer: bool) -> ModelFacts:
    """Facts of a name on the hub. Raises ModelError, CorruptFile, UnsupportedModel."""
    with hub_errors(name.repo, name.revision):
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return _cached(name, tokenizer)
        try:
            at = _repository(name.repo, name.revision)
        except Exception as error:
            if not unreachable(error):
                raise
            try:
                return _cached(name, tokenizer)
            except ModelError:
                raise ModelError(
                    f"{name.repo}: the hub {constants.ENDPOINT} cannot be reached "
                    f"({type(error).__name__}), and this machine's cache does not hold the model"
                ) from error
        return _facts(at, name, tokenizer)


def _repository(repo: str, revision: str | None) -> _Repo:
    from huggingface_hub import HfApi, HfFileSystem

    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    files = {sibling.rfilename: sibling.size for sibling in info.siblings or ()}
    # A file system of its own: the class hands out old ones, whose listings may be stale.
    fs = HfFileSystem(skip_instance_cache=True)
    return _Repo(fs, repo, info.sha or revision or "main", files)


def _facts(at: _Repo, name: HubName, tokenizer: bool) -> ModelFacts:
    if is_directory(name, at.files):
        return _safetensors(at, tokenizer)
    chosen = choose_gguf(at.location, list(at.files), name.file, name.quant)
    headers = _together(lambda part: _gguf_header(at, part), part_names(chosen))
    return facts_gguf.build(
        joined(headers),
        name=f"{at.repo}/{chosen}",
        source="hub",
        location=at.location,
        tokenizer=tokenizer,
    )


def _safetensors(at: _Repo, tokenizer: bool) -> ModelFacts:
    names = _shards(at)
    headers = _together(lambda name: _safetensors_header(at, name), names)
    tensors = [tensor for header in headers for tensor in header]
    hashed = None
    if tokenizer and "tokenizer.json" in at.files:
        raw = at.json("tokenizer.json", facts.MAX_TOKENIZER)
        hashed = facts_hf.tokenizer_hash(raw, at.url("tokenizer.json"))
    pickled = None
    if not names:
        pickled = sum(at.files[name] or 0 for name in pickles(list(at.files)))
    return facts_hf.build(
        name=at.repo,
        source="hub",
        location=at.location,
        raw=at.json("config.json", facts.MAX_CONFIG),
        path=at.url("config.json"),
        tensors=tensors,
        tokenizer_hash=hashed,
        pickled_bytes=pickled,
    )


def _shards(at: _Repo) -> list[str]:
    if SINGLE in at.files:
        return [SINGLE]
    if INDEX in at.files:
        place = check_index(at.json(INDEX, facts.MAX_INDEX), at.url(INDEX))
        missing = next((name for name in place.values() if name not in at.files), None)
        if missing is not None:
            raise ModelError(f"{at.url(missing)}: is missing; {INDEX} names it")
        return sorted(set(place.values()))
    return sorted(n for n in at.files if n.endswith(".safetensors") and "/" not in n)


def _safetensors_header(at: _Repo, name: str) -> list[TensorFact]:
    with at.open(name, _SAFETENSORS_RANGE) as file:
        infos, _ = parse_safetensors(file, file.size, at.url(name), BITS)
    return facts.tensor_facts(infos)


def _gguf_header(at: _Repo, name: str) -> GgufFile:
    if name not in at.files:
        raise ModelError(f"{at.url(name)}: is missing; it is one of the parts of the model")
    with at.open(name, _GGUF_RANGE) as file:
        return parse_gguf(file, file.size, at.url(name), SIZES)


def _together(read: Callable[[str], T], names: list[str]) -> list[T]:
    if len(names) <= 1:
        return [read(name) for name in names]
    with ThreadPoolExecutor(_TOGETHER) as pool:
        return list(pool.map(read, names))


def _cached(name: HubName, tokenizer: bool) -> ModelFacts:
    """From the cache of the hub's library alone."""
    root = hub_cache.snapshot(name)
    if root is None:
        raise ModelError(
            f"{name.repo}: is not in the cache of this machine, and the hub is not asked "
            "(HF_HUB_OFFLINE); download it first, or unset HF_HUB_OFFLINE"
        )
    location = f"{name.repo}@{root.name}"
    names = hub_cache.files_in(root)
    if is_directory(name, names):
        return facts.from_directory(root, name.repo, "hub", location, tokenizer)
    chosen = choose_gguf(location, names, name.file, name.quant)
    return facts_gguf.build(
        read_whole(root / chosen, SIZES),
        name=f"{name.repo}/{chosen}",
        source="hub",
        location=location,
        tokenizer=tokenizer,
    )
