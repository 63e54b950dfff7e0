"""The report that people read: a table and a paragraph that says what it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.arms import PLAIN
from wager.bench.measure import DEFAULT_K
from wager.bench.remarks import advice_lines, conclusion, notes
from wager.bench.results import STEP_CONTEXT, ArmResult, BothTimes, Cell, Report
from wager.bench.spelling import NA, number, percent, spelt
from wager.bench.workloads.generated import DEFAULT_PROMPTS

if TYPE_CHECKING:
    from wager.bench.plan import Plan

_PIPE_WIDTH: Final = 160
_ARM_WIDTH: Final = 34
_VERDICT_STYLE: Final = {
    "use": "green", "do not use": "red", "no difference": "yellow", "NOT ACTIVE": "red",
}  # fmt: skip


def console(color: bool = True) -> Console:
    """Standard output: as wide as the terminal, or wide enough for every column in a pipe."""
    probe = Console(highlight=False)
    width = None if probe.is_terminal else _PIPE_WIDTH
    return Console(highlight=False, width=width, no_color=not color or probe.no_color)


Column = tuple[str, Callable[[Cell], str]]
_FIRST: Final[tuple[Column, ...]] = (
    ("plain\ntok/s", lambda cell: number(cell.plain_tok_s)),
    ("spec\ntok/s", lambda cell: number(cell.spec_tok_s)),
    ("speed-up\n[95 %]", lambda cell: interval(cell)),
    ("decode\nspeed-up", lambda cell: number(cell.decode_speedup, 2)),
    ("tokens\n/ step", lambda cell: number(cell.tokens_per_step, 2)),
)
_DETAIL: Final[tuple[Column, ...]] = (
    ("accepted\n/ drafted", lambda cell: percent(cell.acceptance_rate)),
    ("steps with\na draft", lambda cell: percent(cell.coverage)),
)
_LAST: Final[tuple[Column, ...]] = (("same\noutput", lambda cell: same_output(cell)),)


def table(cells: Sequence[Cell], *, detail: bool = True) -> Table:
    """One row per cell. Speed-ups are of whole requests unless the heading says decode.

    Without ``detail`` it fits into 80 columns: acceptance and coverage are left out, and so is
    the number of clients where it is the same throughout.
    """
    figures = [*_FIRST, *(_DETAIL if detail else ()), *_LAST]
    grid, columns = _grid(cells, figures, detail=detail)
    grid.add_column("verdict", no_wrap=True)
    for cell in cells:
        said = (cell.status if cell.status == "NOT ACTIVE" else cell.verdict) or NA
        # Text objects, since rich would take the bracket of an interval for a style.
        row = [Text(value(cell)) for _, value in columns]
        grid.add_row(*row, Text(said, _VERDICT_STYLE.get(said, "")))
    return grid


_LATENCY: Final[tuple[Column, ...]] = (
    ("first token\np50 ms", lambda cell: change(cell.ttft_s, "p50")),
    ("per token\np50 ms", lambda cell: change(cell.tpot_s, "p50")),
    ("per chunk\np50 ms", lambda cell: change(cell.chunk_gap_s, "p50")),
    ("per chunk\np99 ms", lambda cell: change(cell.chunk_gap_s, "p99")),
    ("request\np50 ms", lambda cell: change(cell.request_s, "p50")),
    ("request\np95 ms", lambda cell: change(cell.request_s, "p95")),
)


def latency_table(cells: Sequence[Cell]) -> Table:
    """Latencies, plain > speculative, in milliseconds."""
    grid, columns = _grid(cells, list(_LATENCY), detail=True)
    for cell in cells:
        grid.add_row(*(Text(value(cell)) for _, value in columns))
    return grid


def _grid(
    cells: Sequence[Cell], figures: list[Column], *, detail: bool
) -> tuple[Table, list[Column]]:
    """The headings: what tells the cells apart, then the figures."""
    keys: list[Column] = [("workload", lambda cell: cell.workload)]
    if len({cell.arm for cell in cells}) > 1:
        keys.append(("arm", lambda cell: _in_lines(cell.arm)))
    if any(cell.rate is not None for cell in cells):
        figures = [("load", lambda cell: spelt(cell.clients, cell.rate)), *figures]
    elif detail or len({cell.clients for cell in cells}) > 1:
        figures = [("clients", lambda cell: str(cell.clients)), *figures]
    grid = Table(box=None, pad_edge=False, padding=(0, 2 if detail else 1, 0, 0))
    for heading, _ in keys:
        # A name may hold a path of any length; what must never be cut are the figures.
        grid.add_column(heading, overflow="fold", max_width=_ARM_WIDTH)
    for heading, _ in figures:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid, [*keys, *figures]


def _in_lines(name: str) -> str:
    """A long name of an arm, broken behind its options."""
    lines = [""]
    for part in re.split(r"(?<=[:,])", name):
        if lines[-1] and len(lines[-1] + part) > _ARM_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _fitting(out: Console, cells: Sequence[Cell]) -> Table:
    whole = table(cells)
    # Measured without the limit of the terminal, to which rich would cut the answer.
    width = out.measure(whole, options=out.options.update(max_width=_PIPE_WIDTH)).maximum
    return whole if width <= out.width else table(cells, detail=False)


def same_output(cell: Cell) -> str:
    """Equal of compared replies; n/a where none can be expected to be equal."""
    return NA if cell.identical is None else f"{cell.identical}/{cell.identity.compared}"


def change(times: BothTimes, which: str) -> str:
    """A percentile of both arms in milliseconds, for instance ``51.2 > 14.0``."""

    def ms(seconds: float | None) -> str:
        return NA if seconds is None else f"{1e3 * seconds:.1f}"

    return f"{ms(getattr(times.plain, which))} > {ms(getattr(times.spec, which))}"


def interval(cell: Cell) -> str:
    """Speed-up of the whole request with its interval, for instance ``3.10 [2.90, 3.31]``."""
    if cell.speedup is None:
        return NA
    if cell.speedup_low is None or cell.speedup_high is None:
        return f"{cell.speedup:.2f} [n/a]"
    return f"{cell.speedup:.2f} [{cell.speedup_low:.2f}, {cell.speedup_high:.2f}]"


def show(out: Console, report: Report, plan: Plan, *, interrupted: bool = False) -> None:
    """Print the whole report: what was measured, the table, the notes, the conclusion."""

    opening(out, report, plan_lines(plan), interrupted=interrupted)
    if (steps := step_line(report)) is not None:
        say(out, steps)
    out.print()
    out.print(_fitting(out, report.cells))
    by_rate = any(cell.rate is not None for cell in report.cells)
    if report.cells and (report.engine != "own" or by_rate):
        out.print()
        say(out, "latencies, plain > speculative:")
        out.print(latency_table(report.cells))
    closing(out, report, notes(report))


def say(out: Console, text: str) -> None:
    """One line. No markup: names of files and processors may hold brackets."""
    out.print(text, markup=False, soft_wrap=not out.is_terminal)


def opening(out: Console, report: Report, plan: Sequence[str], *, interrupted: bool) -> None:
    """What was measured, by which ``plan`` (in lines), and whether all of it was."""
    for line in (header(report), *arm_lines(report), *plan):
        say(out, line)
    if interrupted:
        say(out, "INTERRUPTED: what follows was measured until then")
    elif not report.complete:
        say(out, "STOPPED EARLY: what follows was measured until then")


def closing(out: Console, report: Report, remarks: Sequence[str]) -> None:
    """What a reader must know beside the tables, and the advice."""
    if remarks:
        out.print()
    for line in remarks:
        say(out, f"- {line}")
    if report.cells:
        out.print()
        advice = advice_lines(report)
        for line in (*advice, conclusion(report.cells, brief=bool(advice))):
            say(out, line)


def header(report: Report) -> str:
    """What was measured, on what."""
    machine = report.machine
    place = f"{machine['cpu']} ({machine['cores']} cores)"
    if report.engine == "own":
        return (
            f"{report.model}, weights {report.weights}, kv {report.kv}, {report.threads} threads, "
            f"{machine['isa']} on {place}"
        )
    version = next((arm.version for arm in report.arms if arm.version), None)
    return f"{report.model} on {report.engine} {version or '(version n/a)'}, {place}"


def arm_lines(report: Report) -> list[str]:
    """The values in effect of each arm; of other engines also start-up and room for KV."""
    speculative = [arm for arm in report.arms if arm.method != PLAIN]
    shown = speculative if report.engine == "own" else report.arms
    out = []
    for arm in shown:
        label = "speculation" if arm in speculative and len(speculative) == 1 else arm.arm
        line = f"{label}: {arm.description}"
        if arm.error is not None:
            out.append(f"FAILED: {arm.arm}: {arm.error}")
            continue
        if arm.draft_time_share is not None and arm in speculative:
            line += f"; drafting took {100 * arm.draft_time_share:.1f} % of the time"
        out.append(line + ("" if report.engine == "own" else _server_facts(arm)))
    return out


def _server_facts(arm: ArmResult) -> str:
    text = ""
    cold, warm = arm.startup_s.cold, arm.startup_s.warm
    if cold is not None and warm is not None:
        text += f"; ready after {cold:.1f} s cold, {warm:.1f} s with warm caches"
    elif arm.startup_s.any is not None:
        text += f"; ready after {arm.startup_s.any:.1f} s"
    if arm.kv_tokens is not None:
        text += f"; {arm.kv_tokens} KV tokens"
        if arm.kv_share_lost is not None and arm.method != PLAIN:
            text += f" ({100 * arm.kv_share_lost:.1f} % lost)"
    return text


def plan_lines(plan: Plan) -> list[str]:
    """How much was asked, and in which order."""
    sizes = [len(cell.prompts) for cell in plan.cells]
    fewest, most = min(sizes, default=0), max(sizes, default=0)
    prompts = str(most) if fewest == most else f"{fewest} to {most}"
    line = f"{prompts} prompts per workload, each {2 * plan.repeats} times per arm"
    line += ", arms in turn (ABBA)" if plan.engine in ("own", "url") else ", a server each (ABBA)"
    lines = [line]
    if warm := max((len(cell.warm) for cell in plan.cells), default=0):
        lines.append(
            f"after {warm}: behind every start of an arm {warm} other prompts of the workload are "
            "answered first, untimed"
        )
    if fewest < DEFAULT_PROMPTS:
        lines.append(f"fewer than {DEFAULT_PROMPTS} prompts: a quick look, the intervals are rough")
    return lines


def step_line(report: Report) -> str | None:
    """Milliseconds of one step by rows, and what a verify step costs relative to a plain one."""
    known = {int(rows): ms for rows, ms in report.step_ms.items() if ms is not None}
    if 1 not in known:
        return None
    times = ", ".join(f"{rows}: {ms:.1f}" for rows, ms in known.items())
    line = f"ms per step by rows (1 request, context {STEP_CONTEXT}): {times}"
    k = DEFAULT_K
    if k + 1 in known:
        line += f"; checking {k} draft tokens costs {known[k + 1] / known[1]:.2f} plain steps"
    return line
