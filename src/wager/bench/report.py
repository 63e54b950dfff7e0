"""The report that people read: a table and a paragraph that says what it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.bench.measure import DEFAULT_SPECULATION
from wager.bench.results import STEP_CONTEXT, Cell, Report, highest_speedup
from wager.bench.statistics import Ratio, disturbed, tokens_per_step
from wager.bench.workloads import DEFAULT_PROMPTS

if TYPE_CHECKING:
    from wager.bench.run import Plan, Run

NA: Final = "n/a"
_PIPE_WIDTH: Final = 160
_VERDICT_STYLE: Final = {"use": "green", "do not use": "red", "no difference": "yellow"}


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
_LAST: Final[tuple[Column, ...]] = (
    ("same\noutput", lambda cell: f"{cell.identical}/{cell.outputs}"),
)


def table(cells: Sequence[Cell], *, detail: bool = True) -> Table:
    """One row per cell. Speed-ups are of whole requests unless the heading says decode.

    Without ``detail`` it fits into 80 columns: acceptance and coverage are left out, and so is
    the number of clients where it is the same throughout.
    """
    keys: list[Column] = [("workload", lambda cell: cell.workload)]
    if len({cell.method for cell in cells}) > 1:
        keys.append(("method", lambda cell: cell.method))
    figures = [*_FIRST, *(_DETAIL if detail else ()), *_LAST]
    if detail or len({cell.clients for cell in cells}) > 1:
        figures.insert(0, ("clients", lambda cell: str(cell.clients)))
    grid = Table(box=None, pad_edge=False, padding=(0, 2 if detail else 1, 0, 0))
    for heading, _ in keys:
        grid.add_column(heading, no_wrap=True)
    for heading, _ in figures:
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("verdict", no_wrap=True)
    for cell in cells:
        # Text objects, since rich would take the bracket of an interval for a style.
        row = [Text(value(cell)) for _, value in (*keys, *figures)]
        grid.add_row(*row, Text(cell.verdict or NA, _VERDICT_STYLE.get(cell.verdict or "", "")))
    return grid


def _fitting(out: Console, cells: Sequence[Cell]) -> Table:
    whole = table(cells)
    # Measured without the limit of the terminal, to which rich would cut the answer.
    width = out.measure(whole, options=out.options.update(max_width=_PIPE_WIDTH)).maximum
    return whole if width <= out.width else table(cells, detail=False)


def number(value: float | None, digits: int = 1) -> str:
    """Fixed digits, or n/a: what was not measured is never shown as 0."""
    return NA if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share as a whole percentage, or n/a."""
    return NA if value is None else f"{100 * value:.0f} %"


def interval(cell: Cell) -> str:
    """Speed-up of the whole request with its interval, for instance ``3.10 [2.90, 3.31]``."""
    if cell.speedup is None:
        return NA
    if cell.speedup_low is None or cell.speedup_high is None:
        return f"{cell.speedup:.2f} [n/a]"
    return f"{cell.speedup:.2f} [{cell.speedup_low:.2f}, {cell.speedup_high:.2f}]"


def show(out: Console, report: Report, plan: Plan, run: Run, *, interrupted: bool = False) -> None:
    """Print the whole report: what was measured, the table, the notes, the conclusion."""

    def say(text: str) -> None:
        # No markup: names of files and processors may hold brackets.
        out.print(text, markup=False, soft_wrap=not out.is_terminal)

    say(header(report))
    for arm in plan.arms:
        if arm.speculation is not None:
            label = "speculation" if arm.name == arm.speculation.method else arm.name
            share = run.draft_share(arm.name)
            took = "" if share is None else f"; drafting took {100 * share:.1f} % of the time"
            say(f"{label}: {arm.speculation.describe()}{took}")
    runs = 2 * plan.repeats
    say(f"{plan.prompts} prompts per workload, each {runs} times per arm, arms in turn (ABBA)")
    if plan.prompts < DEFAULT_PROMPTS:
        say(f"fewer than {DEFAULT_PROMPTS} prompts: a quick look, the intervals are rough")
    if interrupted:
        say("INTERRUPTED: what follows was measured until then")
    if (steps := step_line(report)) is not None:
        say(steps)
    out.print()
    out.print(_fitting(out, report.cells))
    remarks = notes(report.cells)
    if remarks:
        out.print()
    for line in remarks:
        say(f"- {line}")
    if report.cells:
        out.print()
        say(conclusion(report.cells))


def header(report: Report) -> str:
    """What was measured, on what."""
    cpu = report.machine["cpu"]
    return (
        f"{report.model}, weights {report.weights}, kv {report.kv}, {report.threads} threads, "
        f"{report.machine['isa']} on {cpu} ({report.machine['cores']} cores)"
    )


