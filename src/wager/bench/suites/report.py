"""The tables of `--suite article`: what articles on n-gram speculation show, from a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.arms import PLAIN, Arm
from wager.bench.counters import total
from wager.bench.drafts import DraftFigures, figures
from wager.bench.identity import Identity
from wager.bench.measure import Measurement
from wager.bench.remarks import notes
from wager.bench.report import closing, interval, opening, say
from wager.bench.results import ArmResult, Cell, Report
from wager.bench.run import Run
from wager.bench.spelling import NA, number, percent, spelt
from wager.bench.suites.article import BATCHES, GROUPS


def show(out: Console, run: Run, report: Report, *, interrupted: bool = False) -> None:
    """Print the suite's tables with what a reader must know beside them."""
    opening(out, report, [_how(run)], interrupted=interrupted)
    for title, table in tables(run, report):
        out.print()
        say(out, title)
        out.print(table)
    closing(out, report, [line for line in notes(report) if _matters(line)])


def _matters(remark: str) -> bool:
    """Of forty-five cells not everything can be said: doubts about a figure are."""
    said = remark.split(":", 1)[0]
    return "the engine says" in remark or (said.isupper() and said != "NOT ACTIVE")


def _how(run: Run) -> str:
    own = run.plan.engine == "own"
    order = "arms in turn (ABBA)" if own else "a server each (ABBA)"
    runs = 2 * run.plan.repeats
    return (
        f"{BATCHES} batches per cell, the first dropped; each prompt {runs} times per arm, {order}"
    )


def tables(run: Run, report: Report) -> Iterator[tuple[str, Table]]:
    """Titles and tables, in order; those for which nothing was measured are left out."""
    arms = [arm for arm in run.plan.arms if arm.name != PLAIN]
    for group in GROUPS:
        cells = [cell for cell in report.cells if cell.workload in group]
        if cells:
            yield (
                f"speed-up of whole requests over plain decoding, 95 %: {', '.join(group)}",
                _speedups(cells, group, arms),
            )
    measured = [m for m in run.measurements if any(m.counted.get(arm.name) for arm in arms)]
    if not measured:
        return
    yield (
        "accepted / drafted tokens, tokens per step (differences of the engine's counters)",
        _acceptance(measured, arms),
    )
    yield (
        "acceptance by position, unconditional: drafts whose position was accepted, all loads",
        _positions(measured, arms, lambda found: found.unconditional),
    )
    yield (
        "acceptance by position, conditional: given that the position before was accepted",
        _positions(measured, arms, lambda found: found.conditional),
    )
    yield (
        f"greedy identity of {len(run.plan.identity)} fixed prompts with plain decoding",
        _identities(report.arms),
    )
    yield "room for keys and values, and start-up", _servers(report.arms)


def _grid(*headings: str, left: int = 1) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, heading in enumerate(headings):
        grid.add_column(heading, justify="left" if index < left else "right", no_wrap=True)
    return grid


def _row(grid: Table, *texts: str) -> None:
    # Text objects, since rich would take the bracket of an interval for a style.
    grid.add_row(*map(Text, texts))


def _short(arm: Arm) -> str:
    """``k=4``, which is all that the arms of the suite differ in."""
    options = arm.speculation.options if arm.speculation else {}
    return f"k={options.get('num_speculative_tokens')}"


def _speedups(cells: Sequence[Cell], group: Sequence[str], arms: Sequence[Arm]) -> Table:
    grid = _grid("workload", "clients", "plain tok/s", *map(_short, arms))
    found = {(cell.workload, cell.clients, cell.arm): cell for cell in cells}
    for workload in group:
        for clients in dict.fromkeys(c.clients for c in cells if c.workload == workload):
            row = [found.get((workload, clients, arm.name)) for arm in arms]
            plain = next((cell.plain_tok_s for cell in row if cell is not None), None)
            spelled = [NA if cell is None else _speedup(cell) for cell in row]
            _row(grid, workload, str(clients), number(plain), *spelled)
    return grid


def _speedup(cell: Cell) -> str:
    return cell.status if cell.status == "NOT ACTIVE" else interval(cell)


def _drafts(measured: Sequence[Measurement], arm: Arm) -> DraftFigures:
    """By the counters alone, as articles have it: they are the whole server's."""
    counted = [c for m in measured for c in m.counted.get(arm.name, ())]
    return figures([], total(counted))


def _acceptance(measured: Sequence[Measurement], arms: Sequence[Arm]) -> Table:
    grid = _grid("workload", "load", *map(_short, arms), left=2)
    for one in measured:
        found = [_drafts([one], arm) for arm in arms]
        spelled = [f"{percent(f.acceptance_rate)}, {number(f.tokens_per_step, 2)}" for f in found]
        _row(grid, one.workload, spelt(one.load.clients, one.load.rate), *spelled)
    return grid


def _positions(
    measured: Sequence[Measurement],
    arms: Sequence[Arm],
    which: Callable[[DraftFigures], Sequence[float | None] | None],
) -> Table:
    rows = []
    for workload in dict.fromkeys(m.workload for m in measured):
        same = [m for m in measured if m.workload == workload]
        for arm in arms:
            rows.append((workload, _short(arm), _told(_drafts(same, arm), which)))
    longest = max(len(told) for *_, told in rows)
    grid = _grid("workload", "", *(str(n + 1) for n in range(longest)), left=2)
    for workload, arm_name, told in rows:
        _row(grid, workload, arm_name, *told, *[""] * (longest - len(told)))
    return grid


def _told(
    found: DraftFigures, which: Callable[[DraftFigures], Sequence[float | None] | None]
) -> list[str]:
    shares = which(found)
    if shares:
        return [percent(share) for share in shares]
    # Of drafts of which nothing was accepted the first position was not either.
    return [percent(0.0) if found.drafted and found.accepted == 0 else NA]


def _identities(arms: Sequence[ArmResult]) -> Table:
    grid = _grid("arm", "equal", "plain against plain", "first difference")
    for arm in arms:
        if arm.method != PLAIN:
            _row(grid, arm.arm, *_identity(arm.identity))
    return grid


def _identity(found: Identity | None) -> tuple[str, str, str]:
    if found is None or not found.compared:
        return NA, NA, NA
    control = found.control
    noise = NA if control is None else f"{control.equal} of {control.compared}"
    equal = f"{found.equal} of {found.compared}"
    if not found.first_divergences:
        return equal, noise, "none"
    first = min(found.first_divergences, key=lambda d: d.position)
    gap = NA if first.top2_gap is None else f"{first.top2_gap:.4f}"
    what = "token" if found.unit == "tokens" else "character"
    return equal, noise, f"{what} {first.position} of {first.id}, top-2 gap {gap}"


def _servers(arms: Sequence[ArmResult]) -> Table:
    grid = _grid("arm", "KV tokens", "lost", "ready, cold caches", "warm caches", "any")
    for arm in arms:
        lost = NA if arm.method == PLAIN else _percent(arm.kv_share_lost)
        room = NA if arm.kv_tokens is None else str(arm.kv_tokens)
        times = (arm.startup_s.cold, arm.startup_s.warm, arm.startup_s.any)
        _row(grid, arm.arm, room, lost, *(NA if s is None else f"{s:.1f} s" for s in times))
    return grid


def _percent(share: float | None) -> str:
    return NA if share is None else f"{100 * share:.1f} %"
