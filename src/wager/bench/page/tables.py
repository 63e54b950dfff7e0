"""The tables of a report, once for the page and for Markdown: headings, kinds and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from wager.bench.identity import Identity
from wager.bench.latency import Percentiles
from wager.bench.results import ArmResult, Cell, Report
from wager.bench.spelling import NA, number, percent, spelt

Kind: TypeAlias = Literal["measured", "estimated", ""]
"""Where a figure comes from; empty for what is no figure."""
Tone: TypeAlias = Literal["gain", "loss", "even", "unknown", ""]

SYMBOLS: Final = {"gain": "▲", "loss": "▼", "even": "=", "unknown": "○", "": ""}
"""Beside the word of a verdict, so that colour is never the only difference."""


@dataclass(frozen=True, slots=True)
class Column:
    """One heading. ``kind`` is said where a table mixes measured and estimated figures.

    ``wraps`` is for prose, which may take several lines.
    """

    text: str
    kind: Kind = ""
    numeric: bool = True
    wraps: bool = False


def _text(text: str) -> Column:
    return Column(text, numeric=False)


def _prose(text: str) -> Column:
    return Column(text, numeric=False, wraps=True)


_ARM: Final = _prose("arm")
_PLACE: Final = (_text("workload"), _text("load"), _ARM)


@dataclass(frozen=True, slots=True)
class Value:
    """A text, and for a verdict its tone."""

    text: str
    tone: Tone = ""

    @property
    def symbol(self) -> str:
        """A sign of the tone."""
        return SYMBOLS[self.tone]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many values as there are columns."""

    caption: str
    columns: list[Column]
    rows: list[list[Value]] = field(default_factory=list)

    def add(self, *values: str | Value) -> None:
        """One row."""
        assert len(values) == len(self.columns)
        self.rows.append([Value(v) if isinstance(v, str) else v for v in values])


def load_of(cell: Cell) -> str:
    """``1 client``, ``8 clients`` or ``2 requests/s``."""
    return spelt(cell.clients, cell.rate)


def verdict_of(cell: Cell) -> Value:
    """The verdict of a cell, or why it has none."""
    if cell.status != "measured":
        return Value(cell.status, "unknown")
    return verdict_value(cell.verdict)


def verdict_value(verdict: str | None) -> Value:
    """A verdict with its tone; ``use below N`` counts as a gain."""
    tones: dict[str, Tone] = {"do not use": "loss", "no difference": "even"}
    if verdict is None:
        return Value("no verdict", "unknown")
    return Value(verdict, tones.get(verdict, "gain"))


def speed_up(cell: Cell) -> str:
    """Whole-request speed-up and its 95 % interval."""
    if cell.speedup is None:
        return NA
    low, high = number(cell.speedup_low, 2), number(cell.speedup_high, 2)
    return f"{cell.speedup:.2f}x [{low}, {high}]"


def times(value: float | None) -> str:
    """A ratio as ``1.23x``."""
    return NA if value is None else f"{value:.2f}x"


def duration(seconds: float | None) -> str:
    """Seconds in a fitting unit, three digits."""
    if seconds is None:
        return NA
    if seconds >= 1.0:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    ms = 1000 * seconds
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"


def whole(value: int | None) -> str:
    """A count, thousands apart, or n/a."""
    return NA if value is None else f"{value:,}"


def verdicts(report: Report) -> Table:
    """One row per workload and arm."""
    table = Table(
        "Verdicts over all loads",
        [
            *(Column(t, numeric=False) for t in ("verdict", "workload", "arm")),
            _prose("reason"),
        ],
    )
    for one in report.verdicts:
        word = verdict_value(one.verdict)
        if one.verdict is None and inactive(report, one.workload, one.arm):
            word = Value("NOT ACTIVE", "unknown")
        table.add(word, one.workload, one.arm, one.reason)
    return table


def inactive(report: Report, workload: str, arm: str) -> bool:
    """Whether an arm drafted nothing on a workload, at one load at least."""
    return any(c.status == "NOT ACTIVE" for c in report.cells
               if (c.workload, c.arm) == (workload, arm))  # fmt: skip


