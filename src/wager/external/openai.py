"""The OpenAI protocol as the engines speak it: bodies of streaming requests, events of a stream.

Fields beyond OpenAI's own (``top_k``, ``ignore_eos``, token ids, ...) are vLLM's, which the other
engines took over. Every sampling option is sent, since an engine's default may come from the
model's own generation config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wager.backend import Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external.reply import Reply, ReplyError
from wager.types import TokenLogprob

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
UNSENT: Final = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "allowed_token_ids", "bad_words", "prompt_logprobs", "structured", "speculation",
)  # fmt: skip
"""Options of a request that no other engine is asked for: they are not measured."""
_FAILED: Final = ("abort", "error")
_ID_PREFIX: Final = "token_id:"


def request(prompt: Prompt, model: str, *, extended: bool = True) -> tuple[str, dict[str, Any]]:
    """Path and body of a streaming request.

    ``extended`` False leaves out what only the engines know, and is refused where the prompt asks
    for something that cannot be said without it. Raises ConfigError.
    """
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(prompt, extended),
    }
    if prompt.messages is not None:
        body["messages"] = [{"role": role, "content": text} for role, text in prompt.messages]
        return CHAT, body
    body["prompt"] = list(prompt.token_ids) if prompt.token_ids is not None else prompt.text
    return COMPLETIONS, body


def _sampling(prompt: Prompt, extended: bool) -> dict[str, Any]:
    params = prompt.params
    if params.n != 1:
        raise ConfigError(f"n: {prompt.id} asks for {params.n} choices; a measurement takes one")
    plain = SamplingParams()
    for name in UNSENT:
        if getattr(params, name) != getattr(plain, name):
            raise ConfigError(f"{name}: {prompt.id} sets it, which is not measured; leave it out")
    body: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p}
    if params.max_tokens is not None:
        body["max_tokens"] = params.max_tokens
    if params.seed is not None:
        body["seed"] = params.seed
    if params.stop:
        body["stop"] = list(params.stop)
    if params.logprobs is not None:
        chat = {"logprobs": True, "top_logprobs": params.logprobs}
        body.update(chat if prompt.messages is not None else {"logprobs": params.logprobs})
    if extended:
        body.update(_extended(params))
        return body
    for name in ("top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos"):
        if getattr(params, name) != getattr(plain, name):
            raise ConfigError(f"{name}: {prompt.id} sets it, and this server does not know it")
    return body


def _extended(params: SamplingParams) -> dict[str, Any]:
    body: dict[str, Any] = {
        "top_k": max(params.top_k, 0),
        "min_p": params.min_p,
        "ignore_eos": params.ignore_eos,
        # A model's generation config may set penalties, which apply where a request says nothing.
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    if params.min_tokens:
        body["min_tokens"] = params.min_tokens
    if params.stop_token_ids:
        body["stop_token_ids"] = list(params.stop_token_ids)
    if params.include_stop_str_in_output:
        body["include_stop_str_in_output"] = True
    if params.logprobs is not None:
        body["return_tokens_as_token_ids"] = True
    return body


def read(event: Mapping[str, Any], reply: Reply) -> None:
    """Take one event of a completions or chat stream into the reply. Raises ReplyError for an
    event that reports an error."""
    if event.get("error"):
        raise ReplyError(error_text(event))
    usage = event.get("usage")
    tokens = _newly_counted(usage, reply) if isinstance(usage, Mapping) else None
    for choice in event.get("choices") or ():
        if choice.get("index", 0) != 0:
            continue
        _read_logprobs(choice.get("logprobs"), reply)
        reply.take(_text(choice), choice.get("token_ids"), tokens)
        if choice.get("finish_reason") in _FAILED:
            raise ReplyError(f"the server ended the reply: {choice['finish_reason']}")
        if choice.get("finish_reason"):
            reply.finish_reason = choice["finish_reason"]
            reply.done = True
    timings = event.get("timings")
    if isinstance(timings, Mapping):
        _read_timings(timings, reply)


def _text(choice: Mapping[str, Any]) -> str:
    """All that the model wrote in this piece: reasoning, answer and calls of tools."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return str(choice.get("text") or "")
    parts = [delta.get("reasoning") or delta.get("reasoning_content"), delta.get("content")]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        parts += [function.get("name"), function.get("arguments")]
    return "".join(str(part) for part in parts if part)


