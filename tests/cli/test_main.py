"""The command itself: light to start, one line per error, the right exit status."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import wager
from tests.recipes import PATIENCE_S
from wager.bench.workloads.generated import RECIPES
from wager.cli import main as cli
from wager.cli.status import INTERRUPTED
from wager.errors import ConfigError

HEAVY = {"numpy", "torch", "transformers", "tokenizers", "jinja2", "gguf", "wager._native"}


def loaded_by(*arguments: str) -> set[str]:
    code = (
        "import sys\nfrom wager.cli.main import main\n"
        f"status = main({list(arguments)!r})\n"
        "print(*sys.modules, file=sys.stderr)\nsys.exit(status)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["bench", "--help"]]
)
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    loaded = loaded_by(*arguments)
    assert "wager.cli.main" in loaded
    assert not loaded & HEAVY


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"wager {wager.__version__}\n"


def test_help_lists_the_verbs_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    for verb in cli.VERBS:
        assert f" {verb} " in printed
        assert Path(cli.__file__).with_name(f"{verb}.py").is_file()


def test_help_names_every_workload(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["bench", "--help"]) == 0
    assert ", ".join(RECIPES) in capsys.readouterr().out


NGRAM = '{{"method": "ngram", "num_speculative_tokens": {k}{more}}}'


def ngram(k: str = "8", more: str = "") -> str:
    return NGRAM.format(k=k, more=more)


@pytest.mark.parametrize("verb", ["run", "bench"])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["-sc", ngram("0")], "num_speculative_tokens"),
        (["-sc", ngram("-1")], "num_speculative_tokens"),
        (["-sc", ngram("true")], "num_speculative_tokens"),
        (["-sc", ngram("8", ', "prompt_lookup_min": 5, "prompt_lookup_max": 2')],
         "prompt_lookup_min"),
        (["-sc", ngram("8", ', "prompt_lookup_min": 0')], "prompt_lookup_min"),
        (["-sc", ngram("8", ', "colour": 1')], "colour"),
        (["-sc", ngram("8", ', "verify": "typical"')], "verify"),
        (["-sc", '{"method": "ngram", "controller": "off"}'], "num_speculative_tokens"),
        (["-sc", '{"num_speculative_tokens": 8}'], "method"),
        (["-sc", "{"], "speculative-config"),
        (["-sc", "[1]"], "speculative-config"),
        (["--weights", "int7"], "weights"),
        (["--kv", "f8"], "kv"),
        (["--ops", "cuda"], "ops"),
        (["--threads", "0"], "threads"),
        (["--threads", "two"], "threads"),
        (["--max-model-len", "0"], "max_model_len"),
        (["--max-tokens", "x"], "--max-tokens"),
        (["--max-tokens", "0"], "max"),
    ],
)  # fmt: skip
def test_a_bad_option_is_one_line_and_status_2(
    verb: str, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # The options are checked before the model, which does not exist.
    assert_refused([verb, "/nowhere/model", *arguments], named, capsys)


def assert_refused(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("wager: error: ")
    assert printed.err.count("\n") == 1
    assert named in printed.err
    assert "/nowhere/model" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([""], "prompt"),
        (["hello", "--temperature", "-1"], "temperature"),
        (["hello", "--temperature", "nan"], "temperature"),
        (["hello", "--top-p", "0"], "top_p"),
        (["hello", "--top-k", "-2"], "top_k"),
        (["hello", "--min-p", "2"], "min_p"),
        (["hello", "--seed", str(2**64)], "seed"),
        (["hello", "--stop", ""], "stop"),
        (["--raw"], "raw"),
        (["hello", "--raw", "--system", "be brief"], "system"),
        (["hello", "there"], "there"),
    ],
)
def test_run_refuses(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["run", "/nowhere/model", *arguments], named, capsys)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--workload", "copi"], "copi"),
        (["--workload", "copy,copy"], "copy"),
        (["--workload", ""], "workload"),
        (["--clients", "0"], "clients"),
        (["--clients", "1,1"], "clients"),
        (["--clients", "1,x"], "clients"),
        (["--clients", ""], "clients"),
        (["--repeats", "0"], "repeats"),
        (["--prompts", "0"], "prompts"),
        (["--max-tokens", "-3"], "max-tokens"),
        (["--json", "/nowhere/at/all/x.json"], "/nowhere/at/all"),
        (["-sc", ngram(), "-sc", ngram()], "speculative-config"),
        (["extra"], "extra"),
    ],
)
def test_bench_refuses(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["bench", "/nowhere/model", *arguments], named, capsys)


def test_an_unknown_verb_and_a_missing_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["fly"], "fly", capsys)
    assert_refused(["run"], "MODEL", capsys)


def test_nothing_at_all_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    printed = capsys.readouterr()
    assert "bench" in printed.out + printed.err
    assert "wager: error" not in printed.err


def test_an_error_of_many_lines_becomes_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigError("first\n  second")

    monkeypatch.setattr("wager.cli.options.load", fail)
    assert cli.main(["run", "m", "hello"]) == 2
    assert capsys.readouterr().err == "wager: error: first second\n"


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("wager.cli.options.load", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", "m", "hello"])


def test_a_warning_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: object, **__: object) -> None:
        warnings.simplefilter("default")
        warnings.warn("this is slow", RuntimeWarning, stacklevel=1)
        raise ConfigError("and so it ends")

    before = warnings.showwarning
    monkeypatch.setattr("wager.cli.options.load", warn)
    assert cli.main(["run", "m", "hello"]) == 2
    assert capsys.readouterr().err == (
        "wager: warning: this is slow\nwager: error: and so it ends\n"
    )
    assert warnings.showwarning is before


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wager.cli.options.load", stop)
    assert cli.main(["run", "m", "hello"]) == INTERRUPTED


def test_a_closed_pipe_is_quiet() -> None:
    """Output larger than a pipe holds, and a reader that leaves after one line."""
    code = (
        "import sys, typer\nimport wager.cli.main as m, wager.cli.run as r\n"
        "def run():\n    'Print much.'\n    [print('x' * 1000, flush=True) for _ in range(1000)]\n"
        "r.run = run\nsys.exit(m.main(['run']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(timeout=PATIENCE_S) != 0
