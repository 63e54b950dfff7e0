"""Where reasoning begins, and how many tokens it took."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from tests.models.templates import DISTILLED, QWEN3
from tests.server.parsing.scripted import REPLIES, of_kind, run
from tests.tiny import tokenizer_json
from wager.models.chat import ChatTemplate
from wager.models.tokenizer import Tokenizer
from wager.server.parsing import opened_reasoning, reasoning_tokens

TINY = Tokenizer(
    Backend.from_str(json.dumps(tokenizer_json(288))), name="test", digest="", vocab_size=288
)
HI = [{"role": "user", "content": "Hi <think>"}]


def test_opened_by_the_template() -> None:
    prompt = ChatTemplate(DISTILLED, {}, "m").render(HI)
    assert opened_reasoning(prompt)
    qwen = ChatTemplate(QWEN3, {}, "m")
    assert not opened_reasoning(qwen.render(HI))
    assert not opened_reasoning(qwen.render(HI, kwargs={"enable_thinking": False}))


def test_opened_by_the_message_that_is_continued() -> None:
    qwen = ChatTemplate(QWEN3, {}, "m")
    for final, opened in (("<think>\nSo,", True), ("<think>a</think>b", False), ("Once", False)):
        messages = [*HI, {"role": "assistant", "content": final}]
        prompt = qwen.render(messages, continue_final_message=True)
        assert opened_reasoning(prompt, final) == opened


@pytest.mark.parametrize(
    ("text", "opened", "counted"),
    [
        ("<think>a b</think>c", False, "<think>a b</think>"),
        (" \n<think>a b</think>c", False, " \n<think>a b</think>"),
        ("a b</think>c", True, "a b</think>"),
        ("a b", True, "a b"),
        ("<think>a", False, "<think>a"),
        ("a <think>b</think>", False, ""),
        ("<thi", False, ""),
        ("", True, ""),
        ("", False, ""),
    ],
)
def test_tokens_are_counted_with_the_marks(text: str, opened: bool, counted: str) -> None:
    ids = TINY.encode(text, add_special=False)
    expected = 0
    while len(TINY.decode(ids[:expected], skip_special=False)) < len(counted):
        expected += 1
    assert reasoning_tokens(TINY, ids, opened) == expected


@given(text=REPLIES, opened=st.booleans())
@settings(deadline=None)
def test_never_more_than_there_are(text: str, opened: bool) -> None:
    """Wherever a stop or the budget cuts the reply."""
    ids = TINY.encode(text, add_special=False)
    counts = [reasoning_tokens(TINY, ids[:n], opened) for n in range(len(ids) + 1)]
    assert all(count <= n for n, count in enumerate(counts))
    if of_kind(run(text, tools=None, opened=opened), "reasoning"):
        assert counts[-1] > 0
