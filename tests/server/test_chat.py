"""``/v1/chat/completions``: what is sent for what the engine says, to the letter."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.server.fakes import (
    CHAT,
    TALK_TEMPLATE,
    TEXT,
    Client,
    FakeLLM,
    Message,
    Say,
    spelled,
    tokenizer,
)
from wager.models.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]
USAGE = {"include_usage": True}
TOOLS = [
    {"type": "function", "function": {
        "name": name, "description": f"{name} it",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }}
    for name in ("count", "paint")
]  # fmt: skip
CALLS = (
    '<tool_call>\n{"name": "count", "arguments": {"n": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "paint", "arguments": {"n": 2, "s": "été 🙂"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"), TALK_TEMPLATE)


def client(spell: Tokenizer, script: Any, **given: Any) -> Client:
    return Client(FakeLLM(spell, script, **given))


def both(spell: Tokenizer, script: Any, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The same reply in one piece and as a stream."""
    given = {"messages": HI, **body}
    return (
        client(spell, script).whole(CHAT, given),
        client(spell, script).events(CHAT, {**given, "stream_options": USAGE}),
    )


def same(whole: dict[str, Any], found: Any, index: int = 0) -> Message:
    """A stream that says what the whole reply says; returns it put together."""
    choice = whole["choices"][index]
    message = choice["message"]
    streamed = Message.of(found, index)
    assert streamed.content == (message["content"] or "")
    assert streamed.reasoning == message.get("reasoning_content", "")
    calls = [call["function"] for call in message.get("tool_calls", [])]
    assert [{k: c[k] for k in ("name", "arguments")} for c in streamed.calls] == calls
    assert streamed.reason == choice["finish_reason"]
    assert found[-1]["usage"] == whole["usage"]
    return streamed


def test_a_whole_reply(spell: Tokenizer) -> None:
    told = client(spell, [[Say("he", [10, 11])], [Say("y", [12], "stop")]])
    whole = told.whole(CHAT, {"messages": HI})
    assert whole["object"] == "chat.completion"
    assert whole["id"].startswith("chatcmpl-")
    assert whole["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hey", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert whole["usage"]["completion_tokens"] == 3
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    prompt = spell.decode(told.llm.asked[0].prompt, skip_special=False)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert told.llm.asked[0].params.max_tokens is None


def test_a_stream(spell: Tokenizer) -> None:
    script = [[Say("he", [10])], [Say("", [11])], [Say("y", [12], "length")]]
    found = client(spell, script).events(CHAT, {"messages": HI})
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "he"}, {"content": "y"}]
    assert [c["choices"][0]["finish_reason"] for c in found] == [None, None, "length"]
    assert found[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in found)


def test_an_end_without_text(spell: Tokenizer) -> None:
    script = [[Say("a", [10])], [Say("", [2], "stop")]]
    found = client(spell, script).events(CHAT, {"messages": HI})
    assert found[-1]["choices"][0]["delta"] == {}
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


def test_usage_in_every_chunk(spell: Tokenizer) -> None:
    script = [[Say("a", [10])], [Say("", [11, 12])], [Say("b", [13], "stop")]]
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = client(spell, script).events(CHAT, {"messages": HI, "stream_options": options})
    # The event with the role brings no token yet: who adds up what is new counts none twice.
    assert [chunk["usage"]["completion_tokens"] for chunk in found] == [0, 1, 3, 4, 4]
    assert "speculation" in found[-1]


