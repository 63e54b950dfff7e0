"""Which options an installed engine knows, from its own ``--help``: asked, not assumed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from wager.backend import EngineError
from wager.errors import ConfigError

HELP_TIMEOUT_S = 180.0
"""vLLM imports torch before it prints anything."""

_NAME = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
# Options stand at the left; what is further in goes on with a description.
_OPTION = re.compile(r" {0,4}-{1,2}[A-Za-z]")
# The gap between names and description; llama.cpp also aligns its names after a comma.
_GAP = re.compile(r"(?<![,\s])\s{2,}")
_REMOVED = "the argument has been removed"


@dataclass(frozen=True, slots=True)
class Flags:
    """Options that a help text lists, and those that it lists only to say that they are gone."""

    known: frozenset[str]
    removed: frozenset[str] = frozenset()

    def require(self, arguments: Iterable[str], engine: str) -> None:
        """Raises ConfigError for the first argument that looks like an option and is not known."""
        for argument in arguments:
            if not _OPTION.match(argument):
                continue
            # vLLM takes `--speculative-config.method ngram`, every argparse program `--port=80`.
            flag = re.split(r"[.=]", argument, maxsplit=1)[0]
            if flag in self.removed:
                raise ConfigError(
                    f"{engine}: the installed version has removed {flag}; "
                    f"`wager translate` says what took its place"
                )
            if flag not in self.known:
                raise ConfigError(
                    f"{engine}: the installed version knows no {flag}; "
                    f"install a version that has it, or leave it out"
                )

    def __contains__(self, flag: object) -> bool:
        return flag in self.known


def read_help(text: str) -> Flags:
    """Options of a help text as argparse and llama.cpp print it."""
    known: set[str] = set()
    removed: set[str] = set()
    names: list[str] = []
    for line in text.splitlines():
        if _OPTION.match(line):
            names = _NAME.findall(_GAP.split(line.strip(), maxsplit=1)[0])
            known.update(names)
        if _REMOVED in line:
            removed.update(names)
    return Flags(frozenset(known - removed), frozenset(removed))


def ask(command: Sequence[str]) -> Flags:
    """The options that a program lists when started so; asked once. Raises EngineError."""
    return _ask(tuple(command))


@lru_cache(maxsize=16)
def _ask(command: tuple[str, ...]) -> Flags:
    said = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=HELP_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise EngineError(f"{command[0]}: cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{said}: no answer in {HELP_TIMEOUT_S:.0f} s") from error
    text = done.stdout.decode(errors="replace")
    flags = read_help(text)
    if not flags.known:
        last = text.strip().splitlines()[-1:] or ["it said nothing"]
        raise EngineError(f"{said}: lists no options: {last[0]}")
    return flags
