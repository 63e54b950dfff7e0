"""Pull a model from the hub into the cache of its library, where every program finds it.

Only what a model is read with: weights in safetensors or one GGUF model, its settings, tokenizer
and templates. HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE mean what they mean
everywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wager.errors import ModelError
from wager.models import hub_cache
from wager.models.gguf_parts import part_names
from wager.models.hub_errors import hub_errors, no_space, unreachable
from wager.models.hub_fetch import Expected, fetch, is_sound
from wager.models.hub_names import (
    HubName,
    choose_gguf,
    is_directory,
    settings_of,
)
from wager.models.paths import replacing
from wager.models.pull import Progress
from wager.models.safetensors_file import (
    INDEX,
    MAX_CONFIG,
    MAX_INDEX,
    SINGLE,
    check_index,
    read_json,
)

_ETAG: Final = re.compile(r"[\w.-]{1,200}")


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here now. ``fetched`` is how many bytes came; ``note`` is what to add.

    ``checked``: every file has the hash that the hub states, not only the size.
    """

    path: Path
    nbytes: int
    fetched: int
    checked: bool
    licence: str | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Repo:
    """A repository at one commit: its files, and what the hub says of each."""

    name: HubName
    commit: str
    files: dict[str, Expected]
    licence: str | None

    @property
    def root(self) -> Path:
        return hub_cache.repo_dir(self.name.repo) / "snapshots" / self.commit


