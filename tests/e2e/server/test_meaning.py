"""What the fields of a request do: each has an effect that can be seen, with drafts as without.

The drafter knows the right answer (`Oracle`), so that every block is accepted, or is n-gram.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server.answers import CHAT, PLAINLY, STREAMED, TEXT, Answer, ask, ask_all, joined
from tests.e2e.server.harness import Live, events, refusal, serving, strict
from tests.recipes import ngram, prompts, recipe

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": 2}
HOT: dict[str, Any] = {**GREEDY, "temperature": 1.5}
PROMPT = [104, 101, 108, 108, 111] * 3


@pytest.fixture(scope="module")
def live(served_path: Path) -> Iterator[Live]:
    with serving(
        served_path, speculation=ngram(8, low=1, high=4), max_num_seqs=8, max_batch_tokens=32
    ) as live:
        yield live


def both(live: Live, **body: Any) -> Answer:
    """The same with drafts and without, streamed and not: all equal; the plain one."""
    base: dict[str, Any] = {"seed": 5, **body}
    if "messages" not in base:
        base.setdefault("prompt", PROMPT)
    plain, *others = ask_all(
        live, [{**base, **PLAINLY}, base, {**base, **STREAMED}, {**base, **STREAMED, **PLAINLY}]
    )
    for other in others:
        assert other == plain
    return plain


def ids_of(live: Live, body: dict[str, Any]) -> list[int]:
    """Token ids of the greedy answer to a completion."""
    ask(live, body)
    return live.recorder.ids[body["seed"], tuple(body["prompt"]), 0]


# 19, 20: history and biases inside of a block


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalties_see_the_drafts_before_them(name: str, live: Live) -> None:
    texts = {value: both(live, **GREEDY, **{name: value}).text for value in (-2, 0, 2)}
    assert texts[2] != texts[-2]
    assert texts[2] != texts[0]


def test_a_block_with_a_repeat_in_it(served_path: Path) -> None:
    """The text that plain decoding gives under the penalty is drafted as a whole."""
    body = {**GREEDY, "prompt": PROMPT, "seed": 5, "frequency_penalty": -2}
    with serving(served_path) as plain:
        ids = ids_of(plain, body)
        expected = ask(plain, body)
    assert len(set(ids)) < len(ids), "nothing repeats"
    with serving(served_path, speculation=recipe("Oracle", 8, texts=[PROMPT + ids])) as live:
        found = ask(live, body)
        assert found == expected
        assert found.speculation is not None
        assert found.speculation["drafted"] == found.speculation["accepted"] > 0
        # Against a penalty the same drafts are wrong, and the answer is right.
        other = {**body, "frequency_penalty": 2}
        assert ask(live, other) == ask(live, {**other, **PLAINLY})


def test_repetition_penalty(live: Live) -> None:
    assert both(live, **GREEDY, repetition_penalty=1.8).text != both(live, **GREEDY).text


def test_a_banned_token_never_comes_and_a_forced_one_always(live: Live) -> None:
    body = {**GREEDY, "prompt": PROMPT, "seed": 5}
    ids = ids_of(live, body)
    banned = ids[3]
    both(live, **GREEDY, logit_bias={str(banned): -100})
    assert banned not in live.recorder.ids[5, tuple(PROMPT), 0]
    both(live, **GREEDY, logit_bias={"70": 100})
    assert set(live.recorder.ids[5, tuple(PROMPT), 0]) == {70}


def test_allowed_ids_and_bad_words(live: Live) -> None:
    allowed = [70, 71, 72, 90]
    both(live, **HOT, allowed_token_ids=allowed)
    assert set(live.recorder.ids[5, tuple(PROMPT), 0]) <= set(allowed)
    tokenizer = live.llm.llm.tokenizer
    free = ids_of(live, {**HOT, "prompt": PROMPT, "seed": 5})
    words = {token: tokenizer.decode([token]) for token in free}
    bad = next(t for t, word in words.items() if word and tokenizer.encode(word) == [t])
    both(live, **HOT, bad_words=[words[bad]])
    assert bad not in live.recorder.ids[5, tuple(PROMPT), 0]


def test_filters(live: Live) -> None:
    greedy = both(live, **GREEDY).text
    assert both(live, **HOT).text != greedy
    assert both(live, **HOT, top_k=1).text == greedy
    assert both(live, **HOT, top_p=1e-6).text == greedy
    assert both(live, **HOT, min_p=1).text == greedy
    assert both(live, **HOT, min_p=0.9).choices[0].finish_reason == "length"


def test_seeds(live: Live) -> None:
    found = {seed: both(live, **HOT, seed=seed).text for seed in (1, 2, 3)}
    assert len(set(found.values())) == 3
    assert both(live, **HOT, seed=2).text == found[2]


# 25, 42: log-probabilities of the prompt


def test_prompts_around_the_size_of_a_chunk(live: Live, plain: Live) -> None:
    """32 rows per step here, one piece there."""
    made = [prompts(1, 288, seed, (length, length))[0]
            for seed, length in enumerate((30, 31, 32, 33, 34, 63, 64, 65))]  # fmt: skip
    bodies = [{"prompt": p, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
              for p in made]  # fmt: skip
    expected = ask_all(plain, bodies, width=1)
    assert ask_all(live, bodies) == expected
    assert ask_all(live, [{**body, **STREAMED} for body in bodies]) == expected
    for prompt, answer in zip(made, expected, strict=True):
        told = answer.choices[0].logprobs
        assert len(told["token_logprobs"]) == len(prompt) + 1
        assert told["token_logprobs"][0] is None
        assert all(value <= 0 for value in told["token_logprobs"][1:])
        assert len(set(told["token_logprobs"][1:])) > 1


def test_prompt_logprobs(live: Live, plain: Live) -> None:
    body = {"prompt": PROMPT, "prompt_logprobs": 2, "max_tokens": 2, "temperature": 0}
    expected = ask(plain, body)
    assert ask(live, body) == expected
    told = expected.prompt_logprobs or expected.choices[0].prompt_logprobs
    assert len(told) == len(PROMPT)
    assert told[0] is None
    assert all(told[1:])


@pytest.mark.parametrize("choices", [1, 2, 3])
def test_a_prompt_that_is_in_the_cache_is_scored(choices: int, live: Live, plain: Live) -> None:
    """One choice has to compute all of it again, and the others may be ahead of it."""
    prompt = prompts(1, 288, 77, (200, 200))[0]
    ask(live, {"prompt": prompt, "max_tokens": 1, "temperature": 0})
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "prompt_logprobs": 2, "n": choices,
            "max_tokens": 12, "temperature": 0.7, "seed": 1, "ignore_eos": True}  # fmt: skip
    expected = ask(plain, body)
    for more in ({}, STREAMED):
        found = ask(live, {**body, **more})
        assert found == expected
        for choice in found.choices.values():
            assert len(choice.prompt_logprobs) == 200
            assert choice.logprobs["token_logprobs"].count(None) == 1


def test_nothing_but_the_prompt(live: Live) -> None:
    """echo with max_tokens 0: the prompt's log-probabilities and no new token, or a refusal."""
    body = {"prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
    reply = live.post(TEXT, body)
    if reply.status_code != 200:
        refusal(reply, "max_tokens")
    else:
        body = strict(reply.text)
        assert body["usage"]["completion_tokens"] == 0
        assert len(body["choices"][0]["logprobs"]["tokens"]) == len(PROMPT)
    live.survives()


def test_one_entry_for_each_token(live: Live) -> None:
    for temperature in (0, 0.8):
        made = {"messages": [{"role": "user", "content": "stone stone stone"}], "max_tokens": 16,
                "temperature": temperature, "ignore_eos": True, "logprobs": True,
                "top_logprobs": 5}  # fmt: skip
        told = both(live, **made).choices[0].logprobs
        assert len(told) == 16
        assert all(len(entry["top_logprobs"]) >= 5 for entry in told)
        assert any(entry["logprob"] < -1e-3 for entry in told)
        for entry in told:
            assert bytes(entry["bytes"]) is not None
            ranked = [one["logprob"] for one in entry["top_logprobs"]]
            assert ranked == sorted(ranked, reverse=True)


# 88: reasons


def test_a_stream_says_why_it_ended_once_and_at_the_end(live: Live) -> None:
    for route, body in (
        (TEXT, {"prompt": PROMPT}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})
    ):  # fmt: skip
        asked = {**body, "max_tokens": 3, "ignore_eos": True, "seed": 1, "stream": True}
        chunks = events(live.post(route, asked).text.split("\n"))
        assert joined(chunks).choices[0].finish_reason == "length"
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
        assert reasons[-1] == "length"
        assert set(reasons[:-1]) <= {None}
        # Usage was not asked for.
        assert all(chunk.get("usage") is None for chunk in chunks)
        assert all(len(chunk["choices"]) == 1 for chunk in chunks)


