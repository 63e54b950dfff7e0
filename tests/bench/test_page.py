"""The page and the Markdown: self-contained, escaped, with the figures of the file."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.bench import report_samples as samples
from wager.bench.page import markdown, plots, svg, tables
from wager.bench.page import render as page
from wager.bench.page.file import read_report
from wager.bench.page.render import Run
from wager.bench.results import ArmResult, Cell, Report
from wager.errors import ConfigError

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "bench.schema.json").read_text())
SAMPLES = {
    "full": samples.full(), "one load": samples.one_load(), "bare": samples.bare(),
    "blank": samples.blank(),
}  # fmt: skip
VOID = {"meta", "br", "link", "input", "img", "hr"}


class Parsed(HTMLParser):
    """Every element and every piece of text; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def shown(*reports: Report) -> tuple[str, Parsed]:
    runs = page.named([Path(f"{i}.json") for i in range(len(reports))], reports)
    html = page.render(runs)
    return html, Parsed(html)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_follow_the_contract_and_are_read_back(name: str, tmp_path: Path) -> None:
    text = SAMPLES[name].to_json()
    jsonschema.validate(json.loads(text), SCHEMA, cls=jsonschema.Draft202012Validator)
    file = tmp_path / "run.json"
    file.write_text(text, encoding="utf-8")
    assert read_report(file) == SAMPLES[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_needs_nothing_from_outside(name: str) -> None:
    html, parsed = shown(SAMPLES[name])
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html
    loading = {"script", "link", "img", "iframe", "object", "embed", "source", "image", "use"}
    assert not loading & {tag for tag, _ in parsed.elements}
    for _, attributes in parsed.elements:
        assert not {"src", "srcset", "onclick", "onload"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")


def test_every_plot_has_a_text_alternative_and_every_section_its_kind() -> None:
    html, parsed = shown(samples.full())
    plots_ = [a for a in parsed.of("svg") if a.get("role") == "img"]
    assert len(plots_) > 50
    assert html.count('role="img"') == len(re.findall(r'<svg[^>]*role="img"[^>]*><title>.', html))
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", html, re.DOTALL)
    figures = [h for h in headings if "Warnings" not in h and "Commands" not in h]
    assert len(figures) == 10
    assert all('class="kind ' in h for h in figures)
    cost = next(h for h in figures if "Cost" in h)
    assert "measured" in cost
    assert "estimated" in cost


def test_what_others_wrote_is_text_and_nothing_else() -> None:
    html, parsed = shown(samples.full())
    assert "<script" not in html
    # A prompt's id, a note of the client, a warning of the engine.
    assert parsed.text.count(samples.EVIL) >= 4
    assert "/models/SmolLM2 <135M>" in parsed.text
    assert "Example CPU <8 cores>" in parsed.text
    assert """'{"method":"<x>"}'""" in parsed.text
    text = markdown.render([Run("r", samples.full())])
    assert "<script" not in text
    assert "&lt;script&gt;alert('x')&lt;/script&gt; &amp; \\| \\`tick\\`" in text


def test_the_figures_are_those_of_the_file() -> None:
    report = samples.full()
    _, parsed = shown(report)
    text = markdown.render([Run("r", report)])
    for cell in report.cells:
        assert cell.speedup is not None
        figure = f"{cell.speedup:.2f}x [{cell.speedup_low:.2f}, {cell.speedup_high:.2f}]"
        assert figure in parsed.text
        assert figure in text
        told = f"{cell.arm}, {tables.load_of(cell)}: {figure}"
        assert told in parsed.text, "the text alternative of the plot"
        assert f"{cell.spec_tok_s:.1f}" in text
    assert "41 ms" not in parsed.text
    for told in ("50.0 ms → 16.1 ms", "98,304 (25.0 % lost)", "10 of 12", "token 41", "0.002"):
        assert told in parsed.text


def test_a_loss_is_a_word_and_a_sign_and_a_colour() -> None:
    html, parsed = shown(samples.full())
    badge = '<div class="verdict loss"><p class="word loss"><span aria-hidden="true">▼'
    assert badge in html
    assert "▼ do not use random draft_model:model=/models/small,k=3" in parsed.text
    assert "do not use it for random, where it costs time" in parsed.text
    assert "slower than plain" in parsed.text
    assert "12 of 12 slower" in parsed.text
    # What was not active has no speed verdict.
    assert "○ NOT ACTIVE" in parsed.text


def test_the_verdicts_come_first() -> None:
    _, parsed = shown(samples.full())
    order = [parsed.text.index(t) for t in ("Incomplete.", "use it for copy", "Speed-up by",
                                            "Acceptance by position", "Commands and")]  # fmt: skip
    assert order == sorted(order)
    assert "use below 8 clients for explain" in parsed.text


def test_a_nearly_empty_report_says_what_is_missing() -> None:
    for report in (samples.bare(), samples.blank()):
        _, parsed = shown(report)
        assert "n/a. No speed-up was measured." in parsed.text or "no verdict" in parsed.text
        assert "n/a. Acceptance by position is not to be had." in parsed.text
        assert "n/a. Tokens per step are not to be had." in parsed.text
        # Counts of replies may be 0; no figure is.
        assert "0.00x" not in parsed.text
        assert "nan" not in parsed.text.lower().split()
        assert "None" not in parsed.text.replace("None.", "")
        assert markdown.render([Run("r", report)])


def every_field_missing() -> list[Report]:
    """The full report once more for every field that may be null, without it."""
    report = samples.one_load()
    out = []
    for field in fields(Cell):
        if "None" in str(field.type):
            out.append(replace(report, cells=[replace(report.cells[1], **{field.name: None})]))
    for field in fields(ArmResult):
        if "None" in str(field.type):
            arm = replace(report.arms[1], **{field.name: None})
            out.append(replace(report, arms=[report.arms[0], arm]))
    return out


def test_any_single_figure_may_be_missing() -> None:
    reports = every_field_missing()
    assert len(reports) > 30
    for report in reports:
        if report.cells[0].clients is None:
            report = replace(report, cells=[replace(report.cells[0], rate=2.5)])
        _, parsed = shown(report)
        words = set(re.split(r"[^A-Za-z]", parsed.text.replace("None.", "")))
        assert not {"None", "nan", "inf"} & words
        assert markdown.render([Run("r", report)])


def test_loads_may_be_rates() -> None:
    report = samples.full()
    cells = [replace(c, clients=None, rate=(c.clients or 0) / 2) for c in report.cells]
    _, parsed = shown(replace(report, cells=cells))
    assert "copy 4 requests/s" in parsed.text
    assert "Speed-up of copy by requests/s." in parsed.text


def test_one_load_is_shown_in_rows_and_several_in_charts() -> None:
    report = samples.full()
    facets = plots.speed_by_load(report, plots.Arms(report))
    assert [f.title for f in facets] == ["copy", "explain", "random"]
    one = samples.one_load()
    assert plots.speed_by_load(one, plots.Arms(one)) == []
    rows = plots.speed_rows(one, plots.Arms(one))
    assert rows is not None
    assert [r.title for r in rows.rows] == ["copy, 1 client", "explain, 1 client",
                                            "random, 1 client"]  # fmt: skip


def test_several_runs_stand_side_by_side() -> None:
    html, parsed = shown(samples.full(), samples.one_load(), samples.one_load())
    assert "All runs side by side" in parsed.text
    names = ["/models/SmolLM2 <135M>, vllm", "smollm2-135m, own (1)", "smollm2-135m, own (2)"]
    assert all(name in parsed.text for name in names)
    assert html.count("<article") == 3
    assert [a.get("href") for a in parsed.of("a")] == ["#run1", "#run2", "#run3"]
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids))
    both = page.named([Path("a"), Path("b")], [samples.full(), samples.one_load()])
    assert "**All runs**" in markdown.render(both)


