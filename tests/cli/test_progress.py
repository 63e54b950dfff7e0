"""Progress for people and for logs."""

from __future__ import annotations

import io

import pytest

from wager.bench.run import Event
from wager.cli.progress import Progress, spell


def test_a_log_gets_one_line_per_finished_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 20.0, 30.0])
    monkeypatch.setattr("wager.cli.progress.time.monotonic", lambda: next(clock))
    out = io.StringIO()
    with Progress(out) as progress:
        # Ten requests were done by an earlier run: they took no time of this one.
        progress(Event("copy, 1 client", 1, 2, 10, 40))
        progress(Event("copy, 1 client", 2, 2, 20, 40))
        progress(Event("copy, 8 clients", 1, 2, 30, 40))
        progress(Event("copy, 8 clients", 2, 2, 40, 40))
    assert out.getvalue().splitlines() == [
        "measured: copy, 1 client; about 20 s left",
        "measured: copy, 8 clients",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress(out) as progress:
        progress(Event("[copy], 1 client", 1, 4, 1, 4))
        progress(Event("[copy], 1 client", 2, 4, 2, 4))
    assert "[copy], 1 client" in out.getvalue()
    assert "2/4" in out.getvalue()
    assert "left" in out.getvalue()
    assert "measured" not in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "about 1 s left"),
        (89, "about 89 s left"),
        (90, "about 2 min left"),
        (5399, "about 90 min left"),
        (5400, "about 1.5 h left"),
    ],
)
def test_times_left(seconds: float, words: str) -> None:
    assert spell(seconds) == words
