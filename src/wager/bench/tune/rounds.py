"""The rounds of real runs: how many fit into the time, and what one of them shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wager.arms import PLAIN, Arm
from wager.bench.run import Run
from wager.bench.tune import choice
from wager.bench.tune.space import Candidate, Family
from wager.errors import ConfigError

LEAST_PROMPTS: Final = 5
VISITS: Final = 2
"""Every repeat asks each prompt twice in each arm."""
_FINALISTS: Final = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: one start of an arm, and one prompt of every cell."""

    startup: float
    per_prompt: float
    visits: int = VISITS

    def of(self, arms: int, prompts: int) -> float:
        """Of a whole round of so many arms, plain decoding among them."""
        return arms * self.visits * (self.startup + prompts * self.per_prompt)


def within(left: float | None, arms: int, count: int, cost: Cost) -> list[tuple[int, int]]:
    """(arms beside plain, prompts) of each round that fits into ``left`` seconds.

    All at once if there is time. Else successive halving: all of them on fewer prompts, then the
    best on all. Else fewer arms, the most promising; then fewer prompts. Empty if nothing fits.
    """
    if left is None or cost.of(arms + 1, count) <= left:
        return [(arms, count)]
    few = max(LEAST_PROMPTS, count // 2)
    for final in range(min(_FINALISTS, arms - 1), 0, -1):
        if few < count and cost.of(arms + 1, few) + cost.of(final + 1, count) <= left:
            return [(arms, few), (final, count)]
    for kept in range(arms - 1, 0, -1):
        if cost.of(kept + 1, count) <= left:
            return [(kept, count)]
    for prompts in range(count - 1, LEAST_PROMPTS - 1, -1):
        if cost.of(2, prompts) <= left:
            return [(1, prompts)]
    return []


def write(path: Path, candidates: Sequence[Candidate], found: Sequence[tuple[int, int]]) -> None:
    """Write down what will be measured, for a run that goes on later."""
    rows = [[c.family.method, dict(c.family.options), c.k] for c in candidates]
    text = json.dumps({"candidates": rows, "rounds": found})
    path.write_text(text + "\n", encoding="utf-8")


def read(path: Path, families: Sequence[Family]) -> tuple[list[Candidate], list[tuple[int, int]]]:
    """What `write` wrote. Raises ConfigError if it is of a run with other methods."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        out = []
        for method, options, k in saved["candidates"]:
            family = next(f for f in families if (f.method, dict(f.options)) == (method, options))
            out.append(Candidate(family, k))
        return out, [(int(keep), int(prompts)) for keep, prompts in saved["rounds"]]
    except (OSError, ValueError, TypeError, KeyError, StopIteration) as error:
        raise ConfigError(
            f"resume: {path} belongs to a run with other methods; repeat its command with "
            "--resume, or choose another --run-dir"
        ) from error


def scores(run: Run) -> dict[str, dict[int, choice.Score]]:
    """Of every arm at every load, over all workloads."""
    cells, noise, visits = run.cells(), choice.visit_noise(run), VISITS * run.plan.repeats
    out: dict[str, dict[int, choice.Score]] = {}
    for arm in run.plan.arms[1:]:
        for load, parts in of_arm(run, arm).items():
            own = [c for c in cells if c.arm == arm.name and c.clients == load]
            if any(part.plain for part in parts):
                out.setdefault(arm.name, {})[load] = choice.score(parts, own, noise, visits)
    return out


def expectations(run: Run, arm: Arm) -> list[choice.Expected]:
    """By load and workload, and of all workloads together where there are several."""
    if arm.name == PLAIN:
        return []
    noise, visits = choice.visit_noise(run), VISITS * run.plan.repeats
    out: list[choice.Expected | None] = []
    for load, parts in of_arm(run, arm).items():
        named = [(part.workload, [part]) for part in parts]
        if len(parts) > 1:
            named.append((choice.ALL, parts))
        out += [choice.expected(name, load, own, noise, visits) for name, own in named]
    return [one for one in out if one is not None]


def of_arm(run: Run, arm: Arm) -> dict[int, list[choice.Pairs]]:
    """The pairs of an arm: by number of clients, one entry for each workload."""
    out: dict[int, list[choice.Pairs]] = {}
    for measurement in run.measurements:
        if measurement.load.clients is not None:
            out.setdefault(measurement.load.clients, []).append(choice.pairs(measurement, arm))
    return out


def best(run: Run, arms: Sequence[Arm], keep: int) -> list[Arm]:
    """The best at each load first, then by their mean over the loads."""
    found = scores(run)
    loads = sorted({load for own in found.values() for load in own})
    known = [arm for arm in arms if arm.name in found]
    ordered = sorted(known, key=lambda arm: -choice.mean_over(found[arm.name], loads))
    names = [choice.best_at(found, load) for load in loads]
    names += [arm.name for arm in ordered]
    by_name = {arm.name: arm for arm in known}
    return [by_name[name] for name in dict.fromkeys(names) if name in by_name][:keep] or [*arms][:1]
