"""Recorded requests and answers: what `wager replay` learns from.

A file is read line by line, so that its size does not matter; gzip is seen by its content. A line
that cannot be used is named and the next one is read. Which shapes are understood is described in
docs/replay.md; `wager.bench.logs.objects` reads JSON lines, `wager.bench.logs.server` the text
logs of vLLM and llama-server.
"""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Final

from wager.bench.logs.objects import read_object
from wager.bench.logs.records import BadLine, Entry, edit
from wager.bench.logs.server import ServerLog
from wager.errors import ConfigError, RequestError

_HEAD: Final = 16
"""Lines after which it is settled what a file is."""

Progress = Callable[[int, int], None]
"""(bytes read, bytes in all) of the file on disk."""


def read_log(
    path: Path, group: str | None = None, progress: Progress | None = None
) -> Iterator[Entry]:
    """Every answered request of a log, in its order. ``group`` is a field, dots for nested ones.

    Raises ConfigError where the file cannot be read at all.
    """
    lines = ((n, line) for n, line in _lines(path, progress) if line.strip())
    # A damaged line at the start does not make a server's log of a file.
    head = list(islice(lines, _HEAD))
    if head:
        _refuse_others(path, head[0][1])
    server = ServerLog() if all(_is_server_log(line) for _, line in head) else None
    if server is not None and group is not None:
        raise ConfigError(f"group: {path} is a server's own log, which has no such fields")
    for number, line in chain(head, lines):
        if server is not None:
            yield from server.feed(number, _message(line))
            continue
        try:
            yield from read_object(number, _json(line), group)
        except RequestError as error:
            yield BadLine(number, str(error))
    if server is not None:
        yield from server.rest()


def _is_server_log(line: bytes) -> bool:
    return not line.lstrip().startswith(b"{") or _message(line) != _text(line)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _message(line: bytes) -> str:
    """The text of a log line; servers that log as JSON (``--log-jsonl``) wrap it in an object."""
    if line.lstrip().startswith(b"{"):
        try:
            wrapped = _json(line)
        except RequestError:
            return _text(line)
        if isinstance(wrapped, dict) and not {"prompt", "messages", "request"} & set(wrapped):
            for key in ("msg", "message"):
                if isinstance(wrapped.get(key), str):
                    return str(wrapped[key])
    return _text(line)


def read_pairs(old: Path, new: Path) -> Iterator[Entry]:
    """Old and edited texts: files of the same relative path in two directories."""
    for name, directory in (("OLD", old), ("NEW", new)):
        if not directory.is_dir():
            raise ConfigError(f"pairs: {name}: {str(directory)!r} is not a directory")
    paths = sorted(p.relative_to(old) for p in old.rglob("*") if p.is_file())
    for number, path in enumerate(paths, 1):
        try:
            before = (old / path).read_text(encoding="utf-8")
            after = (new / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            yield BadLine(number, "the file is in OLD only")
        except (OSError, UnicodeDecodeError):
            yield BadLine(number, "the file cannot be read as text")
        else:
            try:
                yield edit(number, before, after)
            except RequestError as error:
                yield BadLine(number, str(error))


def _lines(path: Path, progress: Progress | None) -> Iterator[tuple[int, bytes]]:
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            # Looked at without moving on: a pipe cannot go back.
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            lines: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if zipped else raw
            for number, line in enumerate(lines, 1):
                yield number, line.removeprefix(BOM_UTF8) if number == 1 else line
                if progress is not None and raw.seekable():
                    progress(raw.tell(), size)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"logs: {path}: cannot be read: {reason}") from error


def _refuse_others(path: Path, line: bytes) -> None:
    """Files of another kind are named by what they are, not as thousands of bad lines."""
    if line.lstrip().startswith(b"["):
        start = line.lstrip()[1:].lstrip()[:1]
        if start in (b"", b"{", b"\n"):
            raise ConfigError(
                f"logs: {path}: is one JSON array; write one object per line, for instance with "
                "jq -c '.[]'"
            )
    if line.startswith(b"PAR1") or b"\0" in line:
        raise ConfigError(f"logs: {path}: is not a text file; write one JSON object per line")


def _json(line: bytes) -> object:
    try:
        return json.loads(line)
    except RecursionError:
        raise RequestError("is nested too deeply") from None
    except ValueError:
        raise RequestError("is not JSON") from None