def cells(report: Report) -> Table:
    """One row per workload, load and arm."""
    table = Table(
        "Speed-up of whole requests, with its 95 % interval over prompts",
        [
            *_PLACE, Column("plain tok/s"), Column("spec tok/s"),
            Column("speed-up [95 %]"), Column("decode speed-up"), Column("prompt's share"),
            Column("prompts"), _text("verdict"),
        ],
    )  # fmt: skip
    for c in report.cells:
        table.add(
            c.workload, load_of(c), c.arm, number(c.plain_tok_s), number(c.spec_tok_s),
            speed_up(c), times(c.decode_speedup), percent(c.prefill_share), str(c.outputs),
            verdict_of(c),
        )  # fmt: skip
    return table


def drafts(report: Report) -> Table:
    """What was drafted and accepted, and what it costs, per cell of which that is known."""
    table = Table(
        "Drafts and steps",
        [
            *_PLACE, Column("tokens / step, pooled", "measured"),
            Column("tokens / step, mean of requests", "measured"),
            Column("acceptance length", "measured"), Column("steps with a draft", "measured"),
            Column("accepted / drafted, pooled", "measured"),
            Column("accepted / drafted, mean of requests", "measured"),
            Column("drafted", "measured"), Column("accepted", "measured"),
            Column("cost of a step in plain steps", "estimated"),
            _text("counted by"),
        ],
    )  # fmt: skip
    for c in report.cells:
        if (c.draft_figures_from, c.verify_cost_estimated) == (None, None):
            continue
        table.add(
            c.workload, load_of(c), c.arm, number(c.tokens_per_step, 2),
            number(c.tokens_per_step_mean_of_requests, 2), number(c.acceptance_length, 2),
            percent(c.coverage), percent(c.acceptance_rate),
            percent(c.acceptance_rate_mean_of_requests), whole(c.drafted), whole(c.accepted),
            times(c.verify_cost_estimated), c.draft_figures_from or NA,
        )  # fmt: skip
    return table


def sources(report: Report) -> Table:
    """What became of the drafts of each source, for cells in which there were several."""
    table = Table(
        "Drafts by source",
        [*_PLACE, _text("source"), Column("drafts"), Column("drafted"), Column("accepted"),
         Column("accepted / drafted")],
    )  # fmt: skip
    for c in report.cells:
        if c.by_source is None or len(c.by_source) < 2:
            continue
        for name, own in c.by_source.items():
            table.add(
                c.workload, load_of(c), c.arm, name, whole(own.drafts), whole(own.drafted),
                whole(own.accepted), percent(own.accepted / own.drafted if own.drafted else None),
            )  # fmt: skip
    return table


def positions(report: Report) -> Table:
    """Acceptance by position, both kinds, one row per cell and kind; no row without data."""
    known = [c for c in report.cells if c.acceptance_by_position_unconditional]
    longest = max([len(c.acceptance_by_position_unconditional or ()) for c in known], default=0)
    table = Table(
        "Acceptance by position",
        [
            *_PLACE, _text("kind"),
            *[Column(str(j + 1)) for j in range(longest)],
        ],
    )  # fmt: skip
    for c in known:
        for name, values in (
            ("unconditional", c.acceptance_by_position_unconditional),
            ("conditional", c.acceptance_by_position_conditional),
        ):
            shares: list[float | None] = [*(values or [])]
            padded = shares + [None] * (longest - len(shares))
            table.add(c.workload, load_of(c), c.arm, name, *[percent(v) for v in padded])
    return table


def steps(report: Report) -> Table:
    """Milliseconds of a step by its rows, and in plain steps."""
    table = Table(
        "One step of one request, sampler included", [Column("rows"), Column("ms"), Column("v")]
    )
    one = report.step_ms.get("1")
    for rows, ms in report.step_ms.items():
        if ms is not None:
            table.add(rows, number(ms, 2), times(ms / one if one else None))
    return table


def latencies(report: Report) -> Table:
    """Percentiles of four latencies, plain and speculative, as far as they are known."""
    table = Table(
        "Latencies: p50 / p95 / p99",
        [
            *_PLACE, _text("latency"),
            Column("plain"), Column("speculative"),
        ],
    )  # fmt: skip
    for c in report.cells:
        for name, both in (
            ("to the first token", c.ttft_s), ("per token", c.tpot_s),
            ("between chunks", c.chunk_gap_s), ("whole request", c.request_s),
        ):  # fmt: skip
            if both.plain.p50 is None and both.spec.p50 is None:
                continue
            table.add(c.workload, load_of(c), c.arm, name, _three(both.plain), _three(both.spec))
    return table


def _three(of: Percentiles) -> str:
    return " / ".join(duration(v) for v in (of.p50, of.p95, of.p99))


