"""Chat templates: jinja text from a model file, so it is run in a sandbox with limits.

A template sees the messages, the tools, the names of a few tokens and the options that the caller
gives it, nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

from wager.errors import ModelError, RequestError
from wager.models.messages import conversation

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TEMPLATE: Final = 1 << 20
MAX_OUTPUT: Final = 1 << 24
DEFAULT: Final = "default"
"""Of the names that templates have."""

_OWN: Final = frozenset(("messages", "tools", "add_generation_prompt", "range"))
_PROBE: Final = {"probe": "x"}


class ChatTemplates(TypedDict):
    """Those of a tokenizer, as it takes them: for all conversations, and for those with tools."""

    template: ChatTemplate | None
    tool_template: ChatTemplate | None


def chat_templates(texts: Mapping[str, str], tokens: Mapping[str, str], name: str) -> ChatTemplates:
    """From a model's templates by name, of which two have a meaning that is known."""
    made = {
        role: ChatTemplate(texts[role], tokens, name)
        for role in (DEFAULT, "tool_use")
        if role in texts
    }
    return {"template": made.get(DEFAULT), "tool_template": made.get("tool_use")}


class ChatTemplate:
    """A template that is compiled at its first use. ``tokens`` maps names such as ``bos_token``."""

    def __init__(self, text: str, tokens: Mapping[str, str], name: str) -> None:
        if len(text) > MAX_TEMPLATE:
            raise ModelError(f"{name}: the chat template is longer than {MAX_TEMPLATE} characters")
        self.text = text
        self.tokens = dict(tokens)
        self._name = name
        self._template: Template | None = None
        self._names: frozenset[str] = frozenset()
        self._text_arguments: bool | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The text of a conversation.

        ``tools`` are JSON objects as in OpenAI's requests; ``kwargs`` are options of the template
        itself. ``continue_final_message`` leaves the last message, the assistant's, open at the end
        of its content, so that the model goes on with it; no generation prompt is added then.

        Raises RequestError, which names the place, or ModelError for a broken template.
        """
        template = self._compiled()
        options = self._options(kwargs or {})
        given = self._tools(tools)
        chat = self._conversation(messages)
        if "developer" not in self.text:
            # A name that came later for what templates call the system's messages.
            for message in chat:
                message["role"] = "system" if message["role"] == "developer" else message["role"]
        if not continue_final_message:
            return self._run(template, chat, given, options, add_generation_prompt)
        mark = secrets.token_hex(16)
        _open_final(chat, mark)
        text, found, _ = self._run(template, chat, given, options, False).rpartition(mark)
        if not found:
            raise RequestError(
                "continue_final_message: the model's chat template does not write the final "
                "message as it is given"
            )
        return text

    def _run(
        self,
        template: Template,
        chat: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> str:
        import jinja2

        from wager.models.sandbox import Rounds

        known = {
            "documents": None,
            **options,
            "messages": chat,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "range": Rounds().range,
            **self.tokens,
        }
        parts, length = [], 0
        try:
            for part in template.generate(known):
                parts.append(part)
                length += len(part)
                if length > MAX_OUTPUT:
                    raise RequestError(
                        f"messages: the chat template wrote more than {MAX_OUTPUT} characters"
                    )
        except jinja2.TemplateError as error:
            reason = _one_line(error)
            raise RequestError(f"messages: refused by the model's chat template: {reason}") from (
                error
            )
        # What a template runs is foreign code: whatever it raises ends this request, no more.
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {_one_line(error)}"
            raise RequestError(f"messages: the model's chat template failed: {reason}") from error
        except (MemoryError, RecursionError) as error:
            raise RequestError("messages: the model's chat template grew out of bounds") from error
        return "".join(parts)

    def _compiled(self) -> Template:
        if self._template is not None:
            return self._template
        import jinja2

        from wager.models.sandbox import environment, read_names

        made = environment()
        try:
            names = read_names(made, self.text)
            template = made.from_string(self.text)
        except (jinja2.TemplateError, RecursionError) as error:
            reason = _one_line(error)
            raise ModelError(f"{self._name}: the chat template is broken: {reason}") from error
        self._names = names - self.tokens.keys()
        self._template = template
        return template

    def _options(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options for the template: only ones that it reads, since others would do nothing."""
        known = self._names - _OWN
        for name in kwargs:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise RequestError(
                    f"chat_template_kwargs: {str(name)[:64]!r} is no option of the model's chat "
                    f"template; its options: {listed}"
                )
        return kwargs

    def _conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        chat = conversation(messages)
        calling = next((i for i, message in enumerate(chat) if "tool_calls" in message), None)
        if calling is None:
            return chat
        if "tool_calls" not in self.text:
            raise RequestError(
                f"messages[{calling}].tool_calls: this model's chat template does not show calls "
                "to the model"
            )
        if self._wants_text_arguments():
            chat = conversation(messages, arguments_as_text=True)
        return chat

    def _tools(self, tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
        if not tools:
            return None
        given: Any = tools
        if isinstance(given, str) or not all(isinstance(tool, Mapping) for tool in given):
            raise RequestError("tools: must be a list of objects")
        if "tools" not in self._names:
            raise RequestError(
                "tools: this model's chat template does not show tools to the model; use a model "
                "that was trained to call them"
            )
        return [dict(tool) for tool in tools]

    def _wants_text_arguments(self) -> bool:
        """Whether the arguments of a tool call come out as JSON only when they are given as text.

        Some templates write them with ``tojson``, some add them to a string as they are.
        """
        if self._text_arguments is None:
            as_object, as_text = (self._probe(as_text) for as_text in (False, True))
            self._text_arguments = '"probe"' not in as_object and '"probe"' in as_text
        return self._text_arguments

    def _probe(self, as_text: bool) -> str:
        function = {"name": "probe", "arguments": _PROBE}
        call = {"id": "call00000", "type": "function", "function": function}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        chat = conversation(messages, as_text)
        try:
            return self._run(self._compiled(), chat, None, {}, False)
        except RequestError:
            return ""


def _open_final(chat: list[dict[str, Any]], mark: str) -> None:
    """Put a mark behind the content that is to be continued."""
    final = chat[-1]
    if final["role"] != "assistant":
        raise RequestError(
            f"continue_final_message: the last message must be the assistant's, not of the role "
            f"{final['role'][:64]!r}"
        )
    if "tool_calls" in final:
        raise RequestError("continue_final_message: the last message must not call tools")
    final["content"] += mark


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
