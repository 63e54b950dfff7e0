"""`wager translate`: what reaches it however it is quoted, what it prints, its exit status."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from wager.cli.main import main
from wager.cli.status import USER_ERROR

LINE = "--speculative-model ngram --num-speculative-tokens 5 --ngram-prompt-lookup-max 5"
HEAVY = {"numpy", "torch", "transformers", "tokenizers", "gguf", "huggingface_hub", "httpx2"}
CURRENT = (
    """vllm serve MODEL --speculative-config '{"method":"ngram","num_speculative_tokens":5,"""
    """"prompt_lookup_min":1,"prompt_lookup_max":5}'"""
)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["translate", *arguments]) == 0
    return capsys.readouterr().out


def test_it_says_what_is_wrong_and_writes_every_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, LINE)
    lines = out.splitlines()
    assert "error    --speculative-model ngram" in lines
    assert f"  {CURRENT}" in lines
    for title in ("vLLM 0.32.0", "llama.cpp b11434", "SGLang of August 2026", "wager"):
        assert title in lines
    assert any(line.startswith("  no: ngram: Ollama") for line in lines)
    assert lines[-1] == "to fill in: MODEL"


def test_findings_are_wrapped_and_commands_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, LINE).splitlines()
    commands = [line for line in lines if line.startswith(("  vllm", "  llama-server", "  wager"))]
    assert len(commands) == 5
    assert max(map(len, commands)) > 100
    assert all(len(line) <= 100 for line in lines if line not in commands + sglang(lines))


def sglang(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("  python -m sglang")]


def test_what_is_wrong_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, LINE).splitlines()
    kinds = [k for line in lines if (k := line.partition(" ")[0]) in ("error", "warning", "note")]
    assert set(kinds) == {"error", "warning", "note"}
    assert kinds == sorted(kinds, key=["error", "warning", "note"].index)


def test_what_the_own_engine_lacks_is_measured_on_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, '{"method":"medusa","model":"H","num_speculative_tokens":3}')
    assert "no: medusa: wager's own engine does not draft this way yet" in out
    assert 'wager bench --engine vllm MODEL -sc \'{"method":"medusa"' in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["-md D.gguf --draft-max 16"],
        ["-md", "D.gguf", "--draft-max", "16"],
        ["--", "-md", "D.gguf", "--draft-max", "16"],
    ],
)
def test_quoted_or_not(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--to", "llamacpp", "--json", *arguments)
    (form,) = json.loads(out)["forms"]
    assert form["commands"] == [
        "llama-server -m MODEL.gguf --host 127.0.0.1 --port 8080 --spec-type draft-simple "
        "--spec-draft-model D.gguf --spec-draft-n-max 16 --spec-draft-n-min 0 "
        "--spec-draft-p-min 0.0"
    ]


def test_options_of_ours_may_stand_behind(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "vllm", "serve", "M", "--spec-method", "suffix", "--to", "vllm")
    assert 'vllm serve M --speculative-config \'{"method":"suffix"}\'' in out
    assert "llama.cpp" not in out


def test_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("FROM ./T.gguf\nDRAFT ./d-dflash.gguf\n"))
    out = printed(capsys, "-", "--to", "ollama")
    assert "    FROM ./T.gguf\n    DRAFT ./d-dflash.gguf\n    PARAMETER draft_num_predict 4" in out


@pytest.mark.parametrize("arguments", [["hello"], ['{"a": 1}'], ["--draft-max 3", "--to", "tgi"]])
def test_what_is_not_understood_ends_with_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", *arguments]) == USER_ERROR
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wager: error: t")
    assert captured.err.count("\n") == 1


DOCS = (Path(__file__).parents[2] / "docs" / "translate.md").read_text()
SHOWN = re.findall(r"```\n\$ wager (translate .*)\n([\s\S]*?)\n```", DOCS)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=lambda text: text[:40])
def test_the_documentation_shows_what_is_printed(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out.rstrip() == shown


def test_it_loads_neither_numpy_nor_an_engine() -> None:
    code = (
        "import sys\nfrom wager.cli.main import main\n"
        f"status = main(['translate', {LINE!r}])\n"
        "print(*sys.modules, file=sys.stderr)\nsys.exit(status)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stderr.split())
    assert "wager.external.translate.understand" in loaded
    assert not loaded & (HEAVY | {"wager._native", "asyncio"})


@pytest.mark.parametrize(
    ("stdin", "said"),
    [(b"\xff\xfe--draft-max 3", "is not text"), (b"x" * 1_100_000, "more than 1048576 characters")],
)
def test_what_cannot_be_pasted(
    stdin: bytes, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    assert main(["translate", "-"]) == 2
    assert said in capsys.readouterr().err
