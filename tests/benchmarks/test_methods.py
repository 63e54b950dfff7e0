"""What is printed of the methods, from cells as `wager bench` writes them."""

from __future__ import annotations

from typing import Any

from benchmarks.methods import KEPT, NGRAM, RUNS, SUFFIX, aims, report


def cell(arm: str, speedup: float, **further: Any) -> dict[str, Any]:
    made = dict.fromkeys(KEPT)
    made.update(workload="agent", arm=arm, speedup=speedup, outputs=4, identical=4)
    return {**made, **further}


def result(**runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: {"cells": cells} for name, cells in runs.items()}


def test_suffix_is_held_against_the_lookup_of_the_same_load() -> None:
    found = aims(
        result(
            cold=[cell(NGRAM, 2.0), cell(SUFFIX, 1.5)],
            warm=[cell(SUFFIX, 3.0, workload="agent after 50", warm=50)],
            agent=[cell(NGRAM, 1.0), cell(SUFFIX, 1.25)],
        )
    )
    whole = {aim.what: (aim.found, aim.met) for aim in found if "whole" in aim.what}
    assert whole == {
        "agent, suffix of ngram: whole requests, 1 client, cold": ("0.75x", False),
        "agent, suffix of ngram: whole requests, 1 client, warm": ("1.5x", True),
        "agent, suffix of ngram: whole requests, 8 clients, full length": ("1.25x", True),
    }
    tokens = [aim for aim in found if "tokens per step" in aim.what]
    assert [aim.met for aim in tokens] == [None, None, None]


def test_a_changed_reply_is_counted_in_every_run() -> None:
    found = aims(result(cold=[cell(NGRAM, 1.0, identical=3)], self=[cell(NGRAM, 1.0, identical=0)]))
    assert (found[-1].what, found[-1].found, found[-1].met) == (
        "replies changed by a method", "5", False,
    )  # fmt: skip


def test_every_run_is_a_table_with_its_intervals() -> None:
    text = report(
        result(cold=[cell(NGRAM, 2.0, speedup_low=1.5, speedup_high=2.5, acceptance_rate=0.5)])
    )
    assert text.startswith(RUNS["cold"].title)
    assert f"| agent | `{NGRAM}` | 2.00 [1.50, 2.50] | n/a | n/a | 50 | 4/4 | n/a |" in text
