"""Where results are kept, so that an interrupted run goes on, and how they are printed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wager.bench.machine import machine

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results"

Result = dict[str, Any]


def stamp() -> str:
    """Changes with the sources of the package and with the CPU: results of one run agree on it."""
    digest = hashlib.sha256(json.dumps(machine("")).encode())
    for folder in ("src", "native"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".cpp", ".h"}:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Store:
    """Results by name. One that is there and has this run's stamp is not measured again."""

    def __init__(self, fresh: bool, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.stamp = stamp()
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for path in folder.glob("*.json"):
                path.unlink()

    def get(self, name: str, measure: Callable[[], Result]) -> Result:
        """The stored result, else what ``measure`` returns, stored."""
        path = self.folder / f"{name}.json"
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["stamp"] == self.stamp:
                say(f"{name}: kept")
                return dict(stored["result"])
        say(f"{name} ...")
        started = time.monotonic()
        result = measure()
        seconds = round(time.monotonic() - started, 1)
        record = {"stamp": self.stamp, "seconds": seconds, "result": result}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
        part.replace(path)
        say(f"{name}: {seconds} s")
        return result


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def run_module(module: str, *arguments: str, **environ: str) -> str:
    """Run a module in a fresh process; returns what it prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def child(module: str, *arguments: str, **environ: str) -> Result:
    """Run a module in a fresh process; its last line is a JSON object."""
    return dict(json.loads(run_module(module, *arguments, **environ).strip().splitlines()[-1]))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table. None is printed as n/a, numbers with three significant digits."""
    lines = [list(head), ["---"] * len(head), *([number(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(cell: object) -> str:
    """Text as it is; numbers short; None as n/a."""
    if cell is None:
        return "n/a"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return str(cell)


@dataclass(frozen=True)
class Aim:
    """One line of the table of aims. ``met`` None: it could not be measured."""

    what: str
    aim: str
    found: str
    met: bool | None

    @property
    def row(self) -> list[str]:
        answer = {True: "yes", False: "NO", None: "n/a"}[self.met]
        return [self.what, self.aim, self.found, answer]


def ratio(over: float | None, under: float | None) -> float | None:
    """over / under where both were measured."""
    return over / under if over is not None and under else None


def at_least(what: str, value: float | None, bound: float, unit: str = "x", note: str = "") -> Aim:
    """An aim that a value reaches a bound."""
    met = None if value is None else value >= bound
    return Aim(what, f">= {bound:g}{unit}", _found(value, unit, note), met)


def at_most(what: str, value: float | None, bound: float, unit: str = "", note: str = "") -> Aim:
    """An aim that a value stays within a bound."""
    met = None if value is None else value <= bound
    return Aim(what, f"<= {bound:g}{unit}", _found(value, unit, note), met)


def _found(value: float | None, unit: str, note: str) -> str:
    return "n/a" if value is None else f"{number(float(value))}{unit}{f' ({note})' if note else ''}"
