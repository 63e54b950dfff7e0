"""Replies of the OpenAI API and of llama-server, whole or in the pieces of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wager.bench.logs.fields import Object, count, ids, objects, refuse_error, unwrapped
from wager.errors import RequestError

_STOP_TYPES: Final = {"eos": "stop", "word": "stop", "limit": "length"}


@dataclass(slots=True)
class Choice:
    """One answer. ``stop`` is what ended it, where the log says so (``stop_told``)."""

    message: dict[str, Any] = field(default_factory=dict)
    ids: list[int] | None = None
    finish: str | None = None
    stop: object = None
    stop_told: bool = False


@dataclass(slots=True)
class Reply:
    """All answers to one request. ``prompt`` is the text that the server itself made of it."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Object = field(default_factory=dict)
    prompt_ids: tuple[int, ...] | None = None
    prompt: str | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, response: object) -> Reply:
        """From whatever stands where a response is expected. Raises RequestError."""
        reply = cls()
        if isinstance(response, str) and response.lstrip().startswith("data:"):
            response = _events(response)
        if isinstance(response, str):
            reply.choices[0] = Choice({"content": response})
        elif isinstance(response, list):
            for part in map(unwrapped, response):
                if not isinstance(part, Mapping):
                    raise RequestError("a piece of the streamed response is not an object")
                reply.take(part)
        elif isinstance(response, Mapping):
            if {"choices", "__verbose", "stop_type"} & set(response):
                reply.take(response)
            else:
                reply.choices[0] = Choice(dict(response))
        elif response is not None:
            raise RequestError("the response is neither an object, a text nor a list of pieces")
        return reply

    def take(self, part: Object) -> None:
        """A whole response, or the next piece of a streamed one."""
        refuse_error(part)
        if isinstance(part.get("usage"), Mapping):
            self.usage = part["usage"]
        self._take_prompt_ids(part)
        choices = objects(part.get("choices"), "choices")
        for position, choice in enumerate(choices):
            self._take_choice(choice, position)
        if isinstance(part.get("__verbose"), Mapping):
            self._take_own(part["__verbose"], beside=True)
        elif not choices and "content" in part:
            self._take_own(part, beside=False)

    def _take_prompt_ids(self, part: Object) -> None:
        found = ids(part.get("prompt_token_ids"), "prompt_token_ids")
        self.prompt_ids = found or self.prompt_ids

    def _take_choice(self, choice: Object, position: int) -> None:
        self._take_prompt_ids(choice)
        at = count(choice.get("index"))
        known = self.choices.setdefault(position if at is None else at, Choice())
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(delta, Mapping):
            _join(known.message, delta)
        elif isinstance(message, Mapping):
            known.message = dict(message)
        elif isinstance(choice.get("text"), str):
            _join(known.message, {"content": choice["text"]})
        if (found := ids(choice.get("token_ids"), "token_ids")) is not None:
            known.ids = [*(known.ids or []), *found]
        if isinstance(choice.get("finish_reason"), str):
            known.finish = choice["finish_reason"]
        if known.finish is not None and "stop_reason" in choice:
            known.stop, known.stop_told = choice["stop_reason"], True

    def _take_own(self, own: Object, beside: bool) -> None:
        """llama-server's own form: alone, or beside a response of the API in its verbose mode."""
        if isinstance(own.get("prompt"), str):
            self.prompt = own["prompt"]
        settings = own.get("generation_settings")
        if isinstance(settings, Mapping):
            self.max_tokens = count(settings.get("n_predict")) or self.max_tokens
        known = self.choices.setdefault(count(own.get("index")) or 0, Choice())
        if not beside or not known.message:
            _join(known.message, own)
        if found := ids(own.get("tokens"), "tokens"):
            known.ids = [*(known.ids or []), *found]
        kind = str(own.get("stop_type"))
        if kind in _STOP_TYPES:
            known.finish, known.stop_told = _STOP_TYPES[kind], True
            known.stop = own.get("stopping_word") if kind == "word" else None


def _join(into: dict[str, Any], piece: Object) -> None:
    """Add the next piece of a message to what is there of it."""
    for key in ("content", "reasoning_content", "reasoning"):
        if isinstance(piece.get(key), str):
            into[key] = (into.get(key) or "") + piece[key]
    for position, call in enumerate(objects(piece.get("tool_calls"), "tool_calls")):
        at = count(call.get("index"))
        _join_call(into.setdefault("tool_calls", []), position if at is None else at, call)


def _join_call(calls: list[dict[str, Any]], at: int, call: Object) -> None:
    if at > len(calls):
        raise RequestError("a tool call of the streamed response begins in the middle")
    if at == len(calls):
        calls.append({"function": {"name": "", "arguments": ""}})
    function = call.get("function")
    for key in ("name", "arguments"):
        value = function.get(key) if isinstance(function, Mapping) else None
        if isinstance(value, str):
            calls[at]["function"][key] += value


def _events(text: str) -> list[object]:
    """The objects of a recorded event stream."""
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    try:
        return [json.loads(line) for line in lines if line and line != "[DONE]"]
    except (ValueError, RecursionError):
        raise RequestError("the streamed response holds an event that is not JSON") from None
