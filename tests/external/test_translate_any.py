"""Whatever is pasted: it is understood, or refused in one line. Never anything else."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.external.test_translate import CASES
from wager.errors import ConfigError
from wager.external.dialects.names import FLAGS
from wager.external.dialects.vllm_table import KEYS, METHODS
from wager.external.translate.bodies import FIELDS
from wager.external.translate.split import PROGRAMS, Program, matches
from wager.external.translate.understand import as_json, translate

NAMES = sorted({name for options in FLAGS.values() for o in options for name in o.names})
VARIABLES = sorted({o.variable for options in FLAGS.values() for o in options if o.variable})
VALUES = [
    "3", "0", "-1", "0.5", "x", "", "D.gguf", "org/D", "ngram", "draft-simple", "none", "EAGLE3",
    '{"method": "ngram"}', "{", "[1, 2]", "true", "a b", "'", "--", "-", "=",
]  # fmt: skip
STARTS = [
    "vllm serve", "vllm bench serve", "vllm bench throughput", "python -m sglang.launch_server",
    "llama-server", "./server", "ollama run", "wager run", "mlx_lm.server",
]  # fmt: skip
TEXTS = ["ngram", "mtp", "dspark", "draft_model", "H", "block", "standard"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 200)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(TEXTS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
KEY_NAMES = sorted(
    {o.names[0] for o in KEYS} | {f.name for f in FIELDS}
    | {"decoding_type", "max_draft_len", "speculative_config", "options", "prompt", "model", "x"}
)  # fmt: skip
words = st.lists(
    st.sampled_from(NAMES) | st.sampled_from(VALUES)
    | st.builds("{}={}".format, st.sampled_from(NAMES + VARIABLES), st.sampled_from(VALUES)),
    max_size=8,
)  # fmt: skip


def check(text: str | list[str]) -> None:
    try:
        found = translate(text)
    except ConfigError:
        return
    told = as_json(found)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    for form in found.forms:
        assert form.commands or form.error
    assert all(finding.text and finding.what for finding in found.reading.findings)


@given(st.text(max_size=80))
def test_any_text(text: str) -> None:
    check(text)


@given(st.sampled_from(STARTS), words)
def test_any_command(start: str, rest: list[str]) -> None:
    check([*start.split(), *rest])


@given(words)
def test_any_options(options: list[str]) -> None:
    check(options)


@given(st.dictionaries(st.sampled_from(KEY_NAMES), JSON, max_size=6))
def test_any_json(body: dict[str, Any]) -> None:
    check(json.dumps(body))


@given(
    st.sampled_from(sorted(METHODS)), st.dictionaries(st.sampled_from(KEY_NAMES), JSON, max_size=5)
)
def test_any_config_of_a_method(method: str, body: dict[str, Any]) -> None:
    check(json.dumps({**body, "method": method}))


@given(st.sampled_from(CASES), st.data())
def test_any_part_of_a_quoted_line(case: Any, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(case.text)))
    check(case.text[:end])
    check(case.text[end:])


LINES = {
    "vllm serve M": ("vllm", "server"),
    "/opt/bin/vllm serve M": ("vllm", "server"),
    "vllm bench serve --model M": ("vllm", "client"),
    "vllm bench throughput --model M": ("vllm", "offline"),
    "python -m vllm.entrypoints.openai.api_server --model M": ("vllm", "server"),
    "python3 -m vllm.entrypoints.api_server --model M": ("vllm", "server"),
    "python3.11 -m vllm.benchmarks.benchmark_serving --model M": ("vllm", "client"),
    "python -m vllm.benchmarks.benchmark_throughput --model M": ("vllm", "offline"),
    "python -m vllm.benchmarks.benchmark_latency --model M": ("vllm", "offline"),
    "python benchmarks/benchmark_serving.py --model M": ("vllm", "client"),
    "python benchmark_throughput.py --model M": ("vllm", "offline"),
    "python benchmark_latency.py --model M": ("vllm", "offline"),
    "docker run -p 8000:8000 vllm/vllm-openai:v0.32.0 --model M": ("vllm", "server"),
    "python -m sglang.launch_server --model-path M": ("sglang", "server"),
    "sglang serve --model-path M": ("sglang", "server"),
    "./build/bin/llama-server -m T.gguf": ("llamacpp", "server"),
    "llama-cli.exe -m T.gguf": ("llamacpp", "offline"),
    "llama-lookup -m T.gguf": ("llamacpp", "offline"),
    "./server -m T.gguf": ("llamacpp", "server"),
    "docker run ghcr.io/ggml-org/llama.cpp:server-cuda -m T.gguf": ("llamacpp", "server"),
    "docker exec -it ollama ollama run qwen3.5:9b": ("ollama", "server"),
    "mlx_lm.generate --model M": ("mlx", "server"),
    "python -m mlx_lm.server --model M": ("mlx", "server"),
    "wager bench M": ("own", "server"),
}


@pytest.mark.parametrize("line", LINES)
def test_programs(line: str) -> None:
    found = translate(line)
    assert (found.reading.engine, found.role) == LINES[line]
    assert found.reading.target in ("M", "T.gguf", "qwen3.5:9b")


def test_no_program_of_the_table_is_without_a_line() -> None:
    met = {program_of(line) for line in LINES}
    assert set(PROGRAMS) - met == set()


def program_of(line: str) -> Program | None:
    words = line.split()
    return next(
        (p for place in range(len(words)) for p in PROGRAMS if matches(p, words, place)), None
    )


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("llama-server -m T.gguf --drafft-max 16", "--draft-max"),
        ("llama-server -m T.gguf --spec-draft-nmax 16", "--spec-draft-n-max"),
        ("vllm serve M --speculative-confg '{}'", "--speculative-config"),
        ("sglang serve --model-path M --speculative-algoritm NGRAM", "--speculative-algorithm"),
    ],
)
def test_a_slip_in_an_option_is_named(line: str, meant: str) -> None:
    found = translate(line)
    [error] = [f for f in found.reading.findings if f.severity == "error"]
    assert f"is {meant} meant?" in error.text


def test_a_slip_without_a_program_is_named() -> None:
    with pytest.raises(ConfigError, match=r"in '--drafft-max 16'; is --draft-max meant\?"):
        translate("--drafft-max 16")


@pytest.mark.parametrize(
    "option",
    ["--special", "--override-tensor x=CPU", "--cache-type-k f16", "--models-dir D",
     "--spec-draft-poll 0", "--prio-batch-draft 1", "--spec-draft-cpu-mask ff"],
)  # fmt: skip
def test_real_options_are_no_slips(option: str) -> None:
    found = translate(f"llama-server -m T.gguf --host h --port 1 {option}")
    assert not [f for f in found.reading.findings if "meant?" in f.text]


def test_a_line_of_wager_for_another_engine_is_that_engines_to_take() -> None:
    line = "wager serve T.gguf --engine llamacpp -sc "
    config = '{"method":"draft_model","model":"D.gguf","num_speculative_tokens":4}'
    found = translate(f"{line}'{config}'")
    assert [f for f in found.reading.findings if f.severity == "error"] == []
    # The commands that are written for another engine are read without complaint.
    own = next(form for form in found.forms if form.engine == "own")
    [written] = [shlex.split(command) for command in own.commands]
    assert sorted(written[:-1]) == sorted(shlex.split(line))
    assert json.loads(written[-1]) == json.loads(config)
    hf = config.replace("D.gguf", "D")
    [error] = [f for f in translate(f"{line}'{hf}'").reading.findings if f.severity == "error"]
    assert "llama.cpp reads GGUF only" in error.text
    [error] = [
        f
        for f in translate(f"wager bench M -sc '{hf}' --engine tgi").reading.findings
        if f.severity == "error"
    ]
    assert error.what == "--engine tgi"
