"""Replies in one form, whichever route they came by, streamed or not, so that they compare.

Compared are text, reasons, usage, log-probabilities, calls of tools and reasoning (token ids are
kept by `harness.Recorder`). Left out is what may differ: request ids, times, ids of calls, how much
of the prompt was in a cache, and what speculation did.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.e2e.server.harness import PATIENCE_S, Live, events, strict

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass
class Choice:
    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: Any = None
    prompt_logprobs: Any = None


@dataclass
class Answer:
    """``raw`` is the reply, or the events of the stream; ``speculation`` is not compared."""

    choices: dict[int, Choice]
    usage: dict[str, Any] | None
    prompt_logprobs: Any = None
    speculation: dict[str, Any] | None = field(default=None, compare=False)
    raw: Any = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """Of the only choice."""
        (choice,) = self.choices.values()
        return choice.text

    @property
    def reason(self) -> str | None:
        (choice,) = self.choices.values()
        return choice.finish_reason

    @property
    def tokens(self) -> int:
        assert self.usage is not None
        return int(self.usage["completion_tokens"])


def counted(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The parts of ``usage`` that a reply determines; the cached share depends on what came
    before."""
    if usage is None:
        return None
    found = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert found["total_tokens"] == found["prompt_tokens"] + found["completion_tokens"]
    details = usage.get("completion_tokens_details") or {}
    found["reasoning_tokens"] = details.get("reasoning_tokens") or 0
    assert 0 <= found["reasoning_tokens"] <= found["completion_tokens"]
    return found


def whole(body: Mapping[str, Any]) -> Answer:
    """A reply that came in one piece."""
    choices = {}
    for given in body["choices"]:
        choice = Choice(
            finish_reason=given["finish_reason"],
            stop_reason=given.get("stop_reason"),
            logprobs=_logprobs(given.get("logprobs")),
            prompt_logprobs=given.get("prompt_logprobs"),
        )
        if "message" in given:
            message = given["message"]
            assert message["role"] == "assistant"
            choice.text = message.get("content") or ""
            choice.reasoning = message.get("reasoning_content") or ""
            for call in message.get("tool_calls") or []:
                choice.calls.append([call["function"]["name"], call["function"]["arguments"]])
        else:
            choice.text = given["text"]
        choices[given["index"]] = choice
    return Answer(
        choices, counted(body["usage"]), body.get("prompt_logprobs"), body.get("speculation"), body
    )


def joined(chunks: Sequence[Mapping[str, Any]]) -> Answer:
    """A reply that came as a stream: put together, and each chunk looked at."""
    found = Answer({}, None, raw=chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for given in chunk["choices"]:
            first = given["index"] not in found.choices
            choice = found.choices.setdefault(given["index"], Choice())
            assert choice.finish_reason is None, f"after the end of a choice: {given}"
            reason = given["finish_reason"]
            assert reason is None or reason in {"stop", "length", "tool_calls"}, reason
            choice.finish_reason = reason
            if given.get("stop_reason") is not None:
                choice.stop_reason = given["stop_reason"]
            if given.get("prompt_logprobs") is not None:
                choice.prompt_logprobs = given["prompt_logprobs"]
            _add_text(choice, given, first)
            _add_logprobs(choice, given.get("logprobs"))
        found.prompt_logprobs = chunk.get("prompt_logprobs") or found.prompt_logprobs
        if chunk.get("usage") is not None:
            found.usage = counted(chunk["usage"])
        if chunk.get("speculation") is not None:
            found.speculation = chunk["speculation"]
    for choice in found.choices.values():
        assert choice.finish_reason is not None, "a choice without an end"
    return found


def _add_text(choice: Choice, given: Mapping[str, Any], first: bool) -> None:
    if "delta" not in given:
        choice.text += given["text"]
        return
    delta = given["delta"]
    if first:
        assert delta.get("role") == "assistant", delta
    choice.text += delta.get("content") or ""
    choice.reasoning += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        if call["index"] == len(choice.calls):
            assert call["id"]
            assert call["type"] == "function"
            choice.calls.append([function["name"], ""])
        choice.calls[call["index"]][1] += function.get("arguments") or ""


def _logprobs(given: Any) -> Any:
    """Lists of a completion, or the content of a chat; None where there are none."""
    if given is None:
        return None
    if "content" in given:
        return list(given["content"] or [])
    return {name: list(values) for name, values in given.items() if values is not None}


def _add_logprobs(choice: Choice, given: Any) -> None:
    fresh = _logprobs(given)
    if fresh is None:
        return
    if choice.logprobs is None:
        choice.logprobs = fresh
    elif isinstance(fresh, list):
        choice.logprobs.extend(fresh)
    else:
        for name, values in fresh.items():
            choice.logprobs.setdefault(name, []).extend(values)


# Asking


def route_of(body: Mapping[str, Any]) -> str:
    return CHAT if "messages" in body else TEXT


def ask(live: Live, body: Mapping[str, Any]) -> Answer:
    """One request, answered."""
    return ask_all(live, [body], width=1)[0]


def ask_all(live: Live, bodies: Iterable[Mapping[str, Any]], width: int = 8) -> list[Answer]:
    """All of them, ``width`` at a time, in order. Every one has to be answered."""
    return asyncio.run(_ask_all(live, list(bodies), width))


async def _ask_all(live: Live, bodies: list[Mapping[str, Any]], width: int) -> list[Answer]:
    free = asyncio.Semaphore(width)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S, limits=limits) as http:

        async def one(body: Mapping[str, Any]) -> Answer:
            async with free:
                return await _answered(http, live, {"model": live.name, **body})

        return await asyncio.gather(*map(one, bodies))


async def _answered(http: httpx2.AsyncClient, live: Live, body: dict[str, Any]) -> Answer:
    url = live.url + route_of(body)
    headers = {"content-type": "application/json", **live.headers}
    if not body.get("stream"):
        reply = await http.post(url, content=json.dumps(body).encode(), headers=headers)
        assert reply.status_code == 200, f"{reply.status_code}: {reply.text[:500]}\nto {body}"
        assert "x-wager-warning" not in reply.headers, reply.headers["x-wager-warning"]
        return whole(strict(reply.text))
    content = json.dumps(body).encode()
    async with http.stream("POST", url, content=content, headers=headers) as stream:
        if stream.status_code != 200:
            text = (await stream.aread()).decode()
            raise AssertionError(f"{stream.status_code}: {text[:500]}\nto {body}")
        assert stream.headers["content-type"].startswith("text/event-stream")
        text = (await stream.aread()).decode()
    return joined(events(lines_of(text)))


def lines_of(text: str) -> list[str]:
    """Lines as an event stream has them: other line breaks of Unicode belong to the data."""
    return text.replace("\r\n", "\n").split("\n")


STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
PLAINLY: dict[str, Any] = {"speculation": {"enabled": False}}
