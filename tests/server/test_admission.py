"""Requests that there is no room for: told so before their bodies are read, by each route."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.recipes import PATIENCE_S
from tests.server.asgi import Exchange, played
from tests.server.fakes import CHAT, TALK_TEMPLATE, TEXT, Client, FakeLLM, Say, tokenizer
from wager.models.tokenizer import Tokenizer
from wager.server import completions, fields, limits, service, tokens

TALK = {"messages": [{"role": "user", "content": "a"}]}
GOOD: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": [5, 6]}, CHAT: TALK, "/tokenize": TALK, "/detokenize": {"tokens": [5, 6]},
}  # fmt: skip
ROUTES = sorted(GOOD)


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"), TALK_TEMPLATE)


def client(spell: Tokenizer, **given: Any) -> Client:
    return Client(FakeLLM(spell, [[Say("a", [10], "length")]], **given))


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_full_queue(path: str, spell: Tokenizer) -> None:
    of = client(spell, waiting=256)
    # Not even a body that says what it is not.
    for content in (json.dumps(GOOD[path]).encode(), b"{" * 1000):
        reply = played(of.app, path=path, body=content)
        assert (reply.status, reply.read) == (429, 0)
        assert reply.error["code"] == "queue_full"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_too_many_for_the_tokenizer(
    path: str, spell: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = client(spell, waiting=256)
    assert of.post(path, GOOD[path]).status == 200
    monkeypatch.setattr(service, "_MOST_SMALL", 0)
    reply = of.post(path, GOOD[path])
    assert (reply.status, reply.read) == (429, 0)
    assert reply.header("retry-after") == "1"


@pytest.mark.parametrize("path", ROUTES)
def test_a_server_that_shuts_down(path: str, spell: Tokenizer) -> None:
    """The connection is closed behind the reply, so the body is read, and kept nowhere."""
    of = client(spell)
    of.service.drain()
    reply = of.post(path, GOOD[path])
    assert (reply.status, reply.read) == (503, 1)
    assert reply.error["code"] == "shutting_down"
    patient = of.post(path, GOOD[path], expect="100-continue")
    assert (patient.status, patient.read) == (503, 0)


def test_a_body_that_does_not_come_keeps_nobody(
    spell: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_DISCARD_S", 0.05)
    of = client(spell)
    of.service.drain()
    assert played(of.app, path=TEXT, body=b"{", unfinished=True).status == 503


def test_nothing_of_a_body_is_kept_that_is_not_needed(
    spell: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its bytes nor its unknown fields, while the answer is written."""

    class Kept(dict[str, Any]):
        pass

    read = limits.parse
    parsed: list[weakref.ref[Kept]] = []

    def parse(body: bytes, depth: int) -> dict[str, Any]:
        found = Kept(read(body, depth))
        found["foo"] = Kept()
        parsed.extend([weakref.ref(found), weakref.ref(found["foo"])])
        return found

    monkeypatch.setattr(limits, "parse", parse)

    async def run() -> None:
        for path in (TEXT, CHAT):
            of = Client(FakeLLM(spell, [[Say("a", [10])]], hang=True))
            exchange = Exchange(**of.request(path, GOOD[path]))
            playing = asyncio.ensure_future(exchange.play(of.app))
            while not of.llm.asked:
                await asyncio.sleep(0.001)
            left = [one for one in parsed if one() is not None]
            exchange.leave()
            await playing
            assert not left, path

    asyncio.run(run())
    assert len(parsed) == 4


def test_what_a_route_reads_is_kept() -> None:
    body = {"messages": [1], "foo": [2], "user": "me", "prompt": "a", "n": None}
    assert fields.kept(body, "chat") == {"messages": [1], "n": None}


# Several prompts


def test_many_answers_to_one_request(spell: Tokenizer) -> None:
    of = client(spell)
    error = of.refused(TEXT, {"prompt": [[5]] * 17, "n": 16})
    assert error["message"] == "n: at most 256 answers to all prompts together, not 272"
    assert error["param"] == "n"


