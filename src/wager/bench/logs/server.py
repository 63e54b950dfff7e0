"""The text logs of vLLM and llama-server, where they hold prompts and answers both.

vLLM writes them with ``--enable-log-requests --enable-log-outputs`` at log level DEBUG (older
versions: INFO), answers to chat requests only; of a streamed answer the text, not the ids.
llama-server writes them with ``-v``: every token of an answer as it comes, and the prompt of a
slot's task when the slot takes the next one, so that the last task of each slot is missing.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wager.bench.logs.fields import ids
from wager.bench.logs.objects import answered
from wager.bench.logs.records import BadLine, Entry, Recorded
from wager.bench.logs.reply import Choice
from wager.errors import RequestError

MAX_OPEN: Final = 10_000
"""Requests that wait for their answer; the oldest is given up first."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

_TEXT: Final = r"(?P<text>None|'.*'|\".*\")"
_IDS: Final = r"(?P<ids>None|\[[\d, ]*\])"
_DETAILS: Final = re.compile(
    rf"Request (?P<id>\S+) details: prompt: {_TEXT}, prompt_token_ids: {_IDS}, "
)
_RECEIVED: Final = re.compile(r"Received request (?P<id>[^\s:]+): (?P<rest>.*)")
_OLD_PROMPT: Final = re.compile(rf"prompt: {_TEXT}, params: (?P<params>.*)")
_OLD_IDS: Final = re.compile(rf"prompt_token_ids: {_IDS}")
_ANSWER_IDS: Final = re.compile(
    rf"Generated response (?P<id>\S+)(?P<how> \(streaming \w+\))? details: output_token_ids: {_IDS}"
)
_ANSWER: Final = re.compile(
    r"Generated response (?P<id>[^\s:]+)(?P<how> \(streaming \w+\))?: "
    rf"output: {_TEXT}(?:, output_token_ids: {_IDS})?, finish_reason: (?P<finish>\S+)"
)
_OPTION: Final = re.compile(r"\b(max_tokens|ignore_eos|stop|stop_token_ids)=(\[.*?\]|[^,)]*)")

_LAUNCH: Final = re.compile(r"launching slot : (\{.*\})\s*$")
_TOKEN: Final = re.compile(r"\bid\s+(\d+) \| task (\d+) \|.*\bnext token:\s*(\d+)\b")
_STOPPED: Final = re.compile(r"\bid\s+(\d+) \| task (\d+) \| stopped by (\w+)")


