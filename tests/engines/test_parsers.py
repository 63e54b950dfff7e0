"""What `wager translate` writes is accepted by the engines themselves; what it calls refused is.

The commands of tests/external/translate_cases.json. vLLM's parser and config run in one process of
its own Python; llama-server checks its options before it looks at a model, and `--version` ends it
there. The options that are said to do nothing are given to a real server.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers import Peers, arm, ask, running

from tests.engines.conftest import require
from tests.external.test_translate import CASES, Case
from wager.backend import Prompt
from wager.config import SamplingParams
from wager.external.translate.split import split
from wager.external.translate.understand import translate

pytestmark = pytest.mark.engines

SCRIPT = Path(__file__).with_name("vllm_parser.py")
REFUSALS = re.compile(
    r"parser refuses|vLLM refuses|only to be refused|not a name of vLLM|: refused"
)
LLAMA_REFUSALS = re.compile(
    r"ends at once|server refuses|llama.cpp refuses|unknown type|no type of"
)


def written(engine: str, program: str) -> list[str]:
    """The shell lines for an engine that begin with its program, each once."""
    lines = (case.forms.get(engine, "") for case in CASES)
    return list(dict.fromkeys(line for line in lines if line.startswith(program)))


def quoted(engine: str, refusals: re.Pattern[str]) -> list[Case]:
    """The cases whose own text is said to be refused by its engine."""
    return [
        case
        for case in CASES
        if case.engine == engine
        and "(" not in case.text.split("'")[0]
        and any(
            refusals.search(finding.text)
            for finding in translate(case.text, engine).reading.findings
            if finding.severity == "error"
        )
    ]


def serve_words(case: Case) -> list[str]:
    """A quoted vLLM text as the arguments of ``vllm``, as they would reach the parser."""
    pasted = split(case.text)
    if pasted.config is not None:
        return ["serve", "MODEL", "--speculative-config", case.text]
    return ["serve", *pasted.arguments]


@pytest.fixture(scope="module")
def said(peers: Peers) -> dict[str, dict[str, Any]]:
    """What vLLM says to every command: written ones by their line, quoted ones by their text."""
    require(peers, "vllm")
    commands = {line: shlex.split(line)[1:] for line in written("vllm", "vllm ")}
    commands |= {case.text: serve_words(case) for case in quoted("vllm", REFUSALS)}
    python = peers.root / "vllm" / "bin" / "python"
    run = subprocess.run(
        [str(python), str(SCRIPT), peers.directory],
        input=json.dumps(list(commands.values())),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    lines = [x.removeprefix("SAID ") for x in run.stdout.splitlines() if x.startswith("SAID ")]
    assert len(lines) == len(commands), run.stderr[-2000:]
    return dict(zip(commands, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("line", written("vllm", "vllm "))
def test_vllm_accepts_what_is_written(line: str, said: dict[str, dict[str, Any]]) -> None:
    answer = said[line]
    assert answer["error"] is None
    words = shlex.split(line)
    if "--speculative-config" not in words:
        return
    config = json.loads(words[words.index("--speculative-config") + 1])
    if answer["checked"] == "whole":
        # Nothing that is written out is replaced by something else.
        for key in ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
            if key in config:
                assert answer[key] == config[key]


def test_most_methods_without_a_head_are_checked_to_the_end(
    said: dict[str, dict[str, Any]],
) -> None:
    whole = {answer["method"] for answer in said.values() if answer.get("checked") == "whole"}
    assert whole == {"ngram", "ngram_gpu", "suffix", "draft_model", "custom_class"}


@pytest.mark.parametrize("case", quoted("vllm", REFUSALS), ids=lambda case: case.text[:60])
def test_vllm_refuses_what_is_said_to_be_refused(
    case: Case, said: dict[str, dict[str, Any]]
) -> None:
    assert said[case.text]["error"] is not None


def llama_says(peers: Peers, arguments: Sequence[str]) -> tuple[bool, str]:
    """Whether llama-server's parser took the arguments, and what it printed."""
    run = subprocess.run(
        [peers.llama("llama-server"), *arguments, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.returncode == 0 and "version:" in run.stdout + run.stderr, run.stdout + run.stderr


@pytest.mark.parametrize("line", written("llamacpp", "llama-server "))
def test_llama_server_accepts_what_is_written(line: str, peers: Peers) -> None:
    require(peers, "llama")
    taken, printed = llama_says(peers, shlex.split(line)[1:])
    assert taken, printed


@pytest.mark.parametrize(
    "case", quoted("llamacpp", LLAMA_REFUSALS), ids=lambda case: case.text[:60]
)
def test_llama_server_refuses_what_is_said_to_be_refused(case: Case, peers: Peers) -> None:
    require(peers, "llama")
    pasted = split(case.text)
    variables = [word for word in pasted.arguments if re.match(r"LLAMA_ARG_\w+=", word)]
    run = subprocess.run(
        ["env", *variables, peers.llama("llama-server"), *pasted.arguments[len(variables) :],
         "--version"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode != 0
    assert re.search(r"error while handling|invalid argument", run.stdout + run.stderr)


def test_llama_server_takes_the_next_option_for_a_file(peers: Peers) -> None:
    require(peers, "llama")
    taken, printed = llama_says(peers, ["--lookup-cache-static", "--port", "9000"])
    assert not taken
    assert "invalid argument: 9000" in printed


@pytest.mark.parametrize("kind", ["-md", "-lcs"])
def test_llama_server_says_nothing_and_drafts_nothing_without_a_type(
    kind: str, peers: Peers
) -> None:
    """A drafter is loaded for nothing; a lookup file is not even opened: this one is missing."""
    require(peers, "llama")
    value = peers.gguf("q4_1") if kind == "-md" else "/nowhere/words.lookup"
    server = peers.llama_server("q4_1", context=512, arguments=(kind, value))
    params = SamplingParams(temperature=0.0, max_tokens=24)
    with running(server, arm()):
        (answer,) = ask(server, [Prompt("a", params, text="one two three one two three one two")])
        assert answer.tokens == 24
        assert not server.counters().drafted


def test_llama_server_ignores_fields_of_requests_and_gives_no_logprobs_for_drafts(
    peers: Peers,
) -> None:
    require(peers, "llama")
    server = peers.llama_server("f32", context=1024)
    body = {
        "prompt": "The cat sat on the mat. " * 12, "n_predict": 24, "temperature": 0,
        "n_probs": 1, "speculative.n_max": 0, "speculative.type": "none",
    }  # fmt: skip
    with running(server, arm("ngram-simple:k=4,spec-ngram-simple-size-n=2")):
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            reply = json.load(response)
    assert reply["timings"]["draft_n"] > 0
    logprobs = [token["logprob"] for token in reply["completion_probabilities"]]
    # Not even a token that is all but certain has a log-probability of exactly 0.
    assert logprobs.count(0.0) >= reply["timings"]["draft_n_accepted"] > 0
    assert logprobs[0] < 0


def test_a_missing_lookup_file_ends_the_server_where_it_is_asked_for(peers: Peers) -> None:
    require(peers, "llama")
    model, port = peers.gguf("q4_1"), "18998"
    words = ["-m", model, "-c", "512", "--host", "127.0.0.1", "--port", port]
    run = subprocess.run(
        [peers.llama("llama-server"), *words, "--spec-type", "ngram-cache",
         "-lcs", "/nowhere/words.lookup"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode != 0
