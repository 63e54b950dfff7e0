"""``/v1/completions``: what is sent for what the engine says, to the letter."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.server.fakes import (
    NAME,
    TEXT,
    VOCABULARY,
    Asked,
    Client,
    FakeLLM,
    Say,
    Script,
    spelled,
    text_of,
    tokenizer,
)
from wager.errors import ConfigError, RequestError
from wager.models.tokenizer import Tokenizer
from wager.types import NO_TOKEN_LEFT

WORDS = ["the cat", "été", "강물이 흐른다", "🙂🙃", "\n\n", "a\u2028b", '"quoted"', "x" * 40]
USAGE = {"include_usage": True}


@pytest.fixture(scope="module")
def spell(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"))


def client(spell: Tokenizer, script: Any, **given: Any) -> Client:
    options = {name: given.pop(name) for name in ("max_choices",) if name in given}
    return Client(FakeLLM(spell, script, **given), **options)


def both(spell: Tokenizer, script: Any, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The same reply in one piece and as a stream."""
    return (
        client(spell, script).whole(TEXT, body),
        client(spell, script).events(TEXT, {**body, "stream_options": USAGE}),
    )


def test_a_whole_reply(spell: Tokenizer) -> None:
    script = [[Say("he", [10, 11], drafted=3)], [Say("y", [12], "stop", "y")]]
    told = client(spell, script, cached=1)
    reply = told.post(TEXT, {"prompt": [5, 6, 7], "seed": 3})
    assert reply.status == 200
    # (3 - 1) tokens in the half second behind the first.
    assert reply.header("x-tokens-per-second") == "4.00"
    whole = told.whole(TEXT, {"prompt": [5, 6, 7]})
    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert whole["model"] == NAME
    assert whole["choices"] == [
        {"index": 0, "text": "hey", "logprobs": None, "finish_reason": "stop", "stop_reason": "y"}
    ]
    assert whole["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    speculation = whole["speculation"]
    assert (speculation["steps"], speculation["drafted"], speculation["accepted"]) == (2, 3, 1)
    assert speculation["by_position"] == [1, 0, 0]
    assert speculation["tokens_per_step"] == 1.5
    assert (speculation["draft_ms"], speculation["verify_ms"]) == (1.0, 2.0)
    assert set(speculation["estimated"]) == {"plain_ms", "speedup"}
    assert whole["timings"]["draft_n_accepted"] == 1
    assert told.llm.asked[0].params.seed == 3
    assert told.llm.asked[0].prompt == [5, 6, 7]


def test_a_stream(spell: Tokenizer) -> None:
    script = [[Say("he", [10, 11])], [Say("", [12])], [Say("y", [13], "length")]]
    found = client(spell, script).events(TEXT, {"prompt": "a"})
    assert [c["choices"][0]["text"] for c in found] == ["he", "y"]
    assert [c["choices"][0]["finish_reason"] for c in found] == [None, "length"]
    assert all("usage" not in chunk and "speculation" not in chunk for chunk in found)


def test_usage_at_the_end_of_a_stream(spell: Tokenizer) -> None:
    script = [[Say("a", [10])], [Say("b", [11], "stop")]]
    whole, found = both(spell, script, {"prompt": "a"})
    *chunks, last = found
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert last["speculation"] == whole["speculation"]
    assert last["timings"] == whole["timings"]


def test_usage_in_every_chunk(spell: Tokenizer) -> None:
    script = [[Say("a", [10])], [Say("", [11, 12])], [Say("b", [13], "stop")]]
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = client(spell, script).events(TEXT, {"prompt": [5], "stream_options": options})
    # The tokens whose text is kept back are told of, too.
    assert [chunk["usage"]["completion_tokens"] for chunk in found] == [1, 3, 4, 4]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_refusals(spell: Tokenizer, body: dict[str, Any], field: str) -> None:
    told = client(spell, [[Say("a", [10], "stop")]])
    assert told.refused(TEXT, {"prompt": "a", **body})["param"] == field
    assert told.llm.asked == []


@pytest.mark.parametrize("seed", range(30))
def test_a_stream_adds_up_to_the_whole(spell: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))
    sizes = [rng.randint(1, 8) for _ in range(400)]
    script = spelled(spell, text, sizes, rng.choice(["stop", "length"]))
    asked = {"prompt": "a", "logprobs": rng.choice([None, 0, 2]), "echo": rng.random() < 0.5}
    whole, found = both(spell, script, asked)
    choice = whole["choices"][0]
    assert choice["text"] == ("a" if asked["echo"] else "") + text
    assert text_of(found) == choice["text"]
    assert found[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert found[-1]["usage"] == whole["usage"]
    parts = [c["choices"][0]["logprobs"] for c in found[:-1]]
    if asked["logprobs"] is None:
        assert choice["logprobs"] is None
        assert set(map(type, parts)) == {type(None)}
        return
    for name, values in choice["logprobs"].items():
        assert [value for part in parts for value in part[name]] == values


# Log-probabilities


def test_log_probabilities(spell: Tokenizer) -> None:
    ids = spell.encode("the 🙂", add_special=False)
    script = [[Say("", ids[:-1])], [Say("the 🙂", ids[-1:], "stop")]]
    body = {"prompt": "a", "logprobs": 2, "return_tokens_as_token_ids": True}
    found = client(spell, script).whole(TEXT, body)["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{token}" for token in ids]
    assert found["token_logprobs"] == [-0.5] * len(ids)
    assert found["top_logprobs"][0] == {
        f"token_id:{(ids[0] + 1) % VOCABULARY}": -0.25, f"token_id:{ids[0]}": -0.5
    }  # fmt: skip
    offsets = found["text_offset"]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    # The four bytes of the last character begin where it does.
    assert offsets[-4:] == [4] * 4


def test_the_token_itself_is_always_among_the_likely_ones(spell: Tokenizer) -> None:
    (token,) = spell.encode("t", add_special=False)
    script = [[Say("t", [token], "stop")]]
    found = client(spell, script).whole(TEXT, {"prompt": "a", "logprobs": 0})["choices"][0]
    assert found["logprobs"]["top_logprobs"] == [{"t": -0.5}]
    found = client(spell, script).whole(TEXT, {"prompt": "a", "logprobs": 1})["choices"][0]
    assert len(found["logprobs"]["top_logprobs"][0]) == 2


def test_infinitely_unlikely_is_a_number(spell: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.types import TokenLogprob

    least = TokenLogprob(70, float("-inf"), ((70, float("-inf")),))
    monkeypatch.setattr("tests.server.fakes.logprob", lambda *_: least)
    script = [[Say("t", [70], "stop")]]
    found = client(spell, script).whole(TEXT, {"prompt": "a", "logprobs": 1})["choices"][0]
    assert found["logprobs"]["token_logprobs"] == [-9999.0]


# Echo


def test_echo_with_log_probabilities(spell: Tokenizer) -> None:
    prompt = "the cat"
    ids = spell.encode(prompt)
    script = [[Say("s", [60])], [Say("x", [61], "length")]]
    whole, found = both(spell, script, {"prompt": prompt, "echo": True, "logprobs": 1})
    choice = whole["choices"][0]
    assert choice["text"] == "the catsx" == text_of(found)
    lists = choice["logprobs"]
    assert len({len(values) for values in lists.values()}) == 1
    assert len(lists["tokens"]) == len(ids) + 2
    assert lists["token_logprobs"][0] is None
    assert lists["top_logprobs"][0] is None
    assert None not in lists["token_logprobs"][1:]
    assert lists["text_offset"][0] == 0
    assert lists["text_offset"][-2] == len(prompt)
    assert whole["usage"]["completion_tokens"] == 2
    assert "prompt_logprobs" not in choice


def test_the_prompt_alone(spell: Tokenizer) -> None:
    ids = spell.encode("the cat")
    script = [[Say("s", [60], "length", drafted=0)]]
    body = {"prompt": "the cat", "echo": True, "logprobs": 1, "max_tokens": 0}
    whole, found = both(spell, script, body)
    choice = whole["choices"][0]
    assert choice["text"] == "the cat" == text_of(found)
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == len(ids)
    assert whole["usage"]["completion_tokens"] == 0
    assert whole["usage"]["total_tokens"] == len(ids)
    assert found[-1]["usage"] == whole["usage"]


def test_echo_of_token_ids(spell: Tokenizer) -> None:
    ids = [1, *spell.encode("été", add_special=False), 2]
    script = [[Say("s", [60], "stop")]]
    body = {"prompt": ids, "echo": True, "logprobs": 0}
    choice = client(spell, script).whole(TEXT, body)["choices"][0]
    assert choice["text"] == "étés"
    assert choice["logprobs"]["text_offset"][:2] == [0, 0]
    assert choice["logprobs"]["text_offset"][-2:] == [3, 3]
    shown = client(spell, script).whole(TEXT, {**body, "skip_special_tokens": False})
    assert shown["choices"][0]["text"] == "<|im_start|>été<|im_end|>s"


def test_prompt_log_probabilities(spell: Tokenizer) -> None:
    script = [[Say("s", [60])], [Say("x", [61], "stop")]]
    whole, found = both(spell, script, {"prompt": [5, 6, 7], "prompt_logprobs": 1})
    given = whole["choices"][0]["prompt_logprobs"]
    assert given[0] is None
    assert given[1] == {
        "6": {"logprob": -0.5, "rank": None, "decoded_token": spell.token_bytes(6).decode()},
        "7": {"logprob": -0.25, "rank": 1, "decoded_token": spell.token_bytes(7).decode()},
    }
    assert found[0]["choices"][0]["prompt_logprobs"] == given
    assert "prompt_logprobs" not in found[1]["choices"][0]


# Several prompts and choices


def two_prompts(asked: Asked) -> Script:
    """Each of the two choices tells the prompt's first token."""
    mark = str(asked.prompt[0])
    return [
        [Say(f"a{mark}", [10], index=1)],
        [Say(f"b{mark}", [11], index=0), Say("c", [12], "stop", index=1)],
        [Say("d", [13, 14], "length", index=0)],
    ]


def test_prompts_and_choices_are_kept_apart(spell: Tokenizer) -> None:
    body = {"prompt": [[5, 6], [7]], "n": 2}
    whole, found = both(spell, two_prompts, body)
    texts = ["b5d", "a5c", "b7d", "a7c"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert [c["finish_reason"] for c in whole["choices"]] == ["length", "stop"] * 2
    assert [text_of(found, index) for index in range(4)] == texts
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] == 10
    assert found[-1]["usage"] == whole["usage"]
    assert whole["speculation"]["steps"] == 8


def test_token_ids_come_along(spell: Tokenizer) -> None:
    script = [[Say("a", [10, 11])], [Say("b", [12], "stop")]]
    whole, found = both(spell, script, {"prompt": [5, 6], "return_token_ids": True})
    assert whole["choices"][0]["token_ids"] == [10, 11, 12]
    assert whole["choices"][0]["prompt_token_ids"] == [5, 6]
    choices = [chunk["choices"][0] for chunk in found[:-1]]
    assert [choice["token_ids"] for choice in choices] == [[10, 11], [12]]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[5, 6], None]


def test_the_salt_and_the_names_of_requests(spell: Tokenizer) -> None:
    told = client(spell, [[Say("a", [10], "stop")]])
    whole = told.whole(TEXT, {"prompt": [[5], [6]], "cache_salt": "mine"})
    assert {asked.cache_salt for asked in told.llm.asked} == {"mine"}
    assert {a.request_id for a in told.llm.asked} == {f"{whole['id']}-0", f"{whole['id']}-1"}


# What goes wrong


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_a_400_streamed_or_not(spell: Tokenizer, stream: bool) -> None:
    told = client(spell, RequestError("stop_token_ids: 999 is outside the vocabulary of 288"))
    error = told.refused(TEXT, {"prompt": ["a", "b"], "stream": stream})
    assert error["param"] == "stop_token_ids"
    assert told.service.in_flight == 0


def test_a_closed_engine_is_a_503(spell: Tokenizer) -> None:
    told = client(spell, ConfigError("AsyncLLM: is closed"))
    assert "AsyncLLM" not in told.refused(TEXT, {"prompt": "a"}, 503)["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_is_a_500_that_tells_nothing(spell: Tokenizer, stream: bool) -> None:
    told = client(spell, OSError("/secret/path"))
    error = told.refused(TEXT, {"prompt": "a", "stream": stream}, 500)
    assert "secret" not in str(error)


def test_a_fault_in_the_middle_is_the_last_event(spell: Tokenizer) -> None:
    told = client(spell, [[Say("a", [10])]], broken=ValueError("secret"))
    reply = told.post(TEXT, {"prompt": "a", "stream": True})
    *_, last, end = reply.text.split("\n\n")
    assert reply.status == 200
    assert reply.complete
    assert end == ""
    assert last.startswith('data: {"error":')
    assert "secret" not in reply.text
    assert "[DONE]" not in reply.text
    assert told.service.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_engine_gave_up(spell: Tokenizer, stream: bool) -> None:
    told = client(spell, [[Say("", [], "abort", "the model gave no usable logits: secret")]])
    error = told.refused(TEXT, {"prompt": "a", "stream": stream}, 500)
    assert error["type"] == "server_error"
    assert "secret" not in str(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"echo": True, "max_tokens": 0}], ids=["text", "prompt"])
