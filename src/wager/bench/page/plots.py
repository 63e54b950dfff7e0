"""The plots of a report: from its records to inline SVG. What is not known is not drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup

from wager.arms import PLAIN
from wager.bench.page import svg
from wager.bench.page.svg import (
    Chart,
    Mark,
    Point,
    Scale,
    Series,
    axis,
    chart,
    linear,
    ordinal,
    ratios,
    row,
)
from wager.bench.page.tables import duration, load_of, share, speed_up, times, whole
from wager.bench.results import BothTimes, Cell, Report
from wager.bench.spelling import number
from wager.bench.statistics import median

_LABELLED_POINTS: Final = 8
"""With more points than this, names beside them would run into each other."""


@dataclass(frozen=True, slots=True)
class Facet:
    """A chart with its heading."""

    title: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class PlotRow:
    """One line of a plot in rows: the arm's number is its colour and shape."""

    title: str
    arm: str
    index: int
    value: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows over one scale."""

    title: str
    rows: list[PlotRow]
    axis: Markup


class Arms:
    """Numbers of the arms of a report, in its order; that of plain decoding is `svg.PLAIN`."""

    def __init__(self, report: Report) -> None:
        names = [arm.arm for arm in report.arms[1:]] + [cell.arm for cell in report.cells]
        self.names = list(dict.fromkeys(names))

    def __getitem__(self, arm: str) -> int:
        return self.names.index(arm) if arm in self.names else svg.PLAIN


def _load(cell: Cell) -> float:
    return float(cell.clients if cell.clients is not None else cell.rate or 0.0)


def _workloads(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.workload for cell in cells))


def _where(cell: Cell) -> str:
    return f"{cell.workload}, {load_of(cell)}"


def speed_by_load(report: Report, arms: Arms) -> list[Facet]:
    """One chart per workload over its loads, all with one scale; none with a single load."""
    cells = [c for c in report.cells if c.speedup is not None]
    if len({_load(c) for c in cells}) < 2:
        return []
    unit = "clients" if cells[0].clients is not None else "requests/s"
    every = [v for c in cells for v in (c.speedup, c.speedup_low, c.speedup_high) if v is not None]
    y = ratios(every, "speed-up (log scale)")
    facets = []
    for workload in _workloads(cells):
        here = [c for c in cells if c.workload == workload]
        loads = sorted({_load(c) for c in here})
        series = []
        for arm in arms.names:
            points = [
                Point(loads.index(_load(c)), c.speedup, f"{c.arm}, {load_of(c)}: {speed_up(c)}",
                      c.speedup_low, c.speedup_high, hollow=c.status != "measured")
                for c in sorted(here, key=_load) if c.arm == arm and c.speedup is not None
            ]  # fmt: skip
            if points:
                series.append(Series(arm, arms[arm], _dodged(points, arms, arm)))
        told = "; ".join(p.note for s in series for p in s.points)
        facets.append(Facet(workload, chart(Chart(
            f"Speed-up of {workload} by {unit}. {told}", ordinal(loads, unit), y, series,
            x_texts=[f"{load:g}" for load in loads], one=True, below="slower than plain",
        ))))  # fmt: skip
    return facets


def _dodged(points: Sequence[Point], arms: Arms, arm: str) -> list[Point]:
    """Beside each other rather than on top of each other, within one load."""
    shift = 0.07 * (arms[arm] - (len(arms.names) - 1) / 2)
    return [replace(p, x=p.x + shift) for p in points]


def speed_rows(report: Report, arms: Arms) -> Rows | None:
    """Every cell's speed-up and interval in a row."""
    cells = [c for c in report.cells if c.speedup is not None]
    if not cells:
        return None
    every = [v for c in cells for v in (c.speedup, c.speedup_low, c.speedup_high) if v is not None]
    scale = ratios(every, "speed-up")
    rows = []
    for c in cells:
        index, value = arms[c.arm], speed_up(c)
        hollow = c.status != "measured"
        marks = [Mark("point", c.speedup or 0.0, index, note=value, hollow=hollow)]
        if c.speedup_low is not None and c.speedup_high is not None:
            marks.insert(0, Mark("line", c.speedup_low, index, to=c.speedup_high))
        told = f"{_where(c)}, {c.arm}: speed-up {value}"
        rows.append(PlotRow(_where(c), c.arm, index, value, row(scale, marks, told, one=True)))
    return Rows("Speed-up of whole requests (log scale)", rows, axis(scale))


