"""What of a step's time is each request's, and how long it waited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.recipes import ngram
from wager import LLM, SamplingParams
from wager.engine.request import Request, Sequence
from wager.engine.scheduler import Work
from wager.engine.shares import share
from wager.types import NO_DRAFT, Draft, RequestOutput

PARAMS = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)


def request(name: str) -> Request:
    return Request(name, [1, 2, 3], PARAMS, "")


def work(owner: Request, drafted: int = 0, decoding: bool = True) -> Work:
    stand_in: Any = None
    sequence = Sequence(0, owner, stand_in, [1, 2, 3, 4], stand_in)
    draft = Draft((7,) * drafted, "test") if drafted else NO_DRAFT
    return Work(sequence, 1, True, decoding, draft)


def output(owner: Request) -> RequestOutput:
    return RequestOutput(owner.request_id, [1], [], False)


def test_equal_shares() -> None:
    """Two choices of one request are one request; who reads a prompt does not draft."""
    twice, drafted, plain, reading = (request(name) for name in "abcd")
    works = [
        work(twice, 2),
        work(twice),
        work(drafted, 3),
        work(plain),
        work(reading, decoding=False),
    ]
    outputs = [output(twice), output(reading), output(request("z"))]
    share(works, outputs, draft_s=0.3, verify_s=0.8)
    for owner, verify in ((twice, 200.0), (drafted, 200.0), (plain, 0.0)):
        assert owner.draft_ms == pytest.approx(100.0)
        assert owner.verify_ms == pytest.approx(verify)
    assert (reading.draft_ms, reading.verify_ms) == (0.0, 0.0)
    assert [(o.draft_ms, o.verify_ms) for o in outputs] == [
        (twice.draft_ms, twice.verify_ms), (0.0, 0.0), (0.0, 0.0),
    ]  # fmt: skip
    share([work(twice, 1)], outputs, draft_s=0.0, verify_s=0.1)
    assert outputs[0].verify_ms == pytest.approx(300.0)


def test_without_speculation_there_is_nothing_to_share() -> None:
    owner = request("a")
    share([work(owner)], [output(owner)], draft_s=0.0, verify_s=1.0)
    assert (owner.draft_ms, owner.verify_ms) == (0.0, 0.0)


def test_an_answer_tells_its_share(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=ngram(4, low=1), max_num_seqs=2)
    prompt = [30, 31, 32] * 6
    off = replace(PARAMS, speculation={"enabled": False})  # type: ignore[arg-type]
    speculating, plain, later = llm.generate([prompt] * 3, [PARAMS, off, PARAMS])
    for found in (speculating, later):
        assert found.draft_ms > 0.0
        assert found.verify_ms > 0.0
        assert found.total_s is not None
        assert found.draft_ms + found.verify_ms <= 1e3 * found.total_s
    assert plain.verify_ms == 0.0
    assert speculating.queue_s is not None
    assert later.queue_s is not None
    assert later.first_token_s is not None
    assert 0.0 <= speculating.queue_s < later.queue_s < later.first_token_s
