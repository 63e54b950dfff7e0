"""What others took of the machine, and what drafts did."""

from __future__ import annotations

from random import Random

from wager.engine.control.pauses import Pauses


def test_what_only_verify_steps_lose_is_charged() -> None:
    subject = Pauses()
    for _ in range(200):
        subject.plain(1.02)
    charged = [subject.charged(8.0 if at % 10 == 9 else 2.0, 2.0) for at in range(1000)]
    assert sum(took > 2.0 for took in charged) >= 80  # of 100, but one in 50 steps


def test_what_plain_steps_lose_as_well_is_not() -> None:
    subject, chance = Pauses(), Random(1)
    lost = charged = 0.0
    for _ in range(4000):
        subject.plain(6.0 if chance.random() < 0.05 else 1.0)
        pause = 5.0 if chance.random() < 0.05 else 0.0
        lost += pause
        charged += subject.charged(2.0 + pause, 2.0) - 2.0
    assert charged < 0.1 * lost


def test_a_step_that_is_not_odd_is_charged_as_it_is() -> None:
    subject = Pauses()
    assert subject.charged(2.9, 2.0) == 2.9
    assert subject.charged(1.0, 2.0) == 1.0
