"""One call of a tool, read while the model writes it."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Final, Literal, TypeAlias

from wager.server.parsing.jsontext import JsonText, is_object
from wager.server.parsing.pieces import WHITE

Progress: TypeAlias = Literal["more", "done", "bad"]

_ARGUMENTS: Final = ("arguments", "parameters")


class CallReader:
    """Reads ``{"name": "f", "arguments": {...}}``, the keys in any order, others skipped.

    ``arguments`` may be called ``parameters``, be an object or the JSON text of one, and, unless
    ``needs_arguments``, be null or absent (then they are ``{}``). Only functions in ``names`` are
    called: an object that names another is no call.
    """

    def __init__(self, names: Container[str], needs_arguments: bool) -> None:
        self.name = ""
        # Whether the arguments are there to the end.
        self.complete = False
        self._names = names
        self._needs = needs_arguments
        self._where = "open"
        self._key = ""
        self._value: JsonText | None = None
        self._text: list[str] = []
        self._arguments: list[str] = []
        self._known = False

    @property
    def ready(self) -> bool:
        """Whether it is known which function is called, and that the arguments are an object."""
        return bool(self.name) and self._known

    def take(self) -> str:
        """The part of the arguments' text that was not taken yet."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def feed(self, char: str) -> Progress:
        """done: the call ended with ``char``. bad: no call goes on with ``char``."""
        if self._value is not None:
            fed = self._value.feed(char)
            if fed == "part":
                return "more"
            if fed == "bad" or not self._end_of_value():
                return "bad"
            if fed == "last":
                return "more"
        if char in WHITE:
            return "more"
        if self._where == "value":
            return self._begin(char)
        if char == '"' and self._where in ("first", "key"):
            self._where = "key"
            return self._begin(char)
        after = {("open", "{"): "first", ("colon", ":"): "value", ("next", ","): "key"}.get(
            (self._where, char)
        )
        if after is not None:
            self._where = after
            return "more"
        return self._end() if (self._where, char) in (("first", "}"), ("next", "}")) else "bad"

    def _begin(self, char: str) -> Progress:
        """The first character of a key or a value."""
        self._text = []
        into = self._text
        if self._where == "value" and self._key in _ARGUMENTS and char == "{":
            self._known = True
            into = self._arguments
        self._value = JsonText(into)
        return "bad" if self._value.feed(char) == "bad" else "more"

    def _end_of_value(self) -> bool:
        """Whether the key or value that is whole now may stand in a call."""
        self._value = None
        text = "".join(self._text)
        if self._where == "key":
            self._key, self._where = json.loads(text), "colon"
            seen = self._key == "name" and self.name
            return not seen and not (self._key in _ARGUMENTS and self.complete)
        self._where = "next"
        if self._key == "name":
            name = json.loads(text) if text.startswith('"') else ""
            self.name = name if name in self._names else ""
            return bool(self.name)
        if self._key in _ARGUMENTS:
            return self._end_of_arguments(text)
        return True

    def _end_of_arguments(self, text: str) -> bool:
        """``text`` is empty where they are an object: that went out as it came."""
        self.complete = True
        if self._known:
            return True
        inner = json.loads(text).strip(WHITE) if text.startswith('"') else ""
        if text == "null" or (text.startswith('"') and not inner):
            inner = "" if self._needs else "{}"
        # An escaped half of a character is no text that could be sent on.
        if not is_object(inner) or any("\ud800" <= char <= "\udfff" for char in inner):
            return False
        self._arguments.append(inner)
        self._known = True
        return True

    def _end(self) -> Progress:
        if not self.complete:
            if self._needs:
                return "bad"
            self._arguments.append("{}")
            self.complete = self._known = True
        return "done" if self.name else "bad"