def step_line(report: Report) -> str | None:
    """Milliseconds of one step by rows, and what a verify step costs relative to a plain one."""
    known = {int(rows): ms for rows, ms in report.step_ms.items() if ms is not None}
    if 1 not in known:
        return None
    times = ", ".join(f"{rows}: {ms:.1f}" for rows, ms in known.items())
    line = f"ms per step by rows (1 request, context {STEP_CONTEXT}): {times}"
    k = DEFAULT_SPECULATION.num_speculative_tokens
    if k + 1 in known:
        line += f"; checking {k} draft tokens costs {known[k + 1] / known[1]:.2f} plain steps"
    return line


def notes(cells: Sequence[Cell]) -> list[str]:
    """What a reader must know beside the table; one line each."""
    out = []
    for cell in cells:
        place = _place(cell, cells)
        if cell.identical < cell.outputs:
            changed = cell.outputs - cell.identical
            out.append(f"OUTPUT CHANGED: {place}: {changed} of {cell.outputs} replies differ")
        if cell.drafted == 0:
            out.append(f"NOT ACTIVE: {place}: {cell.method} never proposed anything")
        highest = highest_speedup(cell.clients, cell.prefill_share, cell.requests)
        if disturbed(Ratio(cell.speedup, cell.speedup_low, cell.speedup_high), highest):
            out.append(
                f"DISTURBED: {place}: {number(cell.speedup, 2)}x was measured, but the steps allow "
                f"{number(highest, 2)}x at most; something else used the machine, measure again"
            )
        if cell.followed is not None:
            out.append(f"{place}: instruction followed in {cell.followed} of {cell.outputs}")
        if cell.loops:
            out.append(f"{place}: {cell.loops} of {cell.outputs} replies end in a loop, "
                       "which flatters every drafter that copies")  # fmt: skip
        means = tokens_per_step([(r.tokens, r.steps) for r in cell.requests if r.steps])
        if means.pooled and means.mean_of_requests and _far(means.pooled, means.mean_of_requests):
            out.append(
                f"{place}: {means.pooled:.2f} tokens per step pooled over all steps, "
                f"{means.mean_of_requests:.2f} as the mean of the requests' own averages"
            )
    return out


def _far(a: float, b: float) -> bool:
    return abs(a - b) > 0.2 * min(a, b)


def conclusion(cells: Sequence[Cell]) -> str:
    """One paragraph: where drafts hit, where they miss, and what to do about it."""
    parts = []
    hits = [c for c in cells if c.verdict == "use"]
    misses = [c for c in cells if c.verdict == "do not use"]
    even = [c for c in cells if c.verdict == "no difference"]
    unknown = [c for c in cells if c.verdict is None]
    if hits:
        parts.append("Speculation pays on " + _listed([_hit(c, cells) for c in hits]) + ".")
    if even:
        parts.append("No difference was shown on " + _listed([_miss(c, cells) for c in even]) + ".")
    if misses:
        parts.append(
            "It costs time on " + _listed([_miss(c, cells) for c in misses])
            + ": do not use it there."
        )  # fmt: skip
    if unknown:
        parts.append(
            "Not enough replies for a verdict: "
            + _listed([_place(c, cells) for c in unknown]) + "."
        )  # fmt: skip
    outputs = sum(c.outputs for c in cells)
    same = sum(c.identical for c in cells)
    if outputs and same == outputs:
        parts.append(f"It changed no reply: {same} of {outputs} are equal, token for token.")
    elif outputs:
        parts.append(f"It CHANGED {outputs - same} of {outputs} replies.")
    return " ".join(parts)


def _hit(cell: Cell, cells: Sequence[Cell]) -> str:
    text = f"{_place(cell, cells)} ({number(cell.speedup, 2)}x"
    if cell.acceptance_rate is not None:
        text += (
            f": {percent(cell.acceptance_rate)} of the drafted tokens were right, "
            f"{number(cell.tokens_per_step, 1)} tokens per step"
        )
    return text + ")"


def _miss(cell: Cell, cells: Sequence[Cell]) -> str:
    text = f"{_place(cell, cells)} ({number(cell.speedup, 2)}x"
    if cell.drafted == 0:
        text += ": nothing to draft from"
    elif cell.acceptance_rate is not None:
        text += (
            f": {percent(cell.coverage)} of the steps had a draft, "
            f"{percent(cell.acceptance_rate)} of the drafted tokens were right"
        )
    if cell.prefill_share is not None and cell.prefill_share > 0.5:
        text += f"; {percent(cell.prefill_share)} of the time goes into the prompt"
    return text + ")"


def _place(cell: Cell, cells: Sequence[Cell]) -> str:
    """The workload, with clients and method where they differ between the cells."""
    parts = [cell.workload]
    if len({c.clients for c in cells}) > 1:
        parts.append(f"at {cell.clients} client{'s' if cell.clients > 1 else ''}")
    if len({c.method for c in cells}) > 1:
        parts.append(f"with {cell.method}")
    return " ".join(parts)


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
