"""JSON that is checked character by character, while it is being written."""

from __future__ import annotations

import json
from typing import Final, Literal, TypeAlias

from wager.server.parsing.pieces import WHITE

Fed: TypeAlias = Literal["part", "last", "past", "bad"]

_WORDS: Final = {"t": "rue", "f": "alse", "n": "ull"}
_ESCAPES: Final = '"\\/bfnrt'
_HEX: Final = "0123456789abcdefABCDEF"

# Numbers: the states of RFC 8259's grammar, and what leads from one to the next.
_NONZERO: Final = dict.fromkeys("123456789", "whole")
_NUMBER: Final[dict[str, dict[str, str]]] = {
    "minus": {"0": "zero", **_NONZERO},
    "zero": {".": "dot", "e": "exponent", "E": "exponent"},
    "whole": {
        **dict.fromkeys("0123456789", "whole"),
        ".": "dot",
        "e": "exponent",
        "E": "exponent",
    },
    "dot": dict.fromkeys("0123456789", "fraction"),
    "fraction": {
        **dict.fromkeys("0123456789", "fraction"),
        "e": "exponent",
        "E": "exponent",
    },
    "exponent": {**dict.fromkeys("0123456789", "power"), "+": "sign", "-": "sign"},
    "sign": dict.fromkeys("0123456789", "power"),
    "power": dict.fromkeys("0123456789", "power"),
}
_NUMBER_ENDS: Final = frozenset(("zero", "whole", "fraction", "power"))


class JsonText:
    """One JSON value of any depth, without recursion. What was read is appended to ``out``.

    Control characters inside a string, which models write and JSON forbids, are escaped on the
    way; everything else comes out as it went in.
    """

    def __init__(self, out: list[str]) -> None:
        self._out = out
        self._open: list[str] = []
        self._mode = "value"
        self._key = False
        self._rest = ""

    def feed(self, char: str) -> Fed:
        """part: more is to come. last: the value ended with ``char``. past: a number ended before
        it. bad: no JSON value goes on like this."""
        if self._mode in _NUMBER:
            after = _NUMBER[self._mode].get(char)
            if after is not None:
                return self._part(char, after)
            if self._mode not in _NUMBER_ENDS:
                return "bad"
            if not self._open:
                return "past"
            self._mode = "next"
        if self._mode in ("string", "escape", "hex"):
            return self._in_string(char)
        if self._mode == "word":
            if not self._rest.startswith(char):
                return "bad"
            self._rest = self._rest[1:]
            return self._part(char, "word") if self._rest else self._ended(char)
        if char in WHITE:
            return self._part(char, self._mode)
        return self._between(char)

    def _in_string(self, char: str) -> Fed:
        if self._mode == "escape":
            if char == "u":
                self._rest = "0000"
                return self._part(char, "hex")
            return self._part(char, "string") if char in _ESCAPES else "bad"
        if self._mode == "hex":
            if char not in _HEX:
                return "bad"
            self._rest = self._rest[1:]
            return self._part(char, "hex" if self._rest else "string")
        if char == '"':
            if not self._key:
                return self._ended(char)
            self._key = False
            return self._part(char, "colon")
        if char == "\\":
            return self._part(char, "escape")
        return self._part(json.dumps(char)[1:-1] if char < " " else char, "string")

    def _between(self, char: str) -> Fed:
        mode = self._mode
        if mode in ("value", "first_item"):
            if (mode, char) == ("first_item", "]"):
                return self._ended(char, "]")
            return self._begin(char)
        if mode in ("key", "first_key"):
            if char == '"':
                self._key = True
                return self._part(char, "string")
            return self._ended(char, "}") if (mode, char) == ("first_key", "}") else "bad"
        if mode == "colon":
            return self._part(char, "value") if char == ":" else "bad"
        if mode == "next":
            closer = self._open[-1]
            if char == ",":
                return self._part(char, "key" if closer == "}" else "value")
            return self._ended(char, closer) if char == closer else "bad"
        return "bad"

    def _begin(self, char: str) -> Fed:
        if char in "{[":
            self._open.append("}" if char == "{" else "]")
            return self._part(char, "first_key" if char == "{" else "first_item")
        if char == '"':
            return self._part(char, "string")
        if char in _WORDS:
            self._rest = _WORDS[char]
            return self._part(char, "word")
        if char == "-":
            return self._part(char, "minus")
        number = _NUMBER["minus"].get(char)
        return "bad" if number is None else self._part(char, number)

    def _part(self, text: str, mode: str) -> Fed:
        self._out.append(text)
        self._mode = mode
        return "part"

    def _ended(self, char: str, closer: str = "") -> Fed:
        """A value is whole; ``closer`` where that closes a container."""
        if closer:
            self._open.pop()
        self._part(char, "next" if self._open else "done")
        return "part" if self._open else "last"


def is_object(text: str) -> bool:
    """Whether a text is one JSON object and nothing else."""
    text = text.strip(WHITE)
    if not text.startswith("{"):
        return False
    value = JsonText([])
    for at, char in enumerate(text, 1):
        fed = value.feed(char)
        if fed != "part":
            return fed == "last" and at == len(text)
    return False
