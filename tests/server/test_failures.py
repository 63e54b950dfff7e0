"""What clients are told of answers that the engine gave up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.fakes import CHAT, TALK_TEMPLATE, TEXT, Client, FakeLLM, Say, tokenizer
from wager.errors import RequestError, Unavailable
from wager.server.failures import named
from wager.types import FORM_FAULT, FORM_LOST, NO_TOKEN_LEFT

HI = [{"role": "user", "content": "hi"}]
FORMAT = {"response_format": {"type": "json_object"}}
CHOICE = {"structured_outputs": {"choice": ["a", "b"]}}


@pytest.fixture
def spell(tmp_path: Path) -> Any:
    return tokenizer(tmp_path)


def refused(spell: Any, why: object, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    """Whether it is streamed or not."""
    ended = why if isinstance(why, Exception) else [[Say("", [], "abort", str(why))]]
    route = CHAT if "messages" in body else TEXT
    errors = [
        Client(FakeLLM(spell, ended)).refused(route, {**body, "stream": stream}, status)
        for stream in (False, True)
    ]
    assert errors[0] == errors[1]
    return errors[0]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": "a", **CHOICE}, "structured_outputs"),
        ({"prompt": "a", **FORMAT}, "response_format"),
        ({"messages": HI, **FORMAT}, "response_format"),
    ],
)
def test_a_form_that_cannot_be_followed(spell: Any, body: dict[str, Any], field: str) -> None:
    error = refused(spell, f"{FORM_FAULT}: the grammar takes too long to follow", body)
    assert error["param"] == field
    assert error["message"] == f"{field}: the grammar takes too long to follow"
    assert error["code"] == "no_token_left"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"allowed_token_ids": [5], "min_tokens": 2}, ["allowed_token_ids", "min_tokens"]),
        ({"bad_words": ["a"], **CHOICE}, ["structured_outputs", "bad_words"]),
        ({"bad_words": ["a"]}, ["bad_words"]),
        ({}, ["logit_bias"]),
    ],
)
def test_options_that_leave_no_token(spell: Any, body: dict[str, Any], fields: list[str]) -> None:
    error = refused(spell, f"{NO_TOKEN_LEFT}: every token is excluded", {"prompt": "a", **body})
    assert error["param"] == fields[0]
    assert error["message"].endswith(f"look at {', '.join(fields)}")


def test_what_is_no_fault_of_the_request(spell: Any) -> None:
    error = refused(spell, f"{FORM_LOST}: its process was lost", {"prompt": "a", **CHOICE}, 503)
    assert error["code"] == "unavailable"
    assert error["type"] == "server_error"
    lost = Unavailable("structured: no process could be started for the grammar")
    error = refused(spell, lost, {"prompt": "a", **CHOICE}, 503)
    assert error["code"] == "unavailable"


def test_nothing_usable_is_a_fault_of_the_server(spell: Any) -> None:
    error = refused(spell, "the model gave no usable logits: secret", {"prompt": "a"}, 500)
    assert error["code"] == "request_failed"
    assert "secret" not in json.dumps(error)


def test_the_field_is_the_client_s(spell: Any) -> None:
    """Also where the engine refuses what was compiled before."""
    error = refused(spell, RequestError("structured: takes too long"), {"prompt": "a", **FORMAT})
    assert error["param"] == "response_format"
    assert error["message"] == "response_format: takes too long"
    other = RequestError("prompt: is empty")
    assert named(other, "response_format") is other


def test_tools_have_the_limit_of_other_forms(spell: Any, tmp_path: Path) -> None:
    # Without them in the prompt, which would be too long.
    template = TALK_TEMPLATE.replace("{{ tools | tojson }}", "")
    llm = FakeLLM(tokenizer(tmp_path / "talk", template))
    for size in (70_000, 300_000):
        tool = {"name": "f", "parameters": {"type": "object", "description": "d" * size}}
        body = {
            "messages": HI, "tools": [{"type": "function", "function": tool}],
            "tool_choice": "required",
        }  # fmt: skip
        error = Client(llm).refused(CHAT, body)
        assert error["param"] == "tools"
        assert error["message"].startswith("tools: ")
    assert llm.asked == []
