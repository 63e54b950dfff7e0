"""What drafting without a model costs, beside vLLM's n-gram matcher and arctic-inference.

    python -m benchmarks.drafters [--peers DIR] [--contexts 1000,10000,100000] [--batches 1,32]

Each text is played as a drafter meets it: a prompt, then again and again a commit of 1 to 4 tokens
and a proposal of at most 8. All arms get the same tokens and take turns, block by block, forwards
and backwards. Medians of single steps, with whatever Python stands between engine and method; the
caches are as warm as the loop leaves them, so a model that runs between two steps adds misses to
every arm. The peers run in their own Python; what is not set up is n/a.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.peers import Peers
from benchmarks.results import ROOT, Aim, Result, at_most, ratio, say, table
from benchmarks.streams import (
    ANSWER,
    ANSWERS,
    KINDS,
    LOOKUP,
    MIXED,
    MOST,
    VOCABULARY,
    Case,
    K,
    Subject,
    Times,
    build,
    make_case,
    play,
)
from wager.drafters.base import DraftQuery
from wager.registry import drafter_class
from wager.speculation import SpeculationConfig

CONTEXTS, BATCHES = (1_000, 10_000, 100_000), (1, 32)
STEPS = {1: 400, 32: 60}
BLOCKS = 4


class OwnSubject(Subject):
    """A drafter of wager behind its seam."""

    def __init__(self, method: str, keys: dict[str, Any]) -> None:
        config = SpeculationConfig.of(method, K, **keys)
        self.drafter = drafter_class(method)(config.methods[0], VOCABULARY)
        self.queries: list[DraftQuery] = []

    def learn(self, answers: list[list[int]]) -> float | None:
        seconds = 0.0
        for answer in answers:
            self.drafter.start(-1, [], "")
            self.drafter.observe(-1, answer)
            started = time.perf_counter()
            self.drafter.release(-1)
            seconds += time.perf_counter() - started
        return seconds

    def start(self, request: int, prompt: list[int]) -> None:
        self.drafter.start(request, prompt, "")

    def observe(self, request: int, tokens: list[int]) -> None:
        self.drafter.observe(request, tokens)

    def prepare(self, lengths: list[int]) -> None:
        self.queries = [DraftQuery(request, n, K) for request, n in enumerate(lengths)]

    def propose(self) -> list[int]:
        return [len(draft.tokens) for draft in self.drafter.propose(self.queries)]

    def sizes(self) -> tuple[int | None, int | None]:
        kept = self.drafter._texts if hasattr(self.drafter, "_texts") else self.drafter._index
        return getattr(kept, "bytes", None), getattr(kept, "past_bytes", None)


NARROW = {"prompt_lookup_min": LOOKUP[0], "prompt_lookup_max": LOOKUP[1]}
WIDE = {"prompt_lookup_min": 10, "prompt_lookup_max": 500}
OWN: dict[str, tuple[str, dict[str, Any], bool]] = {
    "ngram": ("ngram", NARROW, False),
    "ngram 10-500": ("ngram", WIDE, False),
    "ngram_gpu": ("ngram_gpu", NARROW, False),
    "suffix": ("suffix", {}, False),
    "suffix, warm": ("suffix", {}, True),
}
"""By name: the method, its keys, and whether it takes in past answers first."""
PEERS = {"vLLM ngram": "vllm", "arctic": "suffix", "arctic, warm": "suffix"}
"""By name: the part of `scripts/peers.sh` that an arm needs beside `vllm`."""
ARMS = [*OWN, *PEERS]


@dataclass(frozen=True)
class Arm:
    """One method in one case, here or in another process."""

    name: str
    built: dict[str, Any]
    play: Callable[[int, int], Times]


class PeerProcess:
    """`benchmarks.drafters_peer`, running in the peers' Python."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str], arms: list[str]) -> None:
        self.arms = arms
        self._process, self._log = process, log

    def build(self, case: Case) -> list[Arm]:
        built = self._ask(case=vars(case), arms=self.arms)
        return [Arm(name, built[name], self._player(name)) for name in self.arms]

    def _player(self, name: str) -> Callable[[int, int], Times]:
        return lambda first, last: self._ask(arm=name, first=first, last=last)

    def _ask(self, **question: Any) -> dict[str, Any]:
        """Raises RuntimeError with the end of the log where there is no answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"the peers' process ended: {self._log.read().strip()[-2000:]}")
        return dict(json.loads(line))


@contextmanager
def peer_process(peers: Peers) -> Iterator[PeerProcess | None]:
    """With the arms that are set up; None where there are none."""
    arms = [name for name, part in PEERS.items() if peers.has("vllm") and peers.has(part)]
    if not arms:
        yield None
        return
    python = peers.root / "vllm" / "bin" / "python"
    environ = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [str(python), "-m", "benchmarks.drafters_peer"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield PeerProcess(process, log, arms)
        finally:
            process.kill()


def measure(
    peers: Peers,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    steps: dict[int, int] = STEPS,
) -> Result:
    """Every arm on every kind of text alone, and on all kinds in one batch.

    A list of cells: kind, context, batch, and by arm its medians.
    """
    cells = []
    with peer_process(peers) as other:
        for context in contexts:
            for batch in batches:
                for kind in KINDS if batch == 1 else [MIXED]:
                    case = make_case(kind, context, batch, steps[batch])
                    found = play_case(case, other)
                    say(f"drafters: {kind}, context {context}, batch {batch}")
                    cells.append({"kind": kind, "context": context, "batch": batch, "arms": found})
    return {"cells": cells}


def play_case(case: Case, other: PeerProcess | None) -> dict[str, dict[str, Any]]:
    """Medians by arm: all arms are built, then each plays its blocks in turn."""
    arms = [own_arm(name, case) for name in OWN]
    if other is not None:
        arms += other.build(case)
    times: dict[str, Times] = {arm.name: {} for arm in arms}
    steps = len(case.commits)
    for block in range(BLOCKS):
        first, last = block * steps // BLOCKS, (block + 1) * steps // BLOCKS
        for arm in arms if block % 2 == 0 else reversed(arms):
            for what, values in arm.play(first, last).items():
                times[arm.name].setdefault(what, []).extend(values)
    return {
        arm.name: {
            **arm.built,
            **{what: statistics.median(v) for what, v in times[arm.name].items() if v},
            "drafted": statistics.fmean(times[arm.name]["drafted"]),
        }
        for arm in arms
    }


def own_arm(name: str, case: Case) -> Arm:
    method, keys, warm = OWN[name]
    subject = OwnSubject(method, keys)
    built = build(subject, case, warm)
    return Arm(name, built, lambda first, last: play(subject, case, first, last))


def report(result: Result) -> str:
    """A table for each thing that is timed; prompts and memory at the longest context."""
    cells = result["cells"]
    most = max(cell["context"] for cell in cells)
    longest = [cell for cell in cells if cell["context"] == most]
    tables = (
        (f"Proposing at most {K} tokens, us per request and step:", "propose", cells),
        (f"Observing a commit of 1 to {MOST} tokens, us per token:", "observe", cells),
        ("Both, us per committed token:", "token", cells),
        ("Tokens proposed per request and step:", "drafted", cells),
        ("Taking in the prompt, us per token:", "prompt", longest),
        ("Keeping an answer for later requests when it ends, us per token:", "learn", longest),
        ("Index of running requests, bytes per token:", "bytes", longest),
        ("Index of past answers, bytes per token:", "past_bytes", longest),
    )
    parts = [f"Drafting without a model. n-gram lookups {LOOKUP[0]} to {LOOKUP[1]} if not said; "
             f"warm: with {ANSWERS} past answers of {ANSWER} tokens."]  # fmt: skip
    if missing := [arm for arm in PEERS if arm not in cells[0]["arms"]]:
        parts.append(f"n/a: {', '.join(missing)} (scripts/peers.sh did not set them up).")
    for title, what, shown in tables:
        parts += [title, _grid(shown, what)]
    return "\n\n".join(parts)


def _grid(cells: Sequence[Result], what: str) -> str:
    """Cells by arms; an arm that was measured and has no such figure is left out."""
    arms = [
        arm for arm in ARMS if any(c["arms"].get(arm, {what: 0})[what] is not None for c in cells)
    ]
    rows = [
        [c["kind"], c["context"], c["batch"], *(c["arms"].get(arm, {}).get(what) for arm in arms)]
        for c in cells
    ]
    return table(["text", "context", "batch", *arms], rows)


def aims(result: Result) -> list[Aim]:
    """The budgets at the longest context, and the peers in every cell; the worst cell counts."""
    cells = result["cells"]
    most = max(cell["context"] for cell in cells)
    longest = [cell for cell in cells if cell["context"] == most]
    return [
        _aim(f"ngram, propose at {most} tokens", 5.0, " us", longest,
             lambda arms: [arms["ngram"]["propose"]]),
        _aim(f"suffix, per token at {most} tokens", 20.0, " us", longest,
             lambda arms: [_suffix(arms, "suffix"), _suffix(arms, "suffix, warm")]),
        _aim("ngram, per token, of vLLM's", 1.0, "x", cells,
             lambda arms: [ratio(arms["ngram"]["token"], _peer(arms, "vLLM ngram"))]),
        _aim("suffix, per token, of arctic-inference's", 1.0, "x", cells,
             lambda arms: [ratio(_suffix(arms, "suffix"), _peer(arms, "arctic")),
                           ratio(_suffix(arms, "suffix, warm"), _peer(arms, "arctic, warm"))]),
    ]  # fmt: skip


def _suffix(arms: dict[str, Any], name: str) -> float:
    """Microseconds per committed token; at its end the whole answer is kept for later."""
    return float(arms[name]["token"] + arms["suffix, warm"]["learn"])


def _peer(arms: dict[str, Any], name: str) -> float | None:
    return arms[name]["token"] if name in arms else None


def _aim(
    what: str,
    bound: float,
    unit: str,
    cells: Sequence[Result],
    values: Callable[[dict[str, Any]], list[float | None]],
) -> Aim:
    found = [(v, cell) for cell in cells for v in values(cell["arms"]) if v is not None]
    if not found:
        return at_most(what, None, bound, unit)
    worst, cell = max(found, key=lambda pair: pair[0])
    where = f"{cell['kind']}, {cell['context']}, batch {cell['batch']}"
    return at_most(what, worst, bound, unit, where)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", help="the folder of scripts/peers.sh (else WAGER_PEERS, .peers)")
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    options = parser.parse_args()
    peers = Peers(Path(options.peers).resolve()) if options.peers else Peers.find()
    contexts = [int(size) for size in options.contexts.split(",")]
    batches = [int(size) for size in options.batches.split(",")]
    steps = {batch: STEPS.get(batch, STEPS[32]) for batch in batches}
    found = measure(peers, contexts, batches, steps)
    print(report(found))
    print("\nAims:\n")
    print(table(["what", "aim", "found", "met"], [aim.row for aim in aims(found)]))


if __name__ == "__main__":
    main()
