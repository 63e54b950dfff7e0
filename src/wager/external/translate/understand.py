"""Any engine's speculation options, said what they mean and written in every engine's current form.

Nothing is started and no file is read: it is all in the tables of `wager.external.dialects`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wager.errors import ConfigError
from wager.external.dialects import ENGINES, dialect, read_only, vllm
from wager.external.dialects.base import Reading
from wager.external.dialects.names import meant
from wager.external.dialects.programs import PROGRAMS
from wager.external.translate.bodies import read_body
from wager.external.translate.forms import Form, forms
from wager.external.translate.split import Pasted, Role, split


@dataclass(frozen=True, slots=True)
class Translation:
    """What was understood, and its form for each engine that was asked for."""

    reading: Reading
    role: Role
    forms: tuple[Form, ...]


def translate(text: str | Sequence[str], to: str = "all") -> Translation:
    """Read ``text`` (or the words of a command) and write it for ``to``: an engine, or all.

    Raises ConfigError where nothing could be made of it, and for an unknown engine.
    """
    if to not in ("all", *ENGINES):
        raise ConfigError(f"to: must be all or one of {', '.join(ENGINES)}; got {to!r}")
    pasted = split(text)
    if pasted.config is not None and isinstance(pasted.config.get("method"), list):
        # Which no other engine takes.
        reading = dialect("own").read(("-sc", json.dumps(pasted.config)))
    elif pasted.config is not None:
        reading = read_body(pasted.config, vllm.read_config)
    elif pasted.engine is None:
        raise _nothing(shlex.join(pasted.arguments), pasted.arguments)
    elif pasted.engine in read_only.ENGINES:
        reading = read_only.read(pasted.engine, pasted.arguments)
    else:
        reading = dialect(pasted.engine).read(pasted.arguments)
    if pasted.role == "python":
        reading = _as_keywords(reading, pasted.kept)
    reading = replace(
        reading, findings=(*pasted.findings, *reading.findings),
        prefix=pasted.prefix, program=pasted.program or _tag_program(reading, pasted),
    )  # fmt: skip
    if not (reading.findings or reading.speculation or pasted.program):
        raise _nothing(_shown(text), pasted.arguments)
    wanted: tuple[str, ...] = ENGINES if to == "all" else (to,)
    if pasted.config is not None and reading.speculation is None:
        # A request that sets nothing about drafting: no server's command follows from it.
        wanted = ()
    return Translation(reading, pasted.role, forms(reading, pasted.role, wanted))


def _nothing(shown: str, words: Sequence[str]) -> ConfigError:
    slips = (meant(word.partition("=")[0].replace("_", "-")) for word in words)
    near = next((name for name in slips if name is not None), None)
    hint = "" if near is None else f"; is {near} meant?"
    return ConfigError(f"translate: no speculation option of any engine in {shown!r}{hint}")


def _tag_program(reading: Reading, pasted: Pasted) -> tuple[str, ...]:
    """A tag of Ollama's library by itself is something to run."""
    alone = reading.engine == "ollama" and pasted.arguments == (reading.target,)
    return PROGRAMS["ollama"] if alone else ()


def _as_keywords(reading: Reading, kept: tuple[str, ...]) -> Reading:
    """The findings about a call, with its keywords spelled as there."""

    def spelled(what: str) -> str:
        name, space, value = what.partition(" ")
        if not name.startswith("--"):
            return what
        return name[2:].replace("-", "_") + ("=" if space else "") + value

    findings = tuple(replace(f, what=spelled(f.what)) for f in reading.findings)
    return replace(reading, findings=findings, rest=kept)


def _shown(text: str | Sequence[str]) -> str:
    return text if isinstance(text, str) else shlex.join(text)


def as_json(translation: Translation) -> dict[str, Any]:
    """For programs: what was read, the findings, and the forms; null for what does not apply."""
    reading = translation.reading
    config: Mapping[str, Any] | None = (
        None if reading.speculation is None else reading.speculation.config()
    )
    return {
        "engine": reading.engine,
        "target": reading.target,
        "speculative_config": config,
        "findings": [
            {"severity": f.severity, "what": f.what, "text": f.text} for f in reading.findings
        ],
        "forms": [
            {
                "engine": form.engine, "version": form.version or None,
                "commands": list(form.commands), "modelfile": form.modelfile,
                "notes": list(form.notes), "error": form.error,
            }
            for form in translation.forms
        ],
    }  # fmt: skip
