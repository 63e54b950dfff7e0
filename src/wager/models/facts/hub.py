"""Facts of a model on the hub: its config, and headers by range requests. No weights are fetched.

Goes through huggingface_hub, so that HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE mean what
they mean everywhere. Offline, what the cache holds is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wager.errors import CorruptFile, ModelError
from wager.models.facts import gguf as facts_gguf
from wager.models.facts import hf as facts_hf
from wager.models.facts import read as facts
from wager.models.facts.records import ModelFacts, TensorFact
from wager.models.gguf_file import SIZES, GgufFile, parse_gguf
from wager.models.gguf_parts import joined, part_names, read_whole
from wager.models.safetensors_file import (
    BITS,
    INDEX,
    SINGLE,
    check_index,
    parse_json,
    parse_safetensors,
)

if TYPE_CHECKING:
    from huggingface_hub import HfFileSystem

_NAME: Final = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?"
    r"(?:/(?P<file>[\w./-]+\.gguf)|:(?P<quant>[\w.-]+))?"
)
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


def read_hub(name: str, revision: str | None, tokenizer: bool) -> ModelFacts:
    """Facts of ``org/name[@revision][:QUANT | /file.gguf]``. Raises ModelError, CorruptFile,
    UnsupportedModel."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ModelError(f"model: {name!r} is no name on the hub; it looks like org/name@revision")
    repo, wanted = found["repo"], revision or found["revision"]
    with hub_errors(repo, wanted):
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return _cached(repo, wanted, found["file"], found["quant"], tokenizer)
        try:
            at = _repository(repo, wanted)
        except Exception as error:
            if not _unreachable(error):
                raise
            try:
                return _cached(repo, wanted, found["file"], found["quant"], tokenizer)
            except ModelError:
                raise ModelError(
                    f"{repo}: the hub {constants.ENDPOINT} cannot be reached "
                    f"({type(error).__name__}), and this machine's cache does not hold the model"
                ) from error
        return _facts(at, found["file"], found["quant"], tokenizer)


def _repository(repo: str, revision: str | None) -> _Repo:
    from huggingface_hub import HfApi, HfFileSystem

    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    files = {sibling.rfilename: sibling.size for sibling in info.siblings or ()}
    # A file system of its own: the class hands out old ones, whose listings may be stale.
    fs = HfFileSystem(skip_instance_cache=True)
    return _Repo(fs, repo, info.sha or revision or "main", files)


def _facts(at: _Repo, file: str | None, quant: str | None, tokenizer: bool) -> ModelFacts:
    if file is None and quant is None and "config.json" in at.files and _weights(at):
        return _safetensors(at, tokenizer)
    chosen = _choose_gguf(at.location, list(at.files), file, quant)
    headers = _together(lambda part: _gguf_header(at, part), part_names(chosen))
    return facts_gguf.build(
        joined(headers),
        name=f"{at.repo}/{chosen}",
        source="hub",
        location=at.location,
        tokenizer=tokenizer,
    )


def _weights(at: _Repo) -> bool:
    names = [name for name in at.files if "/" not in name]
    return any(n.endswith(".safetensors") for n in names) or bool(facts.pickles(names))


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
        pickled = sum(at.files[name] or 0 for name in facts.pickles(list(at.files)))
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


def _choose_gguf(where: str, names: list[str], file: str | None, quant: str | None) -> str:
    """The GGUF file that is meant; of a model in parts, its first."""
    there = sorted(name for name in names if name.endswith(".gguf"))
    models = [n for n in there if not Path(n).name.startswith("mmproj")
              and n == part_names(n)[0]]  # fmt: skip
    if file is not None:
        if file not in there:
            raise ModelError(f"{where}: has no file {file}; {_list_of(models)}")
        return part_names(file)[0]
    if quant is not None:
        # Not Q4_K_M in UD-Q4_K_M or in Q4_K_M_XL: a name of its own between separators.
        whole = re.compile(rf"(?:^|[./_-])(?<!UD-){re.escape(quant)}(?=[./-]|$)", re.IGNORECASE)
        fitting = [name for name in models if whole.search(name)]
        if len(fitting) != 1:
            reason = "no file" if not fitting else f"{len(fitting)} files"
            raise ModelError(f"{where}: has {reason} of quantisation {quant}; {_list_of(models)}")
        return fitting[0]
    if len(models) == 1:
        return models[0]
    if not models:
        raise ModelError(f"{where}: holds neither safetensors with a config.json nor GGUF files")
    raise ModelError(f"{where}: has {len(models)} GGUF files; name one: {_list_of(models)}")


def _list_of(names: list[str]) -> str:
    shown = ", ".join(names[:12])
    return f"there are: {shown}{', ...' if len(names) > 12 else ''}" if names else "it has no GGUF"


def _cached(
    repo: str, revision: str | None, file: str | None, quant: str | None, tokenizer: bool
) -> ModelFacts:
    """From the cache of the hub's library alone."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        root = Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{repo}: is not in the cache of this machine, and the hub is not asked "
            "(HF_HUB_OFFLINE); download it first, or unset HF_HUB_OFFLINE"
        ) from error
    location = f"{repo}@{root.name}"
    if file is None and quant is None and (root / "config.json").is_file():
        return facts.from_directory(root, repo, "hub", location, tokenizer)
    names = [str(path.relative_to(root)) for path in root.rglob("*.gguf")]
    chosen = _choose_gguf(location, names, file, quant)
    return facts_gguf.build(
        read_whole(root / chosen, SIZES),
        name=f"{repo}/{chosen}",
        source="hub",
        location=location,
        tokenizer=tokenizer,
    )


def _unreachable(error: Exception) -> bool:
    """Whether the hub did not answer. The library's HTTP client depends on its version."""
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith(
        "httpx"
    )


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """What the hub's library raises, as one line for the user."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo}: is gated: accept its terms on the hub, then set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repo}: has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{repo}: there is no such model on the hub, or it is private and HF_TOKEN is not set"
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise ModelError(f"{repo}: the hub answered: {_line(error)}") from error
    except Exception as error:
        if _unreachable(error):
            what = f"the hub stopped answering ({type(error).__name__})"
        elif isinstance(error, OSError):
            # The cache of the hub's library cannot be written, or a file went away.
            what = _line(error)
        else:
            raise
        raise ModelError(f"{repo}: {what}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
