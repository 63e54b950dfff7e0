"""Whether what was expected comes out again, on fresh prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from wager.bench.run import Run
from wager.bench.statistics import Ratio
from wager.bench.tune import choice, rounds
from wager.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Checked:
    """One expectation and what a new measurement gave; ``inside`` None where one is missing."""

    expected: choice.Expected
    measured: Ratio
    inside: bool | None


def check(run: Run, expected: Sequence[choice.Expected]) -> list[Checked]:
    """Of a run with plain decoding and the tuned arm alone."""
    parts = rounds.of_arm(run, run.plan.arms[-1])
    out = []
    for one in expected:
        own = [
            part
            for part in parts.get(one.clients, ())
            if one.workload in (part.workload, choice.ALL)
        ]
        measured = choice.together(own)
        out.append(Checked(one, measured, choice.inside(one, measured)))
    return out


def holds(rows: Sequence[Checked]) -> bool:
    """Whether no figure of all workloads together (or of the only one) lies outside."""
    loads = {row.expected.clients for row in rows}
    whole = [row for row in rows if row.expected.workload == choice.ALL]
    if not whole:
        whole = list(rows) if len(rows) == len(loads) else []
    return not any(row.inside is False for row in whole)


def read_expected(rows: Sequence[Mapping[str, Any]]) -> list[choice.Expected]:
    """Those of a tuned file. Raises ConfigError for a row that is none."""
    names = [field.name for field in fields(choice.Expected)]
    try:
        return [choice.Expected(**{name: row[name] for name in names}) for row in rows]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"check: an entry of 'expected' lacks {error}; write the file anew with `wager tune`"
        ) from error
