"""What people read: the table, the notes and the conclusion."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.bench.scripted import plan as scripted_plan
from tests.bench.scripted import planned, prompts, reply, silent
from tests.bench.test_results import arm_result, cell_of, report
from wager.backend import Counters, SourceCounts
from wager.bench import remarks
from wager.bench import report as shown
from wager.bench.identity import Control, Divergence, Identity
from wager.bench.plan import Plan
from wager.bench.results import BothCounts, Cell, ServerCounts, StartUp
from wager.bench.spelling import shares_by_source

TIMES = [2.0, 2.2, 1.8, 2.1, 1.9]


def a_cell(speed: float, workload: str = "copy") -> Cell:
    plain = [[reply(f"p{i}", total=t)] for i, t in enumerate(TIMES)]
    spec = [[reply(f"p{i}", total=t / speed, drafts=[(8, 6)])] for i, t in enumerate(TIMES)]
    return replace(cell_of(plain, spec), workload=workload)


def plan(count: int = 5, engine: str = "own") -> Plan:
    return scripted_plan(planned(count), engine=engine)


def text_of(*cells: Cell, interrupted: bool = False, count: int = 5, **more: Any) -> str:
    out = io.StringIO()
    found = report(*cells, **more)
    asked = plan(count, found.engine)
    shown.show(Console(file=out, width=160), found, asked, interrupted=interrupted)
    return out.getvalue()


def test_the_table_shows_every_figure_on_one_line() -> None:
    lines = text_of(a_cell(2.0), a_cell(0.5, "random")).splitlines()
    copy = next(line for line in lines if line.startswith("copy"))
    assert " ".join(copy.split()) == (
        "copy 1 1.5 3.0 2.00 [2.00, 2.00] 2.11 7.00 75 % 100 % 5/5 use"
    )
    rand = next(line for line in lines if line.startswith("random"))
    assert rand.endswith("do not use")


def test_a_pipe_gets_no_colours_and_no_cut_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown.console()
    shown.show(out, report(a_cell(2.0)), plan())
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "…" not in printed
    assert "[2.00, 2.00]" in printed


def test_a_long_name_of_an_arm_is_broken_and_no_figure_cut() -> None:
    name = "draft_model:model=/where/models/are/kept/a-small-model-of-the-same-family,k=4"
    cells = [replace(a_cell(2.0), arm=name), replace(a_cell(1.5), arm="ngram:k=8,min=2,max=5")]
    printed = text_of(*cells, arms=[arm_result("plain"), *(arm_result(c.arm) for c in cells)])
    grid = printed[printed.index("\nworkload") + 1 : printed.index("ngram:k=8,min=2,max=5  ")]
    assert "…" not in printed
    assert "2.00 [2.00, 2.00]" in grid
    rows = [line.removeprefix("copy").strip().split("  ")[0] for line in grid.splitlines()[1:]]
    assert "".join(rows).strip() == name


def test_a_narrow_terminal_gets_fewer_columns_rather_than_cut_ones() -> None:
    cells = [replace(a_cell(1.02), verdict="no difference"), a_cell(0.5, "summarise")]
    for width, detail in ((80, False), (160, True)):
        out = io.StringIO()
        shown.show(Console(file=out, width=width), report(*cells), plan())
        printed = out.getvalue()
        assert "…" not in printed
        assert ("accepted" in printed) == detail
        assert ("clients" in printed) == detail
        row = next(x for x in printed.splitlines() if x.startswith("copy"))
        assert row.endswith("5/5 no difference" if not detail else "5/5  no difference")
    eight = replace(a_cell(2.0), clients=8)
    assert "clients" in str(shown.table([cells[0], eight], detail=False).columns[1].header)


def test_the_header_says_what_was_compared_and_how_often() -> None:
    printed = text_of(a_cell(2.0))
    assert "speculation: ngram, at most 8 draft tokens, lookup 2 to 5" in printed
    assert "drafting took 0.4 % of the time" in printed
    assert "5 prompts per workload, each 2 times per arm" in printed
    assert "fewer than 16 prompts" in printed
    assert "fewer than 16 prompts" not in text_of(a_cell(2.0), count=16)
    assert "checking 8 draft tokens costs 1.36 plain steps" in printed


def test_an_interrupted_run_says_so() -> None:
    assert "INTERRUPTED" in text_of(a_cell(2.0), interrupted=True)
    assert "INTERRUPTED" not in text_of(a_cell(2.0))


def test_not_measured_is_na_never_zero() -> None:
    single = replace(
        a_cell(2.0), speedup_low=None, speedup_high=None, verdict=None, acceptance_rate=None
    )
    line = next(x for x in text_of(single).splitlines() if x.startswith("copy"))
    assert " ".join(line.split()) == "copy 1 1.5 3.0 2.00 [n/a] 2.11 7.00 n/a 100 % 5/5 n/a"


def test_the_conclusion_names_hits_and_misses() -> None:
    said = remarks.conclusion(
        [a_cell(2.0), a_cell(1.0, "story"), replace(a_cell(0.5, "random"), prefill_share=0.8)]
    )
    assert "pays on copy (2.00x: 75 % of the drafted tokens were right" in said
    assert "No difference was shown on story (1.00x" in said
    assert "costs time on random (0.50x" in said
    assert "80 % of the time goes into the prompt" in said
    assert "changed no reply: 15 of 15" in said


def test_changed_output_is_loud() -> None:
    found = Identity(5, 4, "tokens", [Divergence("p3", 17, 0.012)], Control(5, 4))
    changed = replace(a_cell(2.0), identical=4, identity=found)
    line = "OUTPUT CHANGED: copy: 1 of 5 replies differ; first at token 17 of p3"
    assert f"{line}, top-2 gap there 0.0120" in text_of(changed)
    assert "CHANGED 1 of 5" in remarks.conclusion([changed])
    other = text_of(replace(changed, engine="vllm"), engine="vllm")
    assert "plain against plain: 4 of 5 equal" in other


def test_an_arm_that_never_drafted_gets_no_verdict() -> None:
    idle = replace(
        a_cell(1.0), drafted=0, accepted=0, acceptance_rate=None, active=False,
        status="NOT ACTIVE", verdict=None,
    )  # fmt: skip
    printed = text_of(idle)
    assert "NOT ACTIVE: copy: ngram never proposed anything: 1.00x is noise, or" in printed
    assert next(x for x in printed.splitlines() if x.startswith("copy")).endswith("NOT ACTIVE")
    assert "never drafted on copy." in remarks.conclusion([idle])
    assert "No difference" not in printed


def test_a_gain_that_cannot_be_is_pointed_out() -> None:
    plain = [[reply(f"p{i}", total=t)] for i, t in enumerate(TIMES)]
    spec = [
        [reply(f"p{i}", total=t / 2, drafts=[(0, 0), (4, 0), (0, 0)])] for i, t in enumerate(TIMES)
    ]
    found = replace(cell_of(plain, spec), workload="copy")
    assert "DISTURBED: copy: 2.00x was measured, but the steps allow 1.00x" in text_of(found)
    assert "DISTURBED" not in text_of(a_cell(2.0))


def test_failed_replies_and_repeated_or_random_prompts_are_pointed_out() -> None:
    bad = replace(
        a_cell(2.0), errors=BothCounts(2, 1), repeated_prompts=True, random_prompts=True,
        notes=["odd timings (2 replies)"],
    )  # fmt: skip
    printed = text_of(bad, engine="vllm")
    assert "ERRORS: copy: 2 plain and 1 speculative replies failed" in printed
    assert "REPEATED PROMPTS: copy" in printed
    assert "random token ids" in printed
    assert "copy: odd timings (2 replies)" in printed


def test_several_loads_get_advice_and_a_short_conclusion() -> None:
    cells = [a_cell(2.0), replace(a_cell(0.5), clients=8)]
    printed = text_of(*cells)
    assert "copy: USE BELOW 8 CLIENTS: 0.50x at 8 clients: what a step brings" in printed
    assert "Speculation pays" not in printed
    assert "It changed no reply: 10 of 10 are equal, token for token." in printed


def test_another_engine_is_told_by_command_start_up_and_latency() -> None:
    plain = [[silent(reply(f"p{i}", text="x"))] for i in range(5)]
    cell = cell_of(plain, plain, None, rate=2.0, engine="vllm", counted=Counters(drafted=3))
    restarted = ServerCounts(None, None, None, None, None, None, None, 1)
    arms = [
        arm_result("plain", startup_s=StartUp(any=61.25), kv_tokens=1000, version="0.32"),
        arm_result(
            "ngram:k=4",
            kv_tokens=900,
            kv_share_lost=0.1,
            warnings=["async is off"],
            startup_s=StartUp(cold=62.0, warm=11.0, any=36.5),
            counters=restarted,
        ),
        arm_result("eagle:k=2", error="ended with exit status 1"),
    ]
    found = Identity(12, 11, "text", [Divergence("identity-copy-00", 3, None)], Control(12, 12))
    arms[1] = replace(arms[1], identity=found)
    printed = text_of(cell, engine="vllm", arms=arms, complete=False)
    assert "tiny on vllm 0.32, some (2 cores)" in printed
    assert "plain: ngram, at most 8 draft tokens, lookup 2 to 5; ready after 61.2 s; " in printed
    assert (
        "ready after 62.0 s cold, 11.0 s with warm caches; 900 KV tokens (10.0 % lost)" in printed
    )
    assert "COUNTERS BEGAN ANEW: ngram:k=4: " in printed
    assert "COUNTERS BEGAN ANEW: plain" not in printed
    assert "FAILED: eagle:k=2: ended with exit status 1" in printed
    assert "STOPPED EARLY" in printed
    assert "ngram:k=4: the engine says: async is off" in printed
    assert (
        "greedy identity: 11 of 12 replies equal (text); plain against plain: 12 of 12" in printed
    )
    assert "first at character 3 of identity-copy-00, top-2 gap there n/a" in printed
    assert "latencies, plain > speculative" in printed
    assert "1000.0 > 1000.0" in printed
    assert "2 requests/s" in printed
    assert "by their text" in printed
    assert "a server each (ABBA)" in printed


def test_both_averages_are_named_where_they_differ() -> None:
    far = cell_of(
        [[reply("a", range(50))], [reply("b", range(200))]],
        [
            [reply("a", range(50), drafts=[(4, 4)] * 10)],
            [reply("b", range(200), drafts=[(1, 1)] * 100)],
        ],
    )
    line = next(n for n in remarks.notes(report(far)) if "pooled" in n)
    assert "2.27 tokens per step pooled" in line
    assert "3.50 as the mean of the requests" in line


def test_clients_and_methods_are_named_only_where_they_differ() -> None:
    one, eight = a_cell(2.0), replace(a_cell(0.5), clients=8)
    assert "copy at 1 client (" in remarks.conclusion([one, eight])
    assert "copy at 8 clients (" in remarks.conclusion([one, eight])
    other = replace(a_cell(1.0), arm="other")
    assert "copy with other (" in remarks.conclusion([one, other])
    assert "arm" in text_of(one, other)
    assert "arm  " not in text_of(one)


def test_drafts_by_source_are_told_where_there_were_several() -> None:
    sources = {"ngram": SourceCounts(9, 1204, 855), "suffix": SourceCounts(200, 2000, 1900)}
    printed = text_of(replace(a_cell(2.0), by_source=sources))
    told = "suffix 95 % of 2,000 tokens accepted; ngram 71 % of 1,204 tokens accepted"
    assert f"- copy: drafts by source: {told}" in printed
    for few in (None, {}, {"ngram": SourceCounts(1, 4, 2)}):
        assert "by source" not in text_of(replace(a_cell(2.0), by_source=few))
    assert shares_by_source({"none": SourceCounts()}) == "none n/a of 0 tokens accepted"


def test_what_came_before_a_warm_cell_is_said() -> None:
    out = io.StringIO()
    warm = replace(planned(5, name="copy after 7"), warm=prompts(7, "before"))
    found = report(replace(a_cell(2.0), workload="copy after 7", warm=7))
    shown.show(Console(file=out, width=160), found, scripted_plan(planned(5), warm))
    assert "after 7: behind every start of an arm 7 other prompts of the workload are" in (
        out.getvalue()
    )
    assert "after" not in text_of(a_cell(2.0))
