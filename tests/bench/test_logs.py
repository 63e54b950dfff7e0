"""Recorded requests: every shape of the docs, and lines that are none."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.bench.logs.objects import read_object
from wager.bench.logs.read import read_log, read_pairs
from wager.bench.logs.records import BadLine, Recorded
from wager.errors import ConfigError, RequestError

CHAT = [{"role": "user", "content": "Say hello."}]
MESSAGES = (("user", "Say hello."),)


def one(obj: object, group: str | None = None) -> Recorded:
    found = list(read_object(7, obj, group))
    assert len(found) == 1
    assert found[0].line == 7
    return found[0]


def chat_reply(**choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hello there"}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"} | choice],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
    }


# Prompt and completion


def test_prompt_and_completion() -> None:
    found = one({"prompt": "Say hello.", "completion": "Hello"})
    assert (found.text, found.answer, found.shape) == (
        "Say hello.",
        "Hello",
        "prompt and completion",
    )
    assert found.ending == "cut"
    assert found.notes == {"ending unknown"}


@pytest.mark.parametrize("key", ["completion", "response", "output", "answer"])
def test_other_names_of_the_answer(key: str) -> None:
    assert one({"prompt": "a", key: "b"}).answer == "b"


def test_what_may_stand_beside() -> None:
    found = one(
        {
            "prompt": "",
            "prompt_token_ids": [5, 6],
            "completion": "Hello",
            "completion_token_ids": [7, 8],
            "finish_reason": "stop",
            "stop_reason": 8,
            "max_tokens": 20,
            "ignore_eos": True,
            "stop_token_ids": [11],
        }
    )
    assert (found.prompt_ids, found.answer_ids) == ((5, 6), (7, 8))
    assert (found.ending, found.end_token) == ("end", 8)
    assert found.stop_token_ids == (11, 8)
    assert (found.max_tokens, found.ignore_eos) == (20, True)


def test_messages_with_an_answer() -> None:
    assert one({"messages": CHAT, "completion": "Hi"}).messages == MESSAGES
    ended = one({"messages": [*CHAT, {"role": "assistant", "content": "Hi"}]})
    assert (ended.messages, ended.answer, ended.shape) == (MESSAGES, "Hi", "chat with its answer")


# Request and response of the API


def test_chat_request_and_response() -> None:
    found = one({"request": {"messages": CHAT, "max_tokens": 50}, "response": chat_reply()})
    assert (found.messages, found.answer) == (MESSAGES, "Hello there")
    assert (found.ending, found.max_tokens) == ("end", 50)
    assert (found.prompt_tokens, found.answer_tokens) == (9, 3)
    assert not found.notes


@pytest.mark.parametrize(
    "line",
    [
        {"input": {"messages": CHAT}, "output": chat_reply()},
        {"body": {"messages": CHAT}, "response": {"status_code": 200, "body": chat_reply()}},
        {"request": {"url": "/v1/chat/completions", "body": {"messages": CHAT}},
         "response": {"body": chat_reply()}},
        {"request": json.dumps({"messages": CHAT}), "response": json.dumps(chat_reply())},
        {"request": CHAT, "response": chat_reply()},
        {"messages": CHAT, **chat_reply()},
        {"request": {"messages": CHAT}, "response": {"role": "assistant",
                                                      "content": "Hello there"}},
    ],
)  # fmt: skip
def test_usual_wrappings(line: dict[str, Any]) -> None:
    found = one(line)
    assert (found.messages, found.answer) == (MESSAGES, "Hello there")


def test_an_answer_that_is_json_stays_text() -> None:
    answer = '{"name": "Ada", "age": 36}'
    assert one({"prompt": "p", "completion": answer}).answer == answer
    assert one({"prompt": "p", "completion": "[1, 2]"}).answer == "[1, 2]"


def test_completion_request_and_response() -> None:
    reply = {"choices": [{"index": 0, "text": " world", "finish_reason": "length"}]}
    found = one({"request": {"prompt": ["Hello"]}, "response": reply})
    assert (found.text, found.answer, found.ending) == ("Hello", " world", "cut")
    assert not found.notes
    ids = one({"request": {"prompt": [1, 2, 3]}, "response": reply})
    assert ids.prompt_ids == (1, 2, 3)


def test_every_choice_is_an_answer() -> None:
    choices = [{"index": i, "text": t, "finish_reason": "stop"} for i, t in enumerate("ab")]
    found = list(read_object(1, {"request": {"prompt": "p"}, "response": {"choices": choices}}))
    assert [f.answer for f in found] == ["a", "b"]


def test_token_ids_of_vllm() -> None:
    reply = chat_reply(token_ids=[4, 5, 2]) | {"prompt_token_ids": [1, 9]}
    found = one({"request": {"messages": CHAT}, "response": reply})
    assert (found.prompt_ids, found.answer_ids) == ((1, 9), (4, 5, 2))


def pieces() -> list[dict[str, Any]]:
    deltas = [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {}]
    parts: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
    ]
    parts[-1]["choices"][0]["finish_reason"] = "stop"
    return [*parts, {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}]


def test_streams_are_joined() -> None:
    events = "".join(f"data: {json.dumps(p)}\n\n" for p in pieces()) + "data: [DONE]\n\n"
    for response in (pieces(), events, [json.dumps(p) for p in pieces()]):
        found = one({"request": {"messages": CHAT}, "response": response})
        assert (found.answer, found.ending, found.answer_tokens) == ("Hello", "end", 2)
    assert one({"messages": CHAT, "chunks": pieces()}).answer == "Hello"
    texts = [{"choices": [{"index": 0, "text": t, "token_ids": [i]}]} for i, t in enumerate("abc")]
    found = one({"request": {"prompt": "p"}, "response": texts})
    assert (found.answer, found.answer_ids) == ("abc", (0, 1, 2))


def test_tool_calls_and_reasoning_are_text_with_a_note() -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": '{"a": 1}'}}
    history = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "content": [{"type": "text", "text": "found"}]}]  # fmt: skip
    message = {"content": "It is", "reasoning_content": "Hm.", "tool_calls": [call]}
    found = one({"request": {"messages": history, "tools": [{"type": "function"}]},
                 "response": chat_reply(message=message)})  # fmt: skip
    written = '{"name": "look", "arguments": {"a": 1}}'
    assert found.messages == (*MESSAGES, ("assistant", written), ("tool", "found"))
    assert found.answer == f"Hm.\nIt is\n{written}"
    assert found.notes == {"tool list", "prompt tools", "answer tools", "reasoning"}


def test_streamed_tool_calls_are_joined() -> None:
    calls = [{"index": 0, "function": {"name": "look", "arguments": ""}},
             {"index": 0, "function": {"arguments": '{"a"'}},
             {"index": 0, "function": {"arguments": ": 1}"}},
             {"index": 1, "function": {"name": "end", "arguments": "{}"}}]  # fmt: skip
    parts = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]} for call in calls]
    found = one({"request": {"messages": CHAT}, "response": parts})
    assert found.answer == (
        '{"name": "look", "arguments": {"a": 1}}\n{"name": "end", "arguments": {}}'
    )


@pytest.mark.parametrize(
    ("finish", "stop", "asked", "ending", "answer"),
    [
        ("stop", None, None, "end", "Hello there"),
        ("stop", "END", ["END"], "stop", "Hello thereEND"),
        ("stop", None, ["END"], "end", "Hello there"),
        ("length", None, ["END"], "cut", "Hello there"),
        ("tool_calls", None, None, "end", "Hello there"),
    ],
)
def test_how_an_answer_ended(
    finish: str, stop: str | None, asked: Any, ending: str, answer: str
) -> None:
    reply = chat_reply(finish_reason=finish, stop_reason=stop)
    found = one({"request": {"messages": CHAT, "stop": asked}, "response": reply})
    assert (found.ending, found.answer) == (ending, answer)
    assert not found.notes


def test_a_stop_that_the_log_does_not_tell_is_a_note() -> None:
    found = one({"request": {"messages": CHAT, "stop": ["x"]}, "response": chat_reply()})
    assert (found.ending, found.notes) == ("cut", {"stop unknown"})


# llama-server

NATIVE: dict[str, Any] = {
    "index": 0, "content": " world", "tokens": [28, 260], "prompt": "Hello",
    "generation_settings": {"n_predict": 2}, "stop_type": "limit", "stopping_word": "",
}  # fmt: skip


def test_native_reply_of_llama_server_holds_both() -> None:
    found = one(NATIVE)
    assert (found.text, found.answer, found.answer_ids) == ("Hello", " world", (28, 260))
    assert (found.ending, found.max_tokens) == ("cut", 2)
    word = one(NATIVE | {"stop_type": "word", "stopping_word": "."})
    assert (word.ending, word.answer) == ("stop", " world.")
    assert one(NATIVE | {"stop_type": "eos"}).ending == "end"


def test_verbose_reply_of_llama_server_tells_the_prompt_itself() -> None:
    reply = chat_reply() | {"__verbose": NATIVE | {"content": "Hello there", "tokens": [1, 2]}}
    found = one({"request": {"messages": CHAT}, "response": reply})
    assert (found.text, found.messages) == ("Hello", None)
    assert (found.answer, found.answer_ids) == ("Hello there", (1, 2))
    assert one(reply).text == "Hello"
    streamed = [*pieces(), {"choices": [], "__verbose": NATIVE | {"content": "", "tokens": []}}]
    found = one({"request": {"messages": CHAT}, "response": streamed})
    assert (found.text, found.answer, found.answer_ids) == ("Hello", "Hello", None)


def test_native_stream_of_llama_server() -> None:
    parts = [
        {"content": " wor", "tokens": [1], "stop": False},
        {"content": "ld", "tokens": [2], "stop": False},
        NATIVE | {"content": "", "tokens": [], "stop": True},
    ]
    found = one({"request": {"prompt": "x"}, "response": parts})
    assert (found.text, found.answer, found.answer_ids) == ("Hello", " world", (1, 2))


# Edits


def test_old_and_edited_text() -> None:
    found = one({"before": "old text", "after": "new text", "instruction": "Change it."})
    assert found.messages == (("user", "Change it.\n\nold text"),)
    assert (found.answer, found.ending) == ("new text", "end")
    with pytest.raises(RequestError, match="equal"):
        one({"before": "same", "after": "same"})


def test_pairs_of_files(tmp_path: Path) -> None:
    for name, files in (
        ("old", {"a/x.py": "x = 1\n", "same.py": "s\n", "gone.py": "g\n", "b.bin": b"\xff\xfe"}),
        ("new", {"a/x.py": "x = 2\n", "same.py": "s\n", "b.bin": b"\xff", "added.py": "n\n"}),
    ):
        for file, content in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = list(read_pairs(tmp_path / "old", tmp_path / "new"))
    assert [f.answer for f in found if isinstance(f, Recorded)] == ["x = 2\n"]
    reasons = sorted(f.reason for f in found if isinstance(f, BadLine))
    assert len(reasons) == 3
    assert any("equal" in r for r in reasons)
    with pytest.raises(ConfigError, match=r"NEW.*nowhere"):
        list(read_pairs(tmp_path / "old", tmp_path / "nowhere"))


# Files


def write(path: Path, *lines: object) -> Path:
    text = "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


GOOD = {"prompt": "a", "completion": "b", "user": {"id": 3}}


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_bad_lines_are_named_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, GOOD, "{broken", "", [1], {"prompt": "x"}, GOOD)
    told: list[tuple[int, int]] = []
    found = list(read_log(path, progress=lambda read, size: told.append((read, size))))
    assert [e.line for e in found if isinstance(e, Recorded)] == [1, 6]
    bad = {e.line: e.reason for e in found if isinstance(e, BadLine)}
    assert sorted(bad) == [2, 4, 5]
    assert "not JSON" in bad[2]
    assert "not a JSON object" in bad[4]
    assert "no answer" in bad[5]
    assert told[-1][0] <= told[-1][1] == path.stat().st_size


def test_groups_are_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "x", GOOD, {"prompt": "a", "completion": "b"})
    assert [e.group for e in read_log(path, "user.id") if isinstance(e, Recorded)] == ["3", None]
    assert one({"request": {"model": "m", "prompt": "a"}, "response": "b"},
               "request.model").group == "m"  # fmt: skip


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'[{"prompt": "a"}]', "jq -c"),
        (b"PAR1\x00\x00", "not a text file"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
        (None, "No such file"),
    ],
)
def test_files_that_are_no_logs(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        list(read_log(path))


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": 5, "completion": "b"},
        {"prompt": "a", "completion": ""},
        {"completion": "b"},
        {"messages": [{"content": "no role"}], "completion": "b"},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "completion": "b"},
        {"request": {"prompt": "a"}, "response": {"error": {"message": "overloaded"}}},
        {"request": {"prompt": "a"}, "response": {"status_code": 500, "body": {}}},
        {"request": {"prompt": "a"}, "response": {"choices": [5]}},
        {"request": {"prompt": "a"}, "response": {"choices": []}},
        {"request": {"prompt": "a"}, "response": "data: {broken\n\n"},
        {"prompt": "a", "completion": "b", "completion_token_ids": [1, -2]},
        {"before": "a", "after": 5},
    ],
)
def test_lines_that_cannot_be_used(line: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        list(read_object(1, line))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["request", "response", "messages", "prompt", "choices", "message", "delta",
                 "content", "role", "body", "completion", "tool_calls", "function", "index",
                 "token_ids", "usage", "__verbose", "stop_type", "tokens", "before", "after",
                 "finish_reason", "error", "status_code", "generation_settings"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_no_line_ends_the_reading(value: object) -> None:
    with contextlib.suppress(RequestError):
        assert all(isinstance(f, Recorded) for f in read_object(1, value, "request.body.content"))


def test_a_byte_order_mark_and_a_damaged_first_line(tmp_path: Path) -> None:
    good = b'{"prompt": "a", "completion": "b"}\n'
    marked, damaged = tmp_path / "marked", tmp_path / "damaged"
    marked.write_bytes(codecs.BOM_UTF8 + good)
    damaged.write_bytes(b'pt": "a", "completion": "b"}\n' + good * 2)
    assert [type(entry) for entry in read_log(marked)] == [Recorded]
    assert [type(entry) for entry in read_log(damaged)] == [BadLine, Recorded, Recorded]
