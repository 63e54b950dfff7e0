"""docs/metrics.md and the page tell of the same metrics: names, kinds and labels."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.metrics_fakes import service
from wager import LLM, SamplingParams
from wager.engine.snapshot import Snapshot
from wager.server.service import Service

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW: Final = re.compile(r"^\| (`[^|]+) \| (counter|gauge|histogram) \|", re.MULTILINE)
_NAME: Final = re.compile(r"`(\w+)(?:\{([\w, ]+)\})?`")

Told = dict[str, tuple[str, frozenset[str]]]
"""Kind and labels by name, without the prefix and the labels that every series has."""


def documented(table: int) -> Told:
    """What a table of the document says; counters end with ``_total``."""
    text = DOCUMENT.read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    tables = [one for one in tables if one.startswith("| name | kind |")]
    found: Told = {}
    for names, kind in _ROW.findall(tables[table]):
        for name, labels in _NAME.findall(names):
            assert name not in found, f"{name} twice"
            found[name] = (kind, frozenset(filter(None, labels.split(", "))))
    return found


def shown(of: Service, prefix: str, common: set[str]) -> Told:
    """What the page has under a prefix. Every series has the ``common`` labels."""
    found: Told = {}
    for family in text_string_to_metric_families(of.metrics.text().decode()):
        if not family.name.startswith(f"{prefix}:"):
            continue
        name = family.name.partition(":")[2] + ("_total" if family.type == "counter" else "")
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert len(labels) == 1, f"{name}: {labels}"
        (own,) = labels
        assert common <= own, name
        found[name] = (family.type, own - common)
    return found


@pytest.fixture
def busy(make_llm: Callable[..., LLM]) -> Service:
    """A server that drafted, with the controller on; nothing is unknown any more."""
    llm = make_llm(speculation={"method": "auto"})
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    snapshot = Snapshot.of(llm.engine)
    now = 0.0
    of = service(snapshot, metrics_alias="vllm")
    of.metrics.window._clock = lambda: now
    of.metrics.text()
    for text in ([30, 31, 32] * 8, [5, 6] * 12, [30, 31, 32] * 9):
        llm.engine.add_request(text, params)
        while llm.engine.has_work():
            llm.engine.step()
            snapshot = Snapshot.of(llm.engine, snapshot)
    # Whether the controller drafts depends on the clock: here it has, and some was accepted.
    assert llm.engine.bets is not None
    llm.engine.bets.controller.decisions.count("bet", [4])
    llm.engine.stats.record_draft("suffix", 4, 2, 3)
    snapshot = Snapshot.of(llm.engine, snapshot)
    of.llm.snapshot = snapshot  # type: ignore[misc]
    of.metrics.refused(429)
    now = 10.0
    return of


def test_the_document_and_the_page_tell_the_same(busy: Service) -> None:
    page = shown(busy, "wager", {"model"})
    told = documented(0) | documented(1)
    assert set(documented(0)) & set(documented(1)) == set()
    assert sorted(page) == sorted(told)
    assert page == told


def test_the_first_table_is_what_the_other_family_has(busy: Service) -> None:
    page = shown(busy, "vllm", {"model_name", "engine"})
    told = {name: (kind, labels - {"method"}) for name, (kind, labels) in documented(0).items()}
    assert page == told


def test_without_a_method_the_rest_is_there_all_the_same(make_llm: Callable[..., LLM]) -> None:
    of = service(Snapshot.of(make_llm().engine), metrics_alias="vllm")
    of.metrics.refused(429)
    page = shown(of, "wager", {"model"})
    drafts = {
        name
        for name in documented(0) | documented(1)
        if re.search(r"spec_decode|draft|estimated|compared|controller", name)
    }
    assert set(page) == set(documented(0) | documented(1)) - drafts
    assert set(shown(of, "vllm", {"model_name", "engine"})) == set(documented(0)) - drafts


def test_the_words_in_the_queries_exist(busy: Service) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (queries,) = re.findall(r"Useful queries:\n\n((?:    .*\n)+)", text)
    names = set(re.findall(r"wager:(\w+)", queries))
    assert names
    assert names <= set(shown(busy, "wager", {"model"}))