def _newly_counted(usage: Mapping[str, Any], reply: Reply) -> int | None:
    """Take the usage in; how many tokens it counts beyond the usage before, where every event
    carries one (a single record at the end says nothing of the pieces before it)."""
    before = reply.server_tokens
    if before is None and not reply.chunks:
        before = 0
    counted = usage.get("completion_tokens")
    if isinstance(counted, int):
        reply.server_tokens = counted
    prompt_tokens = usage.get("prompt_tokens")
    if isinstance(prompt_tokens, int):
        reply.prompt_tokens = prompt_tokens
    details = usage.get("prompt_tokens_details") or {}
    if isinstance(details.get("cached_tokens"), int):
        reply.cached_tokens = details["cached_tokens"]
    return counted - before if isinstance(counted, int) and before is not None else None


def _read_timings(timings: Mapping[str, Any], reply: Reply) -> None:
    """llama-server's own figures; its count stands in where no usage came."""
    if isinstance(timings.get("predicted_ms"), int | float):
        reply.predicted_ms = timings["predicted_ms"]
    if reply.server_tokens is None and isinstance(timings.get("predicted_n"), int):
        reply.server_tokens = timings["predicted_n"]


def _read_logprobs(given: Any, reply: Reply) -> None:
    """Log-probabilities of either route; dropped for good once one comes without its id."""
    if not given or not reply.logprobs_known:
        return
    found = _chat_logprobs(given) if "content" in given else _completion_logprobs(given)
    if found is None:
        reply.logprobs, reply.logprobs_known = None, False
        return
    reply.logprobs = [*(reply.logprobs or ()), *found]


def _chat_logprobs(given: Mapping[str, Any]) -> list[TokenLogprob] | None:
    out = []
    for item in given["content"] or ():
        token = _token_id(item)
        top = [(_token_id(other), other["logprob"]) for other in item.get("top_logprobs") or ()]
        if token is None:
            return None
        known = tuple((i, value) for i, value in top if i is not None)
        out.append(TokenLogprob(token, item["logprob"], known))
    return out


def _completion_logprobs(given: Mapping[str, Any]) -> list[TokenLogprob] | None:
    out = []
    tops: Sequence[Any] = given.get("top_logprobs") or ()
    values = given.get("token_logprobs") or ()
    for number, (text, value) in enumerate(zip(given.get("tokens") or (), values, strict=False)):
        token = _token_id({"token": text})
        if token is None or value is None:
            return None
        top = (tops[number] or {}) if number < len(tops) else {}
        pairs = [(_token_id({"token": other}), v) for other, v in top.items()]
        best = sorted(((i, v) for i, v in pairs if i is not None), key=lambda pair: -pair[1])
        out.append(TokenLogprob(token, value, tuple(best)))
    return out


def _token_id(item: Mapping[str, Any]) -> int | None:
    """The id as ``id``, or in the text as ``token_id:17``."""
    if isinstance(item.get("id"), int):
        return int(item["id"])
    text = str(item.get("token", ""))
    number = text.removeprefix(_ID_PREFIX)
    return int(number) if text.startswith(_ID_PREFIX) and number.isdigit() else None


def error_text(body: Any) -> str:
    """What a server says went wrong, from any of the forms that are in use."""
    found = body
    for key in ("error", "message", "detail"):
        if isinstance(found, Mapping) and found.get(key):
            found = found[key]
    return str(found)
