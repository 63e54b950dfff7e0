from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.bench.workloads.checks import code_block, followed, loops

SOURCE = "def f(a):\n    return a\n"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (f"```python\n{SOURCE}```", True),
        (f"Here you are:\n\n```\n{SOURCE}```\nDone.", True),
        ("```python\ndef f(a):   \n    return a\n\n```", True),
        (SOURCE, False),
        (f"```python\n{SOURCE}", False),
        ("```python\ndef f(b):\n    return b\n```", False),
        (f"```python\n{SOURCE}extra\n```", False),
        ("", False),
    ],
)
def test_followed(reply: str, expected: bool) -> None:
    assert followed(reply, SOURCE) is expected


def test_the_first_block_counts() -> None:
    assert code_block("```a\nx\n```\n```b\ny\n```") == "x"
    assert code_block("no block") is None


@given(st.integers(1, 32), st.lists(st.integers(100, 1000), max_size=40), st.data())
def test_a_repeated_tail_is_a_loop(period: int, before: list[int], data: st.DataObject) -> None:
    unit = data.draw(st.lists(st.integers(0, 9), min_size=period, max_size=period))
    copies = -(-max(64, 3 * period) // period)
    assert loops([*before, *unit * copies])


@given(st.lists(st.integers(0, 9), max_size=63))
def test_a_short_reply_never_loops(reply: list[int]) -> None:
    assert not loops(reply)


def test_what_is_not_a_loop() -> None:
    counting = list(range(500))
    assert not loops(counting)
    assert not loops(counting + counting)  # a copy of a long text: its period is above 32
    assert not loops([1, 2, 3] * 40 + [9])  # it got out of the loop
    assert not loops(list(range(32)) * 2 + list(range(31)))
    assert loops([7] * 64)
    assert loops([1, 2, 3] * 22)
