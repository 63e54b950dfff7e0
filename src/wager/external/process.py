"""An engine as a process: started, waited for, its log read, and ended whatever happens.

The command runs under a watchdog (`wager.external.watchdog`) that holds a pipe to this process:
leaving the context, an exception, SIGTERM, SIGINT, exit and SIGKILL of this process all close the
pipe, and the watchdog then ends everything that the command started. Should the watchdog be killed
as well, the record that each start leaves lets `end_leftovers` find what remains.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from wager.backend import EngineError
from wager.external import watchdog

_TAIL_LINES: Final = 8
_LINE_CHARACTERS: Final = 300
_POLL_S: Final = 0.1
_LOG_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 1 << 16
_LAST_WORDS_S: Final = 5.0
_CAUSE: Final = re.compile(r"\b(?:[A-Z]\w*Error|error)\b:? ")
_WARNING: Final = re.compile(r"\bwarning\b", re.IGNORECASE)
_TAKEN: Final = re.compile(r"address already in use|couldn't bind|EADDRINUSE", re.IGNORECASE)


def free_port(host: str = "127.0.0.1") -> int:
    """A port of ``host`` that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class EngineProcess:
    """A command with everything it starts, in a session of its own.

    ``log`` takes its output, both streams; with ``echo``, which is handed all of it as it comes,
    no more than the first 4 MiB, so that a long life does not fill a disk. ``record`` is a file
    that says what runs, removed when it has ended. Raises EngineError when the command cannot be
    run at all. Ending it takes at most ``grace_s`` seconds (SIGTERM, then SIGKILL).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        record: Path | None = None,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 20.0,
        echo: Callable[[bytes], object] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._copier: threading.Thread | None = None
        self._record = record
        self._grace_s = grace_s
        # The watchdog needs neither site-packages nor the user's Python settings; the engine,
        # its child, gets the environment as it is.
        python = [sys.executable, "-I", "-S", watchdog.__file__, str(grace_s)]
        with log.open("wb") as out:
            self._watchdog = subprocess.Popen(
                [*python, *self.command],
                stdin=subprocess.PIPE,
                stdout=out if echo is None else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        atexit.register(self.stop)
        if echo is not None and self._watchdog.stdout is not None:
            given = (self._watchdog.stdout, log, echo)
            self._copier = threading.Thread(target=_copy, args=given, daemon=True)
            self._copier.start()
        if record is not None:
            _write_record(record, name, self._watchdog.pid)

    @property
    def session(self) -> int:
        """The number of the session (and process group) that everything runs in."""
        return self._watchdog.pid

    def exit_status(self) -> int | None:
        """None while it runs; 128 + n when signal n ended it."""
        status = self._watchdog.poll()
        return status if status is None or status >= 0 else 128 - status

    def log_text(self) -> str:
        """All of the log so far."""
        return self.log.read_text(errors="replace")

    def port_taken(self) -> bool:
        """Whether the log says that another process has the port."""
        return _TAKEN.search(self.log_text()) is not None

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Return once ``ready()``. Raises EngineError, with the log's end, if it ends before or
        takes longer than ``timeout_s``."""
        end = time.monotonic() + timeout_s
        while True:
            status = self.exit_status()
            if status is not None:
                raise self.failure(f"ended with exit status {status} before it was ready")
            if ready():
                return
            if time.monotonic() > end:
                raise self.failure(f"was not ready after {timeout_s:g} s")
            time.sleep(_POLL_S)

    def failure(self, what: str) -> EngineError:
        """An error that says ``what`` and quotes the log: its last lines, and before them the
        first line that names an error and is no warning, if that stands further up."""
        lines = [line.strip() for line in self.log_text().splitlines() if line.strip()]
        tail = lines[-_TAIL_LINES:]
        above = [line for line in lines[:-_TAIL_LINES] if not _WARNING.search(line)]
        cause = next((line for line in above if _CAUSE.search(line)), None)
        shown = " | ".join(
            line[:_LINE_CHARACTERS] for line in ([cause, "..."] if cause else []) + tail
        )
        return EngineError(f"{self.name} {what}; log {self.log}: {shown or 'empty'}")

    def ask_to_end(self) -> None:
        """End it and everything that it started, without waiting until that is done."""
        pipe = self._watchdog.stdin
        if pipe is not None and not pipe.closed:
            with suppress(OSError):
                pipe.close()

    def kill(self) -> None:
        """End all of it now, whatever it is doing."""
        _end_session(self._watchdog.pid)

    def stop(self) -> None:
        """End it and everything that it started; nothing to do when that has been done."""
        atexit.unregister(self.stop)
        self.ask_to_end()
        try:
            self._watchdog.wait(timeout=self._grace_s + 15)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        _end_session(self._watchdog.pid)
        if self._copier is not None:
            # Nobody is left to write, so what there is to read ends.
            self._copier.join(timeout=_LAST_WORDS_S)
        if self._record is not None:
            self._record.unlink(missing_ok=True)

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def end_leftovers(directory: Path) -> list[str]:
    """End what an earlier, killed process left running; the names of the engines concerned.

    ``directory`` is where that process kept its records. Those of engines whose starter still runs
    are left alone. Where there is no /proc nothing is ended: a number alone may be a stranger's.
    """
    ended = []
    for record in sorted(directory.glob("*.running.json")):
        try:
            found = json.loads(record.read_text())
            session, starter = int(found["session"]), int(found["starter"])
            started, name = int(found["started"]), str(found["name"])
            starter_started = int(found["starter_started"])
        except (OSError, ValueError, KeyError, TypeError):
            # Written only in part: the process was killed in between, and its pipe with it.
            record.unlink(missing_ok=True)
            continue
        alive = watchdog.processes()
        if starter in alive and alive[starter].started == starter_started:
            continue
        same_boot = found.get("boot") == _boot()
        if same_boot and _end_session(session, started):
            ended.append(name)
        record.unlink(missing_ok=True)
    return ended


