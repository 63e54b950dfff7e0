"""One object of a log of JSON lines to recorded requests: which shapes are understood.

Prompt and completion, old and edited text, request and response of the OpenAI API (chat and
completions, whole or streamed), a chat that ends in its answer, and llama-server's own replies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from wager.backend import Messages
from wager.bench.logs.fields import Object, count, ids, refuse_error, unwrapped, written
from wager.bench.logs.records import Recorded, edit
from wager.bench.logs.reply import Choice, Reply
from wager.errors import RequestError

_REQUEST: Final = ("request", "input", "body")
_RESPONSE: Final = ("response", "completion", "output", "answer")
_BY_ITSELF: Final = frozenset({"stop", "eos", "end_turn", "tool_calls", "function_call"})
_BY_LIMIT: Final = frozenset({"length", "max_tokens"})


def read_object(line: int, obj: object, group: str | None = None) -> Iterator[Recorded]:
    """The answers of one line: one for each choice. Raises RequestError."""
    if not isinstance(obj, Mapping):
        raise RequestError("is not a JSON object")
    for found in _read(line, obj):
        yield replace(found, group=_group(obj, group)) if group is not None else found


def _read(line: int, obj: Object) -> Iterator[Recorded]:
    if "before" in obj and "after" in obj:
        before, after, how = obj["before"], obj["after"], obj.get("instruction")
        if not isinstance(before, str) or not isinstance(after, str):
            raise RequestError("before and after must be texts")
        yield edit(line, before, after, how if isinstance(how, str) else None)
        return
    request, response, shape = _parts(obj)
    reply = Reply.of(response)
    base = _prompt(line, request, shape)
    base = replace(
        base,
        prompt_ids=reply.prompt_ids or ids(obj.get("prompt_token_ids"), "prompt_token_ids")
        or base.prompt_ids,
        prompt_tokens=count(reply.usage.get("prompt_tokens")),
        max_tokens=base.max_tokens or reply.max_tokens,
    )  # fmt: skip
    if reply.prompt is not None:
        # What the server made of the chat is nearer to the truth than any template here.
        base = replace(base, messages=None, text=reply.prompt)
    if base.messages is None and base.text is None and not base.prompt_ids:
        raise RequestError("holds no prompt (prompt, messages or request)")
    if not reply.choices:
        raise RequestError("holds no answer (completion, response or choices)")
    if isinstance(response, str) and 0 in reply.choices:
        _take_beside(reply.choices[0], obj)
    stops = isinstance(request, Mapping) and bool(request.get("stop"))
    for choice in reply.choices.values():
        alone = len(reply.choices) == 1
        tokens = count(reply.usage.get("completion_tokens")) if alone else None
        yield replace(answered(base, choice, stops), answer_tokens=tokens)


def _parts(obj: Object) -> tuple[object, object, str]:
    """(request, response, name of the shape) of a line."""
    refuse_error(obj)
    request = next((unwrapped(obj[k]) for k in _REQUEST if obj.get(k) is not None), obj)
    response = next((unwrapped(obj[k]) for k in _RESPONSE if obj.get(k) is not None), None)
    if response is None and {"choices", "__verbose", "stop_type"} & set(obj):
        response = obj
    if response is None:
        response = obj.get("chunks")
    if response is None and isinstance(request, Mapping):
        messages = request.get("messages")
        if isinstance(messages, list) and messages and _is_answer(messages[-1]):
            return {**request, "messages": messages[:-1]}, messages[-1], "chat with its answer"
    if isinstance(response, str) and request is obj:
        return request, response, "prompt and completion"
    return request, response, "request and response"


def _is_answer(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _take_beside(choice: Choice, obj: Object) -> None:
    """What may stand beside an answer that is just a text."""
    if (found := ids(obj.get("completion_token_ids"), "completion_token_ids")) is not None:
        choice.ids = list(found)
    if isinstance(obj.get("finish_reason"), str):
        choice.finish = obj["finish_reason"]
    if "stop_reason" in obj:
        choice.stop, choice.stop_told = obj["stop_reason"], True


# Prompts


def _prompt(line: int, request: object, shape: str) -> Recorded:
    if isinstance(request, str):
        return Recorded(line, shape, text=request)
    if isinstance(request, list):
        request = {"messages" if request and isinstance(request[0], dict) else "prompt": request}
    if not isinstance(request, Mapping):
        raise RequestError("the request is neither an object, a text nor a list of messages")
    base = Recorded(
        line,
        shape,
        prompt_ids=ids(request.get("prompt_token_ids"), "prompt_token_ids"),
        max_tokens=_limit(request),
        ignore_eos=request.get("ignore_eos") is True,
        stop_token_ids=ids(request.get("stop_token_ids"), "stop_token_ids") or (),
        notes=frozenset({"tool list"} if request.get("tools") else ()),
    )
    prompt, messages = request.get("prompt"), request.get("messages")
    if isinstance(messages, list) and messages:
        read, calls = _messages(messages)
        notes = base.notes | ({"prompt tools"} if calls else frozenset())
        return replace(base, messages=read, notes=notes)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return replace(base, text=prompt)
    return replace(base, prompt_ids=ids(prompt, "prompt") or base.prompt_ids)


def _limit(request: Object) -> int | None:
    keys = ("max_completion_tokens", "max_tokens", "n_predict")
    return next((n for key in keys if (n := count(request.get(key)))), None)


def _messages(messages: Sequence[object]) -> tuple[Messages, bool]:
    """(role, text) of each, and whether there are tool calls among them."""
    read, calls = [], False
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages: number {number} has no role")
        # Templates leave out what was thought in earlier turns.
        found = written(message, f"messages: number {number}", reasoning=False)
        calls |= found.calls
        read.append((message["role"], found.text))
    return tuple(read), calls


# Answers


def answered(base: Recorded, choice: Choice, stops: bool) -> Recorded:
    """The request with one answer to it; ``stops``: it named stop strings. Raises RequestError."""
    found = written(choice.message, "response", reasoning=True)
    answer_ids = tuple(choice.ids) if choice.ids else None
    if not found.text and answer_ids is None and choice.finish not in _BY_ITSELF:
        raise RequestError("the answer is empty")
    notes = {
        *base.notes,
        *(["reasoning"] if found.reasoning and answer_ids is None else []),
        *(["answer tools"] if found.calls and answer_ids is None else []),
    }
    base = replace(base, answer=found.text, answer_ids=answer_ids)
    if choice.finish in _BY_LIMIT:
        return replace(base, notes=frozenset(notes))
    if choice.finish not in _BY_ITSELF:
        return replace(base, notes=frozenset({*notes, "ending unknown"}))
    stop, token = choice.stop, count(choice.stop)
    if isinstance(stop, str) and stop:
        ended = replace(base, answer=found.text + stop, ending="stop")
    elif token is not None:
        ids_here = (*base.stop_token_ids, token)
        ended = replace(base, ending="end", end_token=token, stop_token_ids=ids_here)
    elif stops and not choice.stop_told:
        ended = replace(base, notes=base.notes)
        notes.add("stop unknown")
    else:
        ended = replace(base, ending="end")
    return replace(ended, notes=frozenset(notes))


def _group(obj: Object, path: str) -> str | None:
    """The value of a field, dots for nested ones; None where it is not there."""
    value: object = obj
    for key in path.split("."):
        value = unwrapped(value) if isinstance(value, str) else value
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
