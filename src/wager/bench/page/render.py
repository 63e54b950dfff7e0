"""`wager report`: one self-contained page of HTML from the files of `wager bench --json`.

The page loads nothing: style and plots are inline, there is no script, and it follows the reader's
choice of light or dark. Verdicts come first; every figure says whether it was measured or
estimated.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from wager import __version__
from wager.bench.page import plots, tables
from wager.bench.page.plots import Arms, Facet, Rows
from wager.bench.page.svg import symbol
from wager.bench.page.tables import Table, Value
from wager.bench.results import Cell, Report
from wager.bench.spelling import NA, number
from wager.bench.verdicts import OverLoads

_TEMPLATES: Final = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Run:
    """One report and the name that tells it from the others on the page."""

    name: str
    report: Report


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a run's page. ``kinds`` are those of its figures; ``absent`` is said if empty."""

    title: str
    kinds: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list)
    legend: bool = False
    facets: list[Facet] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    folded: bool = True
    absent: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.facets or self.rows or any(t.rows for t in self.tables))


def named(paths: Sequence[Path], reports: Sequence[Report]) -> list[Run]:
    """Names for runs: model and engine, and the file where those are the same."""
    short = [f"{report.model}, {report.engine}" for report in reports]
    runs = []
    for path, name, report in zip(paths, short, reports, strict=True):
        # A directory of a run names it better than the file in it, which is called the same always.
        own = path.absolute().parent.name if path.name == "bench.json" else path.stem
        runs.append(Run(name if short.count(name) == 1 else f"{name} ({own})", report))
    return runs


