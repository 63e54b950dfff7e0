"""``POST /v1/completions``: text or token ids go on, one prompt or several, with or without the
prompt repeated in front (``echo``), streamed or not alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from wager.server import bulk, convert, fields, sse
from wager.server.limits import read_json
from wager.server.logprobs import Spelling, TextLogprobs, joined, of_prompt
from wager.server.replies import Asked, Head, Run, Telling, respond, telling
from wager.server.schema import CompletionBody, parse
from wager.server.service import Service, service_of
from wager.types import CompletionOutput, RequestOutput

ROUTE: Final = "/v1/completions"

Json = dict[str, Any]


async def completions(request: Request) -> Response:
    """The handler."""
    service = service_of(request)
    raw = await read_json(request, service.check_room)
    service.warn(request, fields.check(raw, "completions"))
    body = parse(CompletionBody, raw)
    del raw
    model = convert.check_model(body.model, service)
    told = telling(bool(body.stream), body.stream_options)

    async def prepare() -> CompletionReply:
        asked, form = await asyncio.to_thread(_prepared, body, service)
        if form is not None:
            await convert.compiled(service, form)
        run = Run(service, asked, Head.new("cmpl", "text_completion", model), ROUTE)
        return CompletionReply(body, run, told)

    # Before it is let in: what is refused anyway takes no place from others meanwhile.
    return await respond(request, service, prepare, convert.count_prompts(body, service))


def _prepared(body: CompletionBody, service: Service) -> tuple[Asked, convert.Form | None]:
    """All that needs no event loop. Raises ApiError or RequestError."""
    form = convert.form(body, service)
    params = convert.sampling(body, service, form[1] if form is not None else None)
    prompts = convert.completion_prompts(body, service)
    only = convert.prompt_only(body)
    large = bulk.is_large(body, prompts, params, service.llm.llm.engine.max_model_len)
    field = form[0] if form is not None else ""
    return Asked(prompts, params, body.cache_salt or "", only, large, field), form


@dataclass(slots=True)
class Prompt:
    """What the reply says of a prompt: made once, and shown by each of its choices.

    ``text`` and ``lists`` are of the prompt that is repeated, which ends at ``end``.
    """

    text: str = ""
    lists: Json | None = None
    end: int = 0
    told: Json = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """One choice of a reply, while it comes. ``logprobs`` None: they are not asked for."""

    index: int
    logprobs: TextLogprobs | None
    begun: bool = False
    _texts: list[str] = field(default_factory=list)
    _logprobs: list[Json] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)
    _prompt: Json = field(default_factory=dict)
    _end: Json = field(default_factory=dict)

    def keep(self, part: Json) -> None:
        """Put what is new to what is there, for a reply in one piece."""
        self._texts.append(part["text"])
        if part["logprobs"] is not None:
            self._logprobs.append(part["logprobs"])
        self._ids.extend(part.get("token_ids", ()))
        for name in ("prompt_logprobs", "prompt_token_ids"):
            if name in part:
                self._prompt[name] = part[name]
        if part["finish_reason"] is not None:
            self._end = {name: part[name] for name in ("finish_reason", "stop_reason")}

    def whole(self, ids: bool) -> Json:
        """All that was kept. ``ids``: with those of the tokens."""
        return {
            "index": self.index,
            "text": "".join(self._texts),
            "logprobs": joined(self._logprobs),
            **self._end,
            **self._prompt,
            **({"token_ids": self._ids} if ids else {}),
        }


class CompletionReply:
    """The reply to the prompts of one request."""

    def __init__(self, body: CompletionBody, run: Run, told: Telling) -> None:
        self.stream = bool(body.stream)
        self._body = body
        self._run = run
        self._told = told
        self._texts = convert.texts_of(body)
        self._spelling = Spelling(
            run.service.llm.llm.tokenizer, bool(body.return_tokens_as_token_ids)
        )
        params = run.asked.params
        self._skip_special = params.skip_special_tokens
        self._choices = [
            Choice(index, self._new_logprobs()) for index in range(len(run.prompts) * params.n)
        ]
        self._prompts: dict[int, Prompt] = {}

    def _new_logprobs(self) -> TextLogprobs | None:
        count = self._body.logprobs
        return None if count is None else TextLogprobs(self._spelling, count, self._skip_special)

    async def whole(self) -> Response:
        """The reply in one piece."""
        async with aclosing(self._parts()) as parts:
            async for _, part in parts:
                self._choices[part["index"]].keep(part)
        return await self._run.whole_reply(self._whole)

    def _whole(self) -> Json:
        run = self._run
        choices = [choice.whole(bool(self._body.return_token_ids)) for choice in self._choices]
        return run.head.chunk(choices, usage=run.usage(), **run.figures())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The reply as the events of a stream."""
        run = self._run
        async with aclosing(self._parts()) as parts:
            async for begins, part in parts:
                if self._says_something(part):
                    # Only what is said of the prompt takes long.
                    large = begins and run.asked.large
                    yield await bulk.event(run.head.chunk([part], **self._usage()), large)
        if self._told.end:
            yield sse.event(run.head.chunk([], usage=run.usage(), **run.figures()))
        yield sse.DONE

    def _says_something(self, part: Json) -> bool:
        """Tokens whose text is still kept back are told where somebody counts them."""
        return bool(
            part["text"]
            or part["finish_reason"] is not None
            or (part["logprobs"] is not None and part["logprobs"]["tokens"])
            or part.get("token_ids")
            or "prompt_logprobs" in part
            or "prompt_token_ids" in part
            or self._told.always
        )

    def _usage(self) -> Json:
        if not self._told.end:
            return {}
        return {"usage": self._run.usage() if self._told.always else None}

    async def _parts(self) -> AsyncGenerator[tuple[bool, Json], None]:
        """What is new of each choice, as a stream has it, and whether the choice begins."""
        large = self._run.asked.large
        async with aclosing(self._run.pieces()) as pieces:
            async for number, piece in pieces:
                # Log-probabilities of the prompt come with its first tokens.
                if number not in self._prompts or piece.prompt_logprobs is not None:
                    prompt = await bulk.apart(large, self._of_prompt, number, piece)
                    self._prompts[number] = prompt
                for output in piece.outputs:
                    yield self._part(self._prompts[number], number, output)

    def _part(self, prompt: Prompt, number: int, output: CompletionOutput) -> tuple[bool, Json]:
        choice = self._choices[self._run.index(number, output)]
        begins = not choice.begun
        choice.begun = True
        part: Json = {
            "index": choice.index,
            "text": prompt.text + output.text if begins else output.text,
            "logprobs": None,
            "finish_reason": output.finish_reason,
        }
        if choice.logprobs is not None:
            parts = []
            if begins and prompt.lists is not None:
                parts.append(prompt.lists)
                choice.logprobs.offset = prompt.end
            parts.append(choice.logprobs.output(output.token_ids, output.logprobs or []))
            part["logprobs"] = joined(parts)
        if output.finish_reason is not None:
            part["stop_reason"] = output.stop_reason
        if begins:
            part |= prompt.told
        if self._body.return_token_ids:
            part["token_ids"] = list(output.token_ids)
        return begins, part

    def _of_prompt(self, number: int, piece: RequestOutput) -> Prompt:
        """What is told of a prompt, where that is asked for."""
        body, found = self._body, Prompt()
        ids, entries = piece.prompt_token_ids, piece.prompt_logprobs
        if body.echo:
            found.text = self._repeated(number, piece)
        if body.echo and body.logprobs is not None:
            lists = TextLogprobs(self._spelling, body.logprobs, self._skip_special)
            found.lists = lists.prompt(ids, entries or [None] * len(ids), self._given(number))
            found.end = lists.offset
        if body.prompt_logprobs is not None and entries is not None:
            shown = of_prompt(entries, body.prompt_logprobs, self._spelling)
            found.told["prompt_logprobs"] = shown
        if body.return_token_ids:
            found.told["prompt_token_ids"] = ids
        return found

    def _given(self, number: int) -> str | None:
        """The text of a prompt, where it was given as such."""
        return self._texts[number] if self._texts is not None else None

    def _repeated(self, number: int, piece: RequestOutput) -> str:
        """The text of a prompt."""
        given = self._given(number)
        if given is not None:
            return given
        tokenizer = self._spelling.tokenizer
        return tokenizer.decode(piece.prompt_token_ids, skip_special=self._skip_special)
