"""Replay of drafters that learn across requests, and of several that are asked in turn."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.test_replay import random_entries, text
from wager.arms import parse_arms
from wager.bench.replay.report import Asked, show, to_json
from wager.bench.replay.run import replayed
from wager.bench.replay.tokens import Vocabulary, open_vocabulary

# With a probability that ambiguous contexts do not reach, so that n-gram is asked too.
ARMS = "suffix+ngram:k=4,min=1,max=3,suffix_decoding_min_token_prob=0.7,ngram:k=4"


@pytest.fixture
def vocabulary(tiny_path: Path) -> Vocabulary:
    return open_vocabulary(str(tiny_path))


def test_a_suffix_drafter_learns_from_answer_to_answer_unless_it_is_to_be_cold(
    vocabulary: Vocabulary,
) -> None:
    rng = random.Random(3)
    answer = tuple(rng.randrange(3, 200) for _ in range(40))
    entries = [
        text("", "", prompt_ids=(3 + number, 4), answer_ids=answer, group=str(number))
        for number in range(3)
    ]
    found = {}
    for cold in (False, True):
        replay = replayed(parse_arms("suffix:k=8"), vocabulary, cold=cold)
        replay.run(entries)
        found[cold] = replay.arms[0].groups
    assert found[True]["0"].counts == found[False]["0"].counts
    # Nothing in the answer repeats; what repeats is the answer.
    assert [g.counts.accepted > 20 for g in found[False].values()] == [False, True, True]
    assert not any(g.counts.accepted > 20 for g in found[True].values())
    assert set(found[False]["2"].by_source) == {"suffix (past answers)"}


def test_figures_by_source_where_several_spoke(vocabulary: Vocabulary) -> None:
    replay = replayed(parse_arms(ARMS), vocabulary)
    replay.run(random_entries())
    both, alone = replay.arms
    total = both.total
    assert set(total.by_source) == {"suffix", "suffix (past answers)", "ngram"}
    assert sum(own.drafted for own in total.by_source.values()) == total.counts.drafted
    assert sum(own.accepted for own in total.by_source.values()) == total.counts.accepted
    found = json.loads(to_json(replay, Asked("log", "tiny")))
    told = found["arms"][0]["total"]["by_source"]["ngram"]
    assert told["accepted"] == total.by_source["ngram"].accepted
    assert set(found["arms"][1]["total"]["by_source"]) <= {"ngram"}
    out = io.StringIO()
    show(Console(file=out, width=1000), replay, Asked("log", "tiny"))
    printed = out.getvalue()
    assert "  suffix (past answers)" in printed
    assert printed.count("\n  ngram ") == 1
    assert both.settings.describe() != alone.settings.describe()