@pytest.mark.parametrize("seed", range(30))
def test_a_stream_adds_up_to_the_whole(spell: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    words = ["the cat", "été", "강물", "🙂", "\n", "<think>", "</think>", "<tool_call>", CALLS, "{"]
    text = " ".join(rng.choices(words, k=rng.randint(1, 8)))
    if rng.random() < 0.5:
        text = f"<think>\n{rng.choice(words)}</think>\n\n{text}"
    script = spelled(spell, text, [rng.randint(1, 8) for _ in range(900)], "stop")
    single = spelled(spell, text, (), "stop")
    body: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    if rng.random() < 0.7:
        body["tools"] = TOOLS
    whole, found = both(spell, script, body)
    streamed = same(whole, found)
    assert streamed.tokens == whole["choices"][0]["logprobs"]["content"]
    assert len(streamed.tokens) == whole["usage"]["completion_tokens"]
    plain, _ = both(spell, single, body)
    assert plain["usage"] == whole["usage"]
    same(plain, found)


# Log-probabilities


def test_log_probabilities(spell: Tokenizer) -> None:
    ids = spell.encode("é", add_special=False)
    assert len(ids) == 2
    script = [[Say("é", ids, "stop")]]
    whole, _ = both(spell, script, {"logprobs": True, "top_logprobs": 1})
    content = whole["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert [entry["token"] for entry in content] == ["\ufffd", "\ufffd"]
    assert [len(entry["top_logprobs"]) for entry in content] == [1, 1]
    plain, _ = both(spell, script, {"logprobs": True})
    assert plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    named, _ = both(spell, script, {"logprobs": True, "return_tokens_as_token_ids": True})
    content = named["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{token}" for token in ids]


def test_what_is_told_of_the_prompt(spell: Tokenizer) -> None:
    script = [[Say("a", [10])], [Say("b", [11], "stop")]]
    whole, found = both(spell, script, {"prompt_logprobs": 0, "return_token_ids": True})
    assert whole["prompt_logprobs"][0] is None
    assert len(whole["prompt_logprobs"]) == len(whole["prompt_token_ids"])
    assert whole["choices"][0]["token_ids"] == [10, 11]
    for name in ("prompt_logprobs", "prompt_token_ids"):
        assert found[0][name] == whole[name]
        assert all(name not in chunk for chunk in found[1:])
    ids = [c["choices"][0].get("token_ids") for c in found[:-1]]
    assert ids == [None, [10], [11]]


# Reasoning


def test_reasoning_is_told_apart(spell: Tokenizer) -> None:
    script = spelled(spell, "<think>\nwell</think>\n\nyes", [3, 2])
    whole, found = both(spell, script, {})
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("well", "yes")
    same(whole, found)
    count = len(spell.encode("<think>\nwell</think>", add_special=False))
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == count
    hidden, _ = both(spell, script, {"include_reasoning": False})
    assert "reasoning_content" not in hidden["choices"][0]["message"]
    assert hidden["choices"][0]["message"]["content"] == "yes"


def test_reasoning_that_the_prompt_has_opened(spell: Tokenizer) -> None:
    script = spelled(spell, "well</think>\nyes", [3, 2])
    whole, found = both(spell, script, {"chat_template_kwargs": {"enable_thinking": True}})
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("well", "yes")
    same(whole, found)


def test_reasoning_that_is_cut(spell: Tokenizer) -> None:
    script = spelled(spell, "<think>\nwell", [3, 2], "length")
    whole, found = both(spell, script, {})
    same(whole, found)
    usage = whole["usage"]
    details = usage["completion_tokens_details"]
    assert details["reasoning_tokens"] == usage["completion_tokens"]


def test_an_answer_with_a_form_is_not_reasoning(spell: Tokenizer) -> None:
    script = spelled(spell, '{"a": 1}', [3, 2])
    body = {
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"enable_thinking": True},
    }
    whole, found = both(spell, script, body)
    assert whole["choices"][0]["message"]["content"] == '{"a": 1}'
    same(whole, found)


# Tools


def test_calls_of_tools(spell: Tokenizer) -> None:
    script = spelled(spell, f"sure\n{CALLS}", [5, 9, 40])
    whole, found = both(spell, script, {"tools": TOOLS})
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    first, second = choice["message"]["tool_calls"]
    assert first["id"] != second["id"]
    assert (first["type"], first["function"]["name"]) == ("function", "count")
    assert json.loads(second["function"]["arguments"]) == {"n": 2, "s": "été 🙂"}
    same(whole, found)
    ends = [c["finish_reason"] for chunk in found for c in chunk["choices"]]
    assert ends[-1] == "tool_calls"
    assert set(ends[:-1]) == {None}


def test_content_is_null_where_there_are_only_calls(spell: Tokenizer) -> None:
    whole, _ = both(spell, spelled(spell, CALLS), {"tools": TOOLS})
    assert whole["choices"][0]["message"]["content"] is None


def test_a_call_that_is_cut_ends_for_its_length(spell: Tokenizer) -> None:
    script = spelled(spell, CALLS[:60], (), "length")
    whole, found = both(spell, script, {"tools": TOOLS})
    assert whole["choices"][0]["finish_reason"] == "length"
    same(whole, found)


@pytest.mark.parametrize(
    ("mark", "more", "parallel", "reason"),
    [
        ("1}}", "", True, "stop"),
        ("1}}", "oops", True, "stop"),
        # What the outer object lacks does not matter: the arguments are there.
        ("}\n", "", True, "tool_calls"),
        ("}\n", "oops", True, "tool_calls"),
        ("2,", "", True, "stop"),
        ("2,", "", False, "tool_calls"),
    ],
)
def test_only_calls_that_can_be_read_are_a_reason(
    spell: Tokenizer, mark: str, more: str, parallel: bool, reason: str
) -> None:
    """A stop string, or the model's own end, may stand within the arguments."""
    script = spelled(spell, CALLS[: CALLS.index(mark)] + more, [5, 9])
    whole, found = both(spell, script, {"tools": TOOLS, "parallel_tool_calls": parallel})
    assert whole["choices"][0]["finish_reason"] == reason
    calls = same(whole, found).calls
    readable = [c["arguments"].count("{") == c["arguments"].count("}") for c in calls]
    assert calls
    assert all(readable) == (reason == "tool_calls")


def test_one_call_at_a_time(spell: Tokenizer) -> None:
    body = {"tools": TOOLS, "parallel_tool_calls": False}
    whole, found = both(spell, spelled(spell, CALLS, [4] * 99), body)
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "count"
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    same(whole, found)


def test_without_tools_calls_are_text(spell: Tokenizer) -> None:
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        whole, found = both(spell, spelled(spell, CALLS), body)
        assert whole["choices"][0]["message"]["content"] == CALLS
        assert whole["choices"][0]["finish_reason"] == "stop"
        same(whole, found)


def test_the_model_is_told_of_tools(spell: Tokenizer) -> None:
    told = client(spell, spelled(spell, "a"))
    told.whole(CHAT, {"messages": HI, "tools": TOOLS})
    told.whole(CHAT, {"messages": HI, "tools": TOOLS, "tool_choice": "none"})
    shown, hidden = (spell.decode(a.prompt, skip_special=False) for a in told.llm.asked)
    assert '"name": "paint"' in shown
    assert "paint" not in hidden
    assert told.llm.asked[0].params.structured is None


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "paint"}}]
)
def test_a_call_that_must_be_is_forced(spell: Tokenizer, choice: Any) -> None:
    told = client(spell, spelled(spell, CALLS))
    told.whole(CHAT, {"messages": HI, "tools": TOOLS, "tool_choice": choice})
    structured = told.llm.asked[0].params.structured
    assert structured is not None
    assert structured.kind == "grammar"


