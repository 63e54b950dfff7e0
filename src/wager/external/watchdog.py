"""Leads an engine's processes and ends them all when whoever started it is gone.

Run as a program of its own (``watchdog.py GRACE_S COMMAND...``), with the standard library only:
standard input is a pipe whose other end the starting process holds. However that process ends,
SIGKILL included, the kernel closes the pipe, and the watchdog ends the engine with everything the
engine started: SIGTERM first, SIGKILL after GRACE_S seconds. It leads a session of its own, so a
Ctrl-C in a terminal does not reach the engine before the measurement has let go of it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_KILLED_WITHIN_S: Final = 10.0
_NOT_STARTED: Final = 127
_HAS_PROC: Final = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class ProcessFact:
    """A line of /proc: ``started`` in clock ticks since boot tells a process from a later one
    with the same number."""

    pid: int
    parent: int
    session: int
    started: int
    state: str


def processes() -> dict[int, ProcessFact]:
    """Every process that can be seen, by number; empty where there is no /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text(errors="replace")
        except OSError:
            continue
        # The name stands in brackets and may hold anything, brackets and spaces too.
        fields = text[text.rindex(")") + 2 :].split()
        pid = int(entry.parent.name)
        found[pid] = ProcessFact(
            pid, int(fields[1]), int(fields[3]), int(fields[19]), state=fields[0]
        )
    return found


def descendants(root: int) -> list[int]:
    """The living processes below ``root``, at any depth, whatever group they are in."""
    every = processes()
    children: dict[int, list[ProcessFact]] = {}
    for fact in every.values():
        children.setdefault(fact.parent, []).append(fact)
    out, waiting = [], [root]
    while waiting:
        for fact in children.get(waiting.pop(), ()):
            waiting.append(fact.pid)
            if fact.state not in "ZX":
                out.append(fact.pid)
    return out


def send(pids: Iterable[int], number: int) -> None:
    """Signal processes, those that are gone aside; 0 is this process's own group."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _prctl() -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), "prctl", None)


class _Watchdog:
    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        self._grace_s = grace_s
        self._engine_status: int | None = None
        self._told_to_stop = False
        # Signals end the wait below through this pair: no polling beside a measurement.
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        prctl = _prctl()
        if prctl is not None:
            # Orphans of the engine become children of this process, so none is lost sight of.
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        def in_engine() -> None:
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        self._engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=in_engine)

    def _stop(self, *_: object) -> None:
        self._told_to_stop = True

    def run(self) -> int:
        """Until the engine ends or the starter lets go; the engine's exit status."""
        while not self._told_to_stop:
            self._reap()
            if self._engine_status is not None:
                break
            readable, _, _ = select.select([sys.stdin, self._wake], [], [])
            if self._wake in readable:
                self._wake.recv(4096)
            if sys.stdin in readable and not os.read(sys.stdin.fileno(), 4096):
                break
        self._end_all()
        status = self._engine_status
        if status is None:
            return 128 + signal.SIGKILL
        return status if status >= 0 else 128 - status

    def _reap(self) -> bool:
        """Take in what ended; True while a child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._engine.pid:
                self._engine_status = os.waitstatus_to_exitcode(status)
                self._engine.returncode = self._engine_status

    def _end_all(self) -> None:
        for number, seconds in (
            (signal.SIGTERM, self._grace_s),
            (signal.SIGKILL, _KILLED_WITHIN_S),
        ):
            end = time.monotonic() + seconds
            told: set[int] = set()
            while self._reap():
                # Every turn looks again: what is told to end may start something else first. Once
                # each, since a second SIGTERM can cut a clean end short.
                left = set(descendants(os.getpid())) if _HAS_PROC else {0}
                send(left - told, number)
                told |= left
                if time.monotonic() > end:
                    break
                time.sleep(0.02)


def main(arguments: Sequence[str]) -> int:
    """``GRACE_S COMMAND...``; returns the command's exit status, 127 when it did not start."""
    grace_s, command = float(arguments[0]), list(arguments[1:])
    try:
        watchdog = _Watchdog(command, grace_s)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED
    return watchdog.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
