"""What compiles grammars and walks through them, by llguidance, in processes of their own.

Neither has a bound: there are grammars of a few lines that take minutes to compile, or one token to
look at, whatever llguidance is told. So each grammar has a process, which the system ends once a
call has taken its share of processor time, and whose memory is limited. `main` is the process that
has the vocabulary ready, forks one for each grammar, and says of one that ended whether that was at
its limits. What drafts look at ahead is asked of a copy of the grammar's process, forked once.

A mask says which tokens may follow by their bytes alone: no token is forced because the tokenizer
would have chosen it, so that the mask is a function of the answer's text.

Imports little: it starts while somebody waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final

from llguidance import (
    LLMatcher,
    LLParserLimits,
    LLTokenizer,
    TokenizerWrapper,
    grammar_from,
    regex_to_lark,
)

from wager.config import StructuredOutput
from wager.sampling.grammar_messages import (
    BITS,
    DONE,
    DROP,
    ENDED,
    FAILED,
    GONE,
    LIMITED,
    MASK,
    OPEN,
    SCOUT,
    Limits,
    Vocabulary,
    read_question,
    receive,
    send,
)

# A model that is free to may write blanks for ever.
_JSON_OPTIONS: Final = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}"}
_OPTIONS: Final = '\n%llguidance {"no_forcing": true}\n'
_OUT_OF_MEMORY: Final = 3
"""Exit status."""


class Refused(ValueError):
    """Why there is no way on; fit for clients."""


class Walks:
    """One compiled grammar, and where each answer stands in it."""

    def __init__(
        self, tokenizer: LLTokenizer, vocabulary: Vocabulary, text: str, limits: Limits
    ) -> None:
        """Raises Refused where it cannot be compiled, or nothing satisfies it."""
        self._tokenizer = tokenizer
        self._text = text
        self._limits = limits
        self._template = self._compile()
        self._walks: dict[int, _Walk] = {}
        # Saved up by all walks together: many of them are no way to more.
        self._seconds = limits.burst_s
        self._check_start(vocabulary)

    def answer(self, message: bytes) -> bytes | None:
        """To one message (see above); None where none is due."""
        what, number, tokens = read_question(message)
        if what == DROP:
            self._walks.pop(number, None)
            return None
        if what == OPEN:
            self._walks[number] = _Walk(self._template.deep_copy())
        walk = self._walks[number]
        allowed = self._limits.compile_s if what == OPEN else self._seconds + self._limits.steady_s
        try:
            with processor_limit(allowed) as left:
                reply = self._mask(walk, tokens) if what == MASK else self._take(walk, tokens)
        except Refused as error:
            reply = FAILED + str(error).encode()
        except MemoryError:
            raise
        except Exception as error:
            # A fault of ours costs this answer, not all that have the same grammar.
            reply = FAILED + f"the grammar cannot be followed: {type(error).__name__}".encode()
        if what != OPEN:
            self._seconds = min(left(), self._limits.burst_s)
        return reply

    def begin_anew(self) -> None:
        """Without walks."""
        self._walks.clear()
        self._seconds = self._limits.burst_s

    def _take(self, walk: _Walk, tokens: list[int]) -> bytes:
        walk.tokens += tokens
        if walk.matcher.try_consume_tokens(tokens) != len(tokens):
            self._restart(walk)
        return ENDED if walk.matcher.is_stopped() else DONE

    def _mask(self, walk: _Walk, ahead: list[int]) -> bytes:
        for _ in range(2):
            matcher = walk.matcher
            taken = matcher.try_consume_tokens(ahead) if ahead else 0
            if matcher.is_stopped():
                reply = ENDED
            elif taken < len(ahead):
                reply = BITS
            else:
                reply = BITS + matcher.compute_bitmask()
            if not matcher.is_error():
                if not matcher.rollback(taken):
                    self._restart(walk)
                return reply
            # Copies share their lexer, whose limits count what other walks looked at, too.
            why = matcher.get_error()
            self._restart(walk)
        raise Refused(f"the grammar lets nothing follow: {one_line(why)}")

    def _restart(self, walk: _Walk) -> None:
        """The same place, with a lexer of its own, which later walks share."""
        self._template = self._compile()
        walk.matcher = self._template.deep_copy()
        if walk.matcher.try_consume_tokens(walk.tokens) != len(walk.tokens):
            why = walk.matcher.get_error() or "a token that it does not allow"
            raise Refused(f"the grammar refuses the answer: {one_line(why)}")

    def _compile(self) -> LLMatcher:
        limits = LLParserLimits(
            max_lexer_states=self._limits.lexer_states,
            max_items_in_row=self._limits.row_items,
            max_grammar_size=self._limits.grammar_size,
            # Messages go to clients.
            verbose_errors=False,
        )
        matcher = LLMatcher(self._tokenizer, self._text, log_level=0, limits=limits)
        if matcher.is_error():
            raise Refused(one_line(matcher.get_error()))
        return matcher

    def _check_start(self, vocabulary: Vocabulary) -> None:
        matcher = self._template.deep_copy()
        first = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            raise Refused(f"no answer satisfies it: {one_line(matcher.get_error())}")
        first &= (1 << vocabulary.size) - 1
        for token in vocabulary.ends:
            first &= ~(1 << token)
        if not first:
            raise Refused("nothing but the empty answer satisfies it")


class _Walk:
    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.tokens: list[int] = []


class _Words:
    """What `llguidance.TokenizerWrapper` wraps."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.ends[0]
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special

    def __call__(self, text: str) -> list[int]:
        # Asked only where tokens are forced.
        return []


