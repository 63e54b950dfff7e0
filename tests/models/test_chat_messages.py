"""Conversations as clients send them: content parts, tool calls, their results, reasoning."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.templates import DISTILLED, HERMES, LLAMA3, QWEN3, SMOLLM2, TOKENS, call, tool
from wager.errors import RequestError
from wager.models.chat import ChatTemplate
from wager.models.messages import conversation

WEATHER = tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}})
HI = {"role": "user", "content": "Hi"}
ASK = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"city": "Pé"}')]},
    {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"},
]
TEMPLATES = {"smollm2": SMOLLM2, "hermes": HERMES, "qwen3": QWEN3, "llama3": LLAMA3,
             "distilled": DISTILLED}  # fmt: skip


def render(name: str, messages: Any, generation: bool = True, **options: Any) -> str:
    return ChatTemplate(TEMPLATES[name], TOKENS, "model").render(messages, generation, **options)


def test_hermes_shows_tools_calls_and_results() -> None:
    assert render("hermes", ASK, tools=[WEATHER]) == (
        f"<|im_start|>system\n<tools>\n{json.dumps(WEATHER)}\n</tools>\n"
        '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Pé"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12 degrees\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_llama3_shows_tools_calls_and_results() -> None:
    text = render("llama3", ASK, tools=[WEATHER])
    assert text.startswith("<s><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024")
    assert '{"name": "weather", "parameters": {"city": "Pé"}}<|eot_id|>' in text
    assert "ipython<|end_header_id|>\n\n12 degrees<|eot_id|>" in text
    shown = render("llama3", ASK[:1], tools=[WEATHER])
    assert json.dumps(WEATHER, indent=4) in shown


@pytest.mark.parametrize("arguments", ['{"a": [1, "é"]}', {"a": [1, "é"]}])
@pytest.mark.parametrize("name", ["hermes", "qwen3", "llama3", "distilled"])
def test_arguments_become_what_the_template_wants(name: str, arguments: Any) -> None:
    """Objects for ``tojson``; text where the template adds them to a string."""
    messages = [HI, {"role": "assistant", "tool_calls": [call("f", arguments)]}]
    text = render(name, messages, False)
    assert re.search(r'\{"a": \[1, "(é|\\u00e9)"\]\}', text)
    assert isinstance(messages[1]["tool_calls"][0]["function"]["arguments"], type(arguments))  # type: ignore[index]


@pytest.mark.parametrize("arguments", [None, "", " ", "{}", {}])
def test_a_call_without_arguments(arguments: Any) -> None:
    text = render("hermes", [HI, {"role": "assistant", "tool_calls": [call("f", arguments)]}])
    assert '{"name": "f", "arguments": {}}' in text


def test_text_parts_are_lines() -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two.\n"}]
    text = render("smollm2", [{"role": "user", "content": parts}], False)
    assert text.endswith("<|im_start|>user\nOne.\nTwo.\n<|im_end|>\n")


def test_reasoning_reaches_the_template() -> None:
    for key in ("reasoning_content", "reasoning"):
        said = {"role": "assistant", "content": "Ok.", key: "\nWell,\n"}
        assert "<think>\nWell,\n</think>\n\nOk.<|im_end|>" in render("qwen3", [HI, said])


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, HI]
    assert render("smollm2", messages).startswith("<|im_start|>system\nBe brief.<|im_end|>")
    own = ChatTemplate("{{ messages[0].role }} {# developer #}", {}, "model")
    assert own.render(messages) == "developer "


def test_what_clients_send_back_with_a_reply() -> None:
    """The message of a reply as the official client dumps it."""
    reply = {"role": "assistant", "content": "Yes.", "refusal": None, "audio": None,
             "function_call": None, "tool_calls": None, "annotations": []}  # fmt: skip
    plain = [HI, {"role": "assistant", "content": "Yes."}]
    assert render("hermes", [HI, reply]) == render("hermes", plain)
    assert render("hermes", [HI, {**reply, "tool_calls": []}]) == render("hermes", plain)


def test_options_of_the_template() -> None:
    assert render("qwen3", [HI], kwargs={"enable_thinking": False}).endswith("</think>\n\n")
    assert render("qwen3", [HI], kwargs={"enable_thinking": True}).endswith("assistant\n")
    dated = render("llama3", [HI], kwargs={"date_string": "30 Nov 2026"})
    assert "Today: 30 Nov 2026<" in dated


@pytest.mark.parametrize(
    ("name", "option", "known"),
    [
        ("qwen3", "enable_thnking", "enable_thinking"),
        ("qwen3", "messages", "enable_thinking"),
        ("qwen3", "content", "enable_thinking"),
        ("llama3", "bos_token", "date_string"),
        ("llama3", "namespace", "date_string"),
        ("smollm2", "enable_thinking", "none"),
        ("smollm2", "add_generation_prompt", "none"),
        ("smollm2", "range", "none"),
    ],
)
def test_other_options_are_refused(name: str, option: str, known: str) -> None:
    message = (
        f"chat_template_kwargs: {option!r} is no option of the model's chat template; its "
        f"options: {known}"
    )
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        render(name, [HI], kwargs={option: 1})


def test_what_the_template_cannot_show_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^tools: .*does not show tools"):
        render("smollm2", [HI], tools=[WEATHER])
    with pytest.raises(RequestError, match=r"^messages\[1\]\.tool_calls: .*does not show calls"):
        render("smollm2", ASK)
    assert render("smollm2", [HI], tools=[]) == render("smollm2", [HI])


@pytest.mark.parametrize("content", ["Once upon ", "Once", "", "<|im_end|>", "a\n", "user\nHi"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_final_message_is_left_open(name: str, content: str) -> None:
    final = {"role": "assistant", "content": content}
    text = render(name, [HI, final], continue_final_message=True)
    closed = render(name, [HI, {**final, "content": "@"}], False)
    assert text == closed[: closed.index("@")] + content


def test_a_final_message_of_parts_and_with_reasoning() -> None:
    final = {"role": "assistant", "content": [{"type": "text", "text": "So"}], "reasoning": "hm"}
    text = render("qwen3", [HI, final], continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\n<think>\nhm\n</think>\n\nSo")
    opened = {"role": "assistant", "content": "<think>\nhm"}
    text = render("qwen3", [HI, opened], continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\n<think>\nhm")


def test_what_cannot_be_continued() -> None:
    with pytest.raises(RequestError, match=r"^continue_final_message: .*the role 'user'"):
        render("hermes", [HI], continue_final_message=True)
    with pytest.raises(RequestError, match=r"^continue_final_message: .*must not call tools"):
        render("hermes", ASK[:2], continue_final_message=True)
    deaf = ChatTemplate("{{ messages[0].content }}", {}, "model")
    with pytest.raises(RequestError, match=r"^continue_final_message: .*does not write"):
        deaf.render([HI, {"role": "assistant", "content": "a"}], continue_final_message=True)


CALLING = {"role": "assistant", "content": ""}
HOSTILE: list[tuple[Any, str]] = [
    ("Hi", "messages: must be a list"),
    ({"role": "user"}, "messages: must be a list"),
    ([], "messages: there is none"),
    ([7], "messages[0]: must be an object"),
    ([HI, {"content": "Hi"}], "messages[1].role: must be a text"),
    ([{"role": "", "content": "Hi"}], "messages[0].role: must be a text"),
    ([{"role": ["user"], "content": "Hi"}], "messages[0].role: must be a text"),
    ([{"role": "user"}], "messages[0].content: is missing"),
    ([HI, {"role": "user", "content": None}], "messages[1].content: is missing"),
    ([CALLING, {"role": "assistant", "content": None}], "messages[1].content: is missing"),
    ([{"role": "user", "content": 5}], "messages[0].content: must be a text or a list"),
    ([{"role": "user", "content": []}], "messages[0].content: must be a text or a list"),
    ([{"role": "user", "content": {"type": "text"}}], "messages[0].content: must be a text"),
    ([{"role": "user", "content": ["Hi"]}], "messages[0].content[0]: must be an object"),
    ([{"role": "user", "content": [{"text": "Hi"}]}], "messages[0].content[0]: must be an object"),
    ([HI, HI, HI, {"role": "user", "content": [{"type": "text", "text": "a"},
                                               {"type": "image_url", "image_url": {"url": "x"}}]}],
     "messages[3].content[1]: parts of type 'image_url' are not supported"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}],
     "messages[0].content[0]: parts of type 'input_audio' are not supported"),
    ([{"role": "user", "content": [{"type": "text", "text": None}]}],
     "messages[0].content[0].text: must be a text"),
    ([{**HI, "name": 5}], "messages[0].name: must be a text"),
    ([{**HI, "tool_call_id": {}}], "messages[0].tool_call_id: must be a text"),
    ([{**HI, "reasoning_content": "hm"}], "messages[0].reasoning_content: only the assistant"),
    ([{**CALLING, "reasoning": []}], "messages[0].reasoning_content: must be a text"),
    ([{**CALLING, "function_call": {"name": "f"}}], "messages[0].function_call: is not supported"),
    ([{**CALLING, "refusal": "no"}], "messages[0].refusal: is not supported"),
    ([{**CALLING, "audio": {"id": "a"}}], "messages[0].audio: is not supported"),
    ([{**HI, "tool_calls": [call("f", "{}")]}], "messages[0].tool_calls: only the assistant"),
    ([{**CALLING, "tool_calls": {}}], "messages[0].tool_calls: must be a list"),
    ([{**CALLING, "tool_calls": [7]}], "messages[0].tool_calls[0]: must be"),
    ([{**CALLING, "tool_calls": [{"type": "custom"}]}], "messages[0].tool_calls[0]: must be"),
    ([{**CALLING, "tool_calls": [{"id": "a"}]}],
     "messages[0].tool_calls[0].function: must be an object"),
    ([{**CALLING, "tool_calls": [{**call("f", "{}"), "id": 7}]}],
     "messages[0].tool_calls[0].id: must be a text"),
    ([{**CALLING, "tool_calls": [call("", "{}")]}],
     "messages[0].tool_calls[0].function.name: must be a text"),
    ([{**CALLING, "tool_calls": [call("f", "{}"), call("f", "{'a': 1}")]}],
     "messages[0].tool_calls[1].function.arguments: is not the JSON text"),
    ([{**CALLING, "tool_calls": [call("f", '{"a": NaN}')]}],
     "messages[0].tool_calls[0].function.arguments: is not the JSON text"),
    ([{**CALLING, "tool_calls": [call("f", "[" * 100_000)]}],
     "messages[0].tool_calls[0].function.arguments: is not the JSON text"),
    ([{**CALLING, "tool_calls": [call("f", "[]")]}],
     "messages[0].tool_calls[0].function.arguments: must be the JSON text of an object"),
    ([{**CALLING, "tool_calls": [call("f", 7)]}],
     "messages[0].tool_calls[0].function.arguments: must be the JSON text of an object"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "message"), HOSTILE)
def test_refusals_name_the_place(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}") as caught:
        render("hermes", messages)
    assert len(str(caught.value)) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name",
                         "arguments", "reasoning_content"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(messages=JSON | st.lists(JSON, min_size=1, max_size=3))
@settings(deadline=None)
def test_any_json_is_taken_or_refused(messages: Any) -> None:
    made, refusal = None, ""
    try:
        made = conversation(messages)
    except RequestError as error:
        refusal = str(error)
    if made is None:
        assert refusal.startswith("messages")
    else:
        assert len(made) == len(messages)
        assert all(isinstance(m["role"], str) and isinstance(m["content"], str) for m in made)


def test_the_callers_messages_stay_as_they_are() -> None:
    before = json.dumps(ASK)
    render("hermes", ASK, tools=[WEATHER])
    render("distilled", ASK)
    assert json.dumps(ASK) == before