def pull_hub(name: HubName, progress: Progress = lambda *_: None) -> Pulled:
    """Fetch what is not here of a model, check all of it. Raises ModelError (CorruptFile,
    UnsupportedModel)."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return _as_it_is(name, "the hub was not asked", "unset HF_HUB_OFFLINE")
    with hub_errors(name.repo, name.revision):
        try:
            at = _ask(name)
        except Exception as error:
            if not unreachable(error):
                raise
            away = f"the hub {constants.ENDPOINT} cannot be reached ({type(error).__name__})"
            return _as_it_is(name, away, "look at the network, the proxy and HF_ENDPOINT")
        return _Pull(at, progress).run()


def _as_it_is(name: HubName, why: str, hint: str) -> Pulled:
    """What the cache holds, unchecked."""
    try:
        found = hub_cache.Cached(name, hub_cache.find(name), "")
    except hub_cache.NotHere as error:
        reason = str(error).partition("; run:")[0]
        raise ModelError(f"{reason}, and {why}; {hint}") from error
    return Pulled(found.path, found.nbytes, 0, False, None, why)


def _ask(name: HubName) -> _Repo:
    from huggingface_hub import HfApi

    info = HfApi().model_info(name.repo, revision=name.revision, files_metadata=True)
    files = {
        sibling.rfilename: Expected(
            sibling.size,
            sibling.lfs.sha256 if sibling.lfs is not None else None,
            sibling.blob_id if sibling.lfs is None else None,
        )
        for sibling in info.siblings or ()
    }
    if info.sha is None:
        raise ModelError(f"{name.repo}: the hub does not say which commit {name} is")
    tags = (tag.partition(":") for tag in info.tags or ())
    licence = next((value for key, _, value in tags if key == "license"), None)
    return _Repo(name, info.sha, files, licence)


class _Pull:
    """One pull: the files one after the other, with what is done of all of them."""

    def __init__(self, at: _Repo, progress: Progress) -> None:
        self._at = at
        self._progress = progress
        self._done = 0
        self._total = 0
        self._fetched = 0
        self._checked = True

    def run(self) -> Pulled:
        name, files = self._at.name, self._at.files
        if is_directory(name, files):
            path = self._at.root
            self._directory()
        else:
            where = f"{name.repo}@{self._at.commit}"
            chosen = choose_gguf(where, list(files), name.file, name.quant)
            path = self._at.root / chosen
            self._expect(part_names(chosen))
            self._get(part_names(chosen))
        self._refer()
        return Pulled(path, self._done, self._fetched, self._checked, self._at.licence)

    def _directory(self) -> None:
        """The small files first: of a family that cannot run the large ones are not fetched."""
        from wager.models.hf_config import read_config

        files, root = self._at.files, self._at.root
        if SINGLE not in files and INDEX not in files:
            raise ModelError(
                f"{self._at.name.repo}: holds neither {SINGLE} nor {INDEX}; pickles (*.bin) are "
                "never read"
            )
        small, weights = settings_of(files), [SINGLE]
        if SINGLE not in files:
            small.append(INDEX)
            # A guess, until the index is here.
            weights = [n for n in files if n.endswith(".safetensors") and "/" not in n]
        self._expect([*small, *weights])
        self._get(small)
        read_config(root / "config.json", read_json(root / "config.json", MAX_CONFIG))
        if SINGLE not in files:
            index = read_json(root / INDEX, MAX_INDEX)
            weights = sorted(set(check_index(index, root / INDEX).values()))
            self._expect([*small, *weights])
        self._get(weights)

    def _expect(self, names: list[str]) -> None:
        missing = next((name for name in names if name not in self._at.files), None)
        if missing is not None:
            raise ModelError(f"{self._at.name.repo}: {missing} is missing on the hub")
        self._total = sum(self._at.files[name].size or 0 for name in names)

    def _get(self, names: list[str]) -> None:
        for name in names:
            self._done += self._file(name)

    def _file(self, name: str) -> int:
        """Fetch and name one file; its bytes."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        repo, commit = self._at.name.repo, self._at.commit
        url = hf_hub_url(repo, name, revision=commit)
        told = get_hf_file_metadata(url)
        if told.etag is None or not _ETAG.fullmatch(told.etag) or set(told.etag) == {"."}:
            raise ModelError(f"{repo}: the hub gives {name} no usable ETag")
        expected = self._expected(name, told.etag, told.size)
        blob = hub_cache.repo_dir(repo) / "blobs" / told.etag
        if not (blob.exists() and is_sound(blob, expected, self._teller("checking"))):
            blob.unlink(missing_ok=True)
            self._check_room(blob, expected)
            fetch(url, blob, f"{repo}: {name}", expected, self._teller("fetching"))
            self._fetched += blob.stat().st_size
        self._checked &= expected.hash is not None
        _link(blob, self._at.root / name)
        return blob.stat().st_size

    def _expected(self, name: str, etag: str, size: int | None) -> Expected:
        listed = self._at.files[name]
        sha256 = listed.sha256
        if sha256 is None and re.fullmatch(r"[0-9a-f]{64}", etag):
            sha256 = etag  # what the hub calls files that are stored apart
        return Expected(size if size is not None else listed.size, sha256, listed.git)

    def _teller(self, what: str) -> Callable[[int], None]:
        return lambda done: self._progress(what, min(self._done + done, self._total), self._total)

    def _check_room(self, blob: Path, expected: Expected) -> None:
        blob.parent.mkdir(parents=True, exist_ok=True)
        part = blob.with_name(f"{blob.name}{hub_cache.PARTIAL}")
        there = part.stat().st_size if part.exists() else 0
        needed, free = (expected.size or 0) - there, shutil.disk_usage(blob.parent).free
        if needed > free:
            raise ModelError(
                f"{self._at.name.repo}: needs {needed / 1e9:.1f} GB more, and {free / 1e9:.1f} GB "
                f"are free: {no_space(str(blob.parent))}"
            )

    def _refer(self) -> None:
        """The revision means this commit from now on; before, it meant one that is whole."""
        revision = self._at.name.revision or hub_cache.MAIN
        if revision != self._at.commit:
            refs = hub_cache.repo_dir(self._at.name.repo) / "refs"
            with replacing(refs / revision) as file:
                file.write(self._at.commit.encode())


def _link(blob: Path, target: Path) -> None:
    """The name of a blob, as the library makes it: a relative link, or a copy where that fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(blob):
        return
    new = target.with_name(f".{target.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    try:
        new.symlink_to(os.path.relpath(blob, target.parent))
    except OSError:
        shutil.copyfile(blob, new)
    new.replace(target)
