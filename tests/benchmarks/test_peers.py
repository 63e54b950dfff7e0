"""Where the real engines are, how they are asked, and the rates that follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.engines import LLAMA_SETTINGS, Round, llama_arm, rates
from benchmarks.peers import AT_ONCE, PeerError, Peers, arm, ask, running

from tests.external.pretend import program, recorded
from wager.backend import Answer, Counters, Load, Prompt
from wager.config import SamplingParams

PROMPTS = [Prompt(name, SamplingParams(max_tokens=3), token_ids=(1, 2)) for name in "ab"]


def answer(name: str, *chunks: tuple[float, int | None], **more: Any) -> Answer:
    tokens = sum(n or 0 for _, n in chunks)
    last = chunks[-1][0] if chunks else 0.0
    first = chunks[0][0] if chunks else None
    told: dict[str, Any] = {"tokens": tokens, **more}
    return Answer(name, "x", first, last, chunks=list(chunks), **told)


class Replies:
    """A backend that knows its answers, given in the order of their ends."""

    name = "told"
    fresh_start_is_cheap = True

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = answers
        self.load: Load | None = None

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        self.load = load
        yield from self.answers


def test_answers_come_in_the_order_of_the_prompts_all_asked_at_once() -> None:
    backend: Any = Replies([answer("b", (1.0, 1)), answer("a", (2.0, 1))])
    assert [found.prompt_id for found in ask(backend, PROMPTS)] == ["a", "b"]
    assert backend.load is AT_ONCE


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (answer("b", (1.0, 1), error="HTTP 500: no"), "HTTP 500"),
        (answer("b"), "without a token"),
    ],
)
def test_an_answer_without_tokens_is_an_error(second: Answer, said: str) -> None:
    backend: Any = Replies([answer("a", (1.0, 1)), second])
    with pytest.raises(PeerError, match=said):
        ask(backend, PROMPTS)


def test_rates() -> None:
    """Two clients: 9 tokens after the first in 3 s, 4 in 2 s; all of them in 6 s."""
    fast = answer("a", (1.0, 1), (4.0, 9))
    slow = answer("b", (4.0, 1), (6.0, 4))
    found = rates([fast, slow])
    assert found.decode == pytest.approx([3.0, 2.0])
    assert found.total == pytest.approx(15 / 6)
    assert found.tokens == 15


def test_one_arrival_has_no_decode_rate() -> None:
    assert rates([answer("a", (1.0, 3))]).decode == []


def test_a_round_sums_up_groups_that_ran_one_after_the_other() -> None:
    groups = [[answer("a", (1.0, 1), (2.0, 4))], [answer("b", (1.0, 1), (3.0, 4))]]
    found = Round.of("copy", 1, groups, Counters(drafted=6, accepted=4))
    assert found.decode == pytest.approx([4.0, 2.0])
    assert (found.tokens, found.seconds) == (10, pytest.approx(5.0))
    assert (found.drafted, found.accepted, found.steps) == (6, 4, None)


def test_settings_of_llama_are_arms() -> None:
    assert llama_arm("plain") == arm()
    for name in LLAMA_SETTINGS:
        found = llama_arm(name)
        assert found.speculation is not None
        assert name.startswith(found.speculation.method)
        numbers = "/".join(str(v) for v in list(found.speculation.options.values()))
        assert numbers.startswith(name.split()[1])


def test_a_server_is_gone_when_the_context_ends(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2-f32.gguf").touch()
    log = recorded("llama_ngram_simple.log")
    program(tmp_path / "llama", "llama-server", recorded("llama_help.txt"), log)
    server = Peers(tmp_path).llama_server("f32", clients=2, context=64)
    with running(server, llama_arm("ngram-simple 3/16")) as same:
        assert same is server
        process = server._process
        assert process is not None
        assert process.exit_status() is None
        assert process.command[process.command.index("--ctx-size") + 1] == "128"
        log_file = process.log
    assert process.exit_status() is not None
    assert not log_file.exists()


def test_a_part_is_there_when_it_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_PEERS", str(tmp_path))
    (tmp_path / "llama").mkdir()
    assert not Peers.find().has("llama")
    (tmp_path / "llama" / ".ready").touch()
    assert Peers.find().has("llama")
