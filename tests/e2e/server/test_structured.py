"""Grammars beside drafts: whatever is drafted, the answer has the form, and it is the same one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.e2e.server.answers import PLAINLY, STREAMED, Answer, ask, ask_all
from tests.e2e.server.combos import TOOLS
from tests.e2e.server.harness import Live, serving
from tests.recipes import ngram, recipe

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"enum": ["open", "closed", "in progress", "unknown"]},
        **{name: {"type": "integer", "minimum": 0, "maximum": 999} for name in ("a", "b", "c")},
    },
    "required": ["status", "a", "b", "c"],
    "additionalProperties": False,
}
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "status", "schema": SCHEMA, "strict": True},
}
EXAMPLE = json.dumps({"status": "closed", "a": 10, "b": 200, "c": 3})
PREFIX = f"Give the status as JSON, for instance {EXAMPLE} or {EXAMPLE}. "
DRAFTERS: dict[str, Any] = {
    "ngram": ngram(5, low=1, high=4),
    "end token": recipe("Garbage", 4, constant=2),
    "constant": recipe("Garbage", 8, constant=7),
    "random": recipe("Garbage", 6),
}


def status(number: int, **more: Any) -> dict[str, Any]:
    """One of many requests with a long beginning in common."""
    return {
        "messages": [{"role": "user", "content": f"{PREFIX}{number}"}], "seed": number,
        "max_tokens": 500, "temperature": (0, 0.8, 1.2)[number % 3], "response_format": FORMAT,
        **more,
    }  # fmt: skip


def valid(answer: Answer) -> None:
    """It ended by itself, and keeps to the schema."""
    assert answer.reason == "stop", answer
    jsonschema.validate(json.loads(answer.text), SCHEMA)


@pytest.fixture(scope="module")
def expected(calls_path: Path) -> list[Answer]:
    with serving(calls_path, max_num_seqs=1, prefix_cache=False) as live:
        return ask_all(live, [status(n) for n in range(32)], width=1)


@pytest.mark.parametrize("name", DRAFTERS)
def test_sixteen_at_once_are_all_valid(name: str, expected: list[Answer], calls_path: Path) -> None:
    with serving(
        calls_path, speculation=DRAFTERS[name], max_num_seqs=16, max_batch_tokens=64
    ) as live:
        bodies = [status(n, **(STREAMED if n % 2 else {})) for n in range(32)]
        found = ask_all(live, bodies, width=16)
        for plain, answer in zip(expected, found, strict=True):
            valid(answer)
            assert answer == plain
        told = [answer.speculation for answer in found]
        drafted = sum(one["drafted"] for one in told if one is not None)
        accepted = sum(one["accepted"] for one in told if one is not None)
        assert drafted > 0
        if name == "ngram":
            assert 0 < accepted < drafted
        live.survives()


@pytest.fixture(scope="module")
def live(calls_path: Path) -> Iterator[Live]:
    with serving(calls_path, speculation=ngram(8, low=1, high=4), max_num_seqs=8) as live:
        yield live


def both(live: Live, body: dict[str, Any]) -> Answer:
    plain, *others = ask_all(live, [{**body, **PLAINLY}, body, {**body, **STREAMED}])
    for other in others:
        assert other == plain
    return plain


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "(ab|cd){2,6}[0-9]{1,3}"}, "(ab|cd){2,6}[0-9]{1,3}"),
        ({"choice": ["red", "green", "blue whale", "강물 🙂"]}, "red|green|blue whale|강물 🙂"),
        ({"grammar": 'start: "x" mid "."\nmid: "y" | "z" "y" | "z" "z" "z"'}, r"x(y|zy|zzz)\."),
    ],
    ids=["regex", "choice", "grammar"],
)
def test_forms(form: dict[str, Any], pattern: str, temperature: float, live: Live) -> None:
    for seed in range(5):
        body = {"prompt": "ab ab cd xy", "structured_outputs": form, "max_tokens": 64,
                "temperature": temperature, "seed": seed}  # fmt: skip
        answer = both(live, body)
        assert answer.reason == "stop"
        assert re.fullmatch(pattern, answer.text), answer.text


def test_a_form_that_is_cut_off_says_so(live: Live) -> None:
    body = {"prompt": "a", "structured_outputs": {"regex": "[a-c]{50}"}, "seed": 1}
    for most in (1, 7, 20):
        answer = both(live, {**body, "max_tokens": most})
        assert answer.reason == "length"
        assert re.fullmatch("[a-c]*", answer.text)
    assert both(live, {**body, "max_tokens": 60}).reason == "stop"


def test_any_json_object(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "json"}], "seed": 3, "max_tokens": 300,
            "response_format": {"type": "json_object"}}  # fmt: skip
    answer = both(live, body)
    assert answer.text.lstrip().startswith("{")
    if answer.reason == "stop":
        assert isinstance(json.loads(answer.text), dict)


def test_a_form_is_prepared_while_others_are_answered(live: Live) -> None:
    """Many different ones at once, among them ones that are refused."""
    good = [
        {"prompt": [5 + n], "max_tokens": 4, "seed": n,
         "structured_outputs": {"regex": f"[a-z]{{{1 + n}}}x"}}
        for n in range(100)
    ]  # fmt: skip
    ask_all(live, good, width=32)
    for n in range(10):
        reply = live.post("/v1/completions", {**good[n], "structured_outputs": {"regex": f"({n}"}})
        assert reply.status_code == 400
    live.survives()


# Tools


@pytest.mark.parametrize("stop", ['"', "n", ":"])
def test_a_forced_call_that_a_stop_cuts_off(stop: str, live: Live) -> None:
    """It ends for the stop, and not with a call that nobody can read."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "count"}], "tools": TOOLS, "seed": 3,
        "tool_choice": "required", "max_tokens": 200, "stop": [stop], "min_tokens": 24,
    }  # fmt: skip
    answer = both(live, body).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.stop_reason == stop
    for _, arguments in answer.calls:
        assert not arguments.endswith("}")


