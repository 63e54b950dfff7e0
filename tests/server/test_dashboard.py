"""The dashboard's page, its files, and the JSON that it draws."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from tests.recipes import ngram
from tests.server.metrics_fakes import ask, engine, output, service, stepped
from wager import LLM, SamplingParams
from wager.engine.snapshot import Snapshot
from wager.engine.stats import EngineStats
from wager.server import dashboard
from wager.server.errors import ApiError
from wager.server.truth import RequestRecord

STATIC = files("wager.server") / "static"
FILES = ("dashboard.html", "dashboard.css", "dashboard.js", "charts.js")


def text_of(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


class Tags(HTMLParser):
    """The start tags of a page, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def named(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in names]


@pytest.fixture(scope="module")
def page() -> Tags:
    return Tags(text_of("dashboard.html"))


def live(of: Any) -> Any:
    reply = ask(dashboard.live, of)
    assert reply.headers["cache-control"] == "no-store"

    def never(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(bytes(reply.body), parse_constant=never)


def busy() -> EngineStats:
    stats = EngineStats()
    stepped(stats, 15.0, ("ngram", 4, 2, 3))
    stepped(stats, 12.0, ("ngram", 2, 2, 3))
    stepped(stats, 10.0, ("", 0, 0, 1))
    return stats


# The page


def test_nothing_is_inline(page: Tags) -> None:
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert "style" not in attributes, tag
        assert tag not in ("style", "iframe", "object", "embed", "base"), tag
    assert all(script.get("src") for script in page.named("script"))


def test_nothing_comes_from_elsewhere(page: Tags) -> None:
    for attributes in page.named("script", "link", "img", "a", "form"):
        for name in ("src", "href", "action"):
            given = attributes.get(name) or ""
            assert given == "data:," or not re.match(r"[a-z]*:|//|/", given), given
    for name in FILES:
        outside = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"'`]*", text_of(name)))
        assert outside <= {"http://www.w3.org/2000/svg"}, name
    assert "@import" not in text_of("dashboard.css")
    assert "url(" not in text_of("dashboard.css")