def test_the_fastest_arm_is_plain_where_nothing_gains() -> None:
    found = {(row[0].text, row[1].text): row[2].text
             for row in page.fastest(samples.full()).rows}  # fmt: skip
    assert found["copy", "8 clients"] == samples.NGRAM
    assert found["explain", "1 client"] == samples.DRAFT
    assert found["explain", "8 clients"] == found["random", "1 client"] == "plain decoding"
    # A gain that the steps do not allow is none.
    assert found["copy", "1 client"] == samples.DRAFT


def test_markdown_tables_are_whole() -> None:
    text = markdown.render([Run("r", samples.full())])
    tables_ = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables_) == 10
    for block in tables_:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in block.split("\n")}
        assert len(columns) == 1
    assert "cost of a step in plain steps (estimated)" in text
    assert "```sh\n  vllm serve '/models/a b'" in text


def test_a_command_cannot_leave_its_fence() -> None:
    report = samples.full()
    arm = replace(report.arms[0], command=["x", "````\n# heading"])
    text = markdown.render([Run("r", replace(report, arms=[arm, *report.arms[1:]]))])
    assert "`````sh\n  x '````\n  # heading'\n  `````" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 1}, "has schema 1, this version reads 2: measure again with this version"),
        ({"schema": 3}, "has schema 3, this version reads 2: update wager"),
        ({"schema": "2"}, "has schema '2', this version reads 2"),
        ({"cells": {}}, "cells must be a list"),
        ({"cells": [{}]}, "cells[0].workload is missing"),
        ({"threads": 1.5}, "threads must be int, got 1.5"),
        ({"complete": 1}, "complete must be bool"),
        ({"verdicts": [{"workload": 1}]}, "verdicts[0].arm is missing"),
        ({"engine": None}, "engine must be str"),
        ({"more": 1}, "more is not known"),
        ({"step_ms": {"1": "fast"}}, "step_ms.1 must be float"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    data = {**json.loads(samples.bare().to_json()), **change}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        read_report(file)
    assert str(file) in str(caught.value)
    assert says in str(caught.value)


def test_figures_that_came_later_may_be_absent(tmp_path: Path) -> None:
    report = samples.full()
    data = json.loads(report.to_json())
    for cell in data["cells"]:
        del cell["by_source"], cell["warm"]
    jsonschema.validate(data, SCHEMA, cls=jsonschema.Draft202012Validator)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(data))
    older = [replace(cell, by_source=None, warm=None) for cell in report.cells]
    assert read_report(file) == replace(report, cells=older)


