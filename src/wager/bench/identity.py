"""Did the output change? First divergences, and what the engine does without speculation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from wager.backend import Answer

Unit: TypeAlias = Literal["tokens", "text"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the replies to one prompt part: the index of the first different token or character.

    ``top2_gap`` is the difference of the log-probabilities of plain decoding's two best tokens
    there: a small one says that rounding decided. None where no log-probabilities are to be had.
    """

    id: str
    position: int
    top2_gap: float | None


@dataclass(frozen=True, slots=True)
class Control:
    """Plain replies against other plain replies to the same prompt: the engine's own noise."""

    compared: int
    equal: int


@dataclass(frozen=True, slots=True)
class Identity:
    """``equal`` of ``compared`` prompts had one and the same reply in every run of both arms.

    ``unit`` says what was compared: token ids, or text where an engine does not tell ids; None if
    nothing was. ``control`` is None where no prompt was answered twice without speculation.
    """

    compared: int
    equal: int
    unit: Unit | None
    first_divergences: list[Divergence]
    control: Control | None


Replies: TypeAlias = tuple[str, Sequence[Answer], Sequence[Answer]]
"""(prompt id, plain replies, speculative replies), none of them failed."""


def compare(replies: Sequence[Replies]) -> Identity:
    """Compare by token ids if every reply tells them, else by text."""
    replies = [(name, plain, spec) for name, plain, spec in replies if plain and spec]
    if not replies:
        return Identity(0, 0, None, [], None)
    every = [answer for _, plain, spec in replies for answer in (*plain, *spec)]
    unit: Unit = "tokens" if all(a.token_ids is not None for a in every) else "text"
    found = [d for name, plain, spec in replies if (d := _divergence(name, plain, spec, unit))]
    equal = sum(same((*plain, *spec), unit) for _, plain, spec in replies)
    twice = [plain for _, plain, _ in replies if len(plain) > 1]
    control = Control(len(twice), sum(same(p, unit) for p in twice)) if twice else None
    return Identity(len(replies), equal, unit, found, control)


def same(answers: Sequence[Answer], unit: Unit) -> bool:
    """Whether all replies are one and the same."""
    return len({_content(answer, unit) for answer in answers}) == 1


def _content(answer: Answer, unit: Unit) -> tuple[int, ...] | str:
    return tuple(answer.token_ids or ()) if unit == "tokens" else answer.text


def _divergence(
    name: str, plain: Sequence[Answer], spec: Sequence[Answer], unit: Unit
) -> Divergence | None:
    reference = plain[0]
    expected = _content(reference, unit)
    for answer in spec:
        got = _content(answer, unit)
        if got != expected:
            shorter = min(len(expected), len(got))
            position = next((i for i in range(shorter) if expected[i] != got[i]), shorter)
            gap = _top2_gap(reference, position) if unit == "tokens" else None
            return Divergence(name, position, gap)
    return None


def _top2_gap(answer: Answer, position: int) -> float | None:
    if answer.logprobs is None or position >= len(answer.logprobs):
        return None
    top = sorted((value for _, value in answer.logprobs[position].top), reverse=True)
    return top[0] - top[1] if len(top) > 1 else None