@dataclass(slots=True)
class _Asked:
    """A request of vLLM as far as its lines were seen."""

    line: int
    text: str | None = None
    ids: tuple[int, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    answer_ids: list[tuple[int, ...]] = field(default_factory=list)
    finish: str = ""
    answered: bool = False


@dataclass(slots=True)
class _Task:
    """An answer of llama-server: its tokens so far, and what stopped it."""

    line: int
    ids: list[int] = field(default_factory=list)
    stopped: str = ""


@dataclass(slots=True)
class ServerLog:
    """Takes the lines of a log one by one; both servers' lines differ, so they need no telling."""

    _asked: dict[str, _Asked] = field(default_factory=dict)
    _tasks: dict[tuple[int, int], _Task] = field(default_factory=dict)

    def feed(self, number: int, line: str) -> Iterator[Entry]:
        """Entries that are complete with this line; most lines are about something else."""
        line = _COLOUR.sub("", line)
        try:
            if "equest " in line or "Generated response" in line:
                yield from self._vllm(number, line)
            elif "slot" in line:
                yield from self._llama(number, line)
        except RequestError as error:
            yield BadLine(number, str(error))

    def rest(self) -> Iterator[Entry]:
        """At the end of the log: what never got its other half."""
        for asked in self._asked.values():
            if not asked.answered:
                yield BadLine(asked.line, "no answer to this request was logged")
        for task in self._tasks.values():
            yield BadLine(task.line, "the prompt of this answer was not logged")

    # vLLM

    def _vllm(self, number: int, line: str) -> Iterator[Entry]:
        if (found := _DETAILS.search(line)) is not None:
            yield from self._details(number, found)
        elif (found := _RECEIVED.search(line)) is not None:
            yield from self._received(number, found)
        elif (found := _ANSWER_IDS.search(line)) is not None:
            asked = self._asked.get(found["id"])
            tokens = _token_ids(found["ids"])
            # Pieces without text are not logged, so that ids of pieces have gaps.
            if asked is not None and tokens is not None and found["how"] is None:
                asked.answer_ids.append(tokens)
        elif (found := _ANSWER.search(line)) is not None:
            if "delta" in (found["how"] or ""):
                self._piece(found)
            else:
                yield self._answer(number, found)

    def _piece(self, found: re.Match[str]) -> None:
        asked = self._asked.get(found["id"])
        if asked is not None and found["finish"] != "None":
            asked.finish = found["finish"]

    def _of(self, name: str, number: int) -> tuple[_Asked, list[Entry]]:
        given_up: list[Entry] = []
        if name not in self._asked:
            if len(self._asked) >= MAX_OPEN:
                old = self._asked.pop(next(iter(self._asked)))
                if not old.answered:
                    given_up.append(BadLine(old.line, "no answer to this request was logged"))
            self._asked[name] = _Asked(number)
        return self._asked[name], given_up

    def _details(self, number: int, found: re.Match[str]) -> Iterator[Entry]:
        asked, given_up = self._of(found["id"], number)
        yield from given_up
        asked.text, asked.ids = _literal(found["text"]), _token_ids(found["ids"])

    def _received(self, number: int, found: re.Match[str]) -> Iterator[Entry]:
        asked, given_up = self._of(found["id"], number)
        yield from given_up
        rest = found["rest"]
        if (old := _OLD_PROMPT.match(rest)) is not None:
            asked.text, rest = _literal(old["text"]), old["params"]
            if (tokens := _OLD_IDS.search(rest)) is not None:
                asked.ids = _token_ids(tokens["ids"])
        asked.options = {key: _option(value) for key, value in _OPTION.findall(rest)}

    def _answer(self, number: int, found: re.Match[str]) -> Entry:
        asked = self._asked.get(found["id"])
        if asked is None or (asked.text is None and not asked.ids):
            return BadLine(number, "the prompt of this answer was not logged")
        asked.answered = True
        tokens = _token_ids(found["ids"]) if found["ids"] else None
        if tokens is None and asked.answer_ids:
            tokens = asked.answer_ids.pop(0)
        prompt_ids = asked.ids or None
        if prompt_ids and asked.text is not None and 8 <= len(asked.text) == len(prompt_ids):
            # As many characters as tokens: both were cut at one length.
            return BadLine(number, "the prompt was cut by --max-log-len")
        finish = asked.finish or found["finish"]
        choice = Choice({"content": _literal(found["text"])}, list(tokens or ()) or None, finish)
        options = asked.options
        base = Recorded(
            number,
            "vLLM log",
            text=asked.text,
            prompt_ids=prompt_ids,
            max_tokens=options.get("max_tokens"),
            ignore_eos=options.get("ignore_eos") is True,
            stop_token_ids=tuple(options.get("stop_token_ids") or ()),
        )
        entry = answered(base, choice, bool(options.get("stop")))
        if tokens and finish == "stop" and entry.ending == "cut":
            # A stop string is in the ids, so that the last of them ended it either way.
            return replace(entry, ending="stop", notes=entry.notes - {"stop unknown"})
        return entry

    # llama-server

    def _llama(self, number: int, line: str) -> Iterator[Entry]:
        if (found := _TOKEN.search(line)) is not None:
            task = self._task(number, found)
            task.ids.append(int(found[3]))
        elif (found := _STOPPED.search(line)) is not None:
            self._task(number, found).stopped = found[3].lower()
        elif (found := _LAUNCH.search(line)) is not None:
            yield from self._launch(number, found[1])

    def _task(self, number: int, found: re.Match[str]) -> _Task:
        return self._tasks.setdefault((int(found[1]), int(found[2])), _Task(number))

    def _launch(self, number: int, text: str) -> Iterator[Entry]:
        """A slot takes a task, and tells what it did before."""
        try:
            slot = json.loads(text)
        except (ValueError, RecursionError):
            raise RequestError("the state of the slot is not JSON") from None
        task = self._tasks.pop((slot.get("id", -1), slot.get("id_task", -1)), None)
        prompt, params = slot.get("prompt"), slot.get("params") or {}
        if task is None or not isinstance(prompt, str) or not prompt:
            return
        limit = params.get("max_tokens")
        ending = {"limit": "length", "eos": "stop", "word": "stop"}.get(task.stopped)
        choice = Choice({}, task.ids or None, ending)
        base = Recorded(
            number,
            "llama-server log",
            text=prompt,
            max_tokens=limit if isinstance(limit, int) and limit > 0 else None,
            ignore_eos=params.get("ignore_eos") is True,
        )
        entry = answered(base, choice, stops=False)
        yield replace(entry, ending="stop") if task.stopped == "word" else entry


def _literal(text: str) -> str | None:
    """The text that Python wrote as a literal."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise RequestError("the logged text is not whole") from None
    return value if isinstance(value, str) else None


def _token_ids(text: str) -> tuple[int, ...] | None:
    return None if text == "None" else ids(json.loads(text), "token ids")


def _option(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
