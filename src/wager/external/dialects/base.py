"""What reading and writing an engine's speculation options gives. Plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wager.arms import Speculation

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing said about an option: ``what`` it is about, and a sentence or two.

    ``error``: the engine refuses it or does something else; ``warning``: it works, with a catch;
    ``note``: what it means.
    """

    severity: Severity
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a command line or a config says, once understood.

    ``speculation`` is None where it asks for plain decoding or cannot be made sense of (the
    findings say which). ``target`` is the model named; ``rest`` are arguments that have nothing
    to do with speculation, kept as they are.
    """

    engine: str
    speculation: Speculation | None
    target: str | None = None
    rest: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """Options for an engine's current version: arguments to append to its start command."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Dialect(Protocol):
    """What each module of this package offers."""

    ENGINE: str
    VERSION: str
    """The version whose options are written."""

    def write(self, speculation: Speculation | None) -> Written:
        """Raises ConfigError where the engine has no such method: the reason, and what to do."""
        ...
