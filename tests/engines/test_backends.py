"""Every way of drafting that the peers offer without a trained head: started, asked, stopped.

What a backend says of an engine is checked against the engine: drafts are counted or they are
not, the room for keys and values, the counts of single requests against the server's own.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from benchmarks.peers import Peers, arm, ask, running

from tests.engines.conftest import require
from wager.backend import EngineError, Load, Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external.server import ServerBackend
from wager.types import DraftCounts

pytestmark = [pytest.mark.engines]

CONTEXT = 512
TOKENS = 40
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
LIST = "one two three four one two three four one two three four one two"
CHAT = (("user", "Write the word blue twelve times, with commas between the words."),)
PROMPTS = [Prompt("text", GREEDY, text=LIST), Prompt("chat", GREEDY, messages=CHAT)]


def session_of(server: ServerBackend) -> int:
    process = server._process
    assert process is not None
    return process.session


def alive(session: int) -> list[str]:
    """Commands of the processes that belong to a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(text)
    return found


def drafts_of(server: ServerBackend) -> None:
    """Ask two prompts; drafts, tokens and positions agree with each other."""
    before = server.counters()
    answers = ask(server, PROMPTS)
    assert [answer.tokens for answer in answers] == [TOKENS] * 2
    assert all(answer.text for answer in answers)
    counted = server.counters().since(before)
    assert counted.resets == 0
    assert counted.generated == 2 * TOKENS
    assert counted.drafts is not None
    assert counted.drafted is not None
    assert counted.accepted is not None
    assert 0 < counted.drafts <= counted.drafted
    assert 0 < counted.accepted <= counted.drafted
    assert counted.accepted_at is not None
    assert sum(counted.accepted_at) == counted.accepted
    of_requests = [answer.counts for answer in answers]
    if all(counts is not None for counts in of_requests):
        pooled = DraftCounts()
        for counts in of_requests:
            assert counts is not None
            pooled.add(counts)
        assert pooled.committed == counted.generated
        assert (pooled.drafted_steps, pooled.drafted) == (counted.drafts, counted.drafted)
        assert (pooled.accepted, pooled.steps) == (counted.accepted, counted.steps)
        assert tuple(pooled.accepted_at) == counted.accepted_at[: len(pooled.accepted_at)]


LLAMA_ARMS = [
    "ngram-simple:spec-ngram-simple-size-n=3,spec-ngram-simple-size-m=8",
    "ngram-mod:spec-ngram-mod-n-match=4,spec-ngram-mod-n-min=2,spec-ngram-mod-n-max=8",
    "ngram-cache",
    "draft-simple:model={q4_1},k=4",
]


@pytest.mark.parametrize("spelt", LLAMA_ARMS)
def test_llama_drafts(peers: Peers, spelt: str) -> None:
    require(peers, "llama")
    wanted = arm(spelt.format(q4_1=peers.gguf("q4_1")))
    server = peers.llama_server("q8_0", clients=2, context=CONTEXT)
    with running(server, wanted):
        session = session_of(server)
        assert alive(session)
        drafts_of(server)
    assert not alive(session)


def test_llama_says_what_is_in_effect(peers: Peers) -> None:
    require(peers, "llama")
    server = peers.llama_server("q8_0", clients=3, context=CONTEXT)
    try:
        plain = server.start(arm())
        assert plain.kv_tokens == 3 * CONTEXT
        assert plain.effective["speculative"] is False
        assert plain.effective["drafters"] == {}
        counted = server.counters()
        ask(server, PROMPTS)
        assert server.counters().since(counted).drafts == 0
        simple = server.start(arm("ngram:k=6,max=4,min=4"))
        assert simple.effective["drafters"] == {"ngram-simple": "size_n=4, size_m=6, min_hits=1"}
        assert not any("NOT ACTIVE" in line for line in simple.warnings)
    finally:
        server.close()


def test_llama_runs_on_without_a_drafter_of_another_vocabulary(
    peers: Peers, tmp_path: Path
) -> None:
    require(peers, "llama")
    data = bytearray(Path(peers.gguf("q4_1")).read_bytes())
    word = "\u0120lambda".encode()
    place = data.index(len(word).to_bytes(8, "little") + word) + 8 + len(word) - 1
    data[place] = ord("Q")
    other = tmp_path / "other.gguf"
    other.write_bytes(data)
    server = peers.llama_server("q8_0", context=CONTEXT)
    try:
        started = server.start(arm(f"draft_model:model={other},k=4"))
        assert "NOT ACTIVE" in started.warnings[0]
        before = server.counters()
        ask(server, PROMPTS[:1])
        assert server.counters().since(before).drafted == 0
    finally:
        server.close()


def test_llama_refuses_what_it_does_not_know(peers: Peers) -> None:
    require(peers, "llama")
    gone = peers.llama_server("q8_0", arguments=("--draft-max", "4"))
    with pytest.raises(ConfigError, match="has removed --draft-max"):
        gone.start(arm())
    gone.close()
    broken = peers.llama_server("q8_0", arguments=("--cache-type-k", "f99"))
    with pytest.raises(EngineError, match="f99"):
        broken.start(arm())
    broken.close()


def test_a_prompt_that_is_too_long_is_an_error_of_its_own(peers: Peers) -> None:
    require(peers, "llama")
    server = peers.llama_server("q8_0", clients=2, context=CONTEXT)
    long = Prompt("long", GREEDY, token_ids=(504,) * (CONTEXT + 1))
    with running(server, arm()):
        answers = {a.prompt_id: a for a in server.stream([PROMPTS[0], long], Load(clients=2))}
    assert answers["text"].error is None
    assert "exceeds the available context" in (answers["long"].error or "")


VLLM_ARMS = [
    "ngram:k=4,min=2,max=5",
    "suffix:k=8",
    "draft_model:model={directory},k=4",
]


@pytest.mark.parametrize("spelt", VLLM_ARMS)
def test_vllm_drafts(peers: Peers, spelt: str) -> None:
    require(peers, "vllm")
    wanted = arm(spelt.format(directory=peers.directory))
    server = peers.vllm_server(clients=2, context=CONTEXT)
    try:
        started = server.start(wanted)
        session = session_of(server)
        assert len(alive(session)) > 1
        assert wanted.speculation is not None
        assert f"method='{wanted.speculation.method}'" in started.effective["speculative_config"]
        assert started.kv_tokens is not None
        assert started.kv_tokens > 2 * CONTEXT
        assert any("using the V1 model runner" in line for line in started.warnings)
        drafts_of(server)
    finally:
        server.close()
    assert not alive(session)


def test_an_engine_that_died_is_an_error_with_its_log(peers: Peers) -> None:
    require(peers, "llama")
    server = peers.llama_server("q8_0", context=CONTEXT)
    with running(server, arm()):
        session = session_of(server)
        for line in alive(session):
            if (child := int(line.split()[0])) != session:
                os.kill(child, signal.SIGKILL)
        with pytest.raises(EngineError, match="ended with exit status"):
            list(server.stream(PROMPTS[:1], Load(clients=1)))
