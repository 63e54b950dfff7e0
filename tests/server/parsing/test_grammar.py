"""Forced calls: what llguidance accepts under the grammar is what the parser takes for calls."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from tests.models.templates import HERMES, LLAMA3, tool
from tests.server.parsing.scripted import of_kind, run
from wager.server.parsing import tool_grammar

SPECIALS = ("<eos>", "<tool_call>", "</tool_call>", "<think>", "</think>")


class Bytes:
    """A vocabulary of the bytes and a few special tokens."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = tuple(range(256, 256 + len(SPECIALS)))
    tokens = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in SPECIALS)]  # noqa: RUF012

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(
    TokenizerWrapper(Bytes()), n_vocab=256 + len(SPECIALS), eos_token=256, slices=[]
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/Days"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Days": {"type": "integer"}},
}
TOOLS = [tool("weather", CITY), tool("now")]
NAMED = {"type": "function", "function": {"name": "now"}}
WEATHER = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "P\u00e9", "days": 3}}\n</tool_call>'
)
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def accepts(text: str, choice: Any = "required", style: Any = "hermes", **options: Any) -> bool:
    """Whether a whole text fits; marks that are special tokens are given as such."""
    grammar = tool_grammar(TOOLS, choice, style, **options)
    assert grammar is not None
    assert grammar.kind == "grammar"
    assert isinstance(grammar.value, str)
    matcher = LLMatcher(TOKENIZER, grammar_from("grammar", grammar.value))
    assert not matcher.is_error(), matcher.get_error()
    ids: list[int] = []
    left = text
    while left:
        found = [s for s in options.get("special", ()) if left.startswith(s)]
        step = found[0] if found else left[0]
        ids += [256 + SPECIALS.index(step)] if found else list(step.encode())
        left = left[len(step) :]
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def test_free_choices_have_no_grammar() -> None:
    for choice in (None, "auto", "none"):
        assert tool_grammar(TOOLS, choice, "hermes") is None
    assert tool_grammar(None, None, "llama3") is None


def test_hermes() -> None:
    assert accepts(WEATHER)
    assert accepts(f"{WEATHER}\n{NOW}")
    assert not accepts("Hello")
    assert not accepts(WEATHER.replace("3", '"three"'))
    assert not accepts(WEATHER.replace("city", "town"))
    assert not accepts(NOW.replace("{}", '{"a": 1}'))
    assert not accepts(NOW.replace("now", "then"))
    assert accepts(NOW, parallel=False)
    assert not accepts(f"{NOW}\n{NOW}", parallel=False)
    assert accepts(NOW, NAMED)
    assert not accepts(WEATHER, NAMED)
    assert not accepts(f"{NOW}\n{NOW}", NAMED)


def test_llama() -> None:
    assert accepts('{"name": "now", "parameters": {}}', style="llama3")
    assert accepts('{"name": "weather", "parameters": {"city": "a"}}', style="llama3")
    assert not accepts('{"name": "weather", "parameters": {"days": 1}}', style="llama3")
    assert not accepts('{"name": "weather", "parameters": {"city": "a"}}', NAMED, "llama3")


def test_reasoning_comes_first() -> None:
    thinking = f"<think>\nA <tool_call>?\n</think>\n\n{NOW}"
    assert accepts(NOW, reasoning=True)
    assert accepts(thinking, reasoning=True)
    assert not accepts("<think>a</think>\n\nHello", reasoning=True)
    opened = thinking.removeprefix("<think>")
    assert accepts(opened, opened_reasoning=True)
    assert not accepts(opened, reasoning=True)


def test_marks_that_are_special_tokens() -> None:
    assert accepts(f"{NOW}\n{WEATHER}", special=SPECIALS)
    assert accepts(f"<think>\nhm\n</think>\n\n{NOW}", special=SPECIALS, reasoning=True)
    assert accepts(f"hm</think>\n\n{NOW}", special=SPECIALS, opened_reasoning=True)


@pytest.mark.parametrize("strict", [False, True])
def test_keywords_that_the_grammar_cannot_keep(strict: bool) -> None:
    """Ignored unless the function is strict: then the request is refused when it is compiled."""
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such-format"}}}
    grammar = tool_grammar([tool("f", odd, strict=strict)], "required", "hermes")
    assert grammar is not None
    assert isinstance(grammar.value, str)
    error = LLMatcher.validate_grammar(grammar_from("grammar", grammar.value))
    assert bool(error and not error.startswith("WARNING")) == strict


def test_references_follow_and_data_stays() -> None:
    odd = {
        "type": "object",
        "properties": {"$ref": {"const": {"$ref": "#/x"}}, "enum": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"items": [{"$ref": "#"}]}},
    }
    grammar = tool_grammar([tool("f", odd)], "required", "llama3")
    assert grammar is not None
    value = str(grammar.value)
    assert '{"const": {"$ref": "#/x"}}' in value
    assert '{"$ref": "#/properties/parameters/$defs/a"}' in value
    assert '[{"$ref": "#/properties/parameters"}]' in value


def test_what_is_accepted_is_parsed() -> None:
    pieces = run(f"{WEATHER}\n{NOW}", template=HERMES, tools=TOOLS)
    assert of_kind(pieces, "tool_arguments", 0) == '{"city": "Pé", "days": 3}'
    assert of_kind(pieces, "tool_arguments", 1) == "{}"
    assert of_kind(pieces, "content") == ""
    pieces = run('{"name": "now", "parameters": {}}', template=LLAMA3, tools=TOOLS)
    assert [piece.kind for piece in pieces] == ["tool_start", "tool_arguments"]
