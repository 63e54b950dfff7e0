"""Every finished part of a run, one line of JSON each, on the disk before the next one starts.

So a run that was killed goes on where it was: the finished parts are read back, and only what is
missing is measured. The first line names the plan; a journal of another plan is refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

from wager.backend import Answer, Counters, SourceCounts, Started
from wager.errors import ConfigError
from wager.types import DraftCounts, TokenLogprob

if sys.platform != "win32":
    import fcntl

_VERSION: Final = 1

PartKey = tuple[int, int]
"""(block, part) of the schedule."""


@dataclass(frozen=True, slots=True)
class PartRecord:
    """One finished part; ``counted`` is the difference of the engine's counters over it."""

    answers: list[Answer]
    counted: Counters
    seconds: float


@dataclass(slots=True)
class Finished:
    """What a journal holds."""

    parts: dict[PartKey, PartRecord] = field(default_factory=dict)
    started: dict[int, Started] = field(default_factory=dict)


class Journal:
    """An open journal; a context manager. ``finished`` is what was in it when it was opened.

    One without a finished part is gone in the end.

    Raises ConfigError: for a file of another plan, for one that cannot be read or written, for one
    that another run has open, and, unless ``resume``, for one that holds finished parts, which
    would be lost.
    """

    def __init__(self, path: Path, digest: str, *, resume: bool) -> None:
        self.path = path
        self.finished = Finished()
        self._empty = True
        try:
            self._file: BinaryIO = path.open("ab")
            try:
                self._begin(digest, resume)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise ConfigError(f"json: cannot write {path}: {error.strerror}") from error

    def _begin(self, digest: str, resume: bool) -> None:
        """Take the file for this run alone, then what is in it."""
        if not _locked(self._file):
            raise ConfigError(
                f"json: {self.path} belongs to a run that is going on; wait for its end, or name "
                "another file"
            )
        lines = _whole_lines(self.path)
        if lines and not self._read(lines, digest, resume):
            lines = []
        # A line that was being written when the run was killed goes.
        self._file.truncate(sum(len(line) for line in lines))
        self._empty = not self.finished.parts
        if not lines:
            self._write({"journal": _VERSION, "plan": digest})

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._empty:
            self.path.unlink(missing_ok=True)

    def started(self, block: int, started: Started) -> None:
        """An arm is ready."""
        self._write({"block": block, "started": asdict(started)})

    def part(self, key: PartKey, record: PartRecord) -> None:
        """A part is finished."""
        # Before it is written: an interrupt may come in between, and the part must stay.
        self._empty = False
        self._write({"part": list(key), **asdict(record)})

    def remove(self) -> None:
        """The run is complete and its report is written."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, lines: list[bytes], digest: str, resume: bool) -> bool:
        """Take in what is there; False if nothing is and the file can be begun anew."""
        try:
            head, *records = [json.loads(line) for line in lines]
            ours = isinstance(head, dict) and head["journal"] == _VERSION
        except (ValueError, KeyError) as error:
            raise ConfigError(f"json: {self.path} is not the journal of a run") from error
        if not ours:
            raise ConfigError(f"json: {self.path} is not the journal of a run of this version")
        done = sum("part" in record for record in records)
        if not resume and not done:
            return False
        if not resume:
            raise ConfigError(
                f"json: {self.path} holds {done} finished parts of a run that was not completed; "
                "go on with --resume, or delete the file"
            )
        if head["plan"] != digest:
            raise ConfigError(
                f"resume: {self.path} belongs to a run with other options, another model, version "
                "or machine; repeat its command with --resume, or delete the file"
            )
        for number, record in enumerate(records, 2):
            try:
                self._take(record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ConfigError(
                    f"resume: {self.path}: line {number} is damaged; without the lines from there "
                    "on the run can go on"
                ) from error
        return True

    def _take(self, record: Mapping[str, Any]) -> None:
        if "part" in record:
            block, part = record["part"]
            self.finished.parts[block, part] = PartRecord(
                [_answer(answer) for answer in record["answers"]],
                _counters(record["counted"]),
                record["seconds"],
            )
        else:
            self.finished.started[record["block"]] = Started(**record["started"])


def journal_path(json_file: Path | None, run_dir: Path | None) -> Path | None:
    """In the run's directory, else beside the JSON file; None without either."""
    if run_dir is not None:
        return run_dir / "journal.jsonl"
    return None if json_file is None else json_file.with_name(f"{json_file.name}.journal")


def _whole_lines(path: Path) -> list[bytes]:
    """The lines that end in a line break."""
    data = path.read_bytes()
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def _locked(file: BinaryIO) -> bool:
    """Whether the file is this process's own until it is closed, which the kernel does for one
    that was killed. Where there are no such locks it always is."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answer(raw: Mapping[str, Any]) -> Answer:
    fields = dict(raw)
    fields["chunks"] = [(time, tokens) for time, tokens in raw["chunks"]]
    if raw["counts"] is not None:
        fields["counts"] = DraftCounts(**raw["counts"])
    if raw["logprobs"] is not None:
        fields["logprobs"] = [
            TokenLogprob(x["token_id"], x["logprob"], tuple((i, v) for i, v in x["top"]))
            for x in raw["logprobs"]
        ]
    return Answer(**fields)


def _counters(raw: Mapping[str, Any]) -> Counters:
    at, by_source = raw["accepted_at"], raw["by_source"]
    if by_source is not None:
        by_source = {source: SourceCounts(**counts) for source, counts in by_source.items()}
    at = None if at is None else tuple(at)
    return Counters(**{**raw, "accepted_at": at, "by_source": by_source})
