"""Fields that the twin run does not have, and that none is left out: each has an effect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server.answers import CHAT, PLAINLY, STREAMED, TEXT, ask, whole
from tests.e2e.server.combos import combinations, counted
from tests.e2e.server.conftest import write_served
from tests.e2e.server.harness import Live, events, refusal, serving, strict
from tests.recipes import ngram
from tests.tiny import ADDS_BOS
from wager.server.fields import served

PROMPT = [104, 101, 108, 108, 111] * 12
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 10, "seed": 9, "ignore_eos": True}
USER: list[dict[str, Any]] = [{"role": "user", "content": "stone stone river"}]
HERE = {
    "return_token_ids", "return_tokens_as_token_ids", "include_reasoning", "add_special_tokens",
    "parallel_tool_calls", "reasoning_effort",
}  # fmt: skip
"""Served fields that are tested in this file alone, or in that of structured answers."""
TWIN = {"model", "stream", "stream_options", "speculation"}
"""Those that every body of the twin run has."""


@pytest.fixture(scope="module")
def live(served_path: Path) -> Iterator[Live]:
    names = ("tiny", "another-name", "org/a name")
    with serving(
        served_path, served={"served_names": names}, speculation=ngram(8, low=1), max_num_seqs=8
    ) as live:
        yield live


def test_no_field_is_left_out() -> None:
    tested = set(counted(combinations())) | HERE | TWIN
    missing = (served("chat") | served("completions")) - tested
    assert not missing, f"served, and not tested: {sorted(missing)}"


def test_token_ids(live: Live) -> None:
    reply = strict(live.post(TEXT, {**BODY, "return_token_ids": True}).text)
    (choice,) = reply["choices"]
    assert choice["token_ids"] == live.recorder.ids[9, tuple(PROMPT), 0]
    assert choice["prompt_token_ids"] == PROMPT
    text = live.post(TEXT, {**BODY, **STREAMED, "return_token_ids": True}).text
    chunks = events(text.split("\n"))
    ids = [t for chunk in chunks for c in chunk["choices"] for t in c["token_ids"]]
    assert ids == choice["token_ids"]
    named = ask(live, {**BODY, "logprobs": 1, "return_tokens_as_token_ids": True})
    assert named.choices[0].logprobs["tokens"] == [f"token_id:{t}" for t in ids]


def test_special_tokens_are_shown_on_demand(live: Live) -> None:
    """An end token that is to be ignored, again and again."""
    body = {**BODY, "max_tokens": 3, "logit_bias": {"2": 100}}
    assert ask(live, body).text == ""
    shown = ask(live, {**body, "skip_special_tokens": False})
    assert shown.text == "<|im_end|>" * 3
    assert ask(live, {**body, "skip_special_tokens": False, **STREAMED}) == shown


def test_reasoning_that_nobody_wants_to_see(live: Live) -> None:
    body = {"messages": USER, "max_tokens": 20, "seed": 2, "ignore_eos": True,
            "chat_template_kwargs": {"enable_thinking": True}}  # fmt: skip
    for more in ({}, STREAMED, {**STREAMED, **PLAINLY}):
        seen = ask(live, {**body, **more})
        hidden = ask(live, {**body, **more, "include_reasoning": False})
        assert seen.choices[0].reasoning
        assert not hidden.choices[0].reasoning
        assert hidden.choices[0].text == seen.choices[0].text
        assert hidden.usage == seen.usage


def test_options_that_the_template_does_not_read(live: Live) -> None:
    body = {"messages": USER, "max_tokens": 2}
    refusal(live.post(CHAT, {**body, "reasoning_effort": "high"}), "reasoning_effort")
    refusal(live.post(CHAT, {**body, "chat_template_kwargs": {"x": 1}}), "chat_template_kwargs")
    live.survives()


def test_salts_keep_caches_apart(live: Live) -> None:
    def cached(**salt: str) -> int:
        reply = strict(live.post(TEXT, {**BODY, **salt}).text)
        return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="first") == 0
    assert cached(cache_salt="first") >= 32
    assert cached(cache_salt="second") == 0
    assert cached(cache_salt="second") >= 32


def test_usage_with_every_chunk(live: Live) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = live.post(TEXT, {**BODY, "stream": True, "stream_options": options}).text
    chunks = events(text.split("\n"))
    told = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert told == sorted(told)
    assert told[-1] == told[-2] == 10
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["speculation"]["steps"] > 0


def test_tokens_there_and_back(live: Live) -> None:
    for text in ("the river", "강물 🙂", "", "<|im_start|>user"):
        found = strict(live.post("/tokenize", {"prompt": text}).text)
        assert found["count"] == len(found["tokens"])
        assert found["max_model_len"] == 2048
        back = strict(live.post("/detokenize", {"tokens": found["tokens"]}).text)
        assert back["prompt"] == text
    chat = strict(live.post("/tokenize", {"messages": USER}).text)
    reply = ask(live, {"messages": USER, "max_tokens": 1})
    assert reply.usage is not None
    assert reply.usage["prompt_tokens"] == chat["count"]


def test_a_start_token_is_added_to_texts_and_to_no_template(tmp_path: Path) -> None:
    """A templated text is the same prompt on the other route, where nothing is added to it."""
    path = write_served(tmp_path / "starts")
    file = path / "tokenizer.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**raw, "post_processor": ADDS_BOS}), encoding="utf-8")
    with serving(path) as live:

        def ids(route: str, **body: Any) -> list[int]:
            said = {"max_tokens": 1, "seed": 1, "return_token_ids": True, **body}
            reply = strict(live.post(route, said).text)
            told = reply["choices"][0] if route == TEXT else reply
            found = list(told["prompt_token_ids"])
            assert reply["usage"]["prompt_tokens"] == len(found)
            assert strict(live.post("/tokenize", body).text)["tokens"] == found
            return found

        chat = ids(CHAT, messages=USER)
        text = strict(live.post("/detokenize", {"tokens": chat}).text)["prompt"]
        assert ids(CHAT, messages=USER, add_special_tokens=True) == [1, *chat]
        assert ids(TEXT, prompt=text) == [1, *chat]
        assert ids(TEXT, prompt=text, add_special_tokens=False) == chat
        assert ids(TEXT, prompt="") == [1]
        live.survives()


def test_every_name_serves(live: Live) -> None:
    expected = ask(live, BODY)
    listed = strict(live.get("/v1/models").text)["data"]
    assert [one["id"] for one in listed] == ["tiny", "another-name", "org/a name"]
    for name in (*(one["id"] for one in listed), None):
        body = {**BODY, "model": name}
        reply = strict(live.post(TEXT, body).text)
        assert whole(reply) == expected
        assert reply["model"] == (name or "tiny")
    assert live.get("/v1/models/org/a name").status_code == 200
    assert live.post(TEXT, {**BODY, "model": "nobody"}).status_code == 404
    live.survives()


def test_both_names_of_the_limit(live: Live) -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    assert ask(live, {**body, "max_completion_tokens": 7}).tokens == 7
    assert ask(live, {**body, "max_completion_tokens": 7, "max_tokens": 7}).tokens == 7
    refusal(live.post(TEXT, {**body, "max_completion_tokens": 7, "max_tokens": 8}), "max_tokens")
    assert ask(live, body).tokens == 16


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_a_request_s_own_draft_length(length: int, live: Live) -> None:
    body = {**BODY, "max_tokens": 40, "temperature": 0}
    told = ask(live, {**body, "speculation": {"num_speculative_tokens": length}}).speculation
    assert told is not None
    assert told["drafted"] > 0
    assert len(told["by_position"]) <= length
    by_name = ask(live, {**body, "speculation": {"method": "ngram"}}).speculation
    assert by_name is not None
    assert by_name["drafted"] > 0
    refusal(live.post(TEXT, {**body, "speculation": {"num_speculative_tokens": 9}}), "speculation")
    refusal(live.post(TEXT, {**body, "speculation": {"method": "suffix"}}), "speculation")