@pytest.mark.parametrize(
    ("choice", "warned"), [(None, True), ("auto", True), ("required", False), ("none", False)]
)
def test_strict_tools_are_served(spell: Tokenizer, choice: str | None, warned: bool) -> None:
    """Where no call is forced with a warning: helpers of clients write no other ones."""
    keys = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    function = {"parameters": keys, "strict": True}
    strict = [{"type": "function", "function": {"name": n, **function}} for n in ("a", "b")]
    for stream in (False, True):
        told = client(spell, spelled(spell, CALLS))
        body = {"messages": HI, "tools": strict, "stream": stream}
        reply = told.post(CHAT, body if choice is None else {**body, "tool_choice": choice})
        assert reply.status == 200, reply.text
        said = "tools[0].function.strict and 1 more: is kept to only where a call is forced"
        assert reply.header("x-wager-warning") == (said if warned else None)


# Prompts


def test_a_message_goes_on(spell: Tokenizer) -> None:
    told = client(spell, spelled(spell, "a"))
    messages = [*HI, {"role": "assistant", "content": "well,"}]
    body = {"messages": messages, "continue_final_message": True}
    told.whole(CHAT, body)
    told.whole(CHAT, {**body, "add_generation_prompt": False})
    for asked in told.llm.asked:
        prompt = spell.decode(asked.prompt, skip_special=False)
        assert prompt.endswith("<|im_start|>assistant\nwell,")
    error = told.refused(CHAT, {**body, "add_generation_prompt": True})
    assert error["param"] == "continue_final_message"