def spread_rows(report: Report, arms: Arms) -> Rows | None:
    """One dot per prompt: its plain time / its speculative time."""
    by_cell = []
    for c in report.cells:
        ratios_ = [(r.plain_s / r.spec_s, r) for r in c.requests if r.plain_s > 0 and r.spec_s > 0]
        if ratios_:
            by_cell.append((c, ratios_))
    if not by_cell:
        return None
    scale = ratios([v for _, found in by_cell for v, _ in found], "speed-up")
    rows = []
    for c, found in by_cell:
        index = arms[c.arm]
        values = [v for v, _ in found]
        marks = [
            Mark("dot", v, index, note=f"{r.id}: {v:.2f}x ({duration(r.plain_s)} plain, "
                                       f"{duration(r.spec_s)} speculative)")
            for v, r in found
        ]  # fmt: skip
        slower = sum(v < 1.0 for v in values)
        value = f"{slower} of {len(values)} slower"
        told = (
            f"{_where(c)}, {c.arm}: from {min(values):.2f}x to {max(values):.2f}x, median "
            f"{times(median(values))}, {value}"
        )
        rows.append(PlotRow(_where(c), c.arm, index, value, row(scale, marks, told, one=True)))
    return Rows("Speed-up of single prompts (log scale)", rows, axis(scale))


