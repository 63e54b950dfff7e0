"""Bodies: every field is known, types are kept to, and what is refused is named."""

from __future__ import annotations

from typing import Any

import pytest

from wager.server import fields
from wager.server.errors import ApiError
from wager.server.schema import ChatBody, CompletionBody, Strict, parse

HI = {"role": "user", "content": "hi"}


def refusal(model: type[Strict], body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(model, body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(("route", "model"), [("chat", ChatBody), ("completions", CompletionBody)])
def test_the_table_has_what_the_bodies_read(route: fields.Route, model: type[Strict]) -> None:
    assert fields.served(route) == set(model.model_fields)


def test_every_refusal_says_why() -> None:
    for name, field in fields.TABLE.items():
        assert field.served + bool(field.reason) + field.silent == 1, name


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "messages: is missing"),
        ({"messages": []}, "messages: is empty"),
        ({"messages": "hi"}, "messages: must be a valid list"),
        ({"messages": ["hi"]}, "messages[0]: must be an object"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role: is missing"),
        ({"messages": [{"role": 1, "content": "hi"}]}, "messages[0].role: must be"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]: has no content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content: must be a string"),
        ({"n": True}, "n: must be a valid integer"),
        ({"n": 1.0}, "n: must be a valid integer"),
        ({"stream": "true"}, "stream: must be a valid boolean"),
        ({"temperature": "0"}, "temperature: must be a valid number"),
        ({"temperature": True}, "temperature: must be a valid number"),
        ({"stop": 7}, "stop: must be a string, or a list of strings"),
        ({"stop": ["a", 1]}, "stop: must be a string, or a list of strings"),
        ({"logit_bias": [[5, 1]]}, "logit_bias: must be an object"),
        ({"logit_bias": {"5": "1"}}, "logit_bias: must be a valid number"),
        ({"tool_choice": "any"}, "tool_choice: must be"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name: is missing"),
        ({"tools": [{"type": "magic"}]}, "tools[0].type: must be"),
        ({"response_format": {"type": "yaml"}}, "response_format.type: must be"),
        ({"response_format": []}, "response_format: must be an object"),
        ({"structured_outputs": {"regexx": "a"}}, "structured_outputs.regexx: is not a key"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json: must be a JSON schema"),
        ({"stream_options": {"usage": True}}, "stream_options.usage: is not a key"),
        ({"speculation": "off"}, "speculation: must be an object"),
        ({"speculation": {"enabled": 1}}, "speculation.enabled: must be a valid boolean"),
        ({"cache_salt": ""}, "cache_salt: is empty"),
        ({"cache_salt": "s" * 1025}, "cache_salt: "),
    ],
)
def test_faults_are_named(body: dict[str, Any], path: str) -> None:
    given = body if not body or "messages" in body else {"messages": [HI], **body}
    error = refusal(ChatBody, given)
    assert error.message.startswith(path), error.message
    assert error.param == path.partition(":")[0].partition(".")[0].partition("[")[0]
    assert "Input" not in error.message


@pytest.mark.parametrize("prompt", ["a", "", ["a", "b"], [5, 6], [[5], [6, 7]], [[]]])
def test_prompts_of_all_kinds(prompt: Any) -> None:
    assert parse(CompletionBody, {"prompt": prompt}).prompt == prompt


@pytest.mark.parametrize(
    "prompt", [None, 5, {}, [], ["a", 5], [5, "a"], [5.0], [True], [-1], [[5], 6], [["a"]], [[5.5]]]
)
def test_other_prompts_are_refused(prompt: Any) -> None:
    error = refusal(CompletionBody, {"prompt": prompt})
    assert error.param == "prompt"
    assert error.message.startswith("prompt: ")


def test_calls_may_stand_without_content() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert parse(ChatBody, {"messages": [HI, message]}).messages[1].content is None
    refusal(ChatBody, {"messages": [{**message, "role": "user"}]})


# Fields


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_unknown_fields_are_returned_with_what_may_be_meant(route: fields.Route) -> None:
    body = {"model": "m", "foo": 1, "top_logrpobs": 5, "temprature": 1, "user": "u", "store": False}
    assert fields.check(body, route) == [
        "foo",
        "top_logrpobs (did you mean top_logprobs?)",
        "temprature (did you mean temperature?)",
    ]


def test_many_unknown_fields_are_all_returned() -> None:
    body = {f"zz{i}": 1 for i in range(1000)}
    assert fields.check(body, "chat") == list(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [("suffix", "end"), ("best_of", 2), ("functions", []), ("logprob_token_ids", [1]),
     ("guided_json", {}), ("store", True), ("use_beam_search", True), ("modalities", ["audio"]),
     ("truncate_prompt_tokens", 5), ("n_predict", 4), ("best_of", True)],
)  # fmt: skip
def test_known_fields_that_ask_for_something_are_refused(name: str, value: Any) -> None:
    for route in ("chat", "completions"):
        with pytest.raises(ApiError, match=f"^{name}: ") as caught:
            fields.check({name: value}, route)  # type: ignore[arg-type]
        assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(fields.TABLE))
def test_null_asks_for_nothing(name: str) -> None:
    for route in ("chat", "completions"):
        assert fields.check({name: None}, route) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", 1), ("use_beam_search", False), ("length_penalty", 1.0), ("priority", 0),
     ("service_tier", "auto"), ("modalities", ["text"]), ("suffix", None), ("user", "u"),
     ("metadata", {"a": "b"})],
)  # fmt: skip
def test_values_that_change_nothing_are_taken(name: str, value: Any) -> None:
    assert fields.check({name: value}, "completions") == []


def test_fields_of_the_other_route() -> None:
    with pytest.raises(ApiError, match="messages: is not a field of this route; use prompt"):
        fields.check({"messages": []}, "completions")
    with pytest.raises(ApiError, match="echo: is not a field of this route"):
        fields.check({"echo": True}, "chat")
    assert fields.check({"echo": False}, "chat") == []
    assert fields.check({"tools": [], "tool_choice": "none"}, "completions") == []


def test_small_routes_refuse_and_warn_alike() -> None:
    known = frozenset({"prompt", "model"})
    assert fields.check_small({"prompt": "a", "promt": "b"}, known) == [
        "promt (did you mean prompt?)"
    ]
    with pytest.raises(ApiError, match="chat_template"):
        fields.check_small({"chat_template": "x"}, known)
