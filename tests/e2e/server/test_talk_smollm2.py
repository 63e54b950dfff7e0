"""Calls of tools and reasoning with a real model and its tokenizer of 49,152 tokens.

Its own template knows neither, so it is given one that does, and shown how by examples, which a
model of this size follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
import pytest

from tests.e2e.server.answers import PLAINLY, STREAMED, Choice, ask_all
from tests.e2e.server.conftest import CALLS, TEMPLATE
from tests.e2e.server.harness import Live, serving
from tests.recipes import ngram
from wager.models.chat import ChatTemplate

pytestmark = pytest.mark.model

LLAMA = (
    CALLS.replace("<tool_call>", "")
    .replace("</tool_call>", "")
    .replace('"arguments": }', '"parameters": }')
)
"""Calls are bare objects, as with Llama 3; nothing is thought."""
COUNTRIES = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}
THOUGHT = "The user asks for Italy. It is Rome."


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """All properties are required."""
    parameters = {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False,
    }  # fmt: skip
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("weather", city={"type": "string", "maxLength": 24}, unit={"enum": ["C", "F"]}),
    tool("search", words={"type": "array", "items": {"type": "string", "maxLength": 12},
                          "minItems": 1, "maxItems": 2}),
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    one["function"]["name"]: one["function"].get("parameters", {"maxProperties": 0})
    for one in TOOLS
}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(
        "smollm2-135m", weights="int8", speculation=ngram(8, low=1, high=4), max_num_seqs=8,
        max_model_len=1024,
    ) as live:  # fmt: skip
        yield live


@contextmanager
def template(live: Live, text: str) -> Iterator[None]:
    """The model is talked to by this template."""
    tokenizer = live.llm.llm.tokenizer
    own = tokenizer._template
    assert own is not None
    tokenizer._template = ChatTemplate(text, own.tokens, "of the test")
    try:
        yield
    finally:
        tokenizer._template = own


def shown(answer: Callable[[str], str]) -> list[dict[str, Any]]:
    """Examples of a model that thinks before it answers, and a question."""
    messages = []
    for country, city in COUNTRIES.items():
        thought = f"The user asks for {country}. It is {city}."
        said = f"<think>\n{thought}\n</think>\n\n{answer(city)}"
        messages += [
            {"role": "user", "content": f"capital of {country}?"},
            {"role": "assistant", "content": said},
        ]
    return [*messages, {"role": "user", "content": "capital of Italy?"}]


def both(live: Live, bodies: list[dict[str, Any]]) -> list[Choice]:
    """With drafts, streamed and not, and without: all the same."""
    expected = ask_all(live, [{**body, **PLAINLY} for body in bodies])
    found = ask_all(live, bodies)
    assert found == expected
    assert ask_all(live, [{**body, **STREAMED} for body in bodies]) == expected
    assert sum(answer.speculation["accepted"] for answer in found if answer.speculation) > 0
    return [answer.choices[0] for answer in expected]


@pytest.mark.parametrize("style", ["hermes", "llama3"])
@pytest.mark.parametrize("choice", ["required", "weather", "search"])
def test_a_forced_call_can_be_read_and_keeps_to_its_schema(
    style: str, choice: str, live: Live
) -> None:
    named = {"type": "function", "function": {"name": choice}}
    asked = "How warm is it in Oslo? And who is the mayor of Seoul?"
    bodies: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": asked}], "tools": TOOLS, "seed": seed,
            "tool_choice": choice if choice == "required" else named, "max_tokens": 80,
            "temperature": temperature, "parallel_tool_calls": False,
        }
        for seed, temperature in enumerate((0, 1.0))
    ]  # fmt: skip
    with template(live, CALLS if style == "hermes" else LLAMA):
        for answer in both(live, bodies):
            assert (answer.text, answer.reasoning) == ("", "")
            assert answer.finish_reason == "tool_calls"
            ((name, arguments),) = answer.calls
            assert choice in (name, "required")
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    live.survives()


@pytest.mark.parametrize("opened", [False, True], ids=["by the model", "by the template"])
def test_reasoning_is_set_apart(opened: bool, live: Live) -> None:
    asked = {
        "messages": shown(lambda city: f"{city}."), "max_tokens": 60, "seed": 1, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": opened},
    }  # fmt: skip
    with template(live, TEMPLATE):
        shown_too, hidden = both(live, [asked, {**asked, "include_reasoning": False}])
    assert (shown_too.text, shown_too.reasoning) == ("Rome.", THOUGHT)
    assert (hidden.text, hidden.reasoning) == ("Rome.", "")
    assert shown_too.finish_reason == hidden.finish_reason == "stop"


@pytest.mark.parametrize("choice", ["auto", "required", "weather"])
@pytest.mark.parametrize("opened", [False, True], ids=["by the model", "by the template"])
def test_a_call_behind_reasoning(opened: bool, choice: str, live: Live) -> None:
    """Called because the model wants to, or because it has to, after it has thought."""

    def call(city: str) -> str:
        arguments = {"city": city, "unit": "C"}
        made = json.dumps({"name": "weather", "arguments": arguments})
        return f"<tool_call>\n{made}\n</tool_call>"

    named = {"type": "function", "function": {"name": choice}}
    asked = {
        "messages": shown(call), "max_tokens": 80, "seed": 1, "temperature": 0, "tools": TOOLS,
        "tool_choice": named if choice == "weather" else choice,
        "chat_template_kwargs": {"enable_thinking": opened},
    }  # fmt: skip
    with template(live, TEMPLATE):
        (answer,) = both(live, [asked])
    assert (answer.text, answer.reasoning) == ("", THOUGHT)
    assert answer.calls == [["weather", '{"city": "Rome", "unit": "C"}']]
    assert answer.finish_reason == "tool_calls"
