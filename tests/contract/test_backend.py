"""What every backend must keep, whoever measures with it: the own engine, a server that is started,
servers that run already, and the scripted one that stands in for them in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench.scripted import ScriptedBackend, prompts
from tests.external.dummy import REPLY
from tests.external.stub import Stub
from tests.external.test_server import DummyBackend, options
from wager import LLM
from wager.arms import PLAIN, Arm, Speculation
from wager.backend import Answer, Backend, Load
from wager.bench.backend import EngineBackend
from wager.external.url import UrlBackend, UrlOptions

OFF = Arm(PLAIN)
NGRAM = Arm("ngram:k=4", Speculation("ngram", {"num_speculative_tokens": 4}))
ON = Arm("speculative", Speculation("speculative"))
LOADS = [Load(clients=1), Load(clients=3), Load(rate=50.0)]


@dataclass
class Case:
    """A backend and an arm of it that drafts."""

    backend: Backend
    arm: Arm


@contextmanager
def own(tiny_path: Path) -> Iterator[Case]:
    with LLM(str(tiny_path), weights="f32", threads=1) as llm:
        yield Case(EngineBackend(llm), NGRAM)


@contextmanager
def server(_: Path) -> Iterator[Case]:
    backend = DummyBackend("model", options())
    yield Case(backend, NGRAM)
    backend.close()


@contextmanager
def running(_: Path) -> Iterator[Case]:
    with Stub([REPLY]) as off, Stub([REPLY]) as on:
        yield Case(UrlBackend(UrlOptions(url_off=off.url, url_on=on.url)), ON)


@contextmanager
def scripted(_: Path) -> Iterator[Case]:
    yield Case(ScriptedBackend(), NGRAM)


@pytest.fixture(params=[own, server, running, scripted])
def case(request: pytest.FixtureRequest, tiny_path: Path) -> Iterator[Case]:
    opened: Callable[[Path], Iterator[Case]] = request.param
    with opened(tiny_path) as made:  # type: ignore[attr-defined]
        yield made
        made.backend.stop()


def answers(backend: Backend, load: Load) -> list[Answer]:
    return list(backend.stream(prompts(5), load))


def test_both_arms_are_described_and_started(case: Case) -> None:
    for arm in (OFF, case.arm):
        assert case.backend.check(arm)
        started = case.backend.start(arm)
        assert started.startup_s is None or started.startup_s > 0.0
        assert started.kv_tokens is None or started.kv_tokens > 0
        case.backend.stop()
        # Twice is not an error: whoever measures stops in any case.
        case.backend.stop()


@pytest.mark.parametrize("load", LOADS)
def test_each_prompt_is_answered_once_and_timed(case: Case, load: Load) -> None:
    case.backend.start(OFF)
    found = answers(case.backend, load)
    assert sorted(answer.prompt_id for answer in found) == [f"w-{i}" for i in range(5)]
    for answer in found:
        assert answer.error is None
        assert answer.first_token_s is not None
        assert 0.0 < answer.first_token_s <= answer.total_s
        times = [time for time, _ in answer.chunks]
        assert times == sorted(times)
        assert all(time <= answer.total_s for time in times)
        told = [tokens for _, tokens in answer.chunks if tokens is not None]
        if told and len(told) == len(answer.chunks):
            assert sum(told) == answer.tokens
        if answer.token_ids is not None:
            assert len(answer.token_ids) == answer.tokens


def test_counters_only_grow(case: Case) -> None:
    case.backend.start(case.arm)
    before = case.backend.counters()
    answers(case.backend, Load(clients=2))
    grown = case.backend.counters().since(before)
    assert grown.resets == 0
    for value in (grown.steps, grown.drafts, grown.drafted, grown.accepted, grown.generated):
        assert value is None or value >= 0


def test_a_consumer_that_leaves_early_leaves_nothing_behind(case: Case) -> None:
    case.backend.start(OFF)
    stream = case.backend.stream(prompts(5), Load(clients=2))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert len(answers(case.backend, Load(clients=2))) == 5
