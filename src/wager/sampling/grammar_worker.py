"""What compiles grammars and walks through them, by llguidance, in processes of their own.

Neither has a bound: there are grammars of a few lines that take minutes to compile, or one token to
look at, whatever llguidance is told. So each grammar has a process, which the system ends once a
call has taken its share of processor time, and whose memory is limited. `main` is the process that
has the vocabulary ready and forks one for each grammar.

A mask says which tokens may follow by their bytes alone: no token is forced because the tokenizer
would have chosen it, so that the mask is a function of the answer's text.

Imports little: it starts while somebody waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
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
    MASK,
    OPEN,
    Limits,
    Vocabulary,
    read_question,
    receive,
    send,
)

# A model that is free to may write blanks for ever.
_JSON_OPTIONS: Final = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}"}
_OPTIONS: Final = '\n%llguidance {"no_forcing": true}\n'


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
        self._check_start(vocabulary)

    def answer(self, message: bytes) -> bytes | None:
        """To one message (see above); None where none is due."""
        what, number, tokens = read_question(message)
        if what == DROP:
            self._walks.pop(number, None)
            return None
        if what == OPEN:
            self._walks[number] = _Walk(self._template.deep_copy(), self._limits.burst_s)
        walk = self._walks[number]
        allowed = self._limits.compile_s if what == OPEN else walk.seconds + self._limits.steady_s
        try:
            with processor_limit(allowed) as left:
                reply = self._mask(walk, tokens) if what == MASK else self._take(walk, tokens)
        except Refused as error:
            return FAILED + str(error).encode()
        if what != OPEN:
            walk.seconds = min(left(), self._limits.burst_s)
        return reply

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
    """``seconds`` of processor time that are saved up."""

    def __init__(self, matcher: LLMatcher, seconds: float) -> None:
        self.matcher = matcher
        self.seconds = seconds
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
    link: socket.socket, tokenizer: LLTokenizer, vocabulary: Vocabulary, limits: Limits
) -> None:
    """One grammar, until the other side is gone."""
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
        reply = walks.answer(receive(link))
        if reply is not None:
            send(link, reply)


def main(number: int) -> None:
    """Take in a vocabulary and limits, then a socket for each grammar. ``number`` is that of the
    socket through which they come; where its other side is gone, this is over."""
    # Who is forked is nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=number) as control:
        vocabulary, limits = pickle.loads(receive(control))
        tokenizer = tokenizer_of(vocabulary)
        while True:
            message, found, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            with socket.socket(fileno=found[0]) as link:
                if os.fork():
                    continue
                control.close()
                # Whatever happens here, the other side sees that this process is gone.
                with contextlib.suppress(BaseException):
                    _serve(link, tokenizer, vocabulary, limits)
                os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
