"""`wager tune --simulate`: what to expect from step times and acceptance, without any engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wager.checks import whole
from wager.cli import bench_options as of
from wager.errors import ConfigError

LENGTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_TAKEN: Final = frozenset(("simulate", "acceptance", "coverage", "clients", "max_k", "no_color"))


def simulate(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Print the expected speed-up by concurrency. Raises ConfigError, also for an option that only
    a measurement has use for."""
    from rich.console import Console
    from rich.table import Table

    from wager.bench.estimate import conditional, step_table
    from wager.bench.simulate import expected
    from wager.bench.worlds import Device, steady

    for name, default in defaults.items():
        if name not in _TAKEN and given[name] != default:
            raise ConfigError(
                f"{name.replace('_', '-')}: --simulate measures nothing; leave it out"
            )
    survival = _survival(given["acceptance"])
    coverage = 1.0 if given["coverage"] is None else given["coverage"]
    if not 0.0 < coverage <= 1.0:
        raise ConfigError(f"coverage: must be above 0 and at most 1, got {coverage}")
    table = step_table(given["simulate"])
    device = Device(table.source, table.known, read=0.0)
    chances = [p for p in conditional(survival) if p is not None]
    # Behind the last position that is known nothing is taken to be right.
    rule = steady([*chances, 0.0], coverage)
    whole("max-k", given["max_k"], 1, LENGTHS[-1])
    lengths = [k for k in LENGTHS if k <= min(given["max_k"], len(survival))]
    shown = Table(box=None, title=None, header_style="")
    for head in ("clients", *(f"k={k}" for k in lengths), "best k", "controller"):
        shown.add_column(head, justify="right")
    for load in of.loads(given["clients"] or "1,2,4,8,16,32,64", None):
        clients = load.clients or 1
        found = expected(device, rule, clients, lengths)
        best = str(found.best_k) if found.best_k else "plain"
        figures = [f"{found.fixed[k]:.2f}" for k in lengths]
        shown.add_row(str(clients), *figures, best, f"{found.controlled:.2f}")
    console = Console(no_color=given["no_color"], highlight=False)
    console.print("speed-up of decode, estimated: step times and acceptance as given, simulated")
    console.print(shown)


def _survival(text: str | None) -> list[float]:
    if text is None:
        raise ConfigError(
            "acceptance: --simulate needs it, unconditional by position as reports print it, e.g. "
            "--acceptance 0.84,0.79,0.77,0.75"
        )
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"acceptance: {text!r} are not numbers such as 0.84,0.79") from None
    falls = all(a >= b >= 0.0 for a, b in zip([1.0, *found], found, strict=False))
    if not falls:
        raise ConfigError(
            f"acceptance: {text}: shares of drafts that got at least so far lie between 0 and 1 "
            "and never rise"
        )
    return found
