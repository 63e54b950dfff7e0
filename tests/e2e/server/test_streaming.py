"""A stream, put together, is the reply: 500 random texts, cut by steps of random size.

Characters of one to four bytes, marks that join the one before them, emoji of several characters,
scripts that run the other way: byte-level tokens cut them anywhere, and a step brings 1 to 17.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server.answers import PLAINLY, STREAMED, ask, ask_all
from tests.e2e.server.harness import Live, serving
from tests.recipes import ngram, recipe

COUNT = 500
PARTS = [
    "a", "the ", "Z", "\n", "\t", '"', "\\", "}", " ", "  ", "é", "ß", "ñ", "Ж", "א", "ש", "ع",
    "강", "물", "日", "本", "\u2028", "\u0085", "\ufeff", "…", "“", "€", "ﬀ", "e\u0301", "\u200d",
    "🙂", "🏳️‍🌈", "👩🏽‍🚀", "\U0001d518", "🇰🇷", "\U0010fffd", "<b>", "data: ", "[DONE]", "\r\n",
]  # fmt: skip


def texts(count: int = COUNT, seed: int = 27) -> list[str]:
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(PARTS, k=rng.randint(1, 14)))] = None
    return list(found)


TEXTS = texts()


def body(number: int) -> dict[str, Any]:
    """The answer can only be the text, whichever tokens write it."""
    return {
        "prompt": [5 + number % 250, 5 + number // 250, 7], "seed": number, "max_tokens": 400,
        "temperature": (0, 0.8, 1.5)[number % 3],
        "structured_outputs": {"choice": [TEXTS[number]]},
    }  # fmt: skip


@pytest.mark.parametrize("block", range(5))
def test_streams_and_replies_are_the_text(block: int, served_path: Path) -> None:
    numbers = range(block * COUNT // 5, (block + 1) * COUNT // 5)
    known = []
    with serving(served_path, max_num_seqs=16) as plain:
        expected = ask_all(plain, [body(n) for n in numbers], width=16)
        for n, answer in zip(numbers, expected, strict=True):
            assert answer.text == TEXTS[n]
            assert answer.reason == "stop"
            prompt = tuple(body(n)["prompt"])
            known.append([*prompt, *plain.recorder.ids[n, prompt, 0]])
    way = {**recipe("Oracle", 16, texts=known), "method": "tests.e2e.server.drafters:Stride"}
    with serving(served_path, speculation=way, max_num_seqs=8, prefix_cache=False) as live:
        streamed = ask_all(live, [{**body(n), **STREAMED} for n in numbers])
        assert streamed == expected
        assert ask_all(live, [body(n) for n in numbers]) == expected
        told = [answer.speculation for answer in streamed if answer.speculation is not None]
        assert sum(one["accepted"] for one in told) > sum(one["steps"] for one in told)
        live.survives()


def test_chats_too(plain: Live, served_path: Path) -> None:
    with serving(served_path, speculation=ngram(8, low=1), max_num_seqs=8) as live:
        bodies = []
        # Text that begins with white space or a mark of reasoning is for the parser's own tests.
        chosen = [text for text in TEXTS if text == text.strip()][:60]
        for number, text in enumerate(chosen):
            bodies.append({
                "messages": [{"role": "user", "content": text}], "seed": number,
                "max_tokens": 400, "structured_outputs": {"choice": [text]},
            })  # fmt: skip
        streamed = ask_all(live, [{**one, **STREAMED} for one in bodies])
        assert [answer.text for answer in streamed] == chosen
        assert ask_all(plain, bodies, width=1) == streamed


# 27: characters that the end of an answer cuts


@pytest.mark.parametrize("most", range(1, 13))
def test_an_emoji_is_cut_by_max_tokens(most: int, plain: Live, served_path: Path) -> None:
    """Four tokens each. What is whole comes as it is; of the rest comes one U+FFFD, at the end."""
    asked = {"prompt": [5, 6], "structured_outputs": {"regex": "🙂{6}"}, "max_tokens": most}
    expected = "🙂" * (most // 4) + ("\ufffd" if most % 4 else "")
    with serving(served_path, speculation=ngram(8, low=1)) as live:
        for one in (asked, {**asked, **STREAMED}, {**asked, **PLAINLY, **STREAMED}):
            answer = ask(live, one)
            assert answer.text == expected
            assert answer.tokens == most
        assert ask(plain, asked).text == expected


def test_pieces_are_never_half_a_character(served_path: Path) -> None:
    with serving(served_path, speculation=ngram(8, low=1)) as live:
        asked = {"prompt": [5], "structured_outputs": {"regex": "(🙂|é|日){30}"}, "seed": 2,
                 "max_tokens": 300, "temperature": 1.2}  # fmt: skip
        answer = ask(live, {**asked, **STREAMED})
        pieces = [given["text"] for chunk in answer.raw for given in chunk["choices"]]
        assert "\ufffd" not in "".join(pieces)
        assert len(answer.text) == 30
        assert answer.reason == "stop"


def test_free_text_of_a_random_model(plain: Live, served_path: Path) -> None:
    """Bytes that form no characters; what is broken is the same in all forms."""
    bodies = [
        {"prompt": [5, 6, n], "seed": n, "temperature": 2.0, "max_tokens": 40, "ignore_eos": True}
        for n in range(3, 103)
    ]  # fmt: skip
    expected = ask_all(plain, bodies, width=1)
    assert any("\ufffd" in answer.text for answer in expected)
    with serving(served_path, speculation=ngram(8, low=1), max_num_seqs=8) as live:
        assert ask_all(live, [{**one, **STREAMED} for one in bodies]) == expected
        live.survives()
