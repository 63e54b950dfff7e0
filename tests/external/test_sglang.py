"""SGLang's side of the backend, against option texts and a log written after its documentation.

SGLang itself was not run: see recorded/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.external.pretend import program, recorded
from wager.arms import parse_arms
from wager.backend import Load, Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external import metrics, sglang
from wager.external.server import ServerOptions
from wager.external.sglang import SglangBackend

PLAIN, NGRAM, EAGLE = parse_arms("plain,ngram:k=4,eagle3:model=org/head,k=3")
INFO = {
    "version": "0.5.9",
    "max_running_requests": 4,
    "speculative_algorithm": "NGRAM",
    "max_total_num_tokens": 431000,
    "internal_states": [{"avg_spec_accept_length": 2.1}],
}
PAGE = (
    'sglang:spec_verify_calls_total{model_name="m"} 12\n'
    'sglang:generation_tokens_total{model_name="m"} 40\n'
    'sglang:spec_accept_length{model_name="m"} 2.5\n'
)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Make a backend whose program plays the log; stopped at the end."""
    made: list[SglangBackend] = []

    def make(info: dict[str, Any] | None = None, **options: Any) -> SglangBackend:
        pages = {} if info is None else {"server_info": info}
        path = program(
            tmp_path, "sglang", recorded("sglang_help.txt"), recorded("sglang.log"),
            metrics=PAGE, **pages,
        )  # fmt: skip
        made.append(SglangBackend("org/model", ServerOptions(program=path, **options)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def test_both_arms_run_as_many_requests(started: Any) -> None:
    """Speculation lowers the number to 48 unless it is given."""
    for clients, expected in ((None, "48"), (4, "4")):
        for arm in (PLAIN, NGRAM):
            arguments = started(max_clients=clients).arguments(arm)
            assert arguments[arguments.index("--max-running-requests") + 1] == expected


def test_the_command(started: Any) -> None:
    backend = started(max_model_len=512)
    command = backend.command(EAGLE, 81)
    assert command[1:4] == ["serve", "--model-path", "org/model"]
    assert command[4:8] == ["--host", "127.0.0.1", "--port", "81"]
    assert command[command.index("--speculative-algorithm") + 1] == "EAGLE3"
    assert command[command.index("--context-length") + 1] == "512"
    for flag in ("--disable-radix-cache", "--enable-metrics"):
        assert flag in command
    assert "EAGLE3" in backend.check(EAGLE)


def test_an_option_that_it_lacks_is_refused(started: Any) -> None:
    for option in ("threads", "kv_memory"):
        with pytest.raises(ConfigError, match=option.replace("_", "-")):
            started(**{option: 2}).check(PLAIN)


def test_a_python_runs_the_module(tmp_path: Path) -> None:
    path = program(tmp_path, "python3", recorded("sglang_help.txt"), "")
    backend = SglangBackend("org/model", ServerOptions(program=path))
    assert backend.command(PLAIN, 1)[1:3] == ["-m", "sglang.launch_server"]


def test_a_start_reads_back_what_is_in_effect(started: Any) -> None:
    backend = started(INFO)
    found = backend.start(NGRAM)
    assert found.version == "0.5.9"
    assert found.kv_tokens == 431000
    assert found.effective["speculative_algorithm"] == "NGRAM"
    assert any("chunked prefill is disabled" in line for line in found.warnings)
    answers = list(backend.stream([Prompt("p", SamplingParams(max_tokens=1), text="x")], Load(1)))
    assert [answer.tokens for answer in answers] == [1]


def test_an_arm_that_the_engine_did_not_take_up_is_not_active(started: Any) -> None:
    found = started(INFO | {"speculative_algorithm": None}).start(NGRAM)
    assert "NOT ACTIVE" in found.warnings[0]


def test_without_its_page_the_log_is_all_there_is(started: Any) -> None:
    found = started().start(NGRAM)
    assert found.kv_tokens == 431234
    assert found.effective["max_running_requests"] == 48
    assert found.version is None


def test_greedy_checks_are_told_where_there_is_no_cuda(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang, "_has_cuda", lambda: False)
    assert "decoded by argmax" in started().check(NGRAM)
    assert "argmax" not in started().check(PLAIN)
    monkeypatch.setattr(sglang, "_has_cuda", lambda: True)
    assert "argmax" not in started().check(NGRAM)


def test_averages_are_no_counters() -> None:
    found = metrics.counters(metrics.parse(PAGE))
    assert (found.drafts, found.generated) == (12, 40)
    assert (found.drafted, found.accepted) == (None, None)


def test_all_tokens_are_minus_one(started: Any) -> None:
    prompt = Prompt("p", SamplingParams(), token_ids=(1, 2))
    assert started().request(prompt)[1]["top_k"] == -1
    some = Prompt("p", SamplingParams(top_k=5), text="x")
    assert started().request(some)[1]["top_k"] == 5


def test_what_the_version_lacks_is_named(started: Any) -> None:
    with pytest.raises(ConfigError, match="knows no --speculative-magic"):
        started(arguments=("--speculative-magic",)).check(PLAIN)
    with pytest.raises(ConfigError, match="mem-fraction-static"):
        started(kv_memory=1 << 30).check(PLAIN)
    with pytest.raises(ConfigError, match="suffix"):
        started().check(parse_arms("suffix:k=4")[0])
