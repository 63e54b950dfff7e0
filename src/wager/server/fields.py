"""Every field that clients send, in one table: what is served, what is refused and why, and what
may stand there because it says nothing about the reply.

The fields are OpenAI's for the two routes, vLLM's own, and those of llama-server and SGLang that
change what comes out. Whatever stands nowhere here is ignored, with a warning that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

from wager.server.errors import ApiError

Route: TypeAlias = Literal["chat", "completions"]

_NEAR: Final = 0.8
_GUESSED: Final = 16
_LONGEST: Final = 64


@dataclass(frozen=True, slots=True)
class Field:
    """How a field is taken. ``reason`` says why it is refused and what to do; "" it is not.

    ``neutral`` are values besides null that ask for nothing, which a refused field may have.
    ``silent``: any value will do, since the field is not about the reply.
    """

    routes: tuple[Route, ...] = ("chat", "completions")
    reason: str = ""
    neutral: tuple[Any, ...] = ()
    silent: bool = False

    @property
    def served(self) -> bool:
        return not self.reason and not self.silent

    def asks(self, value: object) -> bool:
        """Whether this value asks for something."""
        if value is None:
            return False
        # 1 == True, so the kinds must agree too.
        return not any(
            value == calm and isinstance(value, bool) == isinstance(calm, bool)
            for calm in self.neutral
        )


_CHAT: Final[tuple[Route, ...]] = ("chat",)
_TEXT: Final[tuple[Route, ...]] = ("completions",)

_SERVED: Final = {
    # OpenAI, both routes
    "model": Field(),
    "frequency_penalty": Field(),
    "logit_bias": Field(),
    "logprobs": Field(),
    "max_tokens": Field(),
    # OpenAI has it on the chat route alone; measuring tools send it to both.
    "max_completion_tokens": Field(),
    "n": Field(),
    "presence_penalty": Field(),
    "seed": Field(),
    "stop": Field(),
    "stream": Field(),
    "stream_options": Field(),
    "temperature": Field(),
    "top_p": Field(),
    # OpenAI, one route
    "messages": Field(_CHAT),
    "top_logprobs": Field(_CHAT),
    "tools": Field(_CHAT),
    "tool_choice": Field(_CHAT),
    "parallel_tool_calls": Field(_CHAT),
    "reasoning_effort": Field(_CHAT),
    "prompt": Field(_TEXT),
    "echo": Field(_TEXT),
    # vLLM
    "response_format": Field(),
    "top_k": Field(),
    "min_p": Field(),
    "repetition_penalty": Field(),
    "min_tokens": Field(),
    "stop_token_ids": Field(),
    "include_stop_str_in_output": Field(),
    "ignore_eos": Field(),
    "skip_special_tokens": Field(),
    "bad_words": Field(),
    "allowed_token_ids": Field(),
    "prompt_logprobs": Field(),
    "structured_outputs": Field(),
    "add_special_tokens": Field(),
    "return_token_ids": Field(),
    "return_tokens_as_token_ids": Field(),
    "cache_salt": Field(),
    "add_generation_prompt": Field(_CHAT),
    "continue_final_message": Field(_CHAT),
    "chat_template_kwargs": Field(_CHAT),
    "include_reasoning": Field(_CHAT),
    # wager
    "speculation": Field(),
}

_SILENT: Final = {
    name: Field(silent=True)
    for name in (
        "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options", "session_id", "return_mm_kwargs",
    )
}  # fmt: skip

_STRUCTURED: Final = "was renamed: use structured_outputs"
_PICTURES: Final = "is for pictures and sound, which this server does not read"
_SPREAD: Final = "is for engines spread over several machines"

_REFUSED: Final = {
    # OpenAI
    "store": Field(reason="nothing is stored here; leave it out", neutral=(False,)),
    "service_tier": Field(
        reason="there is one class of service; leave it out", neutral=("auto", "default")
    ),
    "modalities": Field(_CHAT, "replies are text alone", (["text"],)),
    "audio": Field(_CHAT, "replies are text alone"),
    "prediction": Field(
        _CHAT, "predicted outputs are not supported; the server drafts from the prompt by itself"
    ),
    "verbosity": Field(_CHAT, "is not supported; say it in the messages", ("medium",)),
    "web_search_options": Field(_CHAT, "this server does not search"),
    "moderation": Field(_CHAT, "this server does not moderate"),
    "functions": Field(_CHAT, "was replaced by OpenAI itself: use tools"),
    "function_call": Field(_CHAT, "was replaced by OpenAI itself: use tool_choice", ("none",)),
    "suffix": Field(_TEXT, "filling in before a suffix is not supported; put it into the prompt"),
    "best_of": Field(_TEXT, "is not supported: use n, and choose among the replies", (1,)),
    # vLLM
    "use_beam_search": Field(reason="beam search is not supported; use n", neutral=(False,)),
    "length_penalty": Field(reason="belongs to beam search, which is not supported", neutral=(1,)),
    "spaces_between_special_tokens": Field(reason="only true is supported", neutral=(True,)),
    "truncate_prompt_tokens": Field(reason="prompts are never cut; shorten it before sending"),
    "truncation_side": Field(reason="prompts are never cut; shorten it before sending"),
    "logprob_token_ids": Field(reason="is not supported; use logprobs"),
    "thinking_token_budget": Field(reason="is not supported; use max_tokens", neutral=(-1,)),
    "priority": Field(reason="requests are served in the order they came", neutral=(0,)),
    "request_id": Field(reason="is given in the header x-request-id"),
    "documents": Field(_CHAT, "is not supported; put the documents into the messages", ([],)),
    "chat_template": Field(_CHAT, "only the model's own template is used"),
    "media_io_kwargs": Field(_CHAT, _PICTURES, ({},)),
    "mm_processor_kwargs": Field(_CHAT, _PICTURES, ({},)),
    "prompt_embeds": Field(_TEXT, "is not supported; send text or token ids"),
    "vllm_xargs": Field(reason="there are no extensions that would read it", neutral=({},)),
    "kv_transfer_params": Field(reason=_SPREAD, neutral=({},)),
    "ec_transfer_params": Field(reason=_SPREAD, neutral=({},)),
    "watermarking": Field(reason="is not supported", neutral=(False,)),
    "repetition_detection": Field(reason="is not supported; use the penalties"),
    "stream_interval": Field(reason="every step is sent at once", neutral=(1,)),
    "return_token_offsets": Field(reason="is not supported; logprobs has text_offset",
                                  neutral=(False,)),
    "return_prompt_text": Field(reason="is not supported; see /tokenize", neutral=(False,)),
    "routed_experts_prompt_start": Field(reason="is not supported", neutral=(0,)),
    "logits_processors": Field(reason="code in requests is not run; use logit_bias"),
    "guided_json": Field(reason=f"{_STRUCTURED}.json"),
    "guided_regex": Field(reason=f"{_STRUCTURED}.regex"),
    "guided_choice": Field(reason=f"{_STRUCTURED}.choice"),
    "guided_grammar": Field(reason=f"{_STRUCTURED}.grammar"),
    "guided_decoding_backend": Field(reason="there is one backend, llguidance; leave it out"),
    "guided_whitespace_pattern": Field(reason="is not supported"),
    # llama-server and SGLang
    "n_predict": Field(reason="use max_tokens"),
    "n_probs": Field(reason="use logprobs"),
    "repeat_penalty": Field(reason="use repetition_penalty", neutral=(1,)),
    "repeat_last_n": Field(reason="is not supported; repetition_penalty sees everything"),
    "typical_p": Field(reason="is not supported; use top_p or min_p", neutral=(1,)),
    "mirostat": Field(reason="is not supported; use top_p or min_p", neutral=(0,)),
    "dry_multiplier": Field(reason="is not supported; use the penalties", neutral=(0,)),
    "xtc_probability": Field(reason="is not supported; use top_p or min_p", neutral=(0,)),
    "grammar": Field(reason="use structured_outputs.grammar", neutral=("",)),
    "json_schema": Field(reason="use response_format, or structured_outputs.json"),
    "regex": Field(reason="use structured_outputs.regex"),
    "ebnf": Field(reason="use structured_outputs.grammar"),
    "id_slot": Field(reason="there are no slots; leave it out", neutral=(-1,)),
    "cache_prompt": Field(reason="prompts are always cached; use cache_salt to keep yours apart",
                          neutral=(True,)),
}  # fmt: skip

_ELSEWHERE: Final = {
    "top_logprobs": "use logprobs: it takes their number here",
    "reasoning_effort": "there is no chat template on this route",
    "prompt": "use messages, or /v1/completions",
    "messages": "use prompt, or /v1/chat/completions",
    "tools": "use /v1/chat/completions",
    "tool_choice": "use /v1/chat/completions",
    "echo": "use /v1/completions, or prompt_logprobs",
}

TABLE: Final[Mapping[str, Field]] = {**_SERVED, **_SILENT, **_REFUSED}
"""All fields that are known, by name."""

_WITHOUT_EFFECT: Final = {
    # What a served field of the other route may say here: what holds anyway.
    "echo": (False,), "tools": ([],), "tool_choice": ("none", "auto"), "top_logprobs": (0,),
    "parallel_tool_calls": (True, False), "add_generation_prompt": (True,),
    "continue_final_message": (False,), "chat_template_kwargs": ({},),
    "include_reasoning": (True,),
}  # fmt: skip


def served(route: Route) -> frozenset[str]:
    """The fields that a route reads."""
    return frozenset(n for n, field in _SERVED.items() if route in field.routes)


def kept(body: Mapping[str, Any], route: Route) -> dict[str, Any]:
    """The body without what the route does not read, which takes no memory any more."""
    return {name: body[name] for name in served(route) if name in body}


def check(body: Mapping[str, Any], route: Route) -> list[str]:
    """The names that nobody knows, each with what may have been meant.

    Raises ApiError (400) for a field that is known and not served, and asks for something.
    """
    unknown = []
    for name, value in body.items():
        field = TABLE.get(name)
        if field is None:
            unknown.append(name)
        elif field.reason and field.asks(value):
            raise ApiError(400, f"{name}: {field.reason}", param=name)
        elif field.served and route not in field.routes:
            _refuse_elsewhere(name, value, route)
    return _named(unknown, frozenset(_SERVED))


def check_small(body: Mapping[str, Any], known: frozenset[str]) -> list[str]:
    """The same for the small routes, which read the fields ``known``. Raises ApiError (400)."""
    unknown = []
    for name, value in body.items():
        if name in known:
            continue
        field = TABLE.get(name)
        if field is not None and field.reason and field.asks(value):
            raise ApiError(400, f"{name}: {field.reason}", param=name)
        unknown.append(name)
    return _named(unknown, known)


def _named(unknown: list[str], known: frozenset[str]) -> list[str]:
    """Unknown names, each of the first with the field that it may be a slip of."""
    named = []
    for name in unknown[:_GUESSED]:
        # What is long is no slip, and comparing it takes long.
        near = get_close_matches(name, sorted(known), 1, _NEAR) if len(name) <= _LONGEST else []
        named.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return [*named, *unknown[_GUESSED:]]


def _refuse_elsewhere(name: str, value: object, route: Route) -> None:
    """A field of the other route is refused where it asks for something."""
    if Field(neutral=_WITHOUT_EFFECT.get(name, ())).asks(value):
        other = "/v1/completions" if route == "chat" else "/v1/chat/completions"
        hint = _ELSEWHERE.get(name, f"belongs to {other}; leave it out")
        raise ApiError(400, f"{name}: is not a field of this route; {hint}", param=name)