def test_special_tokens_are_added_on_demand_alone(tmp_path: Path) -> None:
    starts = tokenizer(tmp_path, TALK_TEMPLATE, adds_bos=True)
    told = client(starts, spelled(starts, "a"))
    told.whole(CHAT, {"messages": HI})
    told.whole(CHAT, {"messages": HI, "add_special_tokens": True})
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    plain = starts.encode(text, add_special=False)
    assert [asked.prompt for asked in told.llm.asked] == [plain, [1, *plain]]


def test_an_empty_text_with_a_start_token_is_a_prompt(spell: Tokenizer, tmp_path: Path) -> None:
    starts = tokenizer(tmp_path, TALK_TEMPLATE, adds_bos=True)
    told = client(starts, spelled(starts, "a"))
    told.whole(TEXT, {"prompt": ""})
    assert [asked.prompt for asked in told.llm.asked] == [[1]]
    assert told.refused(TEXT, {"prompt": "", "add_special_tokens": False})["param"] == "prompt"
    assert client(spell, spelled(spell, "a")).refused(TEXT, {"prompt": ""})["param"] == "prompt"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, "messages"),
        ({"chat_template_kwargs": {"nonsense": 1}}, "chat_template_kwargs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}},
         "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {}}, "stream_options"),
        ({"echo": True}, "echo"),
        ({"prompt": "a"}, "prompt"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(spell: Tokenizer, body: dict[str, Any], field: str) -> None:
    told = client(spell, spelled(spell, "a"))
    error = told.refused(CHAT, {"messages": HI, **body})
    assert error["param"] == field, error
    assert told.llm.asked == []
    assert told.service.in_flight == 0


def test_choices_are_kept_apart(spell: Tokenizer) -> None:
    script = [
        [Say("a", [10], index=1)],
        [Say("b", [11], index=0), Say("c", [12], "stop", index=1)],
        [Say("d", [13], "length", index=0)],
    ]
    whole, found = both(spell, script, {"n": 2})
    contents = [choice["message"]["content"] for choice in whole["choices"]]
    assert contents == ["bd", "ac"]
    for index in range(2):
        same(whole, found, index)


def test_unknown_fields_are_named_in_a_header(spell: Tokenizer) -> None:
    told = client(spell, spelled(spell, "a"))
    for stream in (False, True):
        reply = told.post(CHAT, {"messages": HI, "foo": 1, "top_logrpobs": 2, "stream": stream})
        assert reply.status == 200
        assert reply.header("x-wager-warning") == (
            "unknown field(s) ignored: foo, top_logrpobs (did you mean top_logprobs?)"
        )
    assert told.post(CHAT, {"messages": HI}).header("x-wager-warning") is None
