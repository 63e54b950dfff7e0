"""Requests on the metrics page: counted when they go to the engine, and each has one end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.server.asgi import Exchange
from tests.server.fakes import TEXT, Client, FakeLLM, Say, tokenizer
from wager.errors import RequestError
from wager.models.tokenizer import Tokenizer

WRITES = [[Say("a", [10])], [Say("b", [11], "length")]]


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("metrics"))


def counted(of: Client) -> tuple[float, dict[str, float]]:
    """Requests that were received, and those that are over by their reasons, but for zeros."""
    received, ended = 0.0, {}
    for family in of.service.metrics.collect():
        for sample in family.samples:
            if sample.name == "wager:requests_received_total":
                received = sample.value
            if sample.name == "wager:request_success_total" and sample.value:
                ended[sample.labels["finished_reason"]] = sample.value
    return received, ended


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_counts_before_it_has_a_token(spell: Tokenizer, stream: bool) -> None:
    """One that waits is not missing on the page, and its client's leaving is its end."""
    of = Client(FakeLLM(spell, (), hang=True))

    async def run() -> None:
        exchange = Exchange(**of.request(TEXT, {"prompt": [[5], [6]], "stream": stream}))
        playing = asyncio.create_task(exchange.play(of.app))
        while len(of.llm.asked) < 2:
            await asyncio.sleep(0)
        assert counted(of) == (2.0, {})
        exchange.leave()
        await playing

    asyncio.run(run())
    assert counted(of) == (2.0, {"abort": 2.0})


@pytest.mark.parametrize(
    ("script", "more", "reason"),
    [
        (WRITES, {}, "length"),
        (RequestError("stop_token_ids: 999 is outside the vocabulary"), {}, "error"),
        (OSError("broken"), {}, "error"),
        ([[Say("a", [10])]], {"broken": ValueError("in the middle")}, "error"),
        ([[Say("", [], "abort", "no usable logits")]], {}, "error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_request_has_one_end(
    spell: Tokenizer, script: Any, more: Mapping[str, Any], reason: str, stream: bool
) -> None:
    of = Client(FakeLLM(spell, script, **more))
    for _ in range(2):
        of.post(TEXT, {"prompt": "a", "stream": stream, "max_tokens": 2})
    assert counted(of) == (2.0, {reason: 2.0})


def test_what_never_gets_to_the_engine_is_not_received(spell: Tokenizer) -> None:
    of = Client(FakeLLM(spell, WRITES))
    of.refused(TEXT, {"prompt": "a", "temperature": -1})
    assert counted(of) == (0.0, {})
    assert 'wager:requests_refused_total{model="tiny",status="400"} 1.0' in (
        of.service.metrics.text().decode()
    )


@pytest.mark.parametrize(
    ("script", "tokens"),
    [(RequestError("speculation: the server has no such method"), 0.0), (WRITES, 3.0)],
)
def test_prompts_of_what_never_began_are_not_counted(
    spell: Tokenizer, script: Any, tokens: float
) -> None:
    of = Client(FakeLLM(spell, script))
    of.post(TEXT, {"prompt": [5, 6, 7], "max_tokens": 2})
    found = {s.name: s.value for family in of.service.metrics.collect() for s in family.samples}
    assert found["wager:prompt_tokens_total"] == tokens
    assert found["wager:request_prompt_tokens_sum"] == tokens
    for name in ("request_prompt_tokens", "request_params_n", "e2e_request_latency_seconds"):
        assert found[f"wager:{name}_count"] == bool(tokens)


def test_a_request_that_was_given_up_counts_as_far_as_it_came(spell: Tokenizer) -> None:
    of = Client(FakeLLM(spell, [[Say("a", [10]), Say("b", [11], index=1)]], hang=True))
    body = {"prompt": "a", "n": 2, "max_tokens": 7, "stream": True}

    async def run() -> None:
        exchange = Exchange(**of.request(TEXT, body))
        playing = asyncio.create_task(exchange.play(of.app))
        while len(exchange.sent) < 3:
            await asyncio.sleep(0)
        exchange.leave()
        await playing

    asyncio.run(run())
    sums = {
        sample.name.removeprefix("wager:").removesuffix("_sum"): sample.value
        for family in of.service.metrics.collect()
        for sample in family.samples
        if sample.name.endswith("_sum")
    }
    assert sums["request_params_n"] == 2.0
    assert sums["request_params_max_tokens"] == 7.0
    assert sums["request_generation_tokens"] == 2.0
    assert sums["request_max_num_generation_tokens"] == 1.0
    assert sums["time_to_first_token_seconds"] == sums["request_queue_time_seconds"] + 0.4
    (row,) = of.service.recent.rows()
    assert (row["finish_reason"], row["choices"], row["completion_tokens"]) == ("abort", 2, 2)
    assert row["total_ms"] > 0.0
