"""The twin run: 400 combinations of what a request can ask for, with and without speculation.

Each is asked of a plain server, alone, and of one that drafts: streamed or not, with 0, 4 or 16
draft tokens, eight at a time. Everything that the client sees is equal, and so are the token ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server.answers import TEXT, Answer, ask_all
from tests.e2e.server.combos import (
    COUNT,
    LENGTHS,
    Combination,
    beside_grammars,
    combinations,
    counted,
    letters,
)
from tests.e2e.server.harness import Live, error_of, serving, strict
from tests.recipes import ngram

BLOCK = 40
SAMPLE = combinations()


def test_the_sample_covers_every_field() -> None:
    found = counted(SAMPLE)
    rare = {"echo", "tools", "structured_outputs", "response_format", "chat_template_kwargs",
            "continue_final_message", "allowed_token_ids", "bad_words", "prompt_logprobs",
            "stop_token_ids", "cache_salt", "n", "min_p", "logit_bias"}  # fmt: skip
    assert len(SAMPLE) == COUNT
    assert all(found[name] >= 8 for name in rare), found
    assert min(found[name] for name in ("temperature", "stop", "logprobs", "messages")) >= 60
    cells = {(c.length, c.stream) for c in SAMPLE}
    assert cells == {(length, stream) for length in LENGTHS for stream in (False, True)}
    assert combinations() == SAMPLE


def compare(live_plain: Live, live: Live, sample: list[Combination]) -> tuple[int, int]:
    """All of the sample equal; returns drafted and accepted tokens."""
    expected = ask_all(live_plain, [c.body for c in sample], width=1)
    found = ask_all(live, [c.twin for c in sample], width=8)
    drafted = accepted = 0
    for combination, plain, twin in zip(sample, expected, found, strict=True):
        assert twin == plain, combination
        ids = live.recorder.of(combination.number)
        assert ids == live_plain.recorder.of(combination.number), combination
        assert ids
        told = _told(twin, combination)
        drafted += told[0]
        accepted += told[1]
    live.survives()
    return drafted, accepted


def _told(twin: Answer, combination: Combination) -> tuple[int, int]:
    """Drafted and accepted tokens of a reply, which agree with what was asked."""
    told = twin.speculation
    if combination.length == 0:
        assert told is None or told["drafted"] == 0, told
        return 0, 0
    assert told is not None, combination
    assert len(told["by_position"]) <= combination.length
    drafted, accepted = told["drafted"], told["accepted"]
    assert 0 <= accepted <= drafted
    assert sum(told["by_position"]) == accepted
    # Each step commits what it accepted and at most one token more.
    assert accepted <= twin.tokens <= accepted + told["steps"]
    return drafted, accepted


@pytest.mark.parametrize("block", range(COUNT // BLOCK))
def test_everything_is_equal_with_and_without_speculation(
    block: int, plain: Live, betting: Live
) -> None:
    sample = SAMPLE[block * BLOCK : (block + 1) * BLOCK]
    drafted, accepted = compare(plain, betting, sample)
    assert 0 < accepted < drafted, "no draft was accepted, or none refused"


def test_the_same_where_a_form_is_not_the_only_mask(plain: Live, betting: Live) -> None:
    drafted, accepted = compare(plain, betting, beside_grammars())
    assert 0 < accepted < drafted


def ended(live: Live, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text of a stream that fails, and its error, which the reply in one piece is too."""
    lines = live.post(TEXT, {"model": live.name, **body, "stream": True}).text.split("\n\n")
    *parts, last = [strict(line.removeprefix("data: ")) for line in lines if line]
    assert all(c["finish_reason"] is None for part in parts for c in part["choices"])
    error = last["error"]
    whole = live.post(TEXT, {"model": live.name, **body})
    assert (whole.status_code, error_of(whole)) == (400, error)
    return "".join(c["text"] for part in parts for c in part["choices"]), error


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("more", [{}, {"stop": ["yzx!", "z9"]}, {"logprobs": 1}], ids=str)
def test_a_dead_end_is_the_same(
    length: int, more: dict[str, Any], plain: Live, betting: Live
) -> None:
    """A form that other options leave no way on, behind some tokens that drafts foresee."""
    body: dict[str, Any] = {
        "prompt": "xyzxyz xyzxyz", "structured_outputs": {"regex": "(xyz){2}[0-9]"}, "seed": 1,
        "allowed_token_ids": letters("xyz"), "max_tokens": 20, **more,
    }  # fmt: skip
    before = betting.llm.llm.engine.stats.verify_steps
    expected = ended(plain, body)
    own = {"num_speculative_tokens": length} if length else {"enabled": False}
    assert ended(betting, {**body, "speculation": own}) == expected
    text, error = expected
    assert text == "xyzxyz"
    assert (error["code"], error["param"]) == ("no_token_left", "structured_outputs")
    assert (betting.llm.llm.engine.stats.verify_steps > before) == bool(length)
    betting.survives()
    plain.survives()


@pytest.fixture(scope="module")
def careful(served_path: Path) -> Iterator[Live]:
    """As a server is started by most: the controller says whether, what and how much is drafted,
    and it goes by the clock."""
    way = {"method": "auto"}
    with serving(served_path, speculation=way, max_num_seqs=16, max_batch_tokens=64) as live:
        yield live


def test_the_same_where_the_controller_decides(plain: Live, careful: Live) -> None:
    compare(plain, careful, SAMPLE[::4])


# The real model, on a part of it.


@pytest.fixture(scope="module")
def smollm2() -> Iterator[tuple[Live, Live]]:
    with (
        serving("smollm2-135m", weights="int8", max_num_seqs=1, prefix_cache=False) as plain,
        serving(
            "smollm2-135m", weights="int8", speculation=ngram(16, low=1, high=4),
            max_num_seqs=16, max_batch_tokens=64,
        ) as betting,
    ):  # fmt: skip
        yield plain, betting


@pytest.mark.model
@pytest.mark.parametrize("block", range(4))
def test_the_same_on_smollm2(block: int, smollm2: tuple[Live, Live]) -> None:
    # Its template knows neither tools nor reasoning.
    fit = [c for c in SAMPLE if not {"tools", "chat_template_kwargs"} & set(c.names)]
    drafted, accepted = compare(*smollm2, fit[block * 16 : (block + 1) * 16])
    assert 0 < accepted < drafted
