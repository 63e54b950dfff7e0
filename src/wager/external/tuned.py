"""The tuned file: what `wager tune` found best for an engine, and `wager serve` starts it with.

docs/tuned.schema.json is its schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from wager.errors import ConfigError

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice for one engine and model.

    ``command`` is the whole command, to be pasted as it is; ``arguments`` are all of its options
    but model, host and port: those of speculation, and whatever else was measured with.
    ``speculation`` is the same in vLLM's keys, None where plain decoding is best; ``schedule`` are
    vLLM's (lowest batch size, highest, draft tokens). ``expected`` has a figure per workload and
    load. ``version`` is the engine's own, None where it told none. ``measured_with`` are the
    options that `wager tune --check` needs to measure the same again.
    """

    engine: str
    version: str | None
    model: str
    command: Sequence[str]
    arguments: Sequence[str]
    speculation: Mapping[str, Any] | None
    schedule: Sequence[Sequence[int]] | None = None
    expected: Sequence[Mapping[str, Any]] = ()
    measured_on: Mapping[str, Any] = field(default_factory=dict)
    measured_with: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""

    def to_json(self) -> str:
        """The file's text; never NaN or infinity."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, allow_nan=False) + "\n"


def read_tuned(path: Path) -> Tuned:
    """Read what `Tuned.to_json` wrote. Raises ConfigError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"tuned: cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"tuned: {path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"tuned: {path} is not a tuned file; `wager tune -o FILE` writes one")
    schema = found.get("schema")
    if schema != SCHEMA:
        raise ConfigError(
            f"tuned: {path} has schema {json.dumps(schema)}, this version reads {SCHEMA}; "
            "write it anew with `wager tune`"
        )
    for name, right, kind in _KINDS:
        if name not in found or not right(found[name]):
            raise ConfigError(f"tuned: {path}: {name!r} must be {kind}; `wager tune` writes it so")
    known = {name: found[name] for name in Tuned.__dataclass_fields__ if name in found}
    return Tuned(**known)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_method(value: Any) -> bool:
    if value is None:
        return True
    method = value.get("method") if isinstance(value, dict) else None
    # A list of methods is wager's own.
    return isinstance(method, str) or (_is_words(method) and bool(method))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_version(value: Any) -> bool:
    return value is None or isinstance(value, str)


_KINDS: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("engine", _is_text, "the name of an engine"),
    ("version", _is_version, "a text or null"),
    ("model", _is_text, "the name of a model"),
    ("command", _is_words, "a list of texts"),
    ("arguments", _is_words, "a list of texts"),
    ("speculation", _is_method, 'null or an object with a "method"'),
)
