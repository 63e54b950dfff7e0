"""Progress on standard error: a bar on a terminal, one line per finished part elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Called with (what runs, parts done, parts in all); a context manager."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False)
        self._bar: Bar | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("loading", total=None)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=done, total=total)
        elif done == total:
            self._console.print(f"measured: {what}")
