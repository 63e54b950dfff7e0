"""What tools and tool_choice may be, and what a template tells about calls."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.models.templates import DISTILLED, HERMES, LLAMA3, QWEN3, SMOLLM2, tool
from wager.errors import RequestError
from wager.server.parsing import marks, tool_style
from wager.server.parsing.tools import choose

TOOLS = [tool("find", {"type": "object"}, strict=True), tool("add", description="Adds.")]


def test_the_style_is_told_by_the_template() -> None:
    assert tool_style(HERMES) == tool_style(QWEN3) == "hermes"
    assert tool_style(LLAMA3) == "llama3"
    assert tool_style("x <|python_tag|> y") == "llama3"
    assert marks("hermes") == ("<tool_call>", "</tool_call>")
    assert marks("llama3") == ("<|python_tag|>",)


@pytest.mark.parametrize(
    "template",
    [None, "", SMOLLM2, DISTILLED, "[TOOL_CALLS]", HERMES + "<function=", HERMES + "<arg_key>"],
)
def test_other_ways_are_refused(template: str | None) -> None:
    with pytest.raises(RequestError, match=r"^tools: .*Hermes, Qwen.*Llama 3"):
        tool_style(template)


def test_choices() -> None:
    for free in (None, "auto"):
        choice = choose(TOOLS, free)
        assert [f.name for f in choice.functions] == ["find", "add"]
        assert not choice.forced
    assert choose(TOOLS, "none").functions == ()
    assert choose(None, None).functions == choose([], "auto").functions == ()
    required = choose(TOOLS, "required")
    assert (required.forced, required.single) == (True, False)
    named = choose(TOOLS, {"type": "function", "function": {"name": "add"}})
    assert (named.forced, named.single) == (True, True)
    assert [f.name for f in named.functions] == ["add"]
    assert [f.strict for f in required.functions] == [True, False]


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        (None, "required", "tool_choice: there are no tools"),
        (TOOLS, "always", 'tool_choice: must be "none"'),
        (TOOLS, 7, 'tool_choice: must be "none"'),
        (TOOLS, {"type": "allowed_tools"}, 'tool_choice: must be "none"'),
        (TOOLS, {"type": "function", "function": {"name": "sub"}}, "known: find, add"),
        ("tools", None, "tools: must be a list"),
        ([7], None, "tools[0]: must be"),
        ([{"type": "web_search"}], None, "tools[0]: must be"),
        ([{"type": "function"}], None, "tools[0].function: must be an object"),
        ([*TOOLS, tool("")], None, "tools[2].function.name: must be"),
        ([tool('a"b')], None, "tools[0].function.name: must be"),
        ([tool("x" * 129)], None, "tools[0].function.name: must be"),
        ([tool("a"), tool("a")], None, "tools[1].function.name: 'a' is there twice"),
        ([tool("a", description=7)], None, "tools[0].function.description: must be"),
        ([tool("a", strict="yes")], None, "tools[0].function.strict: must be"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], None,
         "tools[0].function.parameters: must be"),
        ([tool("a", {"type": "array"})], None, "tools[0].function.parameters.type: must be"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}|{re.escape(message)}$"):
        choose(tools, choice)