def acceptance(report: Report, arms: Arms) -> list[Facet]:
    """Acceptance by position, one chart per workload and load; both kinds where known."""
    cells = [c for c in report.cells if c.acceptance_by_position_unconditional]
    facets = []
    for where in dict.fromkeys(_where(c) for c in cells):
        here = [c for c in cells if _where(c) == where]
        series = []
        for c in here:
            for name, dashed, values in (
                ("unconditional", False, c.acceptance_by_position_unconditional),
                ("conditional", True, c.acceptance_by_position_conditional),
            ):
                points = [
                    Point(j, 100 * v, f"{c.arm}, position {j + 1}, {name}: {100 * v:.1f} %")
                    for j, v in enumerate(values or []) if v is not None
                ]  # fmt: skip
                if points:
                    series.append(Series(f"{c.arm} {name}", arms[c.arm], points, dashed))
        longest = max(len(c.acceptance_by_position_unconditional or ()) for c in here)
        x = ordinal(range(longest), "draft position")
        stride = 1 if longest <= 10 else -(-longest // 8)
        x_texts = [str(j + 1) if j % stride == 0 else "" for j in range(longest)]
        told = "; ".join(p.note for s in series for p in s.points)
        y = Scale(0, 100, False, (0, 25, 50, 75, 100), "accepted", " %")
        facets.append(Facet(where, chart(Chart(
            f"Acceptance by position of {where}. {told}", x, y, series, x_texts=x_texts,
        ))))  # fmt: skip
    return facets


def token_rows(report: Report, arms: Arms) -> Rows | None:
    """Tokens per step: a bar for the pooled figure, a hollow mark for the mean of requests."""
    cells = [c for c in report.cells if c.tokens_per_step is not None]
    if not cells:
        return None
    means = [c.tokens_per_step_mean_of_requests or 0.0 for c in cells]
    scale = linear([*(c.tokens_per_step or 0.0 for c in cells), *means], "tokens per step")
    rows = []
    for c in cells:
        index, pooled, mean = arms[c.arm], c.tokens_per_step, c.tokens_per_step_mean_of_requests
        marks = [Mark("bar", 0.0, index, to=pooled, note=f"pooled: {number(pooled, 2)}")]
        if mean is not None:
            note = f"mean of requests: {number(mean, 2)}"
            marks.append(Mark("point", mean, index, note=note, hollow=True))
        told = (
            f"{_where(c)}, {c.arm}: {number(pooled, 2)} tokens per step pooled, "
            f"{number(mean, 2)} as the mean of requests"
        )
        drawn = row(scale, marks, told)
        rows.append(PlotRow(_where(c), c.arm, index, number(pooled, 2), drawn))
    return Rows("Tokens per step, over all steps", rows, axis(scale))


def step_chart(report: Report) -> Facet | None:
    """v by rows: the time of a step with that many rows in plain steps (measured)."""
    one = report.step_ms.get("1")
    known = [(int(rows), ms) for rows, ms in report.step_ms.items() if ms is not None]
    if not one or len(known) < 2:
        return None
    points = [Point(i, ms / one, f"{rows} rows: {number(ms, 2)} ms, {times(ms / one)}")
              for i, (rows, ms) in enumerate(known)]  # fmt: skip
    told = "; ".join(p.note for p in points)
    return Facet("Step by rows (measured)", chart(Chart(
        f"Time of one step by its rows, in plain steps. {told}",
        ordinal([rows for rows, _ in known], "rows in the step (1 + draft tokens)"),
        linear([p.y for p in points], "plain steps"),
        [Series("step", svg.PLAIN, points)], x_texts=[str(rows) for rows, _ in known],
    )))  # fmt: skip


def pay_chart(report: Report, arms: Arms) -> Facet | None:
    """Tokens per step (measured) against the cost of a step (estimated); the diagonal is even."""
    known = [c for c in report.cells
             if c.tokens_per_step is not None and c.verify_cost_estimated is not None]  # fmt: skip
    if not known:
        return None
    named = len(known) <= _LABELLED_POINTS
    series = []
    for arm in arms.names:
        points = [
            Point(c.verify_cost_estimated or 0.0, c.tokens_per_step or 0.0,
                  f"{_where(c)}, {c.arm}: {number(c.tokens_per_step, 2)} tokens per step at "
                  f"{times(c.verify_cost_estimated)} of a plain step",
                  text=c.workload if named else None)
            for c in known if c.arm == arm
        ]  # fmt: skip
        if points:
            series.append(Series(arm, arms[arm], points, joined=False))
    every = [p for s in series for p in s.points]
    x = linear([1.5, *(p.x for p in every)], "plain steps that a step costs (estimated)")
    y = linear([p.y for p in every], "tokens per step")
    told = "; ".join(p.note for s in series for p in s.points)
    return Facet("What a step brings and costs", chart(Chart(
        f"Tokens per step against the cost of a step; above the diagonal it pays. {told}",
        x, y, series, diagonal="a loss",
    )))  # fmt: skip


def latency_rows(report: Report, arms: Arms) -> list[Rows]:
    """Median time to the first token and per token: plain (hollow) to speculative (filled)."""
    found = []
    for title, of in (
        ("Time to the first token, median", lambda c: c.ttft_s),
        ("Time per token, median", lambda c: c.tpot_s),
    ):
        rows = _latency(title, of, report, arms)
        if rows is not None:
            found.append(rows)
    return found


def _latency(
    title: str, of: Callable[[Cell], BothTimes], report: Report, arms: Arms
) -> Rows | None:
    known = []
    for c in report.cells:
        plain, spec = of(c).plain.p50, of(c).spec.p50
        if plain is not None and spec is not None:
            known.append((c, plain, spec))
    if not known:
        return None
    longest = max(v for _, a, b in known for v in (a, b))
    factor, unit = (1.0, " s") if longest >= 1.0 else (1000.0, " ms")
    scale = linear([factor * longest], title, unit=unit)
    rows = []
    for c, plain, spec in known:
        index = arms[c.arm]
        marks = [
            Mark("line", factor * plain, index, to=factor * spec),
            Mark("point", factor * plain, index, note=f"plain: {duration(plain)}", hollow=True),
            Mark("point", factor * spec, index, note=f"speculative: {duration(spec)}"),
        ]
        value = f"{duration(plain)} → {duration(spec)}"
        told = f"{title}, {_where(c)}, {c.arm}: plain {duration(plain)}, spec {duration(spec)}"
        rows.append(PlotRow(_where(c), c.arm, index, value, row(scale, marks, told)))
    return Rows(title, rows, axis(scale))


def arm_rows(report: Report, arms: Arms) -> list[Rows]:
    """Room for keys and values, and start-up, one row per arm."""
    return [rows for rows in (_room(report, arms), _start_up(report, arms)) if rows is not None]


def _room(report: Report, arms: Arms) -> Rows | None:
    title = "Room for keys and values, tokens"
    known = [arm for arm in report.arms if arm.kv_tokens is not None]
    if not known:
        return None
    scale = linear([arm.kv_tokens or 0 for arm in known], title)
    rows = []
    for arm in known:
        text = whole(arm.kv_tokens)
        if arm.arm != PLAIN and arm.kv_share_lost is not None:
            text += f" ({share(arm.kv_share_lost)} lost)"
        marks = [Mark("bar", 0.0, arms[arm.arm], to=arm.kv_tokens, note=text)]
        drawn = row(scale, marks, f"Room of {arm.arm}: {text}")
        rows.append(PlotRow("", arm.arm, arms[arm.arm], text, drawn))
    return Rows(title, rows, axis(scale))


def _start_up(report: Report, arms: Arms) -> Rows | None:
    """A bar for the median of all starts, hollow for cold caches, filled for warm ones."""
    title = "Start-up, seconds: all starts (bar), cold caches (hollow), warm caches (filled)"
    known = [arm for arm in report.arms if arm.startup_s.any is not None]
    if not known:
        return None
    every = [
        v for arm in known for v in (arm.startup_s.any, arm.startup_s.cold, arm.startup_s.warm)
    ]
    scale = linear([v for v in every if v is not None], title)
    rows = []
    for arm in known:
        index, took = arms[arm.arm], arm.startup_s
        marks = [Mark("bar", 0.0, index, to=took.any, note=f"all: {duration(took.any)}")]
        for name, value, hollow in (("cold", took.cold, True), ("warm", took.warm, False)):
            if value is not None:
                note = f"{name}: {duration(value)}"
                marks.append(Mark("point", value, index, note=note, hollow=hollow))
        told = (
            f"Start-up of {arm.arm}: {duration(took.any)} all, {duration(took.cold)} cold, "
            f"{duration(took.warm)} warm"
        )
        drawn = row(scale, marks, told)
        rows.append(PlotRow("", arm.arm, index, duration(took.any), drawn))
    return Rows(title, rows, axis(scale))


def identity_rows(report: Report, arms: Arms) -> Rows | None:
    """Share of the compared replies that are equal."""
    scale = Scale(0, 100, False, (0, 25, 50, 75, 100), "equal", " %")
    rows = []
    for c in report.cells:
        if c.identity.compared:
            equal = 100 * c.identity.equal / c.identity.compared
            value = f"{c.identity.equal} of {c.identity.compared}"
            told = f"{_where(c)}, {c.arm}: {value} replies are the same as without drafts"
            marks = [Mark("bar", 0.0, arms[c.arm], to=equal, note=value)]
            if changed := c.identity.compared - c.identity.equal:
                value += f", {changed} CHANGED"
                marks.append(Mark("bar", equal, svg.LOST, to=100.0, note=f"{changed} changed"))
            drawn = row(scale, marks, told)
            rows.append(PlotRow(_where(c), c.arm, arms[c.arm], value, drawn))
    return Rows("Replies equal to plain decoding", rows, axis(scale)) if rows else None
