"""What a reader must know beside the table, and the conclusion, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wager.bench.figures import highest_speedup
from wager.bench.identity import Identity
from wager.bench.results import Cell, Report
from wager.bench.spelling import NA, number, percent, shares_by_source, spelt


def advice_lines(report: Report) -> list[str]:
    """One line per workload and arm, where there is more than one load or another engine."""
    loads = {(cell.clients, cell.rate) for cell in report.cells}
    if len(loads) == 1 and report.engine == "own":
        return []
    arms = {verdict.arm for verdict in report.verdicts}
    out = []
    for verdict in report.verdicts:
        name = verdict.workload if len(arms) == 1 else f"{verdict.workload}, {verdict.arm}"
        out.append(f"{name}: {(verdict.verdict or NA).upper()}: {verdict.reason}")
    return out


def notes(report: Report) -> list[str]:
    """What a reader must know beside the table; one line each."""
    out = []
    for arm in report.arms:
        out += [f"{arm.arm}: the engine says: {line}" for line in arm.warnings]
        if arm.counters.resets:
            out.append(
                f"COUNTERS BEGAN ANEW: {arm.arm}: the server's counters went back to 0 while it "
                "was measured (was it restarted?), so what they say of its drafts is not known"
            )
        if arm.identity is not None and arm.identity.compared:
            out.append(f"{arm.arm}: {_identity_pass(arm.identity)}")
    for cell in report.cells:
        out += _cell_notes(cell, _place(cell, report.cells), report.engine)
    return out


def _identity_pass(found: Identity) -> str:
    text = f"greedy identity: {found.equal} of {found.compared} replies equal ({found.unit})"
    if found.control is not None:
        text += f"; plain against plain: {found.control.equal} of {found.control.compared}"
    if found.first_divergences:
        text += f"; {_first(found)}"
    return text


def _first(found: Identity) -> str:
    """The first divergence of all, and how close the two best tokens were there."""
    one = min(found.first_divergences, key=lambda d: d.position)
    what = "token" if found.unit == "tokens" else "character"
    gap = NA if one.top2_gap is None else f"{one.top2_gap:.4f}"
    return f"first at {what} {one.position} of {one.id}, top-2 gap there {gap}"


def _cell_notes(cell: Cell, place: str, engine: str) -> Iterator[str]:
    if cell.identical is not None and cell.identical < cell.identity.compared:
        changed, compared = cell.identity.compared - cell.identical, cell.identity.compared
        line = f"OUTPUT CHANGED: {place}: {changed} of {compared} replies differ"
        if cell.identity.first_divergences:
            line += f"; {_first(cell.identity)}"
        if engine != "own" and cell.identity.control is not None:
            control = cell.identity.control
            line += f"; plain against plain: {control.equal} of {control.compared} equal"
        yield line
    if cell.active is False:
        line = f"NOT ACTIVE: {place}: {cell.method} never proposed anything"
        if cell.speedup is not None:
            line += f": {number(cell.speedup, 2)}x is noise, or what the method costs while idle"
        yield line
    if cell.status == "DISTURBED":
        highest = highest_speedup(
            cell.clients, cell.prefill_share, cell.requests, cell.tokens_per_step
        )
        yield (
            f"DISTURBED: {place}: {number(cell.speedup, 2)}x was measured, but the steps allow "
            f"{number(highest, 2)}x at most; something else used the machine, measure again"
        )
    if cell.errors.plain or cell.errors.spec:
        yield (
            f"ERRORS: {place}: {cell.errors.plain} plain and {cell.errors.spec} speculative "
            "replies failed and are in no figure"
        )
    if cell.by_source and len(cell.by_source) > 1:
        yield f"{place}: drafts by source: {shares_by_source(cell.by_source)}"
    if cell.repeated_prompts:
        yield f"REPEATED PROMPTS: {place}: caches and drafters that learn look better than they are"
    if cell.random_prompts and engine != "own":
        yield f"{place}: random token ids, whose acceptance says nothing about text"
    if cell.followed is not None:
        yield f"{place}: instruction followed in {cell.followed} of {cell.outputs}"
    if cell.loops:
        yield (
            f"{place}: {cell.loops} of {cell.outputs} replies end in a loop, "
            "which flatters every drafter that copies"
        )
    pooled, means = cell.tokens_per_step, cell.tokens_per_step_mean_of_requests
    if pooled and means and _far(pooled, means):
        yield (
            f"{place}: {pooled:.2f} tokens per step pooled over all steps, "
            f"{means:.2f} as the mean of the requests' own averages"
        )
    yield from (f"{place}: {note}" for note in cell.notes)


def _far(a: float, b: float) -> bool:
    return abs(a - b) > 0.2 * min(a, b)


def conclusion(cells: Sequence[Cell], *, brief: bool = False) -> str:
    """One paragraph: where drafts hit, where they miss, and what to do about it.

    ``brief`` leaves that to `advice_lines` and speaks of the output alone.
    """
    parts = [] if brief else _by_verdict(cells)
    compared = sum(c.identity.compared for c in cells)
    same = sum(c.identity.equal for c in cells)
    units = {c.identity.unit for c in cells if c.identity.unit}
    if compared and same == compared:
        how = "token for token" if units == {"tokens"} else "by their text"
        parts.append(f"It changed no reply: {same} of {compared} are equal, {how}.")
    elif compared:
        parts.append(f"It CHANGED {compared - same} of {compared} replies.")
    return " ".join(parts)


def _by_verdict(cells: Sequence[Cell]) -> list[str]:
    parts = []
    hits = [c for c in cells if c.verdict == "use"]
    misses = [c for c in cells if c.verdict == "do not use"]
    even = [c for c in cells if c.verdict == "no difference"]
    idle = [c for c in cells if c.status == "NOT ACTIVE"]
    unknown = [c for c in cells if c.verdict is None and c.status != "NOT ACTIVE"]
    if hits:
        parts.append("Speculation pays on " + _listed([_hit(c, cells) for c in hits]) + ".")
    if even:
        parts.append("No difference was shown on " + _listed([_miss(c, cells) for c in even]) + ".")
    if misses:
        found = _listed([_miss(c, cells) for c in misses])
        parts.append(f"It costs time on {found}: do not use it there.")
    if idle:
        parts.append("It never drafted on " + _listed([_place(c, cells) for c in idle]) + ".")
    if unknown:
        found = _listed([_place(c, cells) for c in unknown])
        parts.append(f"Not enough sound replies for a verdict: {found}.")
    return parts


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
    if cell.acceptance_rate is not None:
        text += (
            f": {percent(cell.coverage)} of the steps had a draft, "
            f"{percent(cell.acceptance_rate)} of the drafted tokens were right"
        )
    if cell.prefill_share is not None and cell.prefill_share > 0.5:
        text += f"; {percent(cell.prefill_share)} of the time goes into the prompt"
    return text + ")"


def _place(cell: Cell, cells: Sequence[Cell]) -> str:
    """The workload, with load and arm where they differ between the cells."""
    parts = [cell.workload]
    if len({(c.clients, c.rate) for c in cells}) > 1:
        parts.append(f"at {spelt(cell.clients, cell.rate)}")
    if len({c.arm for c in cells}) > 1:
        parts.append(f"with {cell.arm}")
    return " ".join(parts)


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
