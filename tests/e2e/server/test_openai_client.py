"""The official client, unchanged, against a server on a loopback port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.server.combos import TOOLS
from tests.e2e.server.harness import PATIENCE_S, Live, serving
from tests.recipes import ngram

KEY = "a-key-of-the-tests"
USER: list[Any] = [{"role": "user", "content": "river river river"}]


@pytest.fixture(scope="module")
def live(calls_path: Path) -> Iterator[Live]:
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(
            calls_path, served={"api_keys": (KEY,)}, speculation=ngram(8, low=1), max_num_seqs=8
        ) as live,
    ):  # fmt: skip
        # The client heeds proxies of the environment, which have no say on this machine.
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield live


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{live.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE_S
    ) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert model.object == "model"
    assert model.max_model_len == 2048  # type: ignore[attr-defined]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-unknown")


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=USER, max_completion_tokens=12, seed=1, temperature=0.7,
        presence_penalty=0.1, frequency_penalty=0.1, top_p=0.9, n=2, logit_bias={"70": -1},
        user="somebody",
    )  # fmt: skip
    assert reply.object == "chat.completion"
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert choice.message.role == "assistant"
        assert choice.finish_reason in {"stop", "length"}
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 24
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.model_extra is not None
    assert reply.model_extra["speculation"]["steps"] > 0


def test_a_stream_is_the_reply(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 30, "seed": 3}
    reply = client.chat.completions.create(**asked)
    text, reasons, usage = "", [], None
    with client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
    assert text == (reply.choices[0].message.content or "")
    assert reasons[-1] == reply.choices[0].finish_reason
    assert set(reasons[:-1]) <= {None}
    assert usage is not None
    assert reply.usage is not None
    assert usage.completion_tokens == reply.usage.completion_tokens


def test_speculation_in_the_body(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 30, "seed": 3}
    replies = [
        client.chat.completions.create(**asked, extra_body={"speculation": own})
        for own in ({"enabled": False}, {"num_speculative_tokens": 4}, {"method": "ngram"})
    ]
    assert len({reply.choices[0].message.content for reply in replies}) == 1
    told = [(reply.model_extra or {})["speculation"] for reply in replies]
    assert told[0]["drafted"] == 0
    assert told[1]["drafted"] > 0


def test_logprobs(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=6, seed=1, logprobs=True, top_logprobs=3
    )
    told = reply.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert reply.usage is not None
    assert len(told.content) == reply.usage.completion_tokens
    for entry in told.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) >= 3


class Ticket(BaseModel):
    status: Literal["open", "closed"]
    count: int = Field(ge=0, le=99)


def test_a_schema(client: openai.OpenAI) -> None:
    schema = Ticket.model_json_schema() | {"additionalProperties": False}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "ticket", "schema": schema, "strict": True},
    }
    reply = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=500, seed=1, response_format=form
    )
    assert reply.choices[0].finish_reason == "stop"
    Ticket.model_validate_json(reply.choices[0].message.content or "")


def test_a_parsed_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="tiny", messages=USER, max_tokens=500, seed=2, response_format=Ticket
    )
    assert isinstance(reply.choices[0].message.parsed, Ticket)


def test_tools(client: openai.OpenAI) -> None:
    tools: Any = TOOLS
    named: Any = {"type": "function", "function": {"name": "paint"}}
    reply = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=200, seed=1, tools=tools, tool_choice=named
    )
    calls = reply.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert call.type == "function"
    assert call.id
    assert call.function.name == "paint"
    assert 0 <= json.loads(call.function.arguments)["n"] <= 9
    # And the conversation goes on with what came back.
    messages = [*USER, reply.choices[0].message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "done"}]  # fmt: skip
    again = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=4, seed=1, tools=tools
    )
    assert again.choices[0].finish_reason in {"stop", "length", "tool_calls"}


class Count(BaseModel):
    """Count up to a number."""

    n: int = Field(ge=0, le=9)


def test_tools_of_the_client_s_helper(client: openai.OpenAI) -> None:
    """It makes strict tools only, and reads no others."""
    tools: Any = [openai.pydantic_function_tool(Count, name="count")]
    # A model without a mind seldom comes to an end by itself.
    asked: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 400, "seed": 1,
                             "stop": ["e", "a", "t", "n"], "tools": tools}  # fmt: skip
    for choice in ({}, {"tool_choice": "auto"}):
        free = client.chat.completions.parse(**asked, **choice).choices[0]
        assert (free.finish_reason, free.message.tool_calls) == ("stop", None)
    raw = client.chat.completions.with_raw_response.parse(**asked)
    assert raw.headers["x-wager-warning"].startswith("tools[0].function.strict: ")
    asked["stop"] = None
    forced = client.chat.completions.parse(
        **asked, tool_choice="required", parallel_tool_calls=False
    )
    assert forced.choices[0].message.tool_calls
    (call,) = forced.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Count)
    with client.chat.completions.stream(**{**asked, "stop": ["e", "a"]}) as stream:
        assert stream.get_final_completion().choices[0].finish_reason == "stop"


def test_tools_in_a_stream(client: openai.OpenAI) -> None:
    # The client puts together only calls of tools that are strict.
    tools: Any = [{**one, "function": {**one["function"], "strict": True}} for one in TOOLS]
    asked: dict[str, Any] = {
        "model": "tiny", "messages": USER, "max_tokens": 200, "seed": 5, "tools": tools,
        "tool_choice": "required", "parallel_tool_calls": False,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0].message.tool_calls
    assert whole
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        (c.function.name, c.function.arguments) for c in whole if c.type == "function"
    ]
    assert final.choices[0].finish_reason == "tool_calls"


def test_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="tiny", prompt=["a b a b", "c"], max_tokens=5, seed=1, logprobs=2, echo=True
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].text.startswith("a b a b")
    assert reply.choices[0].logprobs is not None
    with client.completions.create(
        model="tiny", prompt="a b a b", max_tokens=20, seed=1, stream=True
    ) as stream:
        text = "".join(choice.text for chunk in stream for choice in chunk.choices)
    whole = client.completions.create(model="tiny", prompt="a b a b", max_tokens=20, seed=1)
    assert text == whole.choices[0].text


def test_refusals_are_the_client_s_exceptions(client: openai.OpenAI, live: Live) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=USER, temperature=-1)
    assert refused.value.param == "temperature"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model="tiny", prompt="a", suffix="b")
    with (
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    live.survives()


def test_many_at_a_time(live: Live) -> None:
    """The asynchronous client: each reply is the one it gets alone."""

    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{live.url}/v1", api_key=KEY, timeout=PATIENCE_S
        ) as own:
            one = [
                own.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": f"stone {n % 8}"}],
                    max_tokens=20, seed=n % 8,
                )
                for n in range(32)
            ]  # fmt: skip
            return list(await asyncio.gather(*one))

    replies = asyncio.run(ask_all())
    texts = [reply.choices[0].message.content for reply in replies]
    assert texts[:8] * 4 == texts
    assert len(set(texts[:8])) > 4
    live.survives()
