"""What reading and writing an engine's speculation options gives. Plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    to do with speculation, kept as they are. ``prefix`` is what stands before the engine's program
    (variables, ``docker run ...``), ``program`` the program itself in its current spelling.
    """

    engine: str
    speculation: Speculation | None
    target: str | None = None
    rest: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    prefix: tuple[str, ...] = ()
    program: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """Options for an engine's current version: arguments to append to its start command.

    ``lines`` are what goes into the engine's model file instead, where it takes no arguments.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


Kind: TypeAlias = Literal["text", "whole", "real", "json", "flag"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of an engine, as a row of its table: a flag, or a key of its JSON.

    ``key`` is what it sets in a `Speculation` (vLLM's key where there is one, else the engine's own
    name); None sets nothing. ``verdict`` says what is wrong with using it, if anything is, and
    ``severity`` how bad that is. ``variable`` is the environment variable that does the same.
    """

    names: tuple[str, ...]
    meaning: str
    key: str | None = None
    kind: Kind = "text"
    verdict: str = ""
    severity: Severity = "note"
    variable: str | None = None


class Dialect(Protocol):
    """What each module of this package offers."""

    ENGINE: str
    VERSION: str
    """The version whose options are written."""

    def read(self, tokens: Sequence[str]) -> Reading:
        """The arguments after the program. Raises ConfigError for JSON that is none."""
        ...

    def write(self, speculation: Speculation | None) -> Written:
        """Raises ConfigError where the engine has no such method: the reason, and what to do."""
        ...
