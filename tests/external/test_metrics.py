"""Metrics pages to counters, exact."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.external.stub import counters as page
from wager.backend import Counters
from wager.external.metrics import Reader, counters, parse, when_idle

RECORDED = Path(__file__).parent / "recorded"
DRAFTS, DRAFTED = "spec_decode_num_drafts", "spec_decode_num_draft_tokens"
ACCEPTED = "spec_decode_num_accepted_tokens"
BY_POSITION = f"{ACCEPTED}_per_pos"
ZERO, ONE = 'model_name="m",engine="0"', 'model_name="m",engine="1"'


def spec(zero: tuple[int, int, int], one: tuple[int, int, int], **options: str) -> str:
    """(drafts, drafted, accepted) of two engines."""
    rows = zip((DRAFTS, DRAFTED, ACCEPTED), zero, one, strict=True)
    values = {name: {ZERO: float(a), ONE: float(b)} for name, a, b in rows}
    return page(options.get("family", "vllm"), options.get("total", "_total"), **values)


@pytest.mark.parametrize("total", ["_total", ""])
@pytest.mark.parametrize("family", ["vllm", "llamacpp", "wager"])
def test_counters_are_summed_over_labels_under_either_name(family: str, total: str) -> None:
    found = counters(parse(spec((5, 20, 9), (7, 28, 11), family=family, total=total)))
    assert (found.drafts, found.drafted, found.accepted) == (12, 48, 20)


def test_cumulative_counters_are_subtracted() -> None:
    reader = Reader()
    before = reader.read(spec((100, 400, 300), (50, 200, 20)))
    after = reader.read(spec((110, 440, 330), (70, 280, 24)))
    assert after.since(before) == Counters(drafts=30, drafted=120, accepted=34)


def test_an_absent_counter_is_not_zero() -> None:
    found = counters(parse(page(generation_tokens={ZERO: 5})))
    assert found == Counters(generated=5)
    assert counters(parse("")) == Counters()
    assert counters(parse("python_info 1\n")) == Counters()
    # Seen only after the run: since when it counts is not known.
    late = counters(parse(spec((5, 20, 9), (0, 0, 0))))
    assert late.since(found) == Counters()


def test_a_reset_is_detected_even_where_the_sum_rises() -> None:
    reader = Reader()
    before = reader.read(spec((100, 400, 300), (100, 400, 300)))
    after = reader.read(spec((10, 40, 30), (500, 2000, 900)))
    assert after.drafts == 510
    difference = after.since(before)
    assert difference == Counters(resets=1)
    # From there on the counters are good again.
    again = reader.read(spec((20, 80, 60), (500, 2000, 900)))
    assert again.since(after) == Counters(drafts=10, drafted=40, accepted=30)
    assert again.since(before).resets == 1


def test_a_reset_to_zero_and_a_series_that_went_away() -> None:
    reader = Reader()
    before = reader.read(spec((100, 400, 300), (100, 400, 300)))
    assert reader.read(spec((0, 0, 0), (0, 0, 0))).since(before) == Counters(resets=1)
    reader = Reader()
    before = reader.read(spec((100, 400, 300), (100, 400, 300)))
    one_left = page(**{DRAFTS: {ZERO: 300}, DRAFTED: {ZERO: 900}, ACCEPTED: {ZERO: 700}})
    assert reader.read(one_left).since(before) == Counters(resets=1)


def test_a_restart_shows_in_the_start_time_when_the_counters_have_caught_up() -> None:
    reader = Reader()
    first, second = (f"process_start_time_seconds {at}\n" for at in (1000.5, 2000.5))
    before = reader.read(spec((1, 4, 3), (1, 4, 3)) + first)
    assert reader.read(spec((2, 8, 6), (2, 8, 6)) + first).since(before).drafts == 2
    assert reader.read(spec((9, 36, 27), (9, 36, 27)) + second).since(before).resets == 1


def test_counters_by_themselves_tell_a_reset_too() -> None:
    assert Counters(drafts=3).since(Counters(drafts=5)) == Counters(resets=1)
    shorter = Counters(accepted_at=(5,)).since(Counters(accepted_at=(3, 1)))
    assert shorter == Counters(resets=1)


def test_steps_of_vllm_are_the_times_it_took() -> None:
    first, later = (
        f"{name}_seconds_count" for name in ("time_to_first_token", "inter_token_latency")
    )
    both = {first: {ZERO: 3.0, ONE: 4.0}, later: {ZERO: 20.0, ONE: 30.0}}
    assert counters(parse(page(total="", **both))).steps == 57
    assert counters(parse(page(total="", **{first: {ZERO: 3.0}}))).steps is None


def test_positions() -> None:
    labels = [f'engine="{e}",position="{p}"' for p in range(11) for e in (0, 1)]
    series = dict(zip(labels, map(float, range(22, 0, -1)), strict=True))
    found = counters(parse(page(**{BY_POSITION: series})))
    # Position 10 comes after 9, not after 1.
    assert found.accepted_at == tuple(43 - 4 * p for p in range(11))


def test_positions_that_appear_with_the_first_draft() -> None:
    before = counters(parse(page("llamacpp", **{DRAFTS: {"": 0}})))
    assert before.accepted_at is None
    text = page("llamacpp", **{DRAFTS: {"": 4}, BY_POSITION: {'position="0"': 3}})
    after = counters(parse(text))
    assert after.since(before).accepted_at == (3,)
    # Had drafts been counted before, the positions of those would not be known.
    warm = counters(parse(page("llamacpp", **{DRAFTS: {"": 2}})))
    assert after.since(warm).accepted_at is None
    assert after.since(warm).drafts == 2


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("vllm", "num_requests_running"),
        ("llamacpp", "requests_processing"),
        ("sglang", "num_running_reqs"),
    ],
)
def test_counters_are_read_when_nothing_runs_any_more(family: str, name: str) -> None:
    busy = [page(family, "", **{name: {ZERO: n, ONE: 1}}) for n in (2, 1)]
    pages = iter([*busy, page(family, "", **{name: {ZERO: 0, ONE: 0}}), "never read"])
    assert parse(busy[0]).running == 3
    assert when_idle(lambda: next(pages), 60.0) == page(family, "", **{name: {ZERO: 0, ONE: 0}})


def test_waiting_for_rest_has_an_end() -> None:
    busy = page("vllm", "", num_requests_running={ZERO: 1})
    assert when_idle(lambda: busy, 0.1) == busy
    assert when_idle(lambda: "", 60.0) == ""
    assert when_idle(lambda: None, 60.0) is None


def test_what_is_no_number_is_not_known() -> None:
    assert counters(parse(page(**{DRAFTS: {ZERO: math.nan}}))).drafts is None


def test_a_line_that_cannot_be_read_costs_only_itself() -> None:
    text = (
        spec((5, 20, 9), (7, 28, 11))
        + "vllm:bad{engine=0 7\n"
        + page(generation_tokens={ZERO: 3, ONE: 4})
    )
    found = counters(parse(text))
    assert (found.drafts, found.generated) == (12, 7)


def test_pages_of_the_real_engines() -> None:
    found = counters(parse((RECORDED / "vllm_metrics.txt").read_text()))
    assert (found.drafts, found.drafted, found.accepted) == (15, 58, 40)
    assert found.accepted_at is not None
    assert sum(found.accepted_at) == 40
    plain = counters(parse((RECORDED / "vllm_plain_metrics.txt").read_text()))
    assert plain.drafts is None
    before = counters(parse((RECORDED / "llama_before_metrics.txt").read_text()))
    after = counters(parse((RECORDED / "llama_metrics.txt").read_text()))
    difference = after.since(before)
    assert difference.generated == 84
    assert difference.drafted == 20
    assert difference.accepted_at is not None
    assert sum(difference.accepted_at) == difference.accepted