def test_the_files_that_the_page_wants_are_served(page: Tags) -> None:
    wanted = [a["src"] for a in page.named("script")]
    wanted += [a["href"] for a in page.named("link") if a.get("rel") == "stylesheet"]
    wanted += [f"dashboard/{n}" for n in re.findall(r'from "\./([\w.]+)"', text_of("dashboard.js"))]
    assert {str(name).rpartition("/")[2] for name in wanted} == set(FILES) - {"dashboard.html"}
    of = service(Snapshot.of(engine()))
    for name in wanted:
        file = str(name).rpartition("/")[2]
        reply = ask(dashboard.static, of, file=file)
        assert bytes(reply.body).decode() == text_of(file)
        kind = "text/css" if file.endswith("css") else "text/javascript"
        assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
        assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["dashboard.html", "../metrics.py", "..%2fmetrics.py", "", "live", "x" * 5000]
)
def test_other_files_are_not(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask(dashboard.static, service(Snapshot.of(engine())), file=name)
    assert caught.value.status == 404
    assert len(caught.value.message) < 200


def test_the_policy_allows_its_own_files_only() -> None:
    reply = ask(dashboard.page, service(Snapshot.of(engine())))
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in reply.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    for name in ("script-src", "style-src", "connect-src"):
        assert policy[name] == "'self'"
    for name in ("frame-ancestors", "base-uri", "form-action"):
        assert policy[name] == "'none'"
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert bytes(reply.body).decode() == text_of("dashboard.html")


def test_the_script_finds_what_it_fills_in(page: Tags) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    script = text_of("dashboard.js")
    used = set(re.findall(r'(?:\$|put)\(\s*"([\w-]+)"', script))
    assert used <= set(ids)
    # What has an id is filled in, or names a part of the page.
    named = {a.get(k) for _, a in page.tags for k in ("aria-labelledby", "for")}
    assert set(ids) - used <= named


def test_texts_are_never_taken_for_markup() -> None:
    for name in ("dashboard.js", "charts.js"):
        script = text_of(name)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in script, name
        assert not re.search(r"setAttribute\(\"(style|on\w+)", script), name


def test_nothing_is_kept_in_the_browser() -> None:
    """Neither texts nor a key: the browser itself keeps what it was given as the password."""
    for name in ("dashboard.js", "charts.js"):
        for word in ("localStorage", "sessionStorage", "indexedDB", "cookie"):
            assert word not in text_of(name), name


def test_it_can_be_used_by_everybody(page: Tags) -> None:
    assert page.named("html")[0].get("lang") == "en"
    assert "width=device-width" in str(page.named("meta"))
    labels = {label.get("for") for label in page.named("label")}
    assert {field.get("id") for field in page.named("input")} <= labels
    for drawing in page.named("svg"):
        assert drawing.get("role") == "img"
        assert drawing.get("aria-label")
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(head.get("scope") for head in page.named("th"))
    assert [a for _, a in page.tags if a.get("role") == "status"]
    style = text_of("dashboard.css")
    assert "prefers-color-scheme: dark" in style
    assert ":focus-visible" in style


def test_the_colours_are_those_of_the_report() -> None:
    report = (files("wager.bench.page") / "templates" / "report.css").read_text("utf-8")

    def colours(style: str) -> list[set[tuple[str, str]]]:
        light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
        return [
            set(re.findall(r"(--[\w-]+): (#[0-9a-f]+)", part))
            for part in (light, dark.split("* { box-sizing")[0])
        ]

    for own, theirs in zip(colours(text_of("dashboard.css")), colours(report), strict=True):
        assert own
        assert own <= theirs
    used = set(re.findall(r"var\((--[\w-]+)\)", text_of("dashboard.css")))
    assert used <= {name for name, _ in colours(text_of("dashboard.css"))[0]}


# What it draws


def test_the_json_has_what_the_script_reads() -> None:
    of = service(Snapshot.of(engine(busy(), decoding=[40])))
    told = live(of)
    script = text_of("dashboard.js")
    for name in set(re.findall(r"\bdata\.([a-z_]+)", script)):
        assert name in told, name
    for name in set(re.findall(r"\bnow\.([a-z_]+)", script)):
        assert name in told["now"], name
    for name in set(re.findall(r"\bfound\.([a-z_]+)", script)):
        assert name in told["drafts"], name
    for name in set(re.findall(r"\bstate\.([a-z_]+)", script)):
        assert name in told["controller"], name
    of.recent.add(RequestRecord.of(output(), route="r", model="m"))
    (row,) = live(of)["recent"]
    for name in set(re.findall(r"\bone\.([a-z_]+)", script)) - {"time", "speed", "plain", "per"}:
        assert name in row, name


def test_before_anything_was_seen_rates_are_null() -> None:
    told = live(service(Snapshot.of(engine(plain_ms=None))))
    assert set(told["now"].values()) == {None}
    assert told["drafts"]["acceptance_rate"] is None
    assert told["drafts"]["tokens_per_step"] is None
    assert told["drafts"]["acceptance_by_position_unconditional"] == []
    assert told["drafts"]["over_s"] is None
    assert told["totals"]["speedup_estimated"] is None


def test_without_a_method_there_are_no_drafts() -> None:
    told = live(service(Snapshot.of(engine(methods=()))))
    assert told["methods"] == []
    assert told["drafts"] is None
    assert told["controller"] is None


def test_figures_of_now_and_of_the_last_minute() -> None:
    stats = busy()
    running = engine(stats, decoding=[40])
    first = Snapshot.of(running)
    of = service(first)
    now = 10.0
    of.metrics.window._clock = lambda: now
    since_start = live(of)["drafts"]
    assert since_start["over_s"] is None
    assert since_start["acceptance_by_position_unconditional"] == [1.0, 1.0, 0.0, 0.0]
    assert since_start["lengths"] == [1, 0, 1, 0, 1]
    stepped(stats, 20.0, ("ngram", 4, 3, 4))
    of.llm.snapshot = Snapshot.of(running, first)  # type: ignore[misc]
    now = 12.0
    told = live(of)
    assert told["now"]["tokens_per_second"] == 2.0
    assert told["now"]["decode_tokens_per_second"] == 200.0
    assert told["now"]["speedup_estimated"] == 2.0
    assert told["now"]["plain_tokens_per_second_estimated"] == 100.0
    assert told["now"]["tokens_per_step"] == 4.0
    drafts = told["drafts"]
    assert drafts["over_s"] == 2.0
    assert drafts["lengths"] == [0, 0, 0, 0, 1]
    assert drafts["acceptance_by_position_unconditional"] == [1.0, 1.0, 1.0, 0.0]
    assert sum(drafts["lengths"]) == drafts["steps"]


def test_the_controller_in_full(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation={"method": "auto"})
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    llm.generate([[30, 31, 32] * 8], params)
    reply = ask(dashboard.controller, service(Snapshot.of(llm.engine)))
    told = json.loads(bytes(reply.body))
    assert told["methods"] == ["suffix", "ngram"]
    assert sum(told["controller"]["reasons"].values()) > 0
    assert told["last"]
    assert all(one["said"].startswith(f"step {one['step']}: ") for one in told["last"])


def test_an_engine_without_a_controller() -> None:
    reply = ask(dashboard.controller, service(Snapshot.of(engine(methods=()))))
    assert json.loads(bytes(reply.body)) == {"methods": [], "controller": None, "last": []}


def test_a_fixed_length_has_no_account(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(4))
    told = live(service(Snapshot.of(llm.engine)))
    assert told["controller"]["kind"] == "fixed length"
    assert told["controller"]["balance_steps"] is None


def test_texts_stay_away_unless_they_may_be_shown(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(4, low=1))
    whole = llm.generate(["the cat"], SamplingParams(temperature=0.0, max_tokens=12))[0]
    record = RequestRecord.of(whole, route="/v1/completions", model="tiny")
    for show in (False, True):
        of = service(Snapshot.of(llm.engine), dashboard_show_text=show)
        of.recent.add(record, whole, llm.tokenizer)
        told = live(of)
        assert told["shows_text"] is show
        assert (told["recent"][0]["spans"] is None) is not show


def test_routes() -> None:
    assert [route.path for route in dashboard.routes()] == [
        "/dashboard", "/dashboard/live", "/dashboard/{file}", "/debug/controller",
    ]  # fmt: skip
