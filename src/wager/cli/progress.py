"""Progress on standard error: a bar on a terminal, one line per finished part elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from wager.bench.run import Event


class Progress:
    """Called with an Event after every answer; a context manager.

    The time left is taken from the requests answered since the start of this run, as if the rest
    took as long each.
    """

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False)
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._begun: tuple[float, int] | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("loading", total=None, left="")
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

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if self._begun is None:
            # What was done before this run (see --resume) took none of its time.
            self._begun = (now, event.done_in_all)
        left = self._left(event, now)
        if self._bar is not None:
            self._bar.update(
                self._task, description=event.what, completed=event.done_in_all,
                total=event.in_all, left=left,
            )  # fmt: skip
        elif event.done == event.total:
            tail = f"; {left}" if left else ""
            self._console.print(f"measured: {event.what}{tail}", markup=False, soft_wrap=True)

    def _left(self, event: Event, now: float) -> str:
        assert self._begun is not None
        begun, before = self._begun
        done, missing = event.done_in_all - before, event.in_all - event.done_in_all
        return spell(missing * (now - begun) / done) if done and missing else ""


def spell(seconds: float) -> str:
    """A time left in words; rough, as the estimate is."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"