def test_drafts_by_source_have_a_table() -> None:
    (suffix, other) = tables.sources(samples.full()).rows
    assert [value.text for value in suffix] == [
        "copy", "8 clients", samples.NGRAM, "suffix", "400", "1,800", "700", "39 %",
    ]  # fmt: skip
    assert other[3].text == samples.EVIL
    assert tables.sources(samples.one_load()).rows == []
    assert "**Drafts by source**" in markdown.render([Run("r", samples.full())])
    _, parsed = shown(samples.full())
    assert "Drafts by source" in parsed.text


@pytest.mark.parametrize("content", ["", "[]", "{}", "nonsense", '{"schema": NaN, "cells": []}'])
def test_what_is_no_report_is_said(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="is not a file of wager bench --json"):
        read_report(file)


def test_scales_hold_their_values() -> None:
    scale = svg.ratios([0.5, 3.0], "speed-up")
    assert scale.at(scale.low) == 0.0
    assert scale.at(scale.high) == 1.0
    assert 1.0 in scale.ticks
    # Half as fast is as far from 1 as twice as fast.
    assert scale.at(1.0) - scale.at(0.5) == pytest.approx(scale.at(2.0) - scale.at(1.0))
    wide = svg.ratios([0.05, 60.0], "speed-up")
    assert 1.0 in wide.ticks
    for values in ([], [1.01], [0.97, 1.1], [0.5, 2.1], [0.2, 5.0], [0.05, 60.0], [0.002, 900.0]):
        found = svg.ratios(values, "speed-up")
        assert 3 <= len(found.ticks) <= 6
        assert 1.0 in found.ticks
    assert svg.linear([], "x").ticks[-1] >= 1.0
    for top in (0.003, 0.7, 1.0, 3.7, 99.0, 131_072.0):
        found = svg.linear([top], "x")
        assert found.ticks[0] == 0.0
        assert found.high >= top
        assert 3 <= len(found.ticks) <= 7
    assert [text for _, text in svg.linear([131_072.0], "x").tick_texts()][-1] == "150k"


def test_svg_escapes_texts_and_attributes() -> None:
    made = svg.tag("text", "<a> & b", class_='x"y', stroke_width=1.50)
    assert made == '<text class="x&#34;y" stroke-width="1.5">&lt;a&gt; &amp; b</text>'


def test_the_text_of_a_mark_stays_within_its_picture() -> None:
    points = [svg.Point(x, 1.0, "note", text="explain") for x in (0.0, 4.0, 8.0)]
    scale = svg.linear([0.0, 8.0], "cost")
    drawn = svg.chart(svg.Chart("marks", scale, scale, [svg.Series("arm", 0, points)]))
    found = re.findall(r'<text x="([\d.]+)"[^>]*class="(tick[ a-z]*)">explain<', drawn)
    assert [kind for _, kind in found] == ["tick", "tick", "tick end"]
