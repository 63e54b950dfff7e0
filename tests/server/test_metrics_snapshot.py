"""Snapshots of the engine: frozen, summed up from one to the next, cheap in what they copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields

import pytest

from tests.recipes import ngram
from tests.server.metrics_fakes import engine, stepped
from wager import LLM, SamplingParams
from wager.engine.snapshot import Snapshot
from wager.engine.stats import EngineStats, Histogram
from wager.server.window import Window

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
REPEATS = [30, 31, 32] * 8


def test_later_steps_do_not_change_it(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(4, low=1))
    llm.generate([REPEATS], GREEDY)
    before = Snapshot.of(llm.engine)
    told = repr(before)
    assert before.counts.committed == 24
    assert before.by_source["ngram"].drafted > 0
    assert before.verify_times.count == before.verify_steps > 0
    llm.generate([REPEATS], GREEDY)
    assert repr(before) == told
    after = Snapshot.of(llm.engine, before)
    assert after.counts.committed == 48
    assert after.prefix_hits > 0
    with pytest.raises(FrozenInstanceError):
        before.steps = 3  # type: ignore[misc]


def test_running_and_kv_come_and_go(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1)
    for _ in range(2):
        llm.engine.add_request(REPEATS, GREEDY)
    llm.engine.step()
    now = Snapshot.of(llm.engine)
    assert (now.running, now.waiting) == (1, 1)
    assert now.kv_used > 0
    assert now.methods == ()
    assert now.plain is None
    assert now.control is None
    while llm.engine.has_work():
        llm.engine.step()
    then = Snapshot.of(llm.engine)
    assert (then.running, then.waiting, then.kv_used) == (0, 0, 0)
    assert then.finished == 2


def test_the_controller_is_told_of(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation={"method": "ngram", "num_speculative_tokens": 4})
    snapshot = Snapshot.of(llm.engine)
    for _ in range(3):
        llm.generate([REPEATS], GREEDY)
        snapshot = Snapshot.of(llm.engine, snapshot)
    control = snapshot.control
    assert control is not None
    assert control.kind == "no loss"
    assert control.balance is not None
    assert sum(control.reasons.values()) > 0
    llm.set_speculation(ngram(4))
    fixed = Snapshot.of(llm.engine).control
    assert fixed is not None
    assert (fixed.kind, fixed.balance) == ("fixed length", None)


def test_plain_decoding_is_estimated_step_by_step() -> None:
    stats = EngineStats()
    running = engine(stats, decoding=[40, 50])
    first = Snapshot.of(running)
    assert first.plain is not None
    assert (first.plain.requests, first.plain.kv_tokens) == (2, 90)
    stepped(stats, 15.0, ("ngram", 4, 2, 3), ("ngram", 4, 2, 3))
    second = Snapshot.of(running, first)
    # 3 tokens each: three plain steps.
    assert second.estimated_plain_ms == pytest.approx(30.0)
    assert second.compared_ms == pytest.approx(15.0)
    # A plain step counts as what it took, but for what the drafters did in it.
    stats.record_draft("", 0, 0, 1)
    stats.record_draft("", 0, 0, 1)
    parts = {"forward": 0.01, "sample": 0.0, "draft": 0.002}
    stats.record_step(total=0.014, **parts, prompt_rows=0, draft_rows=0)
    stepped(stats, 15.0, ("ngram", 4, 3, 4), ("", 0, 0, 1))
    running.scheduler.running = []
    third = Snapshot.of(running, second)
    # (4 + 1) / 2 tokens of each request in the other one.
    assert third.estimated_plain_ms == pytest.approx(30.0 + 12.0 + 25.0)
    assert third.compared_ms == pytest.approx(15.0 + 14.0 + 15.0)
    # Nothing runs: what a plain step took last is still known.
    assert third.plain_ms == 10.0
    assert Snapshot.of(running).plain_ms is None


def test_what_is_not_known_is_compared_with_nothing() -> None:
    stats = EngineStats()
    running = engine(stats, decoding=[40], plain_ms=None)
    first = Snapshot.of(running)
    stepped(stats, 15.0, ("ngram", 4, 2, 3))
    second = Snapshot.of(running, first)
    assert second.plain_ms is None
    assert second.compared_ms == 0.0


def test_a_plain_step_is_not_reckoned_anew_each_time() -> None:
    asked = []
    stats = EngineStats()
    running = engine(stats, decoding=[40])
    running.times.plain = lambda requests, kv: asked.append(kv) or 10.0
    snapshot = Snapshot.of(running)
    for context in (41, 42, 60, 110, 111):
        running.scheduler.running[0].computed = context
        snapshot = Snapshot.of(running, snapshot)
    assert asked == [40, 110]
    stats.steps += 40
    Snapshot.of(running, snapshot)
    assert asked == [40, 110, 111]


def test_stats_are_copied_and_reset_whole() -> None:
    stats = EngineStats()
    stepped(stats, 15.0, ("ngram", 4, 2, 3))
    copy = stats.snapshot()
    stepped(stats, 15.0, ("ngram", 4, 2, 3))
    assert copy.verify_times.count == 1
    assert (copy.decoded, copy.decoded_tokens) == (1, 3)
    stats.reset()
    fresh = EngineStats()
    for one in fields(EngineStats):
        assert getattr(stats, one.name) == getattr(fresh, one.name), one.name
    stepped(stats, 15.0)
    assert fresh.verify_times.count == 0


def test_steps_with_prompts_are_not_decode_steps() -> None:
    stats = EngineStats()
    stats.record_draft("ngram", 2, 1, 2)
    stats.record_step(total=0.1, forward=0.1, sample=0.0, draft=0.0, prompt_rows=30, draft_rows=2)
    assert (stats.decoded, stats.decoded_tokens) == (0, 0)
    stepped(stats, 15.0, ("ngram", 4, 2, 3))
    assert (stats.decoded, stats.decoded_tokens) == (1, 3)


def test_a_histogram_has_a_mean_where_it_has_values() -> None:
    histogram = Histogram((1.0, 2.0))
    assert histogram.mean is None
    for value in (1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [1, 1, 1]
    assert histogram.mean == pytest.approx(11.5 / 3)


def test_rates_of_a_window() -> None:
    now = 0.0
    window = Window(span_s=60.0, clock=lambda: now)
    stats = EngineStats()
    running = engine(stats, decoding=[40])
    first = Snapshot.of(running)
    assert window.change(first, 5.0) is None
    window.add(first)
    assert window.change(first, 5.0) is None  # no time has passed
    stepped(stats, 20.0, ("ngram", 4, 3, 4))
    stepped(stats, 10.0, ("", 0, 0, 1))
    second = Snapshot.of(running, first)
    now = 2.0
    change = window.change(second, 5.0)
    assert change is not None
    assert change.tokens_per_second == pytest.approx(2.5)
    assert change.decode_tokens_per_second == pytest.approx(5 / 0.03)
    assert change.step_ms == pytest.approx(15.0)
    assert change.counts.tokens_per_step == pytest.approx(2.5)
    assert change.counts.drafted_at == [1, 1, 1, 1]
    assert change.speedup is not None
    assert change.plain_tokens_per_second == pytest.approx(
        change.decode_tokens_per_second / change.speedup
    )
    window.add(second)
    now = 8.0
    # Nobody looked within the last five seconds.
    assert window.change(second, 5.0) is None
    idle = window.change(second, 7.0)
    assert idle is not None
    assert idle.tokens_per_second == 0.0
    for value in (idle.decode_tokens_per_second, idle.speedup, idle.step_ms, idle.draft_ms):
        assert value is None
    now = 1000.0
    window.add(second)
    assert window.change(second, 2000.0) is None  # what is old was forgotten
