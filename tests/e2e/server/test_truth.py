"""The figures of replies and of /metrics, against traces that were reckoned by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server.answers import PLAINLY, STREAMED, ask, ask_all
from tests.e2e.server.drafters import ASKED, GATE
from tests.e2e.server.harness import Live, serving, strict
from tests.recipes import ngram, prompts, recipe

HERE = "tests.e2e.server.drafters"
DRAFTS = "wager:spec_decode_num_drafts_total"
DRAFTED = "wager:spec_decode_num_draft_tokens_total"
ACCEPTED = "wager:spec_decode_num_accepted_tokens_total"
BY_POSITION = "wager:spec_decode_num_accepted_tokens_per_pos_total"


def drafter(name: str, k: int, **options: Any) -> dict[str, Any]:
    return {**recipe("Oracle", k, **options), "method": f"{HERE}:{name}"}


def figures(live: Live) -> dict[str, float]:
    """The samples of the metrics page, summed over labels, but for positions."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(live.get("/metrics").text):
        for sample in family.samples:
            name = sample.name
            if "position" in sample.labels:
                name += f"[{sample.labels['position']}]"
            found[name] = found.get(name, 0.0) + sample.value
    return found


def change(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def known_text(path: Path, prompt: list[int], tokens: int, **more: Any) -> list[int]:
    """The answer of plain decoding."""
    with serving(path) as plain:
        ask(plain, {**greedy(prompt, tokens), **more})
        return plain.recorder.ids[1, tuple(prompt), 0]


def greedy(prompt: list[int], tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "seed": 1}


# 63: what was thrown away does not count as checked, partial acceptance counts as what it is


def test_a_trace_reckoned_by_hand(served_path: Path) -> None:
    """Two right tokens and two wrong ones in each draft of four, 19 tokens.

    The prompt's step brings 1. Five steps draft 4, accept 2, commit 3; three tokens are left, so
    the last one drafts 2, accepts both and commits 3.
    """
    prompt = [40, 41, 42, 43]
    ids = known_text(served_path, prompt, 19)
    way = drafter("Pattern", 4, texts=[prompt + ids], right=2, wrong=2)
    with serving(served_path, speculation=way) as live:
        before = figures(live)
        answer = ask(live, {**greedy(prompt, 19), **STREAMED})
        live.settle()
        after = figures(live)
        told = answer.speculation
        assert told is not None
        assert (told["steps"], told["drafted"], told["accepted"]) == (7, 22, 12)
        assert told["by_position"] == [6, 6, 0, 0]
        assert told["tokens_per_step"] == pytest.approx(19 / 7, abs=1e-4)
        assert change(before, after, DRAFTS) == 6
        assert change(before, after, DRAFTED) == 22
        assert change(before, after, ACCEPTED) == 12
        at = [change(before, after, f"{BY_POSITION}[{j}]") for j in range(4)]
        assert at == [6, 6, 0, 0]


def test_what_a_stop_cut_off_was_not_accepted(served_path: Path) -> None:
    """Everything is drafted right; the answer ends inside of a block."""
    prompt = [40, 41, 42, 43]
    ids = known_text(served_path, prompt, 24, temperature=1.5)
    way = recipe("Oracle", 16, texts=[prompt + ids])
    with serving(served_path, speculation=way) as live:
        before = figures(live)
        # A string: drafts do not go on behind a token that would end the answer.
        text = live.llm.llm.tokenizer.decode(ids)
        stop = text[len(text) // 3 :][:2]
        answer = ask(live, {**greedy(prompt, 24), "temperature": 1.5, "stop": [stop]})
        live.settle()
        after = figures(live)
        told = answer.speculation
        assert told is not None
        assert answer.reason == "stop"
        assert 2 < answer.tokens < 17
        assert told["accepted"] <= answer.tokens - 1
        assert told["accepted"] + told["steps"] >= answer.tokens
        assert change(before, after, ACCEPTED) == told["accepted"]
        assert told["drafted"] > told["accepted"]


# 65: pooled over steps, or the mean of the requests; both can be had, and they differ


def test_pooled_is_not_the_mean_of_the_requests(served_path: Path) -> None:
    """10 steps of about 5 tokens, and 100 of about 2."""
    first, second = [40, 41, 42, 43], [50, 51, 52, 53]
    ids = known_text(served_path, first, 46), known_text(served_path, second, 199)
    way = drafter("Pattern", 4, texts=[first + ids[0], second + ids[1]], right=4, wrong=0)
    with serving(served_path, speculation=way) as live:
        before = figures(live)
        long = ask(live, greedy(first, 46)).speculation
        short = ask(
            live, {**greedy(second, 199), "speculation": {"num_speculative_tokens": 1}}
        ).speculation
        live.settle()
        after = figures(live)
        assert long is not None
        assert short is not None
        assert (long["steps"], short["steps"]) == (10, 100)
        mean = (long["tokens_per_step"] + short["tokens_per_step"]) / 2
        assert mean == pytest.approx((4.6 + 1.99) / 2, abs=1e-3)
        # The metrics are sums: what is made of them is pooled.
        tokens = change(before, after, "wager:generation_tokens_total")
        steps = change(before, after, "wager:num_request_steps_total")
        assert (tokens, steps) == (245, 110)
        assert tokens / steps == pytest.approx(2.227, abs=1e-3)


# 49: bounds of the look-up that are in effect


@pytest.mark.parametrize(("low", "expected"), [(1, 1), (2, 0)])
def test_a_match_of_one_token_counts_only_where_one_is_enough(
    low: int, expected: int, served_path: Path
) -> None:
    """Everything written is token 9, which the prompt holds once: two steps that could draft."""
    prompt = [20, 9, 30, 31, 32, 33]
    with serving(served_path, speculation=ngram(4, low=low, high=4)) as live:
        answer = ask(live, {**greedy(prompt, 3), "allowed_token_ids": [9]})
        assert answer.speculation is not None
        assert answer.tokens == 3
        assert (answer.speculation["drafted"] > 0) == bool(expected)


# 56: the first token does not wait for a draft


def test_the_first_token_is_sent_before_anything_is_drafted(served_path: Path) -> None:
    GATE.clear()
    ASKED.clear()
    way = {**recipe("Oracle", 4), "method": f"{HERE}:Gate"}
    try:
        GATE.set()  # for the probe of the start
        with serving(served_path, speculation=way) as live:
            GATE.clear()
            ASKED.clear()
            # With log-probabilities every token is told, also one whose text is kept back.
            body = {**greedy([5, 6, 7], 12), "stream": True, "logprobs": 0}
            with live.http.stream("POST", f"{live.url}/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                text = next(line for line in lines if '"text"' in line)
                assert strict(text.removeprefix("data: "))["choices"][0]["text"] is not None
                assert not GATE.is_set()
                GATE.set()
                assert any("[DONE]" in line for line in lines)
            assert ASKED.is_set()
            live.survives()
    finally:
        GATE.set()


# 8: counts of a part never exceed the whole


def test_reasoning_tokens_never_exceed_all_tokens(served_path: Path) -> None:
    with serving(served_path, speculation=ngram(8, low=1), max_num_seqs=16) as live:
        bodies: list[dict[str, Any]] = []
        for number in range(200):
            body: dict[str, Any] = {
                "messages": [{"role": "user", "content": f"stone {number} stone {number}"}],
                "chat_template_kwargs": {"enable_thinking": number % 4 != 3},
                "max_tokens": 1 + number % 23, "seed": number, "temperature": 1.0,
            }  # fmt: skip
            if number % 3 == 0:
                body["stop"] = ["e", "th"]
            if number % 5 == 0:
                body.update(STREAMED)
            bodies.append(body)
        answers = ask_all(live, bodies, width=16)
        assert any(answer.usage["reasoning_tokens"] for answer in answers if answer.usage)
        # Accepted drafts are what could be counted twice.
        told = [answer.speculation for answer in answers if answer.speculation is not None]
        assert len(told) == len(bodies)
        assert sum(one["accepted"] for one in told) > 0
        for body, answer in zip(bodies, answers, strict=True):
            assert answer.usage is not None
            assert answer.usage["reasoning_tokens"] <= answer.tokens <= body["max_tokens"]
            if not body["chat_template_kwargs"]["enable_thinking"]:
                continue
            # It never stops thinking, or does and says something.
            choice = answer.choices[0]
            if not choice.text and choice.reasoning:
                assert answer.usage["reasoning_tokens"] == answer.tokens


# 44: drafts that are always wrong, and drafts that are empty


@pytest.mark.parametrize(
    "way", [recipe("Garbage", 8, constant=7), recipe("Garbage", 5)], ids=["constant", "random"]
)
def test_sixty_four_at_once_with_worthless_drafts(
    way: dict[str, Any], served_path: Path, plain: Live
) -> None:
    made = prompts(64, 288, seed=44, lengths=(1, 200))
    bodies = [
        {"prompt": p, "max_tokens": 4 + n % 40, "temperature": (0, 0.9)[n % 2], "seed": n,
         "ignore_eos": True}
        for n, p in enumerate(made)
    ]  # fmt: skip
    expected = ask_all(plain, bodies[:50], width=1)
    with serving(served_path, speculation=way, max_num_seqs=64, max_batch_tokens=128) as live:
        for _ in range(3):
            found = ask_all(live, bodies, width=64)
            assert found[:50] == expected
        live.survives()
        told = found[0].speculation
        assert told is not None
        assert told["drafted"] > told["accepted"]


# 55: many clients, and drafts that never pay: they are not verified


def test_the_controller_leaves_worthless_drafts_alone(served_path: Path, plain: Live) -> None:
    way = {**recipe("Garbage", 8, constant=7), "controller": "on"}
    bodies = [{**greedy([5, 6, n], 40), "temperature": 0.9, "seed": n} for n in range(3, 67)]
    with serving(served_path, speculation=way, max_num_seqs=32) as live:
        found = ask_all(live, bodies, width=32)
        assert found[:8] == ask_all(plain, bodies[:8], width=1)
        told = [answer.speculation for answer in found if answer.speculation is not None]
        assert len(told) == len(bodies)
        assert sum(one["drafted"] for one in told) < 0.1 * sum(answer.tokens for answer in found)
        live.survives()


# What every reply says


@pytest.fixture(scope="module")
def live(served_path: Path) -> Iterator[Live]:
    with serving(served_path, speculation=ngram(8, low=1), max_num_seqs=8) as live:
        yield live


def test_every_reply_tells_what_speculation_did(live: Live) -> None:
    body = greedy([5, 6, 7, 5, 6, 7, 5], 30)
    for more in ({}, STREAMED):
        told = ask(live, {**body, **more}).speculation
        assert told is not None
        assert {"steps", "drafted", "accepted", "by_position", "tokens_per_step", "draft_ms",
                "verify_ms", "estimated"} <= set(told)  # fmt: skip
        assert {"plain_ms", "speedup"} <= set(told["estimated"])
        assert told["drafted"] > 0
        for name in ("draft_ms", "verify_ms"):
            assert told[name] is None or 0 < told[name] < 60_000
    off = ask(live, {**body, **PLAINLY}).speculation
    assert off is not None
    assert (off["drafted"], off["accepted"], off["by_position"]) == (0, 0, [])
    assert off["tokens_per_step"] == 1
    assert off["estimated"]["speedup"] is None


def test_speed_and_timings(live: Live) -> None:
    reply = live.post("/v1/completions", greedy([5, 6, 7], 20))
    assert float(reply.headers["x-tokens-per-second"]) > 0
    timings = strict(reply.text)["timings"]
    assert timings["predicted_n"] == 20
    assert timings["prompt_n"] + timings["cache_n"] == 3
    for name in ("prompt_ms", "predicted_ms", "predicted_per_second"):
        assert math.isfinite(timings[name])
    assert timings["draft_n"] >= timings["draft_n_accepted"]
    plainly = strict(live.post("/v1/completions", {**greedy([5], 1), **PLAINLY}).text)
    assert "draft_n" not in plainly["timings"]
    live.survives()


def test_the_metrics_page_before_any_draft(served_path: Path) -> None:
    """Counters are there and 0 where nothing happened; what is not known is left out."""
    with serving(served_path) as live:
        page = live.get("/metrics")
        assert page.status_code == 200
        assert "wager:num_requests_running" in page.text
        assert "NaN" not in "".join(
            line for line in page.text.split("\n") if line.startswith("wager:")
        )
        live.survives()


def test_the_same_under_vllm_s_names(served_path: Path) -> None:
    with serving(
        served_path, served={"metrics_alias": "vllm"}, speculation=ngram(4, low=1)
    ) as live:
        ask(live, greedy([5, 6, 5, 6, 5, 6], 20))
        live.settle()
        found = figures(live)
        for name in (DRAFTS, DRAFTED, ACCEPTED, "wager:generation_tokens_total"):
            assert found[name] == found[name.replace("wager:", "vllm:")] > 0, name
