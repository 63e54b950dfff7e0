"""What `wager tune` prints: every arm, what was chosen and why, and what to expect of it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.arms import PLAIN
from wager.bench.results import Cell
from wager.bench.spelling import NA, percent, spelt
from wager.bench.statistics import Ratio
from wager.bench.tune import choice
from wager.bench.tune.check import Checked
from wager.bench.tune.choice import Expected
from wager.bench.tune.search import Outcome
from wager.bench.tune.space import can_be_scheduled
from wager.external.dialects.options import TITLES

_PAD: Final = (0, 2, 0, 0)


def show(console: Console, found: Outcome, command: Sequence[str]) -> None:
    """The whole report of a tuning; ``command`` is the one that it ends in."""
    wish = found.wish
    version = f" {found.version}" if found.version else ""
    print_line(
        console,
        f"{wish.model} on {TITLES[wish.engine]}{version}; "
        f"{', '.join(dict.fromkeys(c.workload for c in found.decided.plan.cells))}; "
        f"{_prompts(found)}, each asked {wish.visits} times in each arm; "
        f"took {_time(found.seconds)}",
    )
    console.print()
    console.print(arms_table(found))
    console.print()
    for line in [*_bases(found), *found.notes]:
        print_line(console, line)
    print_line(console, "")
    for line in why(found):
        print_line(console, line)
    print_line(console, "")
    if found.expected:
        print_line(console, "A new measurement will show, in 19 of 20 cases:")
        console.print(expected_table(found.expected))
        print_line(console, "")
    print_line(console, "Command:")
    # By itself on its line, so that it can be copied.
    print_line(console, shlex.join(command))


def print_line(console: Console, line: str) -> None:
    """As it is: neither wrapped nor read as markup."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _prompts(found: Outcome) -> str:
    counts = {len(cell.prompts) for cell in found.decided.plan.cells}
    least, most = min(counts), max(counts)
    number = f"{least}" if least == most else f"{least} to {most}"
    return f"{number} prompts of each workload at each load"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def arms_table(found: Outcome) -> Table:
    """Estimated and measured speed-up of every arm that was run, at each load."""
    grid = Table(box=None, pad_edge=False, padding=_PAD)
    grid.add_column("arm", no_wrap=True)
    for load in found.wish.loads:
        grid.add_column(f"{spelt(load, None)}\nestimated", justify="right", no_wrap=True)
        grid.add_column("measured\n[95 %]", justify="right", no_wrap=True)
    for name, by_load in found.scores.items():
        row = [name]
        prediction = found.predictions.get(name)
        for load in found.wish.loads:
            estimated = None if prediction is None else prediction.by_load.get(load)
            row += [
                _times(estimated),
                _interval(by_load[load].speedup if load in by_load else None),
            ]
        grid.add_row(*map(Text, row))
    return grid


def _times(value: float | None) -> str:
    return NA if value is None else f"{value:.2f}x"


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.value is None:
        return NA
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def _bases(found: Outcome) -> list[str]:
    return [f"estimated, {method}: {basis}" for method, basis in found.basis.items()]


def why(found: Outcome) -> list[str]:
    """The choice at each load and over all of them, in sentences."""
    cells = found.decided.cells()
    lines = [f"{spelt(load, None)}: {_at(found, load, cells)}" for load in found.wish.loads]
    if len(found.wish.loads) > 1:
        lines.append(f"for all of them: {_overall(found)}")
    changed = [c for c in cells if c.arm == found.chosen.name and c.identity.compared]
    compared = sum(c.identity.compared for c in changed)
    equal = sum(c.identity.equal for c in changed)
    if equal < compared:
        lines.append(f"OUTPUT CHANGED: {compared - equal} of {compared} compared replies differ")
    return lines


