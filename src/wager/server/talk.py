"""How a conversation goes in: the model's template, the tools it is told of, and by what the text
of the reply is read afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wager.errors import RequestError
from wager.server import bulk, convert
from wager.server.failures import named
from wager.server.parsing import (
    ReplyParser,
    marks,
    opened_reasoning,
    reply_parser,
    tool_grammar,
    tool_style,
)
from wager.server.parsing.reasoning import THINK, THOUGHT
from wager.server.replies import Asked
from wager.server.schema import ChatBody
from wager.server.service import Service

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Talk:
    """What the text of the reply is read by. ``tools`` None: calls are not looked for."""

    template: str | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: object
    reasoning: bool
    opened: bool
    parallel: bool

    def parser(self) -> ReplyParser:
        """For one choice."""
        return reply_parser(
            template=self.template,
            tools=self.tools,
            tool_choice=self.tool_choice,
            reasoning=self.reasoning,
            opened_reasoning=self.opened,
        )


def render(raw: Mapping[str, Any], service: Service) -> tuple[str, str]:
    """The conversation of a body as text, and the content of the message that is continued, "" if
    none is. For both routes that take messages. Raises RequestError."""
    tokenizer = service.llm.llm.tokenizer
    continued = bool(raw.get("continue_final_message"))
    prompted = raw.get("add_generation_prompt")
    if continued and prompted:
        raise RequestError(
            "continue_final_message: a message cannot be continued behind a new one's beginning; "
            "set add_generation_prompt: false"
        )
    text = tokenizer.chat(
        raw["messages"],
        not continued if prompted is None else bool(prompted),
        tools=_offered(raw),
        kwargs=_template_options(raw, tokenizer),
        continue_final_message=continued,
    )
    final = raw["messages"][-1].get("content") if continued else ""
    return text, final if isinstance(final, str) else ""


def encoded(text: str, special: bool | None, service: Service) -> list[int]:
    """Token ids of a conversation. The template writes the special tokens, so none is added unless
    that is asked for. Raises ApiError."""
    tokenizer = service.llm.llm.tokenizer
    return convert.renamed("messages", lambda: tokenizer.encode(text, add_special=bool(special)))


def _offered(raw: Mapping[str, Any]) -> list[Json] | None:
    """The tools that the model is told of."""
    return (raw.get("tools") or None) if raw.get("tool_choice") != "none" else None


def _template_options(raw: Mapping[str, Any], tokenizer: Tokenizer) -> Json | None:
    options = dict(raw.get("chat_template_kwargs") or {})
    effort = raw.get("reasoning_effort")
    if effort is not None:
        used = tokenizer.template_text(tools=_offered(raw) is not None)
        if "reasoning_effort" not in (used or ""):
            raise RequestError(
                "reasoning_effort: this model's chat template does not read it; leave it out"
            )
        options.setdefault("reasoning_effort", effort)
    return options or None


def prepared(
    raw: Json, body: ChatBody, service: Service
) -> tuple[Talk, Asked, convert.Form | None]:
    """All that needs no event loop. Raises ApiError or RequestError."""
    tokenizer = service.llm.llm.tokenizer
    form = convert.form(body, service)
    text, final = render(raw, service)
    ids = encoded(text, body.add_special_tokens, service)
    convert.check_ids(ids, service, "messages")
    opened = opened_reasoning(text, final)
    talk = Talk(
        template=tokenizer.template_text(tools=_offered(raw) is not None),
        tools=_offered(raw),
        tool_choice=raw.get("tool_choice") or "auto",
        # What has to have a form has it from the first token on: nothing is thought before.
        reasoning=form is None,
        opened=opened and form is None,
        parallel=body.parallel_tool_calls is not False,
    )
    forced = _forced(talk, service)
    if forced is not None or talk.tools:
        if form is not None:
            raise RequestError(
                f'{form[0]}: the reply may be a call of a tool instead; set tool_choice: "none"'
            )
        form = forced
    params = convert.sampling(body, service, form[1] if form is not None else None)
    if any(tokenizer.special_id(mark) is not None for mark in _marks(talk)):
        # The parser has to see them.
        params = replace(params, skip_special_tokens=False)
    large = bulk.is_large(body, [ids], params, service.llm.llm.engine.max_model_len)
    field = form[0] if form is not None else ""
    return talk, Asked([ids], params, body.cache_salt or "", large=large, form=field), form


def unkept(body: ChatBody) -> str:
    """What the reply may not keep to although it is asked for, as a warning; "" where it will.

    Calls that the model is free to make are not held to their schemas. Clients ask for that all the
    same, since their helpers take no other tools.
    """
    if body.tool_choice not in (None, "auto"):
        return ""
    strict = [number for number, tool in enumerate(body.tools or ()) if tool.function.strict]
    if not strict:
        return ""
    more = f" and {len(strict) - 1} more" if len(strict) > 1 else ""
    return f"tools[{strict[0]}].function.strict{more}: is kept to only where a call is forced"


def _marks(talk: Talk) -> tuple[str, ...]:
    """Texts that say where parts of the reply begin and end."""
    found = (THINK, THOUGHT) if talk.reasoning and _thinks(talk) else ()
    return (*found, *marks(tool_style(talk.template))) if talk.tools else found


def _thinks(talk: Talk) -> bool:
    return talk.opened or THINK in (talk.template or "")


def _forced(talk: Talk, service: Service) -> convert.Form | None:
    """The grammar that makes the reply a call, where it has to be one."""
    talk.parser()  # refuses tools that are none, and a model that calls in no known way
    if not talk.tools:
        return None
    tokenizer = service.llm.llm.tokenizer
    try:
        grammar = tool_grammar(
            talk.tools,
            talk.tool_choice,
            tool_style(talk.template),
            parallel=talk.parallel,
            reasoning=_thinks(talk),
            opened_reasoning=talk.opened,
            special={mark for mark in _marks(talk) if tokenizer.special_id(mark) is not None},
        )
    except RequestError as error:
        raise named(error, "tools") from error
    if grammar is None:
        return None
    convert.check_size("tools", grammar.value, service)
    return "tools", grammar
