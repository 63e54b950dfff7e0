"""Where files are kept: $WAGER_HOME, else $XDG_CACHE_HOME/wager, else ~/.cache/wager."""

from __future__ import annotations

import glob
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

STALE_SECONDS: Final = 24 * 3600
"""Unfinished files of this age belong to nobody any more."""


def cache_dir() -> Path:
    """The cache directory (not created here). ``$WAGER_HOME`` is taken as it is."""
    home = os.environ.get("WAGER_HOME")
    if home:
        return Path(home).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that relative paths are to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "wager"


def models_dir() -> Path:
    """Pulled models: one directory per name."""
    return cache_dir() / "models"


def packed_dir() -> Path:
    """Packed weights, mapped at the next start."""
    return cache_dir() / "packed"


def tokenizers_dir() -> Path:
    """Tokenizers built from GGUF metadata, in parsed form."""
    return cache_dir() / "tokenizers"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name ``path`` when the block ends without an error, at once.

    Readers see the old file or the whole new one. Its bytes are on the disk before it gets the
    name, so that a crash of the machine leaves no file of zeros behind. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    for old in path.parent.glob(f"{glob.escape(prefix)}*"):
        # What a process that was killed left behind.
        if time.time() - old.stat().st_mtime > STALE_SECONDS:
            old.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
