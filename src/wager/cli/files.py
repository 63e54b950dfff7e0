"""Files that a verb writes: seen to be possible before a long run, and written in one go."""

from __future__ import annotations

import os
from pathlib import Path

from wager.errors import ConfigError


def check_writable(path: Path, option: str) -> None:
    """Raise ConfigError, in the name of ``option``, before a long run rather than after it."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{option}: {path} is not a file in an existing directory")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{option}: {path.parent} cannot be written to")


def write(text: str, path: Path, option: str) -> None:
    """The old file or the whole new one is there, never half of one. Raises ConfigError."""
    from wager.models.paths import replacing

    check_writable(path, option)
    try:
        with replacing(path) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path}: {error.strerror}") from error


def make_run_dir(path: Path) -> None:
    """Raises ConfigError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run-dir: cannot make {path}: {error.strerror}") from error