def test_reasons(live: Live) -> None:
    free = both(live, **HOT)
    assert free.choices[0].finish_reason == "length"
    assert free.tokens == 24
    stop = free.text[4:6]
    stopped = both(live, **HOT, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].stop_reason == stop
    assert stopped.text == free.text[: free.text.index(stop)]
    kept = both(live, **HOT, stop=[stop], include_stop_str_in_output=True)
    assert kept.text == stopped.text + stop
    ids = ids_of(live, {**HOT, "prompt": PROMPT, "seed": 5})
    token = next(t for t in ids[7:] if t > 2)  # the first three are the model's own end tokens
    ended = both(live, **HOT, stop_token_ids=[token])
    assert ended.choices[0].finish_reason == "stop"
    assert ended.choices[0].stop_reason == token
    assert ended.tokens == ids.index(token) + 1
    for least in (ended.tokens, ended.tokens + 2):
        later = both(live, **HOT, stop_token_ids=[token], min_tokens=least)
        assert later.tokens >= least


def test_exactly_as_many_tokens_as_asked(live: Live) -> None:
    for most in range(1, 17):
        answer = both(live, **{**GREEDY, "max_tokens": most})
        assert answer.tokens == most
        assert len(answer.choices[0].logprobs["tokens"]) == most


# 89: the end of the context


