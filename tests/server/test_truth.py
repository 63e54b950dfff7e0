"""What a reply says of itself: right sums, and null, not 0, for what is not known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.recipes import ngram
from tests.server.metrics_fakes import engine, output
from wager import LLM, SamplingParams
from wager.engine.snapshot import Snapshot
from wager.server import truth
from wager.server.truth import TEXT_TOKENS, RecentRequests, RequestRecord
from wager.types import CompletionOutput, DraftCounts


def snapshot() -> Snapshot:
    """Of an engine whose plain step takes 10 ms."""
    return Snapshot.of(engine(decoding=[40]))


def strict(value: Any) -> Any:
    """Through JSON that knows no NaN."""
    return json.loads(json.dumps(value, allow_nan=False))


def test_the_speculation_object() -> None:
    told = strict(truth.speculation(output(tokens=9), snapshot()))
    assert told == {
        "steps": 2,
        "drafted": 8,
        "accepted": 2,
        "by_position": [1, 1, 0, 0],
        "tokens_per_step": 2.0,
        "draft_ms": 0.2,
        "verify_ms": 150.0,
        # 8 tokens after the first, 10 ms each, against 200 ms.
        "estimated": {"plain_ms": 80.0, "speedup": 0.4},
    }
    assert sum(told["by_position"]) == told["accepted"]


def test_without_drafts_there_is_no_speed_up_to_tell() -> None:
    told = truth.speculation(output(drafts=((0, 0, 1),) * 5), snapshot())
    assert told["drafted"] == 0
    assert told["by_position"] == []
    assert told["tokens_per_step"] == 1.0
    assert told["estimated"] == {"plain_ms": 40.0, "speedup": None}


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": 0, "drafts": (), "first_token_s": None, "total_s": None, "queue_s": None},
        {"tokens": 1, "drafts": ((0, 0, 1),), "total_s": 0.3},
    ],
)
def test_nothing_unknown_is_zero(changes: dict[str, Any]) -> None:
    short = output(**changes)
    told = strict(truth.speculation(short, snapshot()))
    assert told["estimated"] == {"plain_ms": None, "speedup": None}
    assert truth.tokens_per_second(short) is None
    times = strict(truth.timings(short))
    assert times["predicted_per_second"] is None
    assert times["predicted_per_token_ms"] in (None, 0.0)
    assert "draft_n" not in times
    if short.first_token_s is None:
        assert told["tokens_per_step"] is None
        assert times["prompt_ms"] is None
        assert times["predicted_ms"] is None


def test_no_snapshot_no_estimate() -> None:
    for unknown in (None, Snapshot.of(engine(plain_ms=None, decoding=[40]))):
        told = truth.speculation(output(), unknown)
        assert told["estimated"] == {"plain_ms": None, "speedup": None}


def test_timings_are_those_of_llama_server() -> None:
    assert strict(truth.timings(output())) == {
        "cache_n": 1,
        "prompt_n": 3,
        "prompt_ms": 200.0,  # without the wait in the queue
        "prompt_per_token_ms": pytest.approx(200 / 3, abs=1e-3),
        "prompt_per_second": 15.0,
        "predicted_n": 5,
        "predicted_ms": 200.0,
        "predicted_per_token_ms": 40.0,
        "predicted_per_second": 25.0,
        "draft_n": 8,
        "draft_n_accepted": 2,
    }


def test_the_decode_speed_leaves_out_the_first_token() -> None:
    assert truth.tokens_per_second(output()) == pytest.approx(4 / 0.2)


def test_choices_are_summed() -> None:
    whole = output(tokens=5)
    counts = DraftCounts()
    counts.record(3, 3, 4)
    whole.outputs.append(CompletionOutput(1, [1, 2, 3], "abc", "stop", counts=counts))
    told = truth.speculation(whole, snapshot())
    assert (told["steps"], told["drafted"], told["accepted"]) == (3, 11, 5)
    assert told["by_position"] == [2, 2, 1, 0]
    # They decode beside each other: the longest counts.
    assert told["estimated"]["plain_ms"] == 40.0
    record = RequestRecord.of(whole, route="/v1/completions", model="tiny")
    assert (record.completion_tokens, record.choices, record.longest) == (8, 2, 5)
    assert record.finish_reason == "length"
    assert record.counts.accepted == 5


def test_a_request_that_was_left_is_aborted() -> None:
    left = output()
    left.outputs[0].finish_reason = None
    assert RequestRecord.of(left, route="r", model="m").finish_reason == "abort"


# Recent requests


class Speller:
    """Gives each token a text; special tokens give none."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def stream(self, prompt_ids: Sequence[int] = ()) -> Any:
        assert prompt_ids
        return SimpleNamespace(push=lambda token: self._texts[token])