def arms(report: Report) -> Table:
    """Memory, start-up and drafting time, one row per arm of which that is known."""
    table = Table(
        "Memory and start-up",
        [
            _ARM, Column("KV tokens"), Column("share lost"),
            Column("start, cold caches"), Column("start, warm caches"), Column("start, all"),
            Column("time in drafting"), Column("preemptions"),
        ],
    )  # fmt: skip
    for arm in report.arms:
        known = (arm.kv_tokens, arm.startup_s.any, arm.draft_time_share, arm.counters.preemptions)
        if known == (None,) * 4:
            continue
        table.add(
            arm.arm, whole(arm.kv_tokens), share(arm.kv_share_lost),
            duration(arm.startup_s.cold), duration(arm.startup_s.warm),
            duration(arm.startup_s.any), share(arm.draft_time_share),
            whole(arm.counters.preemptions),
        )  # fmt: skip
    return table


def share(value: float | None) -> str:
    """A share with one digit; a negative share lost is room gained."""
    return NA if value is None else f"{100 * value:.1f} %"


def identity(report: Report) -> Table:
    """Were the replies the same as plain ones? No row if none were compared at all."""
    table = Table(
        "Same output as plain decoding",
        [
            _text("where"), _ARM, Column("compared"), Column("equal"), _text("compared by"),
            _text("plain against plain"), _text(""),
        ],
    )  # fmt: skip
    passes = [arm.identity for arm in report.arms if arm.identity is not None]
    if not any(found.compared for found in [*(c.identity for c in report.cells), *passes]):
        return table
    for c in report.cells:
        table.add(f"{c.workload}, {load_of(c)}", c.arm, *_identity(c.identity))
    for arm in report.arms:
        if arm.identity is not None:
            table.add("identity pass (greedy)", arm.arm, *_identity(arm.identity))
    return table


def _identity(found: Identity) -> Sequence[str | Value]:
    if not found.compared:
        return "0", NA, NA, NA, Value("not compared", "unknown")
    control = found.control
    noise = NA if control is None else f"{control.equal} of {control.compared} equal"
    same = found.equal == found.compared
    word = Value("same", "gain") if same else Value("CHANGED", "loss")
    return str(found.compared), str(found.equal), found.unit or NA, noise, word


def divergences(report: Report) -> Table:
    """The first difference of every reply that changed."""
    table = Table(
        "First differences",
        [
            _text("where"), _ARM,
            _prose("prompt"), Column("position"), Column("top-2 gap"),
        ],
    )  # fmt: skip
    for where, arm, found in [
        *((f"{c.workload}, {load_of(c)}", c.arm, c.identity) for c in report.cells),
        *(("identity pass", a.arm, a.identity) for a in report.arms if a.identity is not None),
    ]:
        unit = "token" if found.unit == "tokens" else "character"
        for d in found.first_divergences:
            table.add(where, arm, d.id, f"{unit} {d.position}", number(d.top2_gap, 3))
    return table


def doubts(report: Report) -> Table:
    """Failed and left-out replies and what else weakens a cell; only cells that have any."""
    table = Table(
        "Failed and left-out replies, loops, remarks",
        [
            *_PLACE, Column("failed, plain"), Column("failed, spec"),
            Column("no decode time, plain"), Column("no decode time, spec"),
            Column("loops"), Column("followed"), _prose("remarks"),
        ],
    )  # fmt: skip
    for c in report.cells:
        remarks = [*c.notes]
        if c.repeated_prompts:
            remarks.append("a prompt was sent more than once: caches and drafters are flattered")
        if c.random_prompts:
            remarks.append("random token ids: their acceptance says nothing about text")
        if c.status == "DISTURBED":
            remarks.append("DISTURBED: the gain is larger than the steps allow")
        counts = (c.errors.plain, c.errors.spec, c.excluded.plain, c.excluded.spec, c.loops or 0)
        if remarks or any(counts) or c.followed is not None:
            table.add(
                c.workload, load_of(c), c.arm, *[str(n) for n in counts[:4]], whole(c.loops),
                NA if c.followed is None else f"{c.followed} of {c.outputs}",
                "; ".join(remarks) or "-",
            )  # fmt: skip
    return table


def effective(arm: ArmResult) -> str:
    """The option values in effect, else those asked for."""
    values = arm.effective or arm.options
    return ", ".join(f"{key} = {value}" for key, value in values.items() if value not in ({}, None))
