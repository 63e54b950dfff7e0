"""Asking without failing: what cannot be found out is said, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from wager.errors import WagerError

T = TypeVar("T")


class NotKnown(Exception):
    """Why something is not asked for, or has no answer, in one line."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be found out, in one line that says why."""

    why: str


def ask(find: Callable[[], T]) -> T | Unknown:
    """What ``find`` returns, or why it does not."""
    try:
        return find()
    except Exception as error:
        return Unknown(reason(error))


def reason(error: BaseException) -> str:
    """An error as one line."""
    said = " ".join(str(error).split())
    if isinstance(error, NotKnown | WagerError):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
