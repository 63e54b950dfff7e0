"""What `wager methods` prints: a table, the commands, the notes; or one JSON object."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.bench.methods.find import Found, Way
from wager.bench.methods.pairs import Adds
from wager.bench.spelling import NA, count, size
from wager.external.dialects.options import TITLES

VERSION: Final = 1
"""Of the JSON object."""

_ORIGINS: Final = {
    "always": "needs no model",
    "built in": "in the target",
    "list": "published",
    "hub": "hub search",
    "family": "same family",
    "candidate": "candidate",
}


def to_json(found: Found, engine: str | None = None) -> dict[str, Any]:
    """Absent is null; sizes are bytes. With ``engine`` only what that engine runs."""
    facts = found.target
    return {
        "version": VERSION,
        "target": {
            "name": facts.name,
            "source": facts.source,
            "location": facts.location,
            "architecture": facts.architecture,
            "parameters": facts.parameters,
            "weight_bytes": facts.weight_bytes,
            "kv_bytes_per_token": facts.kv_bytes_per_token(),
            "mtp_layers": facts.mtp_layers,
        },
        "hub_asked": found.hub_asked,
        "methods": [asdict(way) for way in chosen(found, engine)],
        "refused": [asdict(refused) for refused in found.refused],
        "notes": list(found.notes),
    }


def show(console: Console, found: Found, engine: str | None = None) -> None:
    """The table and, for each way, the commands; with ``engine`` those of one engine only."""
    facts = found.target
    console.print(
        Text(
            f"{facts.name}: {facts.architecture}, {count(facts.parameters)} parameters, "
            f"{size(facts.weight_bytes)} of weights, "
            f"{size(facts.kv_bytes_per_token())} of keys and values per token"
        )
    )
    ways = chosen(found, engine)
    if ways:
        console.print(_table(ways))
    else:
        name = TITLES.get(engine or "", engine)
        console.print(Text(f"{name}: none of the ways found here runs on it"))
    for number, way in enumerate(ways, 1):
        _show_way(console, number, way, found.hub_asked)
    for refused in found.refused:
        console.print(Text(f"refused: {refused.name}: {refused.reason}"))
    for note in found.notes:
        console.print(Text(f"note: {note}"))


def _table(ways: list[Way]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("method")
    table.add_column("drafter", overflow="fold")
    table.add_column("from")
    table.add_column("adds", justify="right")
    table.add_column("per token", justify="right")
    table.add_column("runs on", overflow="fold")
    for number, way in enumerate(ways, 1):
        runs = ", ".join(run.title for run in way.runs if run.command is not None)
        table.add_row(
            str(number),
            way.kind,
            way.drafter or "-",
            _ORIGINS[way.origin],
            *added(way.adds),
            runs or "-",
        )
    return table


def _show_way(console: Console, number: int, way: Way, hub_asked: bool) -> None:
    title = f"{number} {way.kind}" + (f": {way.drafter}" if way.drafter else "")
    console.print(Text(title, style="bold"))
    for run in way.runs:
        if run.command is None:
            continue
        version = f" {run.version}" if run.version else ""
        console.print(Text(f"  {run.title}{version}"))
        # Commands are for copying: never wrapped.
        for line in run.command.splitlines():
            console.print(Text(f"    {line}"), soft_wrap=True)
        for note in run.notes:
            console.print(Text(f"    ({note})"), soft_wrap=True)
    for needs in dict.fromkeys(run.needs for run in way.runs if run.needs):
        titles = ", ".join(run.title for run in way.runs if run.needs == needs)
        console.print(Text(f"  in {needs} also: {titles}"), soft_wrap=True)
    for note in way.notes:
        console.print(Text(f"  {note}"), soft_wrap=True)
    # Otherwise the note on the hub says it once for all.
    if way.unread is not None and hub_asked:
        console.print(Text(f"  memory {NA}: {way.unread}"), soft_wrap=True)
    if way.source is not None:
        console.print(Text(f"  source: {way.source}"), soft_wrap=True)


def chosen(found: Found, engine: str | None) -> list[Way]:
    """The ways that ``engine`` runs, without the others' commands; all for None."""
    if engine is None:
        return list(found.ways)
    ways = [
        replace(way, runs=tuple(run for run in way.runs if run.engine == engine))
        for way in found.ways
    ]
    return [way for way in ways if way.runs]


def added(adds: Adds | None) -> tuple[str, str]:
    """(weights, keys and values per token) for people."""
    if adds is None:
        return NA, NA
    if not adds.weight_bytes and not adds.kv_bytes_per_token:
        return "nothing", "nothing"
    return size(adds.weight_bytes), size(adds.kv_bytes_per_token)
