"""What an installed engine knows, from help texts as vLLM 0.32 and llama.cpp b11434 print them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wager.backend import EngineError
from wager.errors import ConfigError
from wager.external import flags

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> flags.Flags:
    return flags.read_help((RECORDED / name).read_text())


def test_names_aligned_in_columns_are_all_read() -> None:
    llama = recorded("llama_help.txt")
    for flag in ("-h", "--help", "-np", "--parallel", "-md", "--spec-draft-model", "--spec-type"):
        assert flag in llama
    assert "--no-kv-unified" in llama
    assert "-no-kvu" in llama


def test_names_of_argparse_are_all_read() -> None:
    vllm = recorded("vllm_help.txt")
    for flag in ("--speculative-config", "-sc", "--no-enable-prefix-caching", "--max-num-seqs"):
        assert flag in vllm


def test_words_of_a_description_are_no_options() -> None:
    assert "--speculative-config" not in recorded("llama_help.txt")
    assert "--spec-type" not in recorded("vllm_help.txt")
    text = "  --real N   like --unreal, but real\n             --unreal is gone\n"
    assert flags.read_help(text).known == {"--real"}


@pytest.mark.parametrize("flag", ["--draft-max", "--draft", "--spec-ngram-size-n"])
def test_what_is_listed_as_removed_is_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"has removed {flag}"):
        recorded("llama_help.txt").require([flag, "8"], "llama.cpp")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="vllm: the installed version knows no --speculative-mod"):
        recorded("vllm_help.txt").require(
            ["--port", "80", "--speculative-model", "ngram", "--other"], "vllm"
        )


def test_values_and_other_spellings_of_known_options_pass() -> None:
    recorded("vllm_help.txt").require(
        ["--port=80", "--speculative-config.method", "ngram", "-1", "-", '{"a": -1}'], "vllm"
    )


def test_a_program_is_asked_once(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(
        "import pathlib\n"
        f"out = pathlib.Path({str(tmp_path / 'asked')!r})\n"
        "out.write_text(out.read_text() + 'x' if out.exists() else 'x')\n"
        "print('  --port N  where')\n"
    )
    command = [sys.executable, str(script), "--help"]
    assert "--port" in flags.ask(command)
    assert flags.ask(command) is flags.ask(list(command))
    assert (tmp_path / "asked").read_text() == "x"


def test_a_program_without_help_is_an_error() -> None:
    with pytest.raises(EngineError, match="lists no options: broken"):
        flags.ask([sys.executable, "-c", "print('broken')"])
    with pytest.raises(EngineError, match="cannot be started"):
        flags.ask(["/nowhere/engine", "--help"])