@pytest.mark.parametrize("choice", ["required", "count", "paint"])
def test_a_call_that_is_forced(choice: str, live: Live) -> None:
    named = {"type": "function", "function": {"name": choice}}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "count to 3"}], "tools": TOOLS,
        "tool_choice": choice if choice == "required" else named, "max_tokens": 400, "seed": 2,
        "parallel_tool_calls": False,
    }  # fmt: skip
    for temperature in (0, 1.0):
        answer = both(live, {**body, "temperature": temperature}).choices[0]
        ((name, arguments),) = answer.calls
        assert name in ("count", "paint")
        assert choice in (name, "required")
        jsonschema.validate(json.loads(arguments), TOOLS[0]["function"]["parameters"])
        # A named one ends with "stop", as OpenAI has it, or with the reason of all calls.
        assert answer.finish_reason in {"stop", "tool_calls"}
        if choice == "required":
            assert answer.finish_reason == "tool_calls"


def test_tools_that_nobody_has_to_call(live: Live) -> None:
    for choice in ("auto", "none", None):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "river"}], "tools": TOOLS, "max_tokens": 30,
            "seed": 1,
        }  # fmt: skip
        if choice is not None:
            body["tool_choice"] = choice
        answer = both(live, body).choices[0]
        assert answer.text or answer.calls


def test_results_of_tools_go_back_in(live: Live) -> None:
    call = {"id": "call_1", "type": "function",
            "function": {"name": "count", "arguments": '{"n": 3}'}}  # fmt: skip
    body = {
        "messages": [
            {"role": "user", "content": "count"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "1 2 3"},
        ],
        "tools": TOOLS, "max_tokens": 8, "seed": 1,
    }  # fmt: skip
    assert both(live, body).tokens > 0


# 10: a prompt that is full of marks pulls drafts of marks


@pytest.mark.parametrize("low", [1, 2, 3])
def test_ten_look_alike_definitions(low: int, plain: Live, served_path: Path) -> None:
    marks = "".join(
        f'<tool_call>{{"name": "f{n}", "arguments": {{"n": {n}}}}}</tool_call>\n' for n in range(10)
    )
    bodies: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": f"{marks}call f{n % 10}"}], "seed": n,
            "tools": TOOLS, "temperature": (0, 0.7)[n % 2], "max_tokens": 40,
            **(STREAMED if n % 3 == 0 else {}),
        }
        for n in range(24)
    ]  # fmt: skip
    whole = [{k: v for k, v in body.items() if not k.startswith("stream")} for body in bodies]
    expected = ask_all(plain, whole, width=1)
    way = ngram(5, low=low, high=max(low, 3))
    with serving(served_path, speculation=way, max_num_seqs=8) as live:
        found = ask_all(live, bodies)
        assert found == expected
        assert sum(a.speculation["drafted"] for a in found if a.speculation) > 0
        live.survives()


@pytest.mark.model
def test_schemas_on_smollm2() -> None:
    """The real model, with n-gram drafts: 16 at once, all valid."""
    with serving(
        "smollm2-135m", weights="int8", speculation=ngram(8, low=2, high=5), max_num_seqs=16
    ) as live:
        found = ask_all(live, [status(n) for n in range(16)], width=16)
        for answer in found:
            valid(answer)
        assert sum(a.speculation["accepted"] for a in found if a.speculation) > 0
        assert ask(live, {**status(0), **PLAINLY}) == found[0]
        live.survives()