def _at(found: Outcome, load: int, cells: Sequence[Cell]) -> str:
    chosen = found.chosen.name if found.schedule is not None else found.by_load[load]
    by_load = found.scores.get(chosen, {}).get(load)
    if chosen != PLAIN and by_load is not None:
        own = [c for c in cells if c.arm == chosen and c.clients == load]
        return f"{chosen}, {_interval(by_load.speedup)}{_per_workload(own)}"
    measured = {n: s[load] for n, s in found.scores.items() if load in s}
    if not measured:
        return "plain decoding: nothing else was measured"
    name = max(measured, key=lambda n: measured[n].speedup.value or 0.0)
    best = measured[name]
    said = f"plain decoding. The best of the others, {name}, measured {_interval(best.speedup)}"
    reason = _reason(best, [c for c in cells if c.arm == name and c.clients == load])
    return f"{said}: {reason}"


def _per_workload(cells: Sequence[Cell]) -> str:
    if len(cells) == 1:
        return f": {cells[0].reason}"
    parts = [f"{c.workload} {_times(c.speedup)} ({_share(c)})" for c in cells]
    return f": {', '.join(parts)}" if parts else ""


def _share(cell: Cell) -> str:
    if cell.status == "NOT ACTIVE":
        return "nothing drafted"
    steps = NA if cell.tokens_per_step is None else f"{cell.tokens_per_step:.2f}"
    return f"{steps} tokens per step, {percent(cell.acceptance_rate)} of the drafts right"


def _reason(score: choice.Score, cells: Sequence[Cell]) -> str:
    if score.doubt is not None:
        return score.doubt
    said = {
        "do not use": "a loss",
        "no difference": "no gain was shown",
        "use": "a gain",
        None: "too few prompts for an interval",
    }[score.verdict]
    worst = min(cells, key=lambda c: math.inf if c.speedup is None else c.speedup, default=None)
    if worst is None or worst.speedup is None:
        return said
    return f"{said}; on {worst.workload} {worst.reason}"


def _overall(found: Outcome) -> str:
    name, loads = found.chosen.name, found.wish.loads
    if name == PLAIN:
        paying = [load for load in loads if found.by_load[load] != PLAIN]
        if not paying:
            return "plain decoding: do not use speculation here"
        where = " and ".join(spelt(load, None) for load in paying)
        return (
            f"plain decoding: what pays at {where} loses elsewhere. Where the load is always "
            "that, tune with it alone"
        )
    if found.schedule is not None:
        parts = [f"{k} draft tokens from {low} requests on" for low, _, k in found.schedule]
        text = f"{name}: {', '.join(parts)}"
        if any(not k for _, _, k in found.schedule):
            text += (
                "; with 0 the drafter stays loaded, which is not the same as plain decoding: its "
                "cost is in the figures"
            )
        return text
    others = [load for load in loads if found.by_load[load] not in (name, PLAIN)]
    text = f"{name}: of the arms that lose nowhere the one with the highest mean over the loads"
    if others and not can_be_scheduled(found.wish.engine, found.candidates[name].family):
        text += f"; {TITLES[found.wish.engine]} cannot change it with the load"
    return text


def expected_table(expected: Sequence[Expected]) -> Table:
    """The speed-up to expect and its prediction interval, by workload and load."""
    grid = Table(box=None, pad_edge=False, padding=_PAD)
    grid.add_column("workload", no_wrap=True)
    for heading in ("clients", "speed-up", "between", "and"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for one in expected:
        row = (one.workload, str(one.clients), _times(one.speedup), _times(one.low))
        grid.add_row(*map(Text, (*row, _times(one.high))))
    return grid


def show_check(console: Console, rows: Sequence[Checked], name: str) -> None:
    """Expected and measured side by side, and the sum of it in a line."""
    grid = Table(box=None, pad_edge=False, padding=_PAD)
    grid.add_column("workload", no_wrap=True)
    for heading in ("clients", "expected", "between", "and", "measured\n[95 %]"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("", no_wrap=True)
    for row in rows:
        one = row.expected
        said = {True: "inside", False: "OUTSIDE", None: NA}[row.inside]
        figures = (one.workload, str(one.clients), _times(one.speedup), _times(one.low))
        grid.add_row(*map(Text, (*figures, _times(one.high), _interval(row.measured), said)))
    console.print(grid)
    known = [row for row in rows if row.inside is not None]
    hits = sum(row.inside is True for row in known)
    print_line(console, f"{name}: {hits} of {len(known)} expectations hold; 19 of 20 are meant to")