@pytest.mark.parametrize("drafts", [None, ngram(16, low=1)], ids=["plain", "drafts"])
def test_prompts_at_the_end_of_the_context(drafts: Any, short_path: Path) -> None:
    with serving(short_path, speculation=drafts) as live:
        context = live.llm.llm.engine.max_model_len
        assert context == 96
        for length in (context + 1, context):
            for more in ({}, {"stream": True}, {"max_tokens": 1}):
                reply = live.post(TEXT, {"prompt": [5] * length, **more})
                message = refusal(reply, "prompt")["message"]
                assert str(length) in message
                assert str(context) in message
        for words in (context, 2 * context):
            talk = {"messages": [{"role": "user", "content": "a " * words}]}
            length = strict(live.post("/tokenize", talk).text)["count"]
            assert length >= context
            for more in ({}, {"stream": True}, {"max_completion_tokens": 1}):
                message = refusal(live.post(CHAT, {**talk, **more}), "messages")["message"]
                assert f"{length} tokens" in message
                assert f"holds {context}" in message
        # Room for one, and a hundred asked for: what there is room for, or a refusal that says so.
        reply = live.post(TEXT, {"prompt": [5] * (context - 1), "max_tokens": 100})
        if reply.status_code == 200:
            body = strict(reply.text)
            assert body["usage"]["completion_tokens"] == 1
            assert body["choices"][0]["finish_reason"] in {"length", "stop"}
        else:
            assert str(context) in refusal(reply)["message"]
        for most in (1, 20, 40):
            answer = ask(live, {"prompt": [5, 6] * 28, "max_tokens": most, "ignore_eos": True})
            assert answer.tokens == most
        full = ask(live, {"prompt": [5, 6] * 28, "max_tokens": None, "ignore_eos": True, "seed": 1})
        assert full.tokens == context - 56
        assert full.reason == "length"
        live.survives()