TEXTS: Any = Speller(["the ", "cat ", "", "sat", " END"])


def choice(text: str, flags: Sequence[bool], ids: Sequence[int] = (0, 1, 2, 3, 4)) -> Any:
    return CompletionOutput(0, list(ids), text, "stop", accepted_flags=list(flags))


def test_accepted_text_is_marked() -> None:
    flags = [False, True, True, True, False]
    assert truth.spans(TEXTS, [9], choice("the cat sat END", flags)) == [
        ("the ", False), ("cat sat", True), (" END", False),
    ]  # fmt: skip


def test_a_stop_string_that_was_cut_off_is_not_shown() -> None:
    flags = [True, False, False, False, True]
    assert truth.spans(TEXTS, [9], choice("the cat sat", flags)) == [
        ("the ", True), ("cat sat", False),
    ]  # fmt: skip


@pytest.mark.parametrize("flags", [[True] * 5, []])
def test_where_texts_differ_nothing_is_said_to_be_a_drafts(flags: list[bool]) -> None:
    assert truth.spans(TEXTS, [9], choice("another text", flags)) == [("another text", False)]
    assert truth.spans(TEXTS, [9], choice("", flags)) == []


def test_long_answers_are_cut() -> None:
    long = choice("the " * 3000, [True] * 3000, [0] * 3000)
    (span,) = truth.spans(TEXTS, [9], long)
    assert span == ("the " * TEXT_TOKENS, True)


def test_text_is_kept_only_where_it_may_be_shown() -> None:
    record = RequestRecord.of(output(), route="/v1/completions", model="tiny")
    whole = output()
    whole.outputs = [choice("the cat sat END", [False, True, True, True, False])]
    for show, spans in ((False, None), (True, 3)):
        recent = RecentRequests(show)
        recent.add(record, whole, TEXTS)
        (row,) = strict(recent.rows())
        assert (row["spans"] and len(row["spans"])) == spans
        assert ("cat" in repr(recent._seen)) == show
    recent.add(record)
    assert recent.rows()[0]["spans"] is None


def test_the_list_is_bounded_and_the_newest_comes_first() -> None:
    recent = RecentRequests(size=3, clock=lambda: 12.3456)
    for number in range(5):
        whole = output(request_id=f"r{number}")
        recent.add(RequestRecord.of(whole, route="r", model="m", inter_token_s=(0.1,) * 1000))
    assert len(recent) == 3
    rows = strict(recent.rows())
    assert [row["id"] for row in rows] == ["r4", "r3", "r2"]
    assert rows[0]["ended"] == 12.346
    assert rows[0]["tokens_per_second"] == pytest.approx(20.0)
    assert not any(seen.record.inter_token_s for seen in recent._seen)


def test_a_row_says_null_for_the_unknown() -> None:
    recent = RecentRequests()
    unknown = output(tokens=0, drafts=(), first_token_s=None, total_s=None)
    recent.add(RequestRecord.of(unknown, route="r", model="m"))
    (row,) = strict(recent.rows())
    for name in ("first_token_ms", "total_ms", "tokens_per_second", "tokens_per_step"):
        assert row[name] is None, name


def test_a_real_answer_adds_up(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(4, low=1))
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    whole = llm.generate([[30, 31, 32] * 8], params)[0]
    told = strict(truth.speculation(whole, Snapshot.of(llm.engine)))
    answer = whole.outputs[0]
    assert told["accepted"] == sum(answer.accepted_flags) == sum(told["by_position"])
    assert told["drafted"] >= told["accepted"] > 0
    assert told["draft_ms"] > 0.0
    assert told["verify_ms"] > 0.0
    times = strict(truth.timings(whole))
    assert times["predicted_n"] == 40
    assert times["prompt_n"] + times["cache_n"] == 24
    found = truth.spans(llm.tokenizer, whole.prompt_token_ids, answer)
    assert "".join(text for text, _ in found) == answer.text[: sum(len(t) for t, _ in found)]