def test_each_prompt_has_a_place_in_the_queue(spell: Tokenizer) -> None:
    of = Client(FakeLLM(spell, (), hang=True))

    async def run() -> None:
        exchange = Exchange(**of.request(TEXT, {"prompt": [[5], [6], [7]], "n": 2}))
        playing = asyncio.ensure_future(exchange.play(of.app))
        while len(of.llm.asked) < 3:
            await asyncio.sleep(0)
        assert of.service.in_flight == 3
        exchange.leave()
        await playing
        assert of.service.in_flight == 0

    asyncio.run(run())


def test_more_prompts_than_there_may_be_keep_nobody_out(
    spell: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = threading.Event(), threading.Event()
    prepared = completions._prepared

    def held(body: Any, service: Any) -> Any:
        if len(body.prompt) > 2:
            began.set()
            assert go.wait(PATIENCE_S)
        return prepared(body, service)

    monkeypatch.setattr(completions, "_prepared", held)
    # Fewer places than prompts that a request may have.
    of = Client(FakeLLM(spell, [[Say("a", [10], "length")]]), max_queue=1)

    async def run() -> None:
        many = Exchange(**of.request(TEXT, {"prompt": ["a"] * 100_000}))
        playing = asyncio.ensure_future(many.play(of.app))
        try:
            while not (playing.done() or began.is_set()):
                await asyncio.sleep(0.001)
            reply = await Exchange(**of.request(TEXT, GOOD[TEXT])).play(of.app)
            assert reply.status == 200
        finally:
            go.set()
        refused = await playing
        assert refused.status == 400
        message = "prompt: at most 64 prompts in a request, got 100000"
        assert refused.error["message"] == message
        assert of.service.in_flight == 0

    asyncio.run(run())


# The tokenizer's own queue


def test_a_flood_for_the_tokenizer_holds_up_no_answer(
    spell: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = threading.Event(), threading.Event()

    def held(*_: object) -> Response:
        began.set()
        assert go.wait(PATIENCE_S)
        return JSONResponse({})

    monkeypatch.setattr(tokens, "_tokenized", held)
    of = client(spell)

    async def run() -> None:
        flood = [Exchange(**of.request("/tokenize", TALK)) for _ in range(64)]
        tasks = [asyncio.ensure_future(one.play(of.app)) for one in flood]
        try:
            assert await asyncio.to_thread(began.wait, PATIENCE_S)
            while of.service._small < 64:
                await asyncio.sleep(0.001)
            # More than the threads that a loop has for everything else.
            reply = await Exchange(**of.request(CHAT, TALK)).play(of.app)
            assert reply.status == 200
            late = await Exchange(**of.request("/tokenize", TALK)).play(of.app)
            assert late.status == 429
            # Whoever goes leaves his place, and his work is not done.
            for one in flood[2:]:
                one.leave()
            await asyncio.wait(tasks[2:])
        finally:
            go.set()
        await asyncio.gather(*tasks)
        assert [one.status for one in flood if one.sent] == [200, 200]

    asyncio.run(run())


def test_tokenize_reads_what_the_chat_route_reads(spell: Tokenizer) -> None:
    of = client(spell)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    counts = []
    for choice in ("auto", "none"):
        reply = of.post("/tokenize", {**TALK, "tools": [tool], "tool_choice": choice})
        assert reply.header("x-wager-warning") is None
        counts.append(json.loads(reply.text)["count"])
    assert counts[1] == json.loads(of.post("/tokenize", TALK).text)["count"] < counts[0]
    for wrong in ({"reasoning_effort": [1]}, {"tool_choice": "perhaps"}, {"tool_choice": 5}):
        (name,) = wrong
        assert of.refused("/tokenize", {**TALK, **wrong})["param"] == name


def test_a_broken_chat_template(tmp_path: Path) -> None:
    of = client(tokenizer(tmp_path, "{% if %}"))
    for path in (CHAT, "/tokenize"):
        error = of.refused(path, TALK)
        assert error["code"] == "broken_template"
        assert str(tmp_path) not in error["message"]
    assert of.post(TEXT, {"prompt": [5]}).status == 200
