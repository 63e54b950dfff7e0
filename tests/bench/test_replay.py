"""Replay by hand: one trace, what follows from sums, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recipes import recipe
from wager.arms import arm_of, parse_arms
from wager.bench.estimate import StepTable, step_table
from wager.bench.logs.records import NOTES, BadLine, Recorded
from wager.bench.replay.report import Asked, notes, to_json
from wager.bench.replay.rules import RULES
from wager.bench.replay.run import MAX_REASONS, OTHER, replay_one, replayed
from wager.bench.replay.tally import Tally, Trace
from wager.bench.replay.tokens import Tokens, Vocabulary, open_vocabulary
from wager.bench.statistics import paired_ratio
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.engine.drafting import Drafters, GuardedDrafter
from wager.errors import ConfigError
from wager.speculation import SpeculationConfig
from wager.types import Draft, DraftCounts


class Scripted:
    """Proposes what a script says, whatever the text, and remembers what it was told."""

    needs = DrafterNeeds()

    def __init__(self, drafts: Sequence[Sequence[int]]) -> None:
        self.drafts = iter(drafts)
        self.asked: list[DraftQuery] = []
        self.told: list[list[int]] = []
        self.released: list[int] = []

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        self.asked += queries
        return [Draft(tuple(next(self.drafts, ()))) for _ in queries]

    def attach(self, host: DraftHost) -> None:
        pass

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        self.told.append(list(prompt))

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        self.told.append(list(tokens))

    def release(self, request: int) -> None:
        self.released.append(request)

    def clear(self) -> None:
        pass

    def close(self) -> None:
        pass


def run(
    drafts: Sequence[Sequence[int]], answer: list[int], k: int, engine: str = "own", **more: Any
) -> tuple[DraftCounts, list[int], Scripted]:
    script = Scripted(drafts)
    options: dict[str, Any] = {"ended": False, "room": len(answer), "ends": frozenset()} | more
    tokens = Tokens(prompt=[1, 2], answer=answer, **options)
    drafter = Drafters([GuardedDrafter(script, 1000)])
    trace = replay_one(drafter, 5, tokens, k, RULES[engine])
    assert sum(own.drafted for own in trace.by_source.values()) == trace.counts.drafted
    return trace.counts, trace.tried_at, script


def test_a_trace_of_six_steps_by_hand() -> None:
    answer = list(range(10, 22))
    counts, tried, script = run(
        [
            # behind 10: two of three right, then the target's own 13
            (11, 12, 99),
            # behind 13: wrong at once; only 14 comes
            (99, 15),
            # behind 14: nothing
            (),
            # behind 15: all three right, and a bonus
            (16, 17, 18),
            # behind 19: right; with 20 and 21 left one draft token is the limit
            (20,),
        ],
        answer,
        k=3,
    )
    assert counts == DraftCounts(
        steps=6, drafted_steps=4, committed=12, committed_drafted=10, drafted=9, accepted=6,
        drafted_at=[4, 3, 2], accepted_at=[3, 2, 1],
    )  # fmt: skip
    assert tried == [4, 2, 2]
    assert script.told == [[1, 2], [10], [11, 12, 13], [14], [15], [16, 17, 18, 19], [20, 21]]
    assert [(q.request, q.length, q.limit) for q in script.asked] == [
        (5, 3, 3), (5, 6, 3), (5, 7, 3), (5, 8, 3), (5, 12, 1),
    ]  # fmt: skip
    assert script.released == [5]


def test_an_accepted_end_token_is_the_last() -> None:
    ends = frozenset({2})
    counts, tried, script = run([(6, 2, 7, 8)], [5, 6, 2], k=4, ended=True, room=None, ends=ends)
    # Cut behind the end token, and no bonus after it.
    assert (counts.steps, counts.drafted, counts.accepted, counts.committed) == (2, 2, 2, 3)
    assert tried == [1, 1, 0, 0]
    assert script.asked[0].limit == 4


def test_a_draft_may_reach_beyond_an_answer_that_a_stop_string_ended() -> None:
    counts, tried, _ = run([(6, 7, 8, 9)], [5, 6, 7], k=4, ended=True, room=None)
    assert (counts.drafted, counts.accepted, counts.committed, counts.steps) == (4, 2, 3, 2)
    assert tried == [1, 1, 0, 0]


def test_room_limits_the_drafts() -> None:
    _, _, script = run([], [5, 6, 7, 8], k=8, ended=True, room=6)
    assert [q.limit for q in script.asked] == [4, 3, 2]
    _, _, script = run([], [5, 6, 7], k=8)
    assert [q.limit for q in script.asked] == [1]


def test_a_draft_of_vllm_is_limited_by_the_context_only() -> None:
    _, _, script = run([], [5, 6, 7, 8], k=8, engine="vllm")
    assert [q.limit for q in script.asked] == [8, 8, 8]
    _, _, script = run([], [5, 6, 7, 8], k=8, engine="vllm", context=6)
    assert [q.limit for q in script.asked] == [4, 3, 2]


def test_one_token_and_plain_decoding() -> None:
    counts, _, script = run([(9,)], [5], k=4)
    assert (counts.steps, counts.drafted) == (1, 0)
    assert script.told == [[1, 2], [5]]
    tokens = Tokens([1], [5, 6, 7], False, 3, frozenset())
    assert replay_one(None, 1, tokens, 0, RULES["own"]) == Trace(DraftCounts(steps=3, committed=3))


@pytest.fixture
def vocabulary(tiny_path: Path) -> Vocabulary:
    return open_vocabulary(str(tiny_path))


def text(prompt: str, answer: str, **more: Any) -> Recorded:
    return Recorded(1, "prompt and completion", text=prompt, answer=answer, **more)


def test_a_drafter_that_breaks_is_counted_and_the_replay_goes_on(vocabulary: Vocabulary) -> None:
    arm = arm_of(recipe("Raising", 4, after=3), "raising")
    replay = replayed([arm], vocabulary)
    replay.run([text("abcabc", "abcabcabcabc"), text("abc", "abc")])
    assert replay.arms[0].failures == 2
    assert replay.arms[0].total.counts.committed == replay.answer_tokens
    assert any("broke in 2" in note for note in notes(replay, Asked("x", "t")))


# Sums


def counted(*steps: tuple[int, int, int]) -> DraftCounts:
    counts = DraftCounts()
    counts.record(0, 0, 1)
    for drafted, accepted, committed in steps:
        counts.record(drafted, accepted, committed)
    return counts


def test_conditional_acceptance_counts_only_what_was_tried() -> None:
    tally = Tally()
    # Drafts of 1, 3 and 3 tokens: the short one says nothing about position 2.
    tally.add(Trace(counted((1, 1, 2), (3, 1, 2), (3, 3, 4)), [3, 2, 1]))
    assert tally.counts.acceptance_by_position_unconditional == pytest.approx([1, 1 / 3, 1 / 3])
    assert tally.conditional == [1.0, 0.5, 1.0]
    assert tally.draft_lengths == {1: 1 / 3, 3: 2 / 3}
    assert tally.decode_tokens_per_step == pytest.approx(8 / 3)
    assert tally.mean_of_requests == pytest.approx(9 / 4)


def test_groups_add_up() -> None:
    parts, whole = [Tally(), Tally()], Tally()
    for index in range(8):
        counts = counted(*[(2, index % 3, index % 3 + 1)] * (index + 1))
        trace = Trace(counts, [index + 1, 1], {f"source {index % 4}": counts})
        parts[index % 2].add(trace)
        whole.add(trace)
    merged = Tally()
    for part in parts:
        merged.merge(part)
    assert (merged.counts, merged.tried_at) == (whole.counts, whole.tried_at)
    assert merged.by_source == whole.by_source
    assert len(whole.by_source) == 4
    assert merged.tokens_per_step.value == whole.tokens_per_step.value
    assert merged.tokens_per_step.low == pytest.approx(whole.tokens_per_step.low)
    assert merged.mean_of_requests == pytest.approx(whole.mean_of_requests)


def test_the_interval_is_that_of_the_bootstrap() -> None:
    rng = random.Random(5)
    tally, committed, steps = Tally(), [], []
    for _ in range(300):
        n = rng.randint(5, 60)
        gain = rng.choice([1, 1, 2, 4])
        tally.add(Trace(counted(*[(4, gain - 1, gain)] * n), [0] * 4))
        committed.append(1.0 + n * gain)
        steps.append(1.0 + n)
    ours, bootstrap = tally.tokens_per_step, paired_ratio(committed, steps)
    assert ours.value == pytest.approx(bootstrap.value)
    assert None not in (ours.low, ours.high, bootstrap.low, bootstrap.high)
    assert ours.low == pytest.approx(bootstrap.low, rel=0.03)
    assert ours.high == pytest.approx(bootstrap.high, rel=0.03)


def test_nothing_and_little_have_no_interval() -> None:
    tally = Tally()
    assert tally.tokens_per_step.value is None
    assert tally.mean_of_requests is None
    assert tally.speed_up(step_table("plain=5"), 1) is None
    for _ in range(4):
        tally.add(Trace(counted((2, 1, 2)), [1, 1]))
    assert tally.tokens_per_step.low is None


def test_expected_speed_up_by_hand() -> None:
    tally = Tally()
    # Half the decode steps draft 2 tokens and get 1 of them; half draft none.
    tally.add(Trace(counted((2, 1, 2), (0, 0, 1)), [1, 1]))
    steps = StepTable({1: 10.0, 3: 14.0, 6: 30.0}, "given")
    alone = tally.speed_up(steps, 1)
    assert alone is not None
    assert alone.plain_ms == 10.0
    assert alone.step_ms == pytest.approx((14.0 + 10.0) / 2)
    assert alone.value == pytest.approx(1.5 * 10.0 / 12.0)
    assert alone.break_even == pytest.approx(1.2)
    assert not alone.extrapolated
    two = tally.speed_up(steps, 2)
    assert two is not None
    # 2, 4 or 6 rows with shares 1/4, 1/2, 1/4.
    assert two.step_ms == pytest.approx((12.0 + 2 * steps.ms(4) + 30.0) / 4)
    assert two.value == pytest.approx(1.5 * 12.0 / two.step_ms)
    three = tally.speed_up(steps, 3)
    assert three is not None
    assert three.extrapolated


def test_engines_differ_at_the_end_of_an_answer() -> None:
    ended: dict[str, Any] = {"ended": True, "room": None, "ends": frozenset({2})}
    drafts, answer = [(6, 2, 7, 8)], [5, 6, 2]
    found = {e: run(drafts, answer, 4, e, **ended)[0] for e in RULES}
    assert {e: (c.drafted, c.accepted, c.committed) for e, c in found.items()} == {
        "own": (2, 2, 3), "vllm": (4, 2, 3), "llamacpp": (4, 1, 3),
    }  # fmt: skip
    limits = {e: [q.limit for q in run([], [5, 6, 7], 8, e)[2].asked] for e in RULES}
    assert limits == {"own": [1], "vllm": [8, 8], "llamacpp": [1]}


# Whole replays


def test_groups_bad_entries_and_notes(vocabulary: Vocabulary) -> None:
    replay = replayed(parse_arms("plain,ngram:k=4,min=1,max=3"), vocabulary)
    again = "abcdefgh"
    replay.run(
        [
            text(again, again, group="copy", notes=frozenset({"reasoning"})),
            BadLine(2, "is not JSON"),
            text("1234", "xyz", group="free"),
            text("a", "", group="free"),
            BadLine(9, "is not JSON"),
        ]
    )
    plain, ngram = replay.arms
    assert plain.total.tokens_per_step.value == 1.0
    assert plain.total.counts.steps == replay.answer_tokens
    assert ngram.groups["copy"].counts.accepted > 0 == ngram.groups["free"].counts.accepted
    found = json.loads(to_json(replay, Asked("log", "tiny", group="task")))
    assert found["answers"] == 2
    assert {e["reason"]: e["lines"] for e in found["left_out"]} == {
        "is not JSON": [2, 9], "the answer is empty": [1],
    }  # fmt: skip
    assert [g["group"] for g in found["arms"][1]["groups"]] == ["copy", "free"]
    said = "\n".join(notes(replay, Asked("log", "tiny")))
    assert "LEFT OUT: 2 lines (2, 9): is not JSON" in said
    assert f"1 {NOTES['reasoning']}" in said


def test_limit_and_nothing_to_replay(vocabulary: Vocabulary) -> None:
    replay = replayed(parse_arms("ngram:k=4"), vocabulary)
    replay.run((text("a", "b") for _ in itertools.count()), limit=3)
    assert replay.requests == 3
    empty = replayed(parse_arms("ngram:k=4"), vocabulary)
    with pytest.raises(ConfigError, match="holds no answered request"):
        empty.check("log")
    empty.run([BadLine(4, "is not JSON"), BadLine(5, "is not JSON")])
    with pytest.raises(ConfigError, match=r"none of 2 entries.*line 4: is not JSON"):
        empty.check("log")


def test_a_long_log_of_bad_lines_stays_small(vocabulary: Vocabulary) -> None:
    replay = replayed(parse_arms("ngram:k=4"), vocabulary)
    replay.run([text("a", "b"), *(BadLine(i, f"reason {i}") for i in range(1000))])
    assert len(replay.bad) == MAX_REASONS + 1
    assert sum(bad.count for bad in replay.bad.values()) == 1000
    assert replay.bad[OTHER].lines == [50, 51, 52, 53, 54]


def test_json_is_strict_where_nothing_is_known(vocabulary: Vocabulary) -> None:
    """A drafter that never proposed: n/a, never 0 or NaN."""
    replay = replayed(parse_arms("ngram:k=4,min=9,max=9"), vocabulary)
    replay.run([text("abc", "d")])
    raw = to_json(replay, Asked("log", "tiny", steps=step_table("plain=5"), clients=(1,)))
    found = json.loads(raw, parse_constant=lambda name: pytest.fail(name))
    total = found["arms"][0]["total"]
    assert total["acceptance_rate"] is None
    assert total["acceptance_length"] is None
    assert total["speed_up"] == []
    assert any("never proposed" in line for line in notes(replay, Asked("log", "tiny")))


def test_both_forms_of_the_index_give_the_same(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wager.drafters import ngram, ngram_index, suffix, suffix_index

    entries = random_entries()
    arms = parse_arms(
        "ngram:k=4,min=1,max=3,ngram:k=8,min=2,max=5,match=earliest,cyclic=false,"
        "suffix+ngram:k=6,min=1,max=2"
    )

    def counts() -> list[DraftCounts]:
        replay = replayed(arms, vocabulary)
        replay.run(entries)
        return [arm.total.counts for arm in replay.arms]

    here = counts()
    assert all(0 < c.accepted < c.drafted for c in here)
    monkeypatch.setattr(ngram, "index_class", lambda: ngram_index.NgramIndex)
    monkeypatch.setattr(suffix, "index_class", lambda: suffix_index.SuffixIndex)
    assert counts() == here


def random_entries() -> list[Recorded]:
    rng = random.Random(1)
    made = []
    for _ in range(20):
        ids = [rng.randrange(3, 12) for _ in range(80)]
        made.append(text("", "", prompt_ids=tuple(ids[:30]), answer_ids=tuple(ids[30:])))
    return made


@given(
    st.lists(st.integers(3, 6), min_size=1, max_size=20),
    st.lists(st.integers(2, 6), min_size=1, max_size=30),
    st.integers(1, 9),
    st.booleans(),
)
def test_counts_are_consistent(prompt: list[int], answer: list[int], k: int, ended: bool) -> None:
    config = SpeculationConfig.of("ngram", k, prompt_lookup_min=1, prompt_lookup_max=3)
    drafter = Drafters.create(config, 100)
    room = None if ended else len(answer)
    tokens = Tokens(prompt, answer, ended, room, frozenset({2}))
    trace = replay_one(drafter, 1, tokens, k, RULES["own"])
    counts, tried = trace.counts, trace.tried_at
    assert drafter.failures == 0
    assert counts.committed == len(answer)
    assert counts.accepted == sum(counts.accepted_at) <= counts.drafted == sum(counts.drafted_at)
    reached = counts.drafted_at + [0] * (k - len(counts.drafted_at))
    accepted = counts.accepted_at + [0] * (k - len(counts.accepted_at))
    assert all(a <= t <= r for a, t, r in zip(accepted, tried, reached, strict=True))
    assert all(t <= a for t, a in zip(tried[1:], accepted, strict=False))
    bonus_missing = ended and counts.committed_drafted < counts.accepted + counts.drafted_steps
    assert counts.committed_drafted + bonus_missing == counts.accepted + counts.drafted_steps
    tally = Tally()
    tally.add(trace)
    assert math.isclose(sum(tally.draft_lengths.values()), float(counts.steps > 1))


def test_needs_that_no_log_can_meet(vocabulary: Vocabulary, monkeypatch: Any) -> None:
    from tests import recipes

    monkeypatch.setattr(recipes.Greedy, "needs", DrafterNeeds(blocks=True))
    with pytest.raises(ConfigError, match="drafts with a model"):
        replayed([arm_of(recipe("Greedy", 2))], vocabulary)
