"""The report as Markdown, for a ticket or a pull request: the same tables as the page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from wager import __version__
from wager.bench.page import tables
from wager.bench.page.render import Run, arm_facts, facts, fastest, lead, overview, warnings
from wager.bench.page.tables import Table, Value
from wager.bench.results import Report

_ESCAPES: Final = str.maketrans({
    "\\": "\\\\", "`": "\\`", "*": "\\*", "|": "\\|", "<": "&lt;", ">": "&gt;", "&": "&amp;",
})  # fmt: skip


def render(runs: Sequence[Run]) -> str:
    """The whole text. ``runs`` is not empty."""
    lines = []
    if len(runs) > 1:
        lines += ["# Does speculation pay?", "", *_table(overview(runs))]
    for run in runs:
        lines += _run(run)
    lines += [f"n/a: not measured, which is never 0. Written by wager {__version__}.", ""]
    return "\n".join(lines)


def _run(run: Run) -> list[str]:
    report = run.report
    lines = [f"# Does speculation pay? {escape(run.name)}", ""]
    if not report.complete:
        lines += [
            "**Incomplete**: the run stopped early; this is what was measured until then.",
            "",
        ]
    lines += [f"- {escape(sentence)}" for sentence in lead(report)] or ["- No verdict."]
    lines += ["", *_table(tables.verdicts(report))]
    if len(report.arms) > 2:
        lines += _table(fastest(report))
    for table in (
        tables.cells(report), tables.drafts(report), tables.sources(report),
        tables.positions(report), tables.arms(report), tables.identity(report),
        tables.divergences(report), tables.doubts(report),
    ):  # fmt: skip
        lines += _table(table)
    lines += _commands(report)
    return lines


def _commands(report: Report) -> list[str]:
    lines = []
    found = warnings(report)
    if found:
        lines += ["**Warnings of the engine**", ""]
        lines += [f"- {escape(arm)}: {escape(line)}" for arm, line in found] + [""]
    lines += ["**Commands and versions**", ""]
    for arm, (name, told) in zip(report.arms, arm_facts(report), strict=True):
        lines.append(f"- {escape(name)}: " + "; ".join(f"{k}: {escape(v)}" for k, v in told))
        if arm.command:
            command = shlex.join(arm.command)
            ticks = max([2, *(len(run) for run in re.findall("`+", command))]) + 1
            # A line break inside an argument would otherwise leave the list.
            body = command.replace("\n", "\n  ")
            lines += ["", f"  {'`' * ticks}sh", f"  {body}", f"  {'`' * ticks}", ""]
    lines += ["", "; ".join(f"{name}: {escape(text)}" for name, text in facts(report)), ""]
    return lines


def _table(table: Table) -> list[str]:
    """Nothing for a table without rows."""
    if not table.rows:
        return []
    heads = [
        escape(c.text) + (" (estimated)" if c.kind == "estimated" else "") for c in table.columns
    ]
    rule = ["---:" if c.numeric else "---" for c in table.columns]
    rows = [[_value(value) for value in row] for row in table.rows]
    lines = [f"**{escape(table.caption)}**", ""]
    lines += ["| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows)]
    return [*lines, ""]


def _value(value: Value) -> str:
    text = escape(value.text)
    return f"{value.symbol} **{text}**" if value.tone else text


def escape(text: str) -> str:
    """One line that Markdown and HTML leave as it is."""
    return " ".join(text.split()).translate(_ESCAPES).replace("](", "]\\(")