def record_directory() -> Path:
    """Where this user's records are, for whichever measurement comes next. Raises EngineError."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    directory = Path(tempfile.gettempdir()) / f"wager-engines-{user}"
    directory.mkdir(mode=0o700, exist_ok=True)
    # What is read from there ends processes: it must not be someone else's.
    if directory.is_symlink() or directory.stat().st_uid != user:
        raise EngineError(f"{directory} belongs to another user; remove it, or set TMPDIR")
    return directory


def _copy(source: BinaryIO, log: Path, echo: Callable[[bytes], object]) -> None:
    room = _LOG_BYTES
    with source, log.open("wb", buffering=0) as out:
        while piece := os.read(source.fileno(), _PIECE_BYTES):
            if room > 0:
                out.write(piece[:room])
                room -= len(piece)
            # A terminal that is gone must not stop the engine for want of a reader.
            with suppress(OSError, ValueError):
                echo(piece)


def _write_record(record: Path, name: str, session: int) -> None:
    alive = watchdog.processes()
    leader, me = alive.get(session), alive.get(os.getpid())
    content = {
        "name": name,
        "session": session,
        "started": leader.started if leader else 0,
        "starter": os.getpid(),
        "starter_started": me.started if me else 0,
        "boot": _boot(),
    }
    record.write_text(json.dumps(content))


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _end_session(session: int, started: int | None = None) -> bool:
    """Kill what is left of a session and below; True if there was anything.

    With ``started``, a session of the same number that a later process leads is left alone.
    """
    any_left = False
    for _ in range(50):
        alive = watchdog.processes()
        leader = alive.get(session)
        if started is not None and leader is not None and leader.started != started:
            break
        members = {f.pid for f in alive.values() if f.session == session and f.state not in "ZX"}
        below = {pid for member in members for pid in watchdog.descendants(member)}
        if not members | below:
            break
        any_left = True
        watchdog.send(members | below, signal.SIGKILL)
        time.sleep(0.02)
    return any_left
