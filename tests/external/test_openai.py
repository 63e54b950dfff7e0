"""Bodies of requests, and what a stream says beyond its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wager.backend import Answer, Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external import openai
from wager.external.reply import Reply, ReplyError
from wager.types import TokenLogprob

RECORDED = Path(__file__).parent / "recorded"


def prompt(**params: Any) -> Prompt:
    return Prompt("p", SamplingParams(**params), text="x")


def replay(file: str, asked: Prompt) -> Answer:
    """A recorded stream read as if each event came a millisecond after the one before."""
    reply = Reply(asked)
    for line in (RECORDED / file).read_text().splitlines():
        data = line.removeprefix("data: ")
        if line and data != "[DONE]":
            reply.now += 0.001
            openai.read(json.loads(data), reply)
    return reply.answer(reply.now)


def test_every_option_is_said() -> None:
    path, body = openai.request(
        prompt(
            temperature=0.5, top_k=-1, top_p=0.9, min_p=0.1, seed=7, max_tokens=5, min_tokens=2,
            stop=("a", "b"), stop_token_ids=(3,), include_stop_str_in_output=True,
            ignore_eos=True, logprobs=2,
        ),
        "m",
    )  # fmt: skip
    assert path == "/v1/completions"
    assert body == {
        "model": "m", "prompt": "x", "stream": True, "stream_options": {"include_usage": True},
        "temperature": 0.5, "top_k": 0, "top_p": 0.9, "min_p": 0.1, "seed": 7, "max_tokens": 5,
        "min_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [3],
        "include_stop_str_in_output": True, "ignore_eos": True, "logprobs": 2,
        "return_tokens_as_token_ids": True, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }  # fmt: skip


def test_a_chat_and_ids() -> None:
    chat = Prompt("p", SamplingParams(logprobs=3), messages=(("system", "s"), ("user", "u")))
    path, body = openai.request(chat, "m", extended=False)
    assert path == "/v1/chat/completions"
    assert body["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    assert "prompt" not in body
    assert "top_k" not in body
    assert openai.request(Prompt("p", SamplingParams(), token_ids=(1, 2)), "m")[1]["prompt"] == [
        1,
        2,
    ]


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(ConfigError, match="n: p asks for 2 choices"):
        openai.request(prompt(n=2), "m")
    for field, value in {"top_k": 5, "min_p": 0.1, "min_tokens": 1, "stop_token_ids": (1,)}.items():
        with pytest.raises(ConfigError, match=f"{field}: p sets it"):
            openai.request(prompt(**{field: value}), "m", extended=False)


def test_logprobs_of_a_chat_with_ids() -> None:
    item = {
        "token": "token_id:5",
        "logprob": -0.1,
        "top_logprobs": [
            {"token": "token_id:5", "logprob": -0.1},
            {"token": "token_id:9", "logprob": -2.5},
        ],
    }
    reply = Reply(prompt())
    event = {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [item]}}]}
    openai.read(event, reply)
    assert reply.logprobs == [TokenLogprob(5, -0.1, ((5, -0.1), (9, -2.5)))]


def test_logprobs_of_a_completion() -> None:
    given = {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-0.1, -0.2],
        "top_logprobs": [{"token_id:9": -2.5, "token_id:5": -0.1}, None],
    }
    reply = Reply(prompt())
    openai.read({"choices": [{"text": "xy", "logprobs": given}]}, reply)
    assert reply.logprobs == [
        TokenLogprob(5, -0.1, ((5, -0.1), (9, -2.5))),
        TokenLogprob(6, -0.2),
    ]


def test_logprobs_without_ids_are_not_half_kept() -> None:
    reply = Reply(prompt())
    for token in ("token_id:1", "word", "token_id:2"):
        given = {"tokens": [token], "token_logprobs": [-0.5]}
        openai.read({"choices": [{"text": "x", "logprobs": given}]}, reply)
    assert reply.logprobs is None


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_reply_that_the_server_gave_up(reason: str) -> None:
    with pytest.raises(ReplyError, match=f"ended the reply: {reason}"):
        openai.read({"choices": [{"text": "x", "finish_reason": reason}]}, Reply(prompt()))


def test_another_choice_is_not_read() -> None:
    reply = Reply(prompt())
    openai.read({"choices": [{"index": 1, "text": "no"}, {"index": 0, "text": "yes"}]}, reply)
    assert reply.text == ["yes"]


def test_calls_of_tools_are_output() -> None:
    reply = Reply(prompt())
    for function in ({"name": "f", "arguments": ""}, {"arguments": '{"a": 1}'}):
        openai.read({"choices": [{"delta": {"tool_calls": [{"function": function}]}}]}, reply)
    assert "".join(reply.text) == 'f{"a": 1}'
    assert len(reply.chunks) == 2


def test_ids_that_are_missing_in_the_middle_are_not_used() -> None:
    reply = Reply(prompt())
    reply.take("a", [1])
    reply.take("b", [3])
    reply.server_tokens = 3
    reply.finish_reason = "length"
    answer = reply.answer(1.0)
    assert answer.token_ids is None
    assert answer.tokens == 3
    assert answer.notes == ["the stream told the ids of 2 of 3 tokens"]
    # An end token is counted, and sent by some servers only.
    reply.finish_reason = "stop"
    assert reply.answer(1.0).token_ids == [1, 3]


def test_a_chat_of_vllm_as_recorded() -> None:
    answer = replay("vllm_chat.sse", prompt(max_tokens=4))
    assert answer.text == "This is a classic"
    assert answer.token_ids == [1348, 314, 253, 8170]
    assert answer.first_token_s == 0.002
    assert (answer.tokens, answer.prompt_tokens) == (4, 55)
    assert answer.finish_reason == "length"
    # These were asked for without ids: texts do not tell tokens apart.
    assert answer.logprobs is None


def test_a_chat_of_llama_server_as_recorded() -> None:
    answer = replay("llama_chat.sse", prompt(max_tokens=16))
    assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (16, 55, 0)
    assert answer.token_ids is None
    assert all(tokens is None for _, tokens in answer.chunks)
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("file", ["vllm_error.json", "llama_error.json"])
def test_errors_of_the_real_engines(file: str) -> None:
    said = openai.error_text(json.loads((RECORDED / file).read_text()))
    assert said
    assert "{" not in said
