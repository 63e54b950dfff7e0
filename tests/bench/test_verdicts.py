"""Which figure binds, and the advice over several loads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wager.bench.statistics import Verdict
from wager.bench.verdicts import FEW_PROMPTS, AtLoad, Facts, over_loads, reason

BASE = Facts(
    verdict="no difference",
    speedup=1.0,
    prefill_share=0.1,
    coverage=0.9,
    drafted_per_draft=4.0,
    accepted_per_draft=3.0,
    tokens_per_step=3.7,
    cost=3.7,
)


def test_few_drafts_bind_where_most_steps_have_none() -> None:
    facts = replace(BASE, coverage=0.1, tokens_per_step=1.3, cost=1.05)
    assert reason(facts) == "10 % of the steps had a draft (coverage binds)"


def test_wrong_drafts_bind_where_nearly_none_is_right() -> None:
    facts = replace(BASE, accepted_per_draft=0.2, tokens_per_step=1.18, cost=1.2)
    assert reason(facts) == "5 % of the drafted tokens were right (acceptance binds)"


def test_the_verify_cost_binds_where_the_drafts_are_good() -> None:
    assert reason(BASE) == (
        "a step costs 3.70 plain steps (estimated) and brings 3.70 tokens (verify cost binds)"
    )


def test_with_others_a_step_may_have_waited_for_their_prompts() -> None:
    assert reason(replace(BASE, alone=False)) == (
        "a step costs 3.70 plain steps (estimated, the prompts read meanwhile included) and "
        "brings 3.70 tokens (step time binds)"
    )


def test_the_prompt_binds_before_all_else_but_is_no_reason_for_a_gain() -> None:
    assert "62 % of the plain time goes into reading the prompt" in reason(
        replace(BASE, prefill_share=0.62)
    )
    good = replace(BASE, verdict="use", prefill_share=0.62, cost=1.25)
    assert reason(good) == "a step brings 3.70 tokens and costs 1.25 plain steps (estimated)"
    assert "above 1.01" in reason(replace(good, tokens_per_step=None))


@pytest.mark.parametrize("missing", ["coverage", "drafted_per_draft", "accepted_per_draft"])
def test_an_unknown_cause_is_not_guessed(missing: str) -> None:
    known = replace(BASE, **{missing: None})
    assert reason(known).startswith("a step costs 3.70 plain steps")
    assert "not known here" in reason(replace(known, cost=None))


def test_without_a_verdict_the_reason_says_why() -> None:
    assert reason(replace(BASE, verdict=None)) == FEW_PROMPTS
    assert "not one token" in reason(replace(BASE, verdict=None, status="NOT ACTIVE"))
    assert "larger than the steps allow" in reason(replace(BASE, status="DISTURBED"))


def at(**loads: Verdict | None) -> list[AtLoad]:
    return [AtLoad(int(key[1:]), verdict, 1.5, "why") for key, verdict in loads.items()]


@pytest.mark.parametrize(
    ("loads", "verdict", "below"),
    [
        (at(c1="use", c8="use"), "use", None),
        (at(c1="use", c8="do not use"), "use below 8 clients", 8),
        (at(c1="use", c8="no difference", c32="do not use"), "use below 8 clients", 8),
        (at(c32="do not use", c8="no difference", c1="use"), "use below 8 clients", 8),
        (at(c1="use", c4=None, c8="use"), "use", None),
        (at(c1="no difference", c8="no difference"), "no difference", None),
        (at(c1="no difference", c8="do not use"), "do not use", None),
        (at(c1="do not use", c8="do not use"), "do not use", None),
        (at(c1="no difference", c8="use"), "use", None),
        (at(c1="do not use", c8="use"), "do not use", None),
        (at(c1=None, c8=None), None, None),
        ([], None, None),
    ],
)
def test_advice_over_the_loads(
    loads: list[AtLoad], verdict: str | None, below: float | None
) -> None:
    found = over_loads("w", "a", loads, "clients")
    assert (found.verdict, found.below) == (verdict, below)


def test_the_reason_names_where_it_binds() -> None:
    losing = over_loads("w", "a", at(c1="do not use", c8="use"), "clients")
    assert losing.reason == "1.50x at 1 client: why; it does pay at 8 clients"
    rate = over_loads("w", "a", at(c1="use", c2="no difference"), "requests/s")
    assert (rate.verdict, rate.reason) == ("use below 2 requests/s", "1.50x at 2 requests/s: why")
    partly = over_loads("w", "a", at(c1="use", c8=None, c32=None), "clients")
    assert (partly.verdict, partly.reason) == (
        "use",
        "1.50x at 1 client: why; no verdict at 8, 32 clients",
    )
    unknown = over_loads("w", "a", [AtLoad(1, None, None, "nothing was drafted")], "clients")
    assert unknown.reason == "nothing was drafted"
