"""The processes of grammars: what takes too long, or is killed, costs its own requests alone."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sampling.fakes import EOS, VOCAB, FakeTokenizer, assert_same, decode, oracle
from tests.sampling.test_grammar import FREE, ROW, WORDS, Past, regex
from wager.config import SamplingParams, StructuredOutput
from wager.errors import NoTokenLeft, RequestError
from wager.ops.base import OpSet
from wager.sampling import grammar as module
from wager.sampling import grammar_links, grammar_worker
from wager.sampling.grammar import GrammarMask, prepare
from wager.sampling.grammar_messages import Limits

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes to be forked")

# Minutes to compile.
DENSE = StructuredOutput("grammar", "start: A\nA: ~(/.*a.{18}/) & /(.*b.{17})/")
PATIENCE_S = 20.0


def _later(count: int) -> str:
    """Rules that lead to each other without a token between them, behind a first one."""
    rules = [f'r{i}: r{(i + 1) % count} r{(i + 7) % count} | "a" all' for i in range(count)]
    every = " | ".join(f"r{i}" for i in range(count))
    return "\n".join(['start: "b" all', f"all: {every}", *rules])


# Compiled at once; the mask behind its first token takes seconds.
LATER = StructuredOutput("grammar", _later(1500))


@pytest.fixture
def tokenizer() -> Any:
    """With processes of its own."""
    return FakeTokenizer()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(compile_s=0.5, burst_s=0.3, steady_s=0.02)
    monkeypatch.setattr(module, "LIMITS", limits)


def processes(tokenizer: Any) -> list[int]:
    """Of this tokenizer's grammars; the first is the one that they are forked from."""
    (links,) = module._KEPT[tokenizer]._links.values()
    first = links._source._process
    assert first is not None
    return [first.pid, *forked_from(first.pid)]


def forked_from(first: int) -> list[int]:
    """Also when it is gone: they are in its session."""
    alive = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in alive if pid != first and not gone(pid) and stat(pid)[3] == str(first)]


def stat(pid: int) -> list[str]:
    """State, parent, group, session, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", "", "", ""]


def gone(pid: int) -> bool:
    return stat(pid)[0] == "Z"


def wait_until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_grammar_that_compiles_for_ever_is_refused(tokenizer: Any, hurried: None) -> None:
    began = time.process_time()
    with pytest.raises(RequestError, match=r"^structured: takes more than 0.5 s to compile"):
        prepare(tokenizer, (EOS,), DENSE)
    # Not tried again.
    started = time.perf_counter()
    with pytest.raises(RequestError, match="make it simpler"):
        prepare(tokenizer, (EOS,), DENSE)
    assert time.perf_counter() - started < 0.3
    # None of it was this process's time, and others go on.
    assert time.process_time() - began < 0.5
    prepare(tokenizer, (EOS,), WORDS)


def test_a_mask_that_takes_for_ever_ends_its_own_request(tokenizer: Any, hurried: None) -> None:
    other = GrammarMask(prepare(tokenizer, (EOS,), WORDS), (EOS,))
    before = other(ROW, Past())
    hostile = prepare(tokenizer, (EOS,), LATER)
    subjects = [GrammarMask(hostile, (EOS,)) for _ in range(2)]
    for subject in subjects:
        assert list(np.flatnonzero(~np.isneginf(subject(ROW, Past())))) == [2]
        assert not subject.advance(2)
    with pytest.raises(NoTokenLeft, match="takes too long to follow"):
        subjects[0](ROW, Past())
    # The same grammar elsewhere, and later, takes no time any more.
    with pytest.raises(NoTokenLeft, match="takes too long to follow"):
        subjects[1](ROW, Past())
    with pytest.raises(RequestError, match=r"^structured: takes too long to follow"):
        prepare(tokenizer, (EOS,), LATER)
    assert np.array_equal(other(ROW, Past()), before)


@pytest.mark.parametrize(("burst", "lasts"), [(0.04, True), (0.0, False)])
def test_time_is_saved_up_and_spent(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, burst: float, lasts: bool
) -> None:
    """Each question has its share; what one does not need is there for a later one."""
    told: list[float] = []

    @contextlib.contextmanager
    def limit(seconds: float) -> Iterator[Callable[[], float]]:
        # A question in four takes 30 ms, the others 10.
        told.append(seconds)
        yield lambda: seconds - (0.03 if len(told) % 4 == 3 else 0.01)

    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(grammar_worker, "processor_limit", limit)
    monkeypatch.setattr(module, "LIMITS", Limits(burst_s=burst, steady_s=0.02))
    subject = GrammarMask(prepare(tokenizer, (EOS,), WORDS), (EOS,))
    for _ in range(40):
        subject(ROW, Past())
    # The first is that of opening it.
    spent = [0.03 if (at + 1) % 4 == 3 else 0.01 for at in range(1, 41)]
    enough = [least >= most for least, most in zip(told[1:], spent, strict=True)]
    assert all(enough) == lasts
    assert max(told[1:]) <= burst + 0.02 + 1e-9


def test_too_much_memory_is_refused(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMITS", Limits(memory=1 << 23))
    with pytest.raises(RequestError, match="too much memory"):
        prepare(tokenizer, (EOS,), DENSE)
    prepare(tokenizer, (EOS,), WORDS)


@pytest.mark.parametrize("which", ["the first", "a forked one", "all"])
def test_processes_that_are_killed_are_started_anew(tokenizer: Any, ops: OpSet, which: str) -> None:
    """The answers are the same."""
    killed = 0

    def drafting(state: Any) -> Any:
        nonlocal killed
        if state.output_ids:
            first, *others = processes(tokenizer)
            victims = {"the first": [first], "a forked one": others, "all": [first, *others]}[which]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda: gone(victim))  # noqa: B023
                killed += 1
        return oracle(known, 2)(state)

    for seed in range(2):
        params = SamplingParams(structured=FREE, max_tokens=12, logprobs=1, seed=seed)
        plain, _ = decode(params, ops, tokenizer=tokenizer)
        known = plain.output_ids
        found, _ = decode(params, ops, drafting, tokenizer=tokenizer)
        assert_same(found, plain)
    assert killed >= 3
    # One that is new needs the first.
    prepare(tokenizer, (EOS,), WORDS)


def test_there_are_so_many_processes_at_once(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one used longest ago makes room, and is back where its answer stands."""
    monkeypatch.setattr(grammar_links, "LIVE", 2)
    patterns = [f"({one}|d)+z" for one in ("a", "b", "c", "ab")]
    subjects = [GrammarMask(prepare(tokenizer, (EOS,), regex(p)), (EOS,)) for p in patterns]
    others: list[Any] = [FakeTokenizer() for _ in patterns]
    alone = [
        GrammarMask(prepare(other, (EOS,), regex(p)), (EOS,))
        for other, p in zip(others, patterns, strict=True)
    ]
    rng = random.Random(0)
    for _ in range(12):
        for subject, other in zip(subjects, alone, strict=True):
            allowed = np.flatnonzero(~np.isneginf(subject(ROW, Past())))
            assert np.array_equal(allowed, np.flatnonzero(~np.isneginf(other(ROW, Past()))))
            token = int(rng.choice([t for t in allowed if t != 26]))
            assert subject.advance(token) == other.advance(token)
    wait_until(lambda: len(processes(tokenizer)) <= 3)


