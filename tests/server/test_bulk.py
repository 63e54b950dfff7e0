"""Large replies: bounded before anything is computed, made once, and written beside the loop."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.server.fakes import CHAT, CONTEXT, TEXT, Client, FakeLLM, Say, tokenizer
from wager.models.tokenizer import Tokenizer
from wager.server import bulk, chat, completions
from wager.server.logprobs import TextLogprobs

HI = [{"role": "user", "content": "hi"}]
NEVER = 1 << 40


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"))


def client(spell: Tokenizer, choices: int = 1) -> Client:
    """Each choice says two tokens, with signs that JSON and streams take for their own."""
    first = [Say('"\u2028é', [70 + n], index=n) for n in range(choices)]
    last = [Say("b", [71], "stop", index=n) for n in range(choices)]
    return Client(FakeLLM(spell, [first, last]))


LONG = [5] * 1000
MANY = [LONG] * 16


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (TEXT, {"prompt": MANY, "n": 16, "prompt_logprobs": 20}, "prompt_logprobs"),
        (TEXT, {"prompt": MANY, "n": 16, "prompt_logprobs": 20, "logprobs": 0}, "prompt_logprobs"),
        (TEXT, {"prompt": MANY, "n": 16, "echo": True, "logprobs": 20}, "logprobs"),
        (TEXT, {"prompt": [[5]] * 16, "n": 16, "logprobs": 20, "max_tokens": None}, "logprobs"),
        (TEXT, {"prompt": [[5]] * 16, "n": 16, "logprobs": 20, "max_tokens": 900}, "logprobs"),
    ],
)
def test_what_is_too_much_together_is_refused(
    spell: Tokenizer, path: str, body: dict[str, Any], field: str
) -> None:
    told = client(spell)
    error = told.refused(path, body)
    assert error["param"] == field
    assert "n, max_tokens" in error["message"]
    assert told.llm.asked == []


@pytest.mark.parametrize("count", [1, 2])
def test_what_one_answer_can_have_is_always_given(
    spell: Tokenizer, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST", 0)
    told = client(spell, count)
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 20, "n": count}
    text = {"prompt": LONG, "prompt_logprobs": 20, "n": count}
    if count == 1:
        told.whole(CHAT, {"messages": HI, **asked})
        told.whole(TEXT, text)
        return
    assert told.refused(CHAT, {"messages": HI, **asked})["param"] == "top_logprobs"
    assert told.refused(TEXT, text)["param"] == "prompt_logprobs"
    # A smaller answer of several choices is no more than a long one.
    told.whole(CHAT, {"messages": HI, **asked, "max_tokens": CONTEXT // 4})


def test_a_chat_shows_its_prompt_once(spell: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST", 0)
    told = client(spell, 16)
    messages = [{"role": "user", "content": "a " * 400}]
    whole = told.whole(CHAT, {"messages": messages, "n": 16, "prompt_logprobs": 20})
    assert len(whole["prompt_logprobs"]) > 400


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[threading.Thread]:
    """The thread of each call from now on."""
    real, found = getattr(owner, name), []

    def called(*args: Any, **named: Any) -> Any:
        found.append(threading.current_thread())
        return real(*args, **named)

    monkeypatch.setattr(owner, name, called)
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_is_told_once_and_shared(
    spell: Tokenizer, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked = counted(monkeypatch, completions, "of_prompt")
    repeated = counted(monkeypatch, TextLogprobs, "prompt")
    body = {"prompt": [[5, 6, 7], [8]], "n": 4, "prompt_logprobs": 1, "echo": True, "logprobs": 1,
            "stream": stream}  # fmt: skip
    told = client(spell, 4)
    if stream:
        found = told.events(TEXT, body)
        choices = [c["choices"][0] for c in found if "prompt_logprobs" in c["choices"][0]]
    else:
        choices = told.whole(TEXT, body)["choices"]
    assert (len(ranked), len(repeated)) == (2, 2)
    assert len(choices) == 8
    for choice in choices:
        first = choice["index"] < 4
        assert len(choice["prompt_logprobs"]) == (3 if first else 1)
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert len(choice["logprobs"]["tokens"]) == (3 if first else 1) + (1 if stream else 2)
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": LONG[:600], "n": 4, "prompt_logprobs": 2, "echo": True, "logprobs": 2,
                "return_token_ids": True}),
        (CHAT, {"messages": [{"role": "user", "content": "a\u2028é " * 100}], "n": 4,
                "prompt_logprobs": 2, "logprobs": True, "top_logprobs": 2,
                "return_token_ids": True}),
    ],
    ids=["text", "chat"],
)  # fmt: skip
def test_large_replies_are_the_same_and_made_beside_the_loop(
    spell: Tokenizer, path: str, body: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply() -> Any:
        told = client(spell, 4)
        given = told.events(path, body) if stream else [told.whole(path, body)]
        for one in given:
            for name in ("id", "created", "timings"):
                one.pop(name, None)
        return given

    monkeypatch.setattr(bulk, "LARGE", NEVER)
    small = reply()
    monkeypatch.setattr(bulk, "LARGE", 100)
    of_prompt = counted(monkeypatch, completions if path == TEXT else chat, "of_prompt")
    written = counted(monkeypatch, bulk, "written")
    assert reply() == small
    assert len(of_prompt) == 1
    assert len(written) == (4 if path == TEXT and stream else 1)
    assert threading.main_thread() not in {*of_prompt, *written}


def test_small_replies_are_made_at_once(spell: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    written = counted(monkeypatch, bulk, "written")
    body = {"prompt": [5, 6], "prompt_logprobs": 2, "logprobs": 2}
    client(spell).whole(TEXT, body)
    client(spell).events(TEXT, body)
    assert written == []


@pytest.mark.parametrize(
    "value",
    [{}, {"a": []}, {"a": {}, "b": None}, {"choices": []}, {"a": list(range(1000))},
     {"choices": [{}, {"x": [1, {"y": [2]}]}]}, {"é": "\u2028\"\\"},
     {"choices": [{"logprobs": {"content": [{}] * 65}}]},
     {"a": [[], [[]], {}] * 64, "b": 1.5, "c": True}],
)  # fmt: skip
def test_what_is_written_in_parts_is_json(value: dict[str, Any]) -> None:
    found = bulk.written(value)
    assert json.loads(found) == value
    assert not any(space in found for space in (b"\n", b" "))


def test_no_part_is_large() -> None:
    """One part is one call of the encoder, in which no other thread runs."""
    entry = {str(token): {"logprob": -1.5, "rank": 1, "decoded_token": "x"} for token in range(21)}
    lists = {"top_logprobs": [dict.fromkeys(map(str, range(21)), -1.5)] * 5000}
    content = [{"token": "x", "top_logprobs": [{"token": "x", "bytes": [1]}] * 20}] * 5000
    choice = {"logprobs": {**lists, "content": content}, "prompt_logprobs": [None, *[entry] * 5000]}
    reply = {"choices": [choice] * 2, "prompt_logprobs": [entry] * 5000}
    sizes = [len(part) for part in bulk._parts(reply)]
    assert sum(sizes) > 10_000_000
    assert max(sizes) < 150_000


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        bulk.written({"a": [float("nan")]})
