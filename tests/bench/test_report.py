"""What people read: the table, the notes and the conclusion."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.bench.scripted import reply
from tests.bench.test_results import cell_of, report
from wager.bench import report as shown
from wager.bench.measure import DEFAULT_SPECULATION, Measurement, arms
from wager.bench.results import Cell
from wager.bench.run import Plan, Run
from wager.bench.workloads import RECIPES

TIMES = [2.0, 2.2, 1.8, 2.1, 1.9]


def a_cell(speed: float, workload: str = "copy") -> Cell:
    plain = [[reply(f"p{i}", total=t)] for i, t in enumerate(TIMES)]
    spec = [[reply(f"p{i}", total=t / speed, drafts=[(8, 6)])] for i, t in enumerate(TIMES)]
    return replace(cell_of(plain, spec), workload=workload)


def plan(prompts: int = 5) -> Plan:
    return Plan([RECIPES["copy"]], [1], arms([DEFAULT_SPECULATION]), 1, prompts, None)


def a_run() -> Run:
    measurement = Measurement("copy", 1, [], arms([DEFAULT_SPECULATION]))
    measurement.total_ms, measurement.draft_ms = {"ngram": 500.0}, {"ngram": 2.0}
    return Run(measurements=[measurement, measurement])


def text_of(*cells: Cell, interrupted: bool = False, prompts: int = 5) -> str:
    out = io.StringIO()
    shown.show(
        Console(file=out, width=160),
        report(*cells),
        plan(prompts),
        a_run(),
        interrupted=interrupted,
    )
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
    shown.show(out, report(a_cell(2.0)), plan(), Run())
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "…" not in printed
    assert "[2.00, 2.00]" in printed


def test_a_narrow_terminal_gets_fewer_columns_rather_than_cut_ones() -> None:
    cells = [replace(a_cell(1.02), verdict="no difference"), a_cell(0.5, "summarise")]
    for width, detail in ((80, False), (160, True)):
        out = io.StringIO()
        shown.show(Console(file=out, width=width), report(*cells), plan(), Run())
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
    assert "fewer than 16 prompts" not in text_of(a_cell(2.0), prompts=16)
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
    said = shown.conclusion(
        [a_cell(2.0), a_cell(1.0, "story"), replace(a_cell(0.5, "random"), prefill_share=0.8)]
    )
    assert "pays on copy (2.00x: 75 % of the drafted tokens were right" in said
    assert "No difference was shown on story (1.00x" in said
    assert "costs time on random (0.50x" in said
    assert "80 % of the time goes into the prompt" in said
    assert "changed no reply: 15 of 15" in said


def test_changed_output_is_loud() -> None:
    changed = replace(a_cell(2.0), identical=4)
    assert "OUTPUT CHANGED: copy: 1 of 5" in text_of(changed)
    assert "CHANGED 1 of 5" in shown.conclusion([changed])


def test_an_arm_that_never_drafted_is_pointed_out() -> None:
    idle = replace(a_cell(1.0), drafted=0, accepted=0, acceptance_rate=None)
    assert "NOT ACTIVE: copy: ngram never proposed" in text_of(idle)


def test_a_gain_that_cannot_be_is_pointed_out() -> None:
    cell = a_cell(2.0)
    idle = replace(cell, requests=[replace(r, tokens=9, steps=9) for r in cell.requests])
    assert "DISTURBED: copy: 2.00x was measured, but the steps allow 1.00x" in text_of(idle)
    assert "DISTURBED" not in text_of(cell)


def test_both_averages_are_named_where_they_differ() -> None:
    far = cell_of(
        [[reply("a", range(50))], [reply("b", range(200))]],
        [
            [reply("a", range(50), drafts=[(4, 4)] * 10)],
            [reply("b", range(200), drafts=[(1, 1)] * 100)],
        ],
    )
    line = next(n for n in shown.notes([far]) if "pooled" in n)
    assert "2.27 tokens per step pooled" in line
    assert "3.50 as the mean of the requests" in line


def test_clients_and_methods_are_named_only_where_they_differ() -> None:
    one, eight = a_cell(2.0), replace(a_cell(0.5), clients=8)
    assert "copy at 1 client (" in shown.conclusion([one, eight])
    assert "copy at 8 clients (" in shown.conclusion([one, eight])
    other = replace(a_cell(1.0), method="other")
    assert "copy with other (" in shown.conclusion([one, other])
    assert "method" in text_of(one, other)
    assert "method" not in text_of(one)
