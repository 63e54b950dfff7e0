"""The processes that grammars have, as seen from the engine's: see `grammar_worker`."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, Protocol

from wager.config import StructuredOutput
from wager.errors import RequestError
from wager.sampling import grammar_messages as messages
from wager.sampling.grammar_messages import Limits, Vocabulary

LIVE: Final = 32
"""Processes that there are at most, but for those in use at this moment. A grammar whose process
was ended gets another one when it is asked again."""
_WORKER: Final = "wager.sampling.grammar_worker"
_STUCK_S: Final = 60.0
"""Of the clock, when a process that the system would have ended by its processor time is stopped,
or starved."""


class Lost(Exception):
    """The process of a grammar is gone; ``seconds`` after it was asked."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"gone after {seconds:.3f} s")
        self.seconds = seconds


class Link:
    """One grammar's process. Thread-safe."""

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._over: deque[int] = deque()

    def compiled(self, structured: StructuredOutput) -> None:
        """Wait for the grammar. Raises RequestError, or Lost."""
        raise NotImplementedError

    def ask(self, what: int, number: int, tokens: Sequence[int]) -> bytes:
        """Raises Lost."""
        with self._lock:
            while self._over:
                self._say(messages.question(messages.DROP, self._over.popleft(), ()))
            return self._exchange(messages.question(what, number, tokens))

    def number(self) -> int:
        """For a new walk."""
        return next(self._numbers)

    def drop(self, number: int) -> None:
        """Tell of a walk that is over, with the next question: at any time, from any thread."""
        self._over.append(number)

    def close(self) -> None:
        self.closed = True

    def _say(self, message: bytes) -> None:
        raise NotImplementedError

    def _exchange(self, message: bytes) -> bytes:
        raise NotImplementedError


class Forked(Link):
    """Behind a socket."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__()
        self._end = end
        end.settimeout(_STUCK_S)

    def compiled(self, structured: StructuredOutput) -> None:
        with self._lock:
            reply = self._exchange(pickle.dumps(structured))
        if reply[:1] == messages.FAILED:
            self.close()
            raise RequestError(f"structured: {reply[1:].decode()}")

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._end.close()

    def _say(self, message: bytes) -> None:
        # Where the other side is gone, the question behind it says so.
        with contextlib.suppress(OSError):
            messages.send(self._end, message)

    def _exchange(self, message: bytes) -> bytes:
        started = time.monotonic()
        try:
            messages.send(self._end, message)
            return messages.receive(self._end)
        except (OSError, EOFError) as error:
            self.closed = True
            self._end.close()
            raise Lost(time.monotonic() - started) from error


class Here(Link):
    """Without a process, where there is no fork: nothing holds a grammar to its limits."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        super().__init__()
        self._vocabulary, self._limits = vocabulary, limits

    def compiled(self, structured: StructuredOutput) -> None:
        from wager.sampling import grammar_worker as worker

        tokenizer = worker.tokenizer_of(self._vocabulary)
        try:
            text = worker.lark(structured)
            self.walks = worker.Walks(tokenizer, self._vocabulary, text, self._limits)
        except worker.Refused as error:
            raise RequestError(f"structured: {error}") from error

    def _say(self, message: bytes) -> None:
        self.walks.answer(message)

    def _exchange(self, message: bytes) -> bytes:
        return self.walks.answer(message) or b""


class Source:
    """The process that has a vocabulary ready, from which those of its grammars are forked."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        self._vocabulary, self._limits = vocabulary, limits
        self._lock = threading.Lock()
        self._closed = False
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def link(self) -> Link:
        """To a new process, which waits for its grammar."""
        if not hasattr(os, "fork"):
            return Here(self._vocabulary, self._limits)
        with self._lock:
            for _ in range(2):
                if self._closed:
                    break
                with contextlib.suppress(OSError):
                    return self._fork(self._control or self._start())
                self._stop()
        raise RequestError("structured: no process could be started for the grammar")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def _fork(self, control: socket.socket) -> Link:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(control, [b"\0"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return Forked(ours)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(_STUCK_S)
        with theirs:
            self._control = ours
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # What a terminal sends to the program is not for this one: it ends with its socket.
                start_new_session=True,
            )
        messages.send(ours, pickle.dumps((self._vocabulary, self._limits)))
        return ours

    def _stop(self) -> None:
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()
            process.wait()


class Asker(Protocol):
    """Who has a grammar; compared by identity."""

    structured: StructuredOutput


class Links:
    """The live processes of one vocabulary, by who asks for them."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        self.limits = limits
        self.size = vocabulary.size
        self._source = Source(vocabulary, limits)
        self._lock = threading.Lock()
        self._live: OrderedDict[Asker, Link] = OrderedDict()

    def of(self, asker: Asker) -> Link:
        """The one that there is, or a new one, which may take long. Raises RequestError, or Lost
        where it does not get through."""
        with self._lock:
            link = self._live.get(asker)
            if link is not None and not link.closed:
                self._live.move_to_end(asker)
                return link
        # Not locked while a grammar is compiled: other requests go on meanwhile.
        made = self._source.link()
        made.compiled(asker.structured)
        with self._lock:
            link = self._live.get(asker)
            if link is None or link.closed:
                link = self._live[asker] = made
            self._live.move_to_end(asker)
            spare = [self._live.popitem(last=False)[1] for _ in range(len(self._live) - LIVE)]
        for one in (*spare, made):
            if one is not link:
                one.close()
        return link

    def close(self) -> None:
        with self._lock:
            live = list(self._live.values())
            self._live.clear()
        for link in live:
            link.close()
        self._source.close()
