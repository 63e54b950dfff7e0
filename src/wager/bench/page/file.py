"""Reading back what `wager bench --json` wrote, into the records that it was written from."""

from __future__ import annotations

import json
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from wager.bench.results import SCHEMA, Report
from wager.errors import ConfigError


class _Wrong(Exception):
    """A value of another kind than the record wants; says where."""


def read_report(path: Path) -> Report:
    """The report in a file. Raises ConfigError, with what to do, for anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise ConfigError(f"report: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"report: {path} is not a file of wager bench --json: {error}") from error
    if not isinstance(data, dict) or "schema" not in data or "cells" not in data:
        raise ConfigError(f"report: {path} is not a file of wager bench --json")
    schema = data.pop("schema")
    if schema != SCHEMA:
        # A bool is an int, and a text cannot be compared with one.
        older = isinstance(schema, int) and schema < SCHEMA
        todo = (
            "measure again with this version (wager bench MODEL --json FILE)"
            if older
            else "update wager to read it"
        )
        raise ConfigError(
            f"report: {path} has schema {schema!r:.20}, this version reads {SCHEMA}: {todo}"
        )
    try:
        report = _build(Report, data, "")
    except _Wrong as error:
        raise ConfigError(f"report: {path} does not follow docs/bench.schema.json: {error}") from (
            error
        )
    assert isinstance(report, Report)
    return report


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _build(kind: Any, value: Any, place: str) -> Any:
    """``value`` as ``kind``: a record, a list or mapping of them, or a plain value."""
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _build(next(a for a in arguments if a is not type(None)), value, place)
    if origin is Literal:
        return value if value in arguments else _fail(place, f"one of {arguments}", value)
    if is_dataclass(kind):
        return _record(kind, value, place)
    if origin is list:
        if not isinstance(value, list):
            return _fail(place, "a list", value)
        return [_build(arguments[0], v, f"{place}[{i}]") for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            return _fail(place, "an object", value)
        return {key: _build(arguments[1], v, f"{place}.{key}") for key, v in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return _fail(place, kind.__name__, value)
    return value


def _record(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        return _fail(place, "an object", value)
    hints = _hints(kind)
    # What has a default may be absent: older files of the same schema know nothing of it.
    needed = {field.name: field.default is MISSING for field in fields(kind)}
    for name, must in needed.items():
        if must and name not in value:
            raise _Wrong(f"{place}.{name}".lstrip(".") + " is missing")
    for name in value:
        if name not in needed:
            raise _Wrong(f"{place}.{name}".lstrip(".") + " is not known")
    where = {name: f"{place}.{name}".lstrip(".") for name in value}
    return kind(**{name: _build(hints[name], value[name], where[name]) for name in value})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fail(place: str, wanted: str, value: object) -> Any:
    raise _Wrong(f"{place} must be {wanted}, got {value!r:.40}")
