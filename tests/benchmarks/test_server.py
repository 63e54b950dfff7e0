"""What `benchmarks.soak` and `benchmarks.server` make of what they see."""

from __future__ import annotations

import json
import random

import pytest
from benchmarks.serving import join, text_of

from benchmarks import server, soak


def test_requests_are_the_same_for_a_seed() -> None:
    first, second = soak.Requests(3, 49152), soak.Requests(3, 49152)
    bodies = [first.next() for _ in range(300)]
    assert bodies == [second.next() for _ in range(300)]
    assert len({json.dumps(body) for body in bodies}) == 300
    asked = [body.get("speculation") for body in bodies]
    assert {"enabled": False} in asked
    assert None in asked
    lengths = {one["num_speculative_tokens"] for one in asked if one and len(one) == 1
               and "num_speculative_tokens" in one}  # fmt: skip
    assert len(lengths) > 8
    assert {"messages", "prompt"} <= {name for body in bodies for name in body}
    for body in bodies:
        assert body.get("min_tokens", 0) <= body["max_tokens"]


def test_the_sample_is_a_fair_one() -> None:
    found = soak.Soak(50, random.Random(1))
    told = {"drafted": 4, "accepted": 1}
    for number in range(1000):
        choice = {"index": 0, "text": str(number), "finish_reason": "stop"}
        reply = {"usage": {"completion_tokens": 2}, "speculation": told, "choices": [choice]}
        found.answered({"seed": number}, reply)
    assert len(found.kept) == 50
    assert found.counts["tokens"] == 2000
    assert sum(body["seed"] < 500 for body, _ in found.kept) in range(10, 41)


def test_memory_that_grows_is_found() -> None:
    flat = [(10.0 * t, 1000 if t < 10 else 2000) for t in range(60)]
    assert soak.growth(flat) == 0
    leak = [(10.0 * t, 1000 + 20 * t) for t in range(60)]
    assert (soak.growth(leak) or 0) > soak.GROWTH
    for short in (leak[:30], leak[:2], []):
        assert soak.growth(short) is None


def test_a_soak_that_went_wrong_says_so() -> None:
    found = soak.Soak(2, random.Random(1))
    found.memory = [(50.0 * t, 1 << 30) for t in range(12)]
    page = {"wager:kv_cache_usage_perc": 0.0, "wager:num_preemptions_total": 3.0}
    text, good = soak.report(found, 60.0, page, [])
    assert all(aim.met for aim in good)
    assert "n/a" in text
    found.counts["errors"] = 1
    _, bad = soak.report(found, 60.0, {**page, "wager:kv_cache_usage_perc": 0.1}, ["x"])
    assert [aim.met for aim in bad] == [False, False, False, True]


def test_a_stream_is_put_together() -> None:
    reply: dict = {}
    for text, reason in (("a", None), ("b", None), ("", "stop")):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
        join(reply, {"choices": [choice]})
    join(reply, {"choices": [], "usage": {"completion_tokens": 2}, "speculation": {"steps": 1}})
    assert text_of(reply) == [("ab", "stop")]
    assert reply["usage"] == {"completion_tokens": 2}
    message = {"message": {"content": "ab"}, "finish_reason": "stop"}
    assert text_of({"choices": [message]}) == [("ab", "stop")]


def test_the_server_s_tables_and_aims() -> None:
    found = {
        "first": {"1": {"off": 20.0, "on": 20.4, "ratio": 1.02},
                  "8": {"off": 60.0, "on": 66.0, "ratio": 1.1}},
        "overhead": {"plain": {"library": 500.0, "server": 490.0},
                     "ngram": {"library": 800.0, "server": 700.0}},
        "json": {"asked": 64, "valid": 64, "same": 64, "drafted": 0, "accepted": 0,
                 "plain_s": 2.0, "drafts_s": 1.0},
    }  # fmt: skip
    assert [aim.met for aim in server.aims(found)] == [True, False, True, True, True]
    text = server.report(found)
    assert "n/a" in text
    assert "| 64 | 64 | 64 |" in text


def test_valid_answers() -> None:
    good = json.dumps({"status": "open", "apples": 1, "pears": 2, "plums": 3})
    assert server.valid((good, "stop"))
    assert not server.valid((good, "length"))
    assert not server.valid((good[:-1], "stop"))
    assert not server.valid((good.replace("open", "shut"), "stop"))


def test_prompts_are_of_both_kinds() -> None:
    drawn = server.drawn(8)
    assert len(drawn) == 8
    assert len({prompt.id for prompt in drawn}) == 8
    assert all((prompt.params.max_tokens or 0) <= server.TOKENS for prompt in drawn)
    assert server.json_body(1, True) == server.json_body(1, True)
    with pytest.raises(KeyError):
        _ = server.json_body(1, False)["stream"]