def render(runs: Sequence[Run]) -> str:
    """The page. ``runs`` is not empty."""
    style = Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))
    return (
        _environment()
        .get_template("report.html")
        .render(
            style=style,
            version=__version__,
            title=" and ".join(run.name for run in runs),
            overview=overview(runs) if len(runs) > 1 else None,
            runs=[_view(run) for run in runs],
            na=NA,
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _view(run: Run) -> dict[str, object]:
    report = run.report
    arms = Arms(report)
    return {
        "name": run.name,
        "report": report,
        "facts": facts(report),
        "lead": lead(report),
        "verdicts": tables.verdicts(report),
        "fastest": fastest(report) if len(arms.names) > 1 else None,
        "legend": [(name, symbol(arms[name])) for name in arms.names],
        "sections": _sections(report, arms),
        "commands": [(arm.arm, shlex.join(arm.command)) for arm in report.arms if arm.command],
        "arm_facts": arm_facts(report),
        "warnings": warnings(report),
    }


def facts(report: Report) -> list[tuple[str, str]]:
    """What was measured, on what."""
    machine = report.machine
    memory = machine.get("memory")
    return [
        ("model", report.model),
        ("engine", report.engine),
        ("weights", report.weights or NA),
        ("keys and values", report.kv or NA),
        ("threads", NA if report.threads is None else str(report.threads)),
        ("processor", f"{machine.get('cpu') or NA}, {machine.get('cores') or NA} cores"),
        ("instruction set", str(machine.get("isa") or NA)),
        ("memory", f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else NA),
        *[(name, version) for name, version in report.versions.items()],
    ]


def lead(report: Report) -> list[str]:
    """The advice in plain sentences, one per arm."""
    sentences = []
    for arm in dict.fromkeys(one.arm for one in report.verdicts):
        mine = [one for one in report.verdicts if one.arm == arm]
        parts = _advice(mine)
        unknown = [one.workload for one in mine if one.verdict is None]
        idle = [w for w in unknown if tables.inactive(report, w, arm)]
        if idle:
            parts.append(f"it was not active on {_listed(idle)}, where nothing was drafted")
        rest = [w for w in unknown if w not in idle]
        if rest:
            parts.append(f"no verdict on {_listed(rest)}")
        sentences.append(f"{arm}: {'; '.join(parts)}.")
    sentences += [
        f"{arm.arm}: could not be measured in full: {arm.error}" for arm in report.arms if arm.error
    ]
    return sentences


def _advice(verdicts: Sequence[OverLoads]) -> list[str]:
    def on(word: str) -> list[str]:
        return [one.workload for one in verdicts if one.verdict == word]

    parts = []
    if pays := on("use"):
        parts.append(f"use it for {_listed(pays)}")
    for one in verdicts:
        if one.below is not None:
            parts.append(f"{one.verdict} for {one.workload}")
    if even := on("no difference"):
        parts.append(f"no difference was shown on {_listed(even)}")
    if loses := on("do not use"):
        parts.append(f"do not use it for {_listed(loses)}, where it costs time")
    return parts


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def fastest(report: Report) -> Table:
    """For each workload and load the arm that gained most, or plain decoding."""
    table = Table(
        "The fastest arm that was measured",
        [
            tables.Column("workload", numeric=False), tables.Column("load", numeric=False),
            tables.Column("fastest", numeric=False), tables.Column("speed-up [95 %]"),
        ],
    )  # fmt: skip
    places = dict.fromkeys((c.workload, tables.load_of(c)) for c in report.cells)
    for workload, load in places:
        here = [c for c in report.cells if (c.workload, tables.load_of(c)) == (workload, load)]
        gains = [c for c in here if c.verdict == "use"]
        if gains:
            best = max(gains, key=_speed)
            table.add(workload, load, Value(best.arm, "gain"), tables.speed_up(best))
        else:
            table.add(workload, load, Value("plain decoding", "even"), "1.00x")
    return table


def _speed(cell: Cell) -> float:
    return cell.speedup or 0.0


def overview(runs: Sequence[Run]) -> Table:
    """Every cell of every run side by side; rates are absolute, so that engines can be compared."""
    table = Table(
        "All runs",
        [
            tables.Column("workload", numeric=False), tables.Column("load", numeric=False),
            tables.Column("run", numeric=False), tables.Column("arm", numeric=False),
            tables.Column("plain tok/s"), tables.Column("spec tok/s"),
            tables.Column("speed-up [95 %]"), tables.Column("verdict", numeric=False),
        ],
    )  # fmt: skip
    cells = [(run, cell) for run in runs for cell in run.report.cells]
    places = list(dict.fromkeys((cell.workload, tables.load_of(cell)) for _, cell in cells))
    for place in places:
        for run, cell in cells:
            if (cell.workload, tables.load_of(cell)) == place:
                table.add(
                    *place, run.name, cell.arm, number(cell.plain_tok_s), number(cell.spec_tok_s),
                    tables.speed_up(cell), tables.verdict_of(cell),
                )  # fmt: skip
    return table


def _sections(report: Report, arms: Arms) -> list[Section]:
    return [
        _speed_section(report, arms),
        _spread_section(report, arms),
        *_draft_sections(report, arms),
        Section(
            "Latency", ("measured",),
            ["Hollow marks are plain decoding, filled ones speculative. A chunk is one piece of "
             "the stream and may hold several tokens, so its gaps are not times per token. "
             "The 95th percentile needs 20 values, the 99th 100."],
            legend=True, rows=plots.latency_rows(report, arms), tables=[tables.latencies(report)],
            absent="n/a. No latency was measured.",
        ),
        Section(
            "Memory and start-up", ("measured",), rows=plots.arm_rows(report, arms),
            tables=[tables.arms(report)], absent="n/a. The engine tells nothing of it.",
        ),
        Section(
            "Same output?", ("measured",),
            ["Replies are compared with plain decoding, by token ids where the engine tells them. "
             "Plain against plain is the engine's own noise. The top-2 gap is the difference of "
             "the two best log-probabilities where the replies part: a small one says that "
             "rounding decided."],
            rows=_some(plots.identity_rows(report, arms)),
            tables=[tables.identity(report), tables.divergences(report)],
            absent="n/a. No replies were compared.",
        ),
        Section(
            "Errors and doubts", ("measured",), tables=[tables.doubts(report)], folded=False,
            absent="No reply failed, none was left out, and no cell is in doubt.",
        ),
    ]  # fmt: skip


def _some(rows: Rows | None) -> list[Rows]:
    return [] if rows is None else [rows]


def _speed_section(report: Report, arms: Arms) -> Section:
    facets = plots.speed_by_load(report, arms)
    return Section(
        "Speed-up by concurrency" if facets else "Speed-up", ("measured",),
        ["Plain time / speculative time of whole requests, prompt included, over the same prompts. "
         "Bars are 95 % intervals over the prompts; the shaded side is slower than plain. Hollow "
         "marks are no ground for a verdict: nothing was drafted, or the machine was disturbed."],
        legend=True, facets=facets, rows=[] if facets else _some(plots.speed_rows(report, arms)),
        tables=[tables.cells(report)], folded=False,
        absent="n/a. No speed-up was measured.",
    )  # fmt: skip


def _spread_section(report: Report, arms: Arms) -> Section:
    return Section(
        "Single prompts", ("measured",),
        ["One dot per prompt: its plain time / its speculative time, not scaled where replies "
         "have different lengths."],
        legend=True, rows=_some(plots.spread_rows(report, arms)),
        absent="n/a. No times of single prompts were written.",
    )  # fmt: skip


def _draft_sections(report: Report, arms: Arms) -> list[Section]:
    server = [c for c in report.cells if c.draft_figures_from == "server"]
    note = ["Counted by the server as a whole, over all that it answered meanwhile."]
    counted = note if server else []
    cost = [chart for chart in (plots.pay_chart(report, arms), plots.step_chart(report)) if chart]
    return [
        Section(
            "Acceptance by position", ("measured",),
            ["Filled, solid: unconditional, the share of all drafts whose token at this position "
             "was accepted. Hollow, dashed: conditional, the same among the drafts whose token "
             "before it was accepted. A draft that ended before counts as not accepted.",
             *counted],
            legend=True, facets=plots.acceptance(report, arms),
            tables=[tables.positions(report), tables.sources(report)],
            absent="n/a. Acceptance by position is not to be had.",
        ),
        Section(
            "Tokens per step", ("measured",),
            ["Bars pool all steps, drafted or not; hollow marks are the mean of the requests' own "
             "averages, in which a short request weighs as much as a long one. Plain decoding "
             "makes 1.", *counted],
            legend=True, rows=_some(plots.token_rows(report, arms)),
            absent="n/a. Tokens per step are not to be had.",
        ),
        Section(
            "Cost of checking", ("measured", "estimated"),
            ["The cost of a step is estimated from decode times: that of the arm per step / that "
             "of plain decoding per token, the mean over all steps. Speculation pays where a step "
             "brings more tokens than it costs plain steps. Times of steps by rows are measured."],
            legend=True, facets=cost, tables=[tables.drafts(report), tables.steps(report)],
            absent="n/a. Neither tokens per step nor the time of a step are known.",
        ),
    ]  # fmt: skip


def arm_facts(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """Per arm: version, values in effect, whether it drafted, why it failed."""
    found = []
    for arm in report.arms:
        active = {True: "yes", False: "NOT ACTIVE: nothing was drafted", None: NA}[arm.active]
        lines = [
            ("engine version", arm.version or NA),
            ("in effect", arm.description or NA),
            ("options", tables.effective(arm) or "none"),
            ("drafted", active),
        ]
        if arm.error:
            lines.append(("FAILED", arm.error))
        found.append((arm.arm, lines))
    return found


def warnings(report: Report) -> list[tuple[str, str]]:
    """(arm, line) of what the engine itself warned about, each once per arm."""
    return [(arm.arm, line) for arm in report.arms for line in dict.fromkeys(arm.warnings)]
