"""llama.cpp's side of the backend, against what llama-server b11434 printed and sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.external.pretend import program, recorded, reply_of
from wager.arms import parse_arms
from wager.backend import Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external import llama_wire, llamacpp, metrics
from wager.external.llamacpp import LlamaCppBackend
from wager.external.reply import Reply, ReplyError
from wager.external.server import ServerOptions

PLAIN, SIMPLE, DRAFT = parse_arms(
    "plain,ngram-simple:spec-ngram-simple-size-n=3,spec-ngram-simple-size-m=8,"
    "draft_model:model=d.gguf,k=4"
)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Make a backend whose program plays a recorded log; stopped at the end."""
    made: list[LlamaCppBackend] = []
    (tmp_path / "m.gguf").touch()

    def make(log: str, speculative: bool = True, **options: Any) -> LlamaCppBackend:
        slots = [
            slot | {"speculative": speculative} for slot in json.loads(recorded("llama_slots.json"))
        ]
        path = program(
            tmp_path, "llama-server", recorded("llama_help.txt"), recorded(log),
            metrics=recorded("llama_metrics.txt"), slots=slots,
            props=json.loads(recorded("llama_props.json")),
        )  # fmt: skip
        options.setdefault("program", path)
        made.append(LlamaCppBackend(str(tmp_path / "m.gguf"), ServerOptions(**options)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def test_the_log_says_which_drafter_runs_and_how_much_room_there_is() -> None:
    found = llamacpp.read_log(recorded("llama_ngram_simple.log"))
    assert found.kv_tokens == 2 * 2048
    assert found.effective["drafters"] == {"ngram-simple": "size_n=3, size_m=8, min_hits=1"}
    assert (found.effective["slots"], found.effective["max_model_len"]) == (2, 2048)
    assert (found.effective["cache_type_k"], found.effective["cache_type_v"]) == ("f16", "f16")
    assert found.warnings == []


def test_the_drafters_own_cache_is_not_the_targets() -> None:
    found = llamacpp.read_log(recorded("llama_draft_simple.log"))
    assert found.kv_tokens == 2 * 2048
    assert found.effective["drafters"]["draft-simple"].startswith("n_max=4, n_min=0, p_min=0.0")


def test_a_drafter_of_another_vocabulary_is_no_drafter() -> None:
    found = llamacpp.read_log(recorded("llama_mismatch.log"))
    assert found.effective["drafters"] == {}
    assert found.warnings == [
        "the target and draft vocabs are not compatible",
        "failed to initialize speculative decoding context: draft model vocab type must match "
        "target model to use speculation",
    ]


def test_a_stream_gives_ids() -> None:
    answer = reply_of(llama_wire, "llama_completion.sse", max_tokens=24).answer(2.6)
    assert answer.tokens == 24
    assert answer.token_ids is not None
    assert answer.token_ids[:4] == [1296, 1876, 582, 827]
    assert answer.finish_reason == "length"
    assert (answer.prompt_tokens, answer.cached_tokens) == (14, 0)
    assert answer.text.startswith(" three four one two")


def test_counts_of_one_request_are_not_made_up() -> None:
    """`draft_n` is there, the number of steps that drafted is not."""
    assert "draft_n" in recorded("llama_completion.sse")
    assert reply_of(llama_wire, "llama_completion.sse", max_tokens=24).counts is None


def test_ids_left_out_of_a_stream_are_noticed() -> None:
    reply = Reply(Prompt("p", SamplingParams(max_tokens=9), text="x"))
    llama_wire.read({"content": "a", "tokens": [5], "stop": False}, reply)
    llama_wire.read({"content": "\u00e9", "tokens": [7], "stop": False}, reply)
    end = {"content": "", "tokens": [], "stop": True, "stop_type": "limit"}
    llama_wire.read({**end, "timings": {"predicted_n": 3, "predicted_ms": 100.0}}, reply)
    answer = reply.answer(1.0)
    assert answer.tokens == 3
    assert answer.token_ids is None
    assert answer.text == "a\u00e9"


def test_an_error_in_a_stream_ends_the_request() -> None:
    reply = Reply(Prompt("p", SamplingParams(), text="x"))
    with pytest.raises(ReplyError, match="exceeds the available context size"):
        llama_wire.read(json.loads(recorded("llama_error.json")), reply)


def test_log_probabilities_are_read_where_every_token_has_them() -> None:
    reply = reply_of(llama_wire, "llama_probs.sse", max_tokens=4, logprobs=2)
    assert reply.logprobs is not None
    assert [entry.token_id for entry in reply.logprobs] == reply.ids
    best = reply.logprobs[0].top
    assert best[0] == (1296, pytest.approx(-0.786, abs=0.01))
    assert best[0][1] > best[1][1]


def test_log_probabilities_with_gaps_are_dropped() -> None:
    """While drafting, the tokens that a draft brought in come without them."""
    reply = Reply(Prompt("p", SamplingParams(max_tokens=9, logprobs=1), text="x"))
    whole = [{"id": 5, "logprob": -0.5, "top_logprobs": [{"id": 5, "logprob": -0.5}]}]
    llama_wire.read({"content": "a", "tokens": [5], "completion_probabilities": whole}, reply)
    assert reply.logprobs is not None
    llama_wire.read({"content": "b", "tokens": [6]}, reply)
    llama_wire.read({"content": "c", "tokens": [5], "completion_probabilities": whole}, reply)
    assert reply.logprobs is None


def test_the_metrics_page_shows_positions_from_the_first_draft_on() -> None:
    before = metrics.counters(metrics.parse(recorded("llama_before_metrics.txt")))
    after = metrics.counters(metrics.parse(recorded("llama_metrics.txt")))
    assert (before.drafts, before.accepted_at) == (0, None)
    counted = after.since(before)
    assert (counted.drafts, counted.drafted, counted.accepted) == (7, 20, 20)
    assert counted.accepted_at == (7, 7, 6, 0, 0, 0, 0, 0)
    assert counted.generated == 84


def test_requests_say_everything() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=2**40 + 1, max_tokens=5, stop=("x",))
    body = llama_wire.body(Prompt("p", params, token_ids=(1, 2)), (1, 2))
    assert body["prompt"] == [1, 2]
    assert (body["n_predict"], body["stop"]) == (5, ["x"])
    assert (body["cache_prompt"], body["return_tokens"], body["stream"]) == (False, True, True)
    assert 0 <= body["seed"] < 2**32 - 1
    assert (body["top_k"], body["min_p"], body["repeat_penalty"]) == (0, 0.0, 1.0)
    assert "n_probs" not in body


@pytest.mark.parametrize(
    "params",
    [SamplingParams(min_tokens=2), SamplingParams(stop_token_ids=(3,)), SamplingParams(n=2)],
)
def test_what_cannot_be_asked_for_is_refused(params: SamplingParams) -> None:
    with pytest.raises(ConfigError, match="llama-server has no such option"):
        llama_wire.body(Prompt("p", params, text="x"), "x")


def test_a_start_gives_the_facts_and_the_command(started: Any) -> None:
    backend = started("llama_ngram_simple.log", max_model_len=512, max_clients=2, threads=1)
    assert "ngram-simple" in backend.check(SIMPLE)
    found = backend.start(SIMPLE)
    command = found.command
    assert command[command.index("--ctx-size") + 1] == "1024"
    assert command[command.index("--parallel") + 1] == "2"
    assert command[command.index("--threads") + 1] == "1"
    assert command[command.index("--host") + 1] == "127.0.0.1"
    for flag in ("--metrics", "--slots", "--no-cache-prompt", "--no-kv-unified"):
        assert flag in command
    assert command[command.index("--cache-ram") + 1] == "0"
    assert command[command.index("--fit") + 1] == "off"
    assert command[command.index("--spec-ngram-simple-size-m") + 1] == "8"
    assert found.kv_tokens == 4096
    assert found.effective["speculative"] is True
    assert found.version == "b0-unknown"
    assert found.warnings == []
    assert backend.counters().drafts == 7


def test_a_server_that_runs_on_without_its_drafter_is_not_active(started: Any) -> None:
    found = started("llama_mismatch.log", speculative=False).start(DRAFT)
    assert "NOT ACTIVE" in found.warnings[0]
    assert "vocabs are not compatible" in found.warnings[1]


def test_a_plain_server_is_not_called_inactive(started: Any) -> None:
    assert started("llama_ngram_simple.log", speculative=False).start(PLAIN).warnings == []


def test_a_context_that_nobody_gave_is_fitted_to_the_memory(started: Any) -> None:
    arguments = started("llama_ngram_simple.log").arguments(PLAIN)
    assert "--ctx-size" not in arguments
    assert "--fit" not in arguments


def test_a_removed_option_is_refused(started: Any) -> None:
    backend = started("llama_ngram_simple.log", arguments=("--draft-max", "8"))
    with pytest.raises(ConfigError, match="removed --draft-max"):
        backend.check(PLAIN)


def test_an_older_build_is_not_given_what_it_lacks(tmp_path: Path, started: Any) -> None:
    lines = recorded("llama_help.txt").splitlines()
    old = "\n".join(line for line in lines if "kv-unified" not in line)
    path = program(tmp_path, "older", old, "")
    arguments = started("llama_ngram_simple.log", program=path).arguments(PLAIN)
    assert "--no-kv-unified" not in arguments
    assert "--metrics" in arguments


def test_a_model_that_is_no_gguf_file_is_refused(started: Any, tmp_path: Path) -> None:
    path = started("llama_ngram_simple.log").options.program
    with pytest.raises(ConfigError, match="reads GGUF files"):
        LlamaCppBackend(str(tmp_path), ServerOptions(program=path)).check(PLAIN)


def test_a_repository_is_left_to_the_server_to_fetch(started: Any) -> None:
    path = started("llama_ngram_simple.log").options.program
    backend = LlamaCppBackend("org/some-GGUF:q8_0", ServerOptions(program=path))
    assert backend.command(PLAIN, 1)[1:3] == ["--hf-repo", "org/some-GGUF:q8_0"]


def test_room_for_keys_and_values_cannot_be_asked_for(started: Any) -> None:
    with pytest.raises(ConfigError, match="kv-memory: llama-server has no such option"):
        started("llama_ngram_simple.log", kv_memory=1 << 30).check(PLAIN)


def test_suffix_is_refused_with_the_nearest_method(started: Any) -> None:
    with pytest.raises(ConfigError, match="nearest is ngram-mod"):
        started("llama_ngram_simple.log").check(parse_arms("suffix:k=8")[0])