def test_walks_that_are_over_leave_nothing(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    grammar = prepare(tokenizer, (EOS,), WORDS)
    for _ in range(5):
        GrammarMask(grammar, (EOS,))(ROW, Past())
    last = GrammarMask(grammar, (EOS,))
    last(ROW, Past())
    link: Any = grammar.link()
    assert len(link.walks._walks) == 1


def test_no_process_outlives_its_tokenizer() -> None:
    tokenizer: Any = FakeTokenizer()
    for structured in (WORDS, FREE):
        prepare(tokenizer, (EOS,), structured)
    pids = processes(tokenizer)
    assert len(pids) == 3
    del tokenizer
    gc.collect()
    for pid in pids:
        wait_until(lambda: gone(pid))  # noqa: B023


PROGRAM = """
import os
from tests.sampling.fakes import EOS, TOKENIZER
from tests.sampling.test_grammar_processes import DENSE, WORDS, processes
from wager.sampling import grammar
from wager.sampling.grammar import prepare
import threading
# What it does not find is time alone.
grammar.LIMITS = grammar.Limits(compile_s=0.7, memory=1 << 29)
prepare(TOKENIZER, (EOS,), WORDS)
threading.Thread(target=lambda: prepare(TOKENIZER, (EOS,), DENSE), daemon=True).start()
while len(processes(TOKENIZER)) < 3:
    pass
print(*processes(TOKENIZER), flush=True)
os.kill(os.getpid(), 9)
"""


def test_no_process_outlives_a_program_that_is_killed() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    pids = [int(one) for one in run.stdout.split()]
    assert len(pids) == 3, run.stderr
    # The one that compiles has no other end than its limit.
    for pid in pids:
        wait_until(lambda: gone(pid))  # noqa: B023


def test_masks_are_those_of_the_same_process(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    apart = GrammarMask(prepare(tokenizer, (EOS,), FREE), (EOS,))
    monkeypatch.delattr(os, "fork")
    other: Any = FakeTokenizer()
    here = GrammarMask(prepare(other, (EOS,), FREE), (EOS,))
    for _ in range(40):
        ahead = rng.choices(range(1, VOCAB), k=rng.randrange(3))
        assert np.array_equal(apart(ROW, Past(ahead)), here(ROW, Past(ahead)))
        allowed = [t for t in np.flatnonzero(~np.isneginf(here(ROW, Past()))) if t]
        token = int(rng.choice(allowed))
        assert apart.advance(token) == here.advance(token)
