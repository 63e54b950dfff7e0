"""What a measurement collects, and which prompts take part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.scripted import ARMS, ON, prompts, reply
from wager.arms import PLAIN, Arm
from wager.backend import Answer, Counters, Load, SourceCounts
from wager.bench.counters import total
from wager.bench.measure import DEFAULT_ARM, DEFAULT_K, Measurement
from wager.speculation import SpeculationConfig

PLAIN_ARM = Arm(PLAIN)
NOTHING = Counters()


def failed(name: str) -> Answer:
    return replace(reply(name), error="gone")


def measurement(count: int) -> Measurement:
    return Measurement("w", Load(clients=1), prompts(count), ARMS)


def test_only_prompts_that_both_arms_were_asked_equally_often_count() -> None:
    target = measurement(3)
    target.take(PLAIN_ARM, [reply("w-0"), reply("w-1")], NOTHING, 1.0)
    target.take(ON, [reply("w-0")], NOTHING, 1.0)
    target.take(ON, [reply("w-1"), reply("w-1")], NOTHING, 1.0)
    assert [p.id for p in target.measured(ON)] == ["w-0"]
    assert target.seconds == {PLAIN: 1.0, ON.name: 2.0}


def test_failed_replies_are_counted_and_take_part_in_nothing_else() -> None:
    target = measurement(2)
    target.take(PLAIN_ARM, [reply("w-0"), reply("w-1")], NOTHING, 1.0)
    target.take(ON, [reply("w-0"), failed("w-1")], NOTHING, 1.0)
    assert [p.id for p in target.attempted(ON)] == ["w-0", "w-1"]
    assert [p.id for p in target.measured(ON)] == ["w-0"]
    assert (target.errors(PLAIN), target.errors(ON.name)) == (0, 1)


def test_a_prompt_with_one_sound_reply_of_two_still_counts() -> None:
    target = measurement(1)
    target.take(PLAIN_ARM, [reply("w-0"), failed("w-0")], NOTHING, 1.0)
    target.take(ON, [reply("w-0"), reply("w-0")], NOTHING, 1.0)
    assert [p.id for p in target.measured(ON)] == ["w-0"]
    assert len(target.sound(PLAIN, target.prompts[0])) == 1


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], Counters()),
        ([Counters(drafted=4, accepted=2)], Counters(drafted=4, accepted=2)),
        (
            [Counters(drafted=4, accepted_at=(2, 1)), Counters(drafted=5, accepted_at=(3,))],
            Counters(drafted=9, accepted_at=(5, 1)),
        ),
        (
            [
                Counters(by_source={"a": SourceCounts(1, 4, 2)}),
                Counters(by_source={"a": SourceCounts(1, 5, 5), "b": SourceCounts(2, 8, 0)}),
                Counters(by_source={}),
            ],
            Counters(by_source={"a": SourceCounts(2, 9, 7), "b": SourceCounts(2, 8, 0)}),
        ),
        # A part that does not know is not a part that counted nothing.
        ([Counters(drafted=4), Counters()], Counters()),
        ([Counters(drafted=4), Counters(resets=1)], Counters(resets=1)),
    ],
)
def test_sums_of_counters(parts: list[Counters], expected: Counters) -> None:
    assert total(parts) == expected


def test_what_each_source_did_between_two_readings() -> None:
    before = Counters(drafts=3, by_source={"a": SourceCounts(3, 12, 4)})
    now = {"a": SourceCounts(5, 20, 9), "b": SourceCounts(1, 4, 4)}
    after = Counters(drafts=6, by_source=now)
    assert after.since(before).by_source == {"a": SourceCounts(2, 8, 5), "b": now["b"]}
    assert after.since(Counters(drafts=3)).by_source is None
    assert Counters(drafts=0, by_source={}).since(before) == Counters(resets=1)


def test_the_default_arm_is_the_default_config() -> None:
    assert DEFAULT_ARM.speculation is not None
    expected = SpeculationConfig.of("ngram", DEFAULT_K, prompt_lookup_min=2, prompt_lookup_max=5)
    assert SpeculationConfig.measured(DEFAULT_ARM.speculation.config()) == expected
    assert DEFAULT_ARM.name == "ngram:k=8,min=2,max=5"
