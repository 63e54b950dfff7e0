"""What speaks against the figures of a cell: failures, odd replies, an unsteady machine. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from wager.arms import PLAIN, Arm
from wager.bench.latency import drift
from wager.bench.measure import Measurement
from wager.bench.spelling import percent

_STEADY: Final = 0.1
"""Runs of the same prompts that differ by more are worth a remark."""


def doubts(measurement: Measurement, arm: Arm) -> list[str]:
    """In a sentence each: why replies failed, and the client's doubts about others, with how many;
    what the interval, which is over prompts, cannot know of the runs."""
    sides = {name: measurement.answers.get(name, {}).values() for name in (PLAIN, arm.name)}
    every = [answer for side in sides.values() for answers in side for answer in answers]
    found = Counter(f"failed: {answer.error}" for answer in every if answer.error is not None)
    found += Counter(note for answer in every for note in set(answer.notes))
    notes = [f"{note} ({times} replies)" if times > 1 else note for note, times in found.items()]
    moved = {name: by for name, side in sides.items() if (by := drift(side)) and by > _STEADY}
    if moved:
        told = " and ".join(f"{percent(by)} ({name})" for name, by in moved.items())
        notes.append(
            f"runs of the same prompts differ by {told}: the machine was not steady, of which the "
            "interval shows only a part"
        )
    if not measurement.balanced(arm):
        notes.append(
            "ended before the arms had run there and back: a machine that warmed up or slowed "
            "down meanwhile favours one of them"
        )
    return notes
