"""``wager pull NAME``."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def pull(name: str) -> None:
    """Fetch a model by name and check it; does nothing if it is here and sound."""
    from wager.models.catalogue import entry as find
    from wager.models.pull import pull_entry

    entry = find(name)
    bar = _Bar(entry.name)
    with bar:
        path, fetched = pull_entry(entry, bar.show)
    if fetched:
        print(f"{entry.name}: {entry.title}, {entry.quantisation}, {entry.nbytes / 1e6:.0f} MB, "
              f"{entry.licence}; sha256 checked")  # fmt: skip
    else:
        print(f"{entry.name}: already here, sha256 checked")
    print(path)


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
