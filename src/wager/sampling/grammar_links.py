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
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from wager.config import StructuredOutput
from wager.errors import RequestError, Unavailable
from wager.sampling import grammar_messages as messages
from wager.sampling.grammar_messages import Limits, Vocabulary

LIVE: Final = 64
"""Processes that there are at most. Grammars that are held keep theirs, and no more than these are
held; of the others, the one used longest ago makes room, and gets another one when it is asked
again."""
COMPILE_S: Final = 60.0
"""Of the clock, when a process that the system would have ended by its processor time is stopped,
or starved; where others can do without the thread that waits."""
ASK_S: Final = 10.0
"""The same where they cannot."""
# Neither the folder that the program was started in nor those that an empty entry means are
# searched: what lies there may be named like what is imported.
_START: Final = """
import sys
sys.path[:] = [*filter(None, sys.path), sys.argv[2]]
from wager.sampling.grammar_worker import main
main(int(sys.argv[1]))
"""
_PACKAGES: Final = Path(__file__).parents[2]


class Lost(Exception):
    """The process of a grammar is gone: ``limited`` where it ended at its limits, ``stuck`` where
    it was given up because it did not answer."""

    def __init__(self, *, limited: bool = False, stuck: bool = False) -> None:
        super().__init__("over its limits" if limited else "stuck" if stuck else "ended")
        self.limited = limited
        self.stuck = stuck


class Link:
    """One grammar's process. Thread-safe."""

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._over: deque[int] = deque()

    def compiled(self, structured: StructuredOutput, patience_s: float) -> None:
        """Wait for the grammar. Raises RequestError, or Lost."""
        raise NotImplementedError

    def scout(self) -> Link:
        """For questions whose loss is to cost this one nothing. Raises Lost."""
        return self

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
    """Behind a socket; behind ``spare`` there is to be its scout."""

    def __init__(self, end: socket.socket, spare: socket.socket | None = None) -> None:
        super().__init__()
        self._end = end
        self._scout = None if spare is None else Forked(spare)
        self._scouting = False
        end.settimeout(ASK_S)

    def compiled(self, structured: StructuredOutput, patience_s: float) -> None:
        with self._lock:
            self._end.settimeout(patience_s)
            reply = self._exchange(pickle.dumps(structured))
            self._end.settimeout(ASK_S)
        if reply[:1] == messages.FAILED:
            self.close()
            raise RequestError(f"structured: {reply[1:].decode()}")

    def scout(self) -> Link:
        with self._lock:
            if self._scout is None:
                raise Lost
            if not self._scouting:
                self._scouting = True
                self._say(messages.question(messages.SCOUT, 0, ()))
            return self._scout

    def close(self) -> None:
        with self._lock:
            self._shut()

    def _shut(self) -> None:
        self.closed = True
        self._end.close()
        if self._scout is not None:
            self._scout.close()

    def _say(self, message: bytes) -> None:
        # Where the other side is gone, the question behind it says so.
        with contextlib.suppress(OSError):
            messages.send(self._end, message)

    def _exchange(self, message: bytes) -> bytes:
        try:
            messages.send(self._end, message)
            reply = messages.receive(self._end)
        except (OSError, EOFError) as error:
            self._shut()
            raise Lost(stuck=isinstance(error, TimeoutError)) from error
        if reply[:1] == messages.GONE:
            self._shut()
            raise Lost(limited=reply[1:] == messages.LIMITED)
        return reply


class Here(Link):
    """Without a process, where there is no fork: nothing holds a grammar to its limits."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        super().__init__()
        self._vocabulary, self._limits = vocabulary, limits

    def compiled(self, structured: StructuredOutput, patience_s: float) -> None:
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
        """To a new process, which waits for its grammar. Raises Unavailable."""
        if not hasattr(os, "fork"):
            return Here(self._vocabulary, self._limits)
        with self._lock:
            for _ in range(2):
                if self._closed:
                    break
                with contextlib.suppress(OSError):
                    return self._fork(self._control or self._start())
                self._stop()
        raise Unavailable("structured: no process could be started for the grammar")

    def stop(self) -> None:
        """The next one that is asked for is forked from a new one."""
        with self._lock:
            self._stop()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def _fork(self, control: socket.socket) -> Link:
        ours, theirs = socket.socketpair()
        our_spare, their_spare = socket.socketpair()
        with theirs, their_spare:
            try:
                socket.send_fds(control, [b"\0"], [theirs.fileno(), their_spare.fileno()])
            except BaseException:
                ours.close()
                our_spare.close()
                raise
        return Forked(ours, our_spare)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(COMPILE_S)
        with theirs:
            self._control = ours
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), str(_PACKAGES)],
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
    """Who has a grammar; compared by identity, and hashed so."""

    structured: StructuredOutput


class Links:
    """The live processes of one vocabulary, by who asks for them."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        self.limits = limits
        self.size = vocabulary.size
        self._source = Source(vocabulary, limits)
        self._lock = threading.Lock()
        self._live: OrderedDict[Asker, Link] = OrderedDict()
        self._holders: dict[Asker, int] = {}
        # Of holders that are gone: noted from finalizers, which may run while the lock is held.
        self._released: deque[Asker] = deque()

    def hold(self, asker: Asker) -> bool:
        """Let an asker keep its process, once it has one; False where all of them are kept by
        others. To be released as often as it is held."""
        with self._lock:
            self._settle()
            if asker not in self._holders and len(self._holders) >= LIVE:
                return False
            self._holders[asker] = self._holders.get(asker, 0) + 1
            return True

    def release(self, asker: Asker) -> None:
        """At any time, from any thread."""
        self._released.append(asker)

    def held(self, asker: Asker) -> bool:
        with self._lock:
            self._settle()
            return asker in self._holders

    def of(self, asker: Asker, patience_s: float) -> Link:
        """The one that there is, or a new one, which may take long. Raises RequestError,
        Unavailable, or Lost where it does not get through."""
        with self._lock:
            link = self._live.get(asker)
            if link is not None and not link.closed:
                self._live.move_to_end(asker)
                return link
        # Not locked while a grammar is compiled: other requests go on meanwhile.
        made = self._source.link()
        try:
            made.compiled(asker.structured, patience_s)
        except Lost as lost:
            if lost.stuck:
                # The one that it was to be forked from may be what is stuck.
                self._source.stop()
            raise
        with self._lock:
            link = self._live.get(asker)
            if link is None or link.closed:
                link = self._live[asker] = made
            self._live.move_to_end(asker)
            spare = self._spare(asker)
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

    def _settle(self) -> None:
        while self._released:
            asker = self._released.popleft()
            self._holders[asker] -= 1
            if not self._holders[asker]:
                del self._holders[asker]

    def _spare(self, newest: Asker) -> list[Link]:
        """Take out what is too many."""
        self._settle()
        free = [one for one in self._live if one is not newest and one not in self._holders]
        return [self._live.pop(one) for one in free[: max(len(self._live) - LIVE, 0)]]