def test_options_that_leave_no_token(spell: Tokenizer, more: dict[str, Any], stream: bool) -> None:
    """Also where the token that cannot be written would not be shown."""
    told = client(spell, [[Say("", [], "abort", NO_TOKEN_LEFT)]])
    error = told.refused(TEXT, {"prompt": "a", "stream": stream, **more})
    assert (error["code"], error["type"]) == ("no_token_left", "invalid_request_error")


@pytest.mark.parametrize("steps", [[3], [1, 2], [1, 1, 1]])
def test_what_comes_with_a_failure_is_told_first(spell: Tokenizer, steps: list[int]) -> None:
    """However many tokens a step brings: with drafts it brings those before the end as well."""
    script, at = [], 0
    for size in steps:
        at += size
        end = "abort" if at == 3 else None
        why = NO_TOKEN_LEFT if end else None
        script.append([Say("abc"[at - size : at], [10] * size, end, why)])
    reply = client(spell, script).post(TEXT, {"prompt": "a", "stream": True})
    *parts, last, end = reply.text.split("\n\n")
    assert (reply.status, end) == (200, "")
    found = [json.loads(part.removeprefix("data: ")) for part in parts]
    assert text_of(found) == "abc"
    assert all(choice["finish_reason"] is None for part in found for choice in part["choices"])
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "no_token_left"
    assert client(spell, script).refused(TEXT, {"prompt": "a"})["code"] == "no_token_left"


def test_requests_are_counted(spell: Tokenizer) -> None:
    told = client(spell, [[Say("a", [10])], [Say("b", [11], "length")]])
    told.whole(TEXT, {"prompt": [[5], [6]], "max_tokens": 2})
    rows = told.service.recent.rows()
    assert len(rows) == 2
    page = told.service.metrics.text().decode()
    assert 'wager:request_success_total{finished_reason="length",model="tiny"} 2.0' in page
    assert 'wager:requests_received_total{model="tiny"} 2.0' in page
