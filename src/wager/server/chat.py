"""``POST /v1/chat/completions``: the reply is taken apart into reasoning, calls of tools and the
rest (`parsing`), streamed or not alike. How the conversation goes in is in `talk`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from wager.server import bulk, convert, fields, sse
from wager.server.limits import read_json
from wager.server.logprobs import Spelling, of_chat, of_prompt
from wager.server.parsing import ReplyParser, reasoning_tokens
from wager.server.parsing.pieces import Piece
from wager.server.replies import Head, Run, Telling, respond, telling
from wager.server.schema import ChatBody, parse
from wager.server.service import service_of
from wager.server.talk import Talk, prepared, unkept
from wager.types import CompletionOutput, RequestOutput, TokenLogprob

ROUTE: Final = "/v1/chat/completions"

Json = dict[str, Any]


async def chat_completions(request: Request) -> Response:
    """The handler."""
    service = service_of(request)
    raw = await read_json(request, service.check_room)
    service.warn(request, fields.check(raw, "chat"))
    raw = fields.kept(raw, "chat")
    body = parse(ChatBody, raw)
    model = convert.check_model(body.model, service)
    told = telling(bool(body.stream), body.stream_options)
    if warning := unkept(body):
        service.say(request, warning)

    async def prepare() -> ChatReply:
        talk, asked, form = await asyncio.to_thread(prepared, raw, body, service)
        raw.clear()
        if form is not None:
            await convert.compiled(service, form)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        head = Head.new("chatcmpl", kind, model)
        return ChatReply(body, talk, Run(service, asked, head, ROUTE), told)

    return await respond(request, service, prepare)


@dataclass(slots=True)
class Choice:
    """One choice of a reply, while it comes."""

    parser: ReplyParser
    parallel: bool
    show_reasoning: bool
    begun: bool = False
    thought: bool = False
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[Json] = field(default_factory=list)

    def take(self, output: CompletionOutput) -> list[Json]:
        """What is new, as deltas: parts of one kind each, in the order of the text."""
        pieces = self.parser.push(output.text)
        if output.finish_reason is not None:
            pieces = [*pieces, *self.parser.finish()]
        deltas: list[Json] = []
        for piece in pieces:
            if piece.kind == "reasoning":
                self.thought = True
                if self.show_reasoning:
                    _add_text(deltas, "reasoning_content", piece.text)
            elif piece.kind == "content":
                _add_text(deltas, "content", piece.text)
            elif self.parallel or piece.index == 0:
                _add_call(deltas, piece)
        return deltas

    def keep(self, deltas: Sequence[Json]) -> None:
        """Put what is new to what is there, for a reply in one piece."""
        for delta in deltas:
            self._content.append(delta.get("content", ""))
            self._reasoning.append(delta.get("reasoning_content", ""))
            for part in delta.get("tool_calls", ()):
                if part["index"] == len(self._calls):
                    call = {key: part[key] for key in ("id", "type")}
                    self._calls.append({**call, "function": dict(part["function"])})
                else:
                    function = self._calls[part["index"]]["function"]
                    function["arguments"] += part["function"]["arguments"]

    def message(self) -> Json:
        """All that was kept, as the message of the reply."""
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        message: Json = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
            "refusal": None,
        }
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        return message

    def reason(self, output: CompletionOutput) -> str | None:
        """Why it ended; a reply that calls tools, and has each call to its end, for the calls."""
        stopped = output.finish_reason == "stop"
        called = self.parser.whole_calls(first_only=not self.parallel)
        return "tool_calls" if stopped and called else output.finish_reason


def _add_text(deltas: list[Json], key: str, text: str) -> None:
    if deltas and key in deltas[-1]:
        deltas[-1][key] += text
    else:
        deltas.append({key: text})


def _add_call(deltas: list[Json], piece: Piece) -> None:
    if not deltas or "tool_calls" not in deltas[-1]:
        deltas.append({"tool_calls": []})
    parts: list[Json] = deltas[-1]["tool_calls"]
    if piece.kind == "tool_start":
        function = {"name": piece.name, "arguments": ""}
        parts.append(
            {"index": piece.index, "id": piece.id, "type": "function", "function": function}
        )
    elif parts and parts[-1]["index"] == piece.index:
        parts[-1]["function"]["arguments"] += piece.text
    else:
        parts.append({"index": piece.index, "function": {"arguments": piece.text}})


class ChatReply:
    """The reply to one conversation."""

    def __init__(self, body: ChatBody, talk: Talk, run: Run, told: Telling) -> None:
        self.stream = bool(body.stream)
        self._body = body
        self._talk = talk
        self._run = run
        self._told = told
        self._begun = False
        self._prompt: Json | None = None
        self._sent = 0  # tokens that the events so far tell of
        self._spelling = Spelling(
            run.service.llm.llm.tokenizer, bool(body.return_tokens_as_token_ids)
        )
        shown = body.include_reasoning is not False
        self._choices = [
            Choice(talk.parser(), talk.parallel, shown) for _ in range(run.asked.params.n)
        ]

    async def whole(self) -> Response:
        """The reply in one piece."""
        async with aclosing(self._run.pieces()) as pieces:
            async for _, piece in pieces:
                await self._note_prompt(piece)
                for output in piece.outputs:
                    choice = self._choices[output.index]
                    choice.keep(choice.take(output))
        return await self._run.whole_reply(self._whole)

    def _whole(self) -> Json:
        run = self._run
        (answer,) = run.outputs()
        choices = [
            {
                "index": output.index,
                "message": self._choices[output.index].message(),
                "logprobs": self._logprobs(output.logprobs),
                "finish_reason": self._choices[output.index].reason(output),
                "stop_reason": output.stop_reason,
                **({"token_ids": output.token_ids} if self._body.return_token_ids else {}),
            }
            for output in answer.outputs
        ]
        usage = run.usage(self._reasoning_tokens())
        return run.head.chunk(choices, usage=usage, **(self._prompt or {}), **run.figures())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The reply as the events of a stream."""
        run = self._run
        async with aclosing(run.pieces()) as pieces:
            async for _, piece in pieces:
                await self._note_prompt(piece)
                for output in piece.outputs:
                    for chunk in self._of_choice(output):
                        # Only what is said of the prompt takes long.
                        large = run.asked.large and "prompt_logprobs" in chunk
                        yield await bulk.event(chunk, large)
        if self._told.end:
            usage = run.usage(self._reasoning_tokens())
            yield sse.event(run.head.chunk([], usage=usage, **run.figures()))
        yield sse.DONE

    def _of_choice(self, output: CompletionOutput) -> list[Json]:
        choice = self._choices[output.index]
        deltas = choice.take(output)
        chunks = []
        if not choice.begun:
            choice.begun = True
            role = {"role": "assistant", "content": ""}
            more = {} if self._begun else self._prompt or {}
            self._begun = True
            chunks.append(self._with([_chunk(output.index, role)], **more))
        self._sent += len(output.token_ids)
        told = output.token_ids and (
            output.logprobs is not None or self._body.return_token_ids or self._told.always
        )
        if not deltas and (told or output.finish_reason is not None):
            deltas = [{}]
        for number, delta in enumerate(deltas):
            one = _chunk(output.index, delta)
            if number == 0:
                one["logprobs"] = self._logprobs(output.logprobs)
                if self._body.return_token_ids:
                    one["token_ids"] = output.token_ids
            if number == len(deltas) - 1 and output.finish_reason is not None:
                one["finish_reason"] = choice.reason(output)
                one["stop_reason"] = output.stop_reason
            chunks.append(self._with([one]))
        return chunks

    def _with(self, choices: list[Json], **more: Any) -> Json:
        """A chunk with these choices."""
        if self._told.end:
            more["usage"] = self._run.usage(sent=self._sent) if self._told.always else None
        return self._run.head.chunk(choices, **more)

    def _logprobs(self, entries: list[TokenLogprob] | None) -> Json | None:
        return None if entries is None else of_chat(entries, self._spelling)

    async def _note_prompt(self, piece: RequestOutput) -> None:
        # Its log-probabilities come with the first tokens.
        if self._prompt is None or piece.prompt_logprobs is not None:
            self._prompt = await bulk.apart(self._run.asked.large, self._of_prompt, piece)

    def _of_prompt(self, piece: RequestOutput) -> Json:
        """What is told of the prompt, where that is asked for."""
        found: Json = {}
        count = self._body.prompt_logprobs
        if count is not None and piece.prompt_logprobs is not None:
            found["prompt_logprobs"] = of_prompt(piece.prompt_logprobs, count, self._spelling)
        if self._body.return_token_ids:
            found["prompt_token_ids"] = piece.prompt_token_ids
        return found

    def _reasoning_tokens(self) -> int:
        """Of all choices, by the tokens alone: how they came in does not matter."""
        (answer,) = self._run.outputs()
        return sum(
            reasoning_tokens(self._spelling.tokenizer, output.token_ids, self._talk.opened)
            for output in answer.outputs
            if self._choices[output.index].thought
        )


def _chunk(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