def tokenizer_of(vocabulary: Vocabulary) -> LLTokenizer:
    """The vocabulary as llguidance wants it; takes a while."""
    return LLTokenizer(TokenizerWrapper(_Words(vocabulary)), eos_token=list(vocabulary.ends))


def lark(structured: StructuredOutput) -> str:
    """The grammar in llguidance's dialect of Lark. Raises Refused."""
    value = structured.value
    if not isinstance(value, str):
        # As one terminal: rules of their own would be one item each, of which a row has few.
        body = "start: ONE\nONE: " + " | ".join(
            json.dumps(one, ensure_ascii=False) for one in value
        )
    elif structured.kind == "regex":
        body = f"start: /{regex_to_lark(value)}/"
    elif structured.kind == "grammar":
        try:
            body = grammar_from("grammar", value)
        except (ValueError, RecursionError) as error:
            raise Refused(one_line(str(error))) from error
    else:
        body = "start: %json " + json.dumps(_schema(value))
    return body + _OPTIONS


def _schema(text: str) -> dict[str, Any]:
    """The schema; "" is any object. What it says of blanks itself goes before ours."""
    schema: dict[str, Any] = json.loads(text) if text else {"type": "object"}
    own = schema.get("x-guidance", {})
    if isinstance(own, dict) and "whitespace_flexible" not in own:
        schema["x-guidance"] = {**_JSON_OPTIONS, **own}
    return schema


def one_line(text: str) -> str:
    """What an error of llguidance says, without the picture of the place."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[:1] + [line for line in lines[1:] if line.startswith("error:")]
    return "; ".join(line[:160] for line in said) or "unknown"


# Processes


@contextlib.contextmanager
def processor_limit(seconds: float) -> Iterator[Any]:
    """The system ends this process unless it gets through with so much processor time. Gives what
    tells, afterwards, how much is left."""
    if sys.platform == "win32":
        yield lambda: seconds
        return
    left = seconds
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield lambda: left
    finally:
        left = signal.setitimer(signal.ITIMER_PROF, 0.0)[0]


def _limit_memory(more: int) -> None:
    if sys.platform != "linux":
        return
    import resource

    # One that runs out of memory leaves no image of it behind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + more
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def _serve(
    link: socket.socket,
    spare: socket.socket,
    tokenizer: LLTokenizer,
    vocabulary: Vocabulary,
    limits: Limits,
) -> None:
    """One grammar, until the other side is gone. ``spare`` is for its scout."""
    _limit_memory(limits.memory)
    structured: StructuredOutput = pickle.loads(receive(link))
    try:
        with processor_limit(limits.compile_s):
            walks = Walks(tokenizer, vocabulary, lark(structured), limits)
    except Refused as error:
        send(link, FAILED + str(error).encode())
        return
    send(link, DONE)
    while True:
        message = receive(link)
        if message[0] == SCOUT:
            if os.fork():
                spare.close()
            else:
                link.close()
                link = spare
                walks.begin_anew()
            continue
        reply = walks.answer(message)
        if reply is not None:
            send(link, reply)


class _Children:
    """The processes of grammars, as the one sees them that forks them."""

    def __init__(self) -> None:
        self._links: dict[int, socket.socket] = {}
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait_for(self, control: socket.socket) -> None:
        """Until there is something to read."""
        while True:
            ready, _, _ = select.select([control, self._woken], [], [])
            if self._woken in ready:
                self._bury()
            if control in ready:
                return

    def fork(self, link: socket.socket) -> bool:
        """True in the new process, to which ``link`` leads; here it is kept for a last word."""
        pid = os.fork()
        if pid:
            self._links[pid] = link
            return False
        signal.set_wakeup_fd(-1)
        # Its scout is nobody's to wait for.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # The other side of these would not see that they are closed.
        for one in (*self._links.values(), self._woken, self._waker):
            one.close()
        return True

    def _bury(self) -> None:
        """Say of those that ended why."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._links:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            # Where nobody listens any more, that is how it should be.
            with self._links.pop(pid) as link, contextlib.suppress(OSError):
                link.setblocking(False)
                send(link, GONE + (LIMITED if _limited(status) else b""))


def _limited(status: int) -> bool:
    """Whether a process ended at one of its limits, by what the system says of it."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status) == _OUT_OF_MEMORY
    # Processor time; memory that could not be had, asked for by compiled code or for the stack.
    return os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGABRT, signal.SIGSEGV)


def main(number: int) -> None:
    """Take in a vocabulary and limits, then two sockets for each grammar. ``number`` is that of the
    socket through which they come; where its other side is gone, this is over."""
    with socket.socket(fileno=number) as control:
        vocabulary, limits = pickle.loads(receive(control))
        tokenizer = tokenizer_of(vocabulary)
        children = _Children()
        while True:
            children.wait_for(control)
            message, found, _, _ = socket.recv_fds(control, 1, 2)
            if not message:
                return
            link, spare = (socket.socket(fileno=one) for one in found)
            if children.fork(link):
                control.close()
                # Whatever happens here, the other side is told that this process is gone.
                with contextlib.suppress(BaseException):
                    try:
                        _serve(link, spare, tokenizer, vocabulary, limits)
                    except MemoryError:
                        os._exit(_OUT_OF_MEMORY)
                os._exit(0)
            spare.close()
