"""`wager run` on a tiny random model: what is printed where, chats, statistics."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes import PATIENCE_S, recipe
from tests.tiny import write_tiny_hf
from wager import LLM, SamplingParams
from wager.cli.chat import Session
from wager.cli.main import main

# Off: what a controller bets on a tiny model depends on this machine's times.
NGRAM = (
    '{"method": "ngram", "num_speculative_tokens": 4, "controller": "off", '
    '"prompt_lookup_min": 1, "prompt_lookup_max": 3}'
)
SHORT = ["--temperature", "0", "--max-tokens", "24", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, model: Path, *arguments: str) -> tuple[str, str]:
    assert main(["run", str(model), *arguments]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_speculation_changes_nothing_but_the_statistics(tiny_path: Path, capsys: Capture) -> None:
    plain, silent = answer(capsys, tiny_path, "the cat the cat the cat", *SHORT)
    spec, said = answer(capsys, tiny_path, "the cat the cat the cat", *SHORT, "-sc", NGRAM)
    assert plain == spec
    assert plain.endswith("\n")
    assert silent == ""
    assert said == (
        "speculation: ngram, at most 4 draft tokens, lookup 1 to 3, recent match, cyclic\n"
    )


def test_the_chat_template_is_used_unless_raw(tiny_path: Path, capsys: Capture) -> None:
    chat, _ = answer(capsys, tiny_path, "hello", *SHORT)
    raw, _ = answer(capsys, tiny_path, "hello", "--raw", *SHORT)
    told, _ = answer(capsys, tiny_path, "hello", "--system", "be brief", *SHORT)
    by_hand, _ = answer(
        capsys,
        tiny_path,
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
        "--raw",
        *SHORT,
    )
    assert chat == by_hand
    assert len({chat, raw, told}) == 3


def test_a_model_without_a_template_goes_on_with_the_text(
    tmp_path: Path, capsys: Capture, tiny_path: Path
) -> None:
    model = write_tiny_hf(tmp_path / "base", seed=1)
    settings = model / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace('"chat_template"', '"other"'))
    raw, _ = answer(capsys, tiny_path, "hello", "--raw", *SHORT)
    assert answer(capsys, model, "hello", *SHORT)[0] == raw
    assert main(["run", str(model)]) == 2
    assert "no chat template" in capsys.readouterr().err
    assert main(["run", str(model), "hello", "--system", "x"]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_a_seed_makes_an_answer_repeatable(tiny_path: Path, capsys: Capture) -> None:
    options = ["hello", "--max-tokens", "24", "--threads", "1", "--temperature", "1", "--seed"]
    first, _ = answer(capsys, tiny_path, *options, "7")
    assert answer(capsys, tiny_path, *options, "7")[0] == first
    assert answer(capsys, tiny_path, *options, "7", "-sc", NGRAM)[0] == first
    assert answer(capsys, tiny_path, *options, "8")[0] != first


def test_a_stop_string_ends_the_answer(tiny_path: Path, capsys: Capture) -> None:
    whole, _ = answer(capsys, tiny_path, "hello", *SHORT)
    stop = whole[6:8]
    cut, _ = answer(capsys, tiny_path, "hello", *SHORT, "--stop", stop)
    assert cut.rstrip("\n") == whole[: whole.index(stop)].rstrip("\n")


def test_statistics(tiny_path: Path, capsys: Capture) -> None:
    _, said = answer(capsys, tiny_path, "the the the", *SHORT, "--stats", "-sc", NGRAM)
    tokens, steps, rate = re.search(  # type: ignore[union-attr]
        r"(\d+) tokens in (\d+) steps: ([\d.]+) tokens per step", said
    ).groups()
    assert float(rate) == pytest.approx(int(tokens) / int(steps), abs=0.006)
    assert int(tokens) <= 24
    assert re.search(r"steps: prompt 1 x [\d.]+ ms.*of it drafting [\d.]+ ms", said)
    drafted, accepted = map(
        int,
        re.search(r"(\d+) tokens drafted, (\d+) accepted", said).groups(),  # type: ignore[union-attr]
    )
    assert 0 <= accepted <= drafted
    assert drafted > 0
    shares = re.search(r"acceptance by position \(unconditional\): (.*)", said)
    assert shares is not None
    assert 1 <= len(shares[1].split(", ")) <= 4
    assert re.search(r"first token after \d+ ms \(0 prompt tokens from the cache\)", said)

    _, plain = answer(capsys, tiny_path, "the the the", *SHORT, "--stats")
    assert "no drafts" in plain
    assert "verify" not in plain


def test_statistics_say_what_each_source_did(tiny_path: Path, capsys: Capture) -> None:
    both = NGRAM.replace('"ngram"', '["suffix", "ngram"]')
    line = ["the the the", *SHORT, "--stats", "-sc"]
    _, said = answer(capsys, tiny_path, *line, both)
    total = re.search(r"(\d+) tokens drafted, (\d+) accepted", said)
    shares = re.search(r"^by source: (.*)$", said, re.MULTILINE)
    assert total is not None
    assert shares is not None
    parts = re.findall(r"(\w+) (\d+) % of (\d+) tokens accepted(?:; |$)", shares[1])
    assert 1 <= len(parts) == shares[1].count("accepted")
    assert {source for source, _, _ in parts} <= {"suffix", "ngram"}
    drafted, accepted = int(total[1]), int(total[2])
    assert sum(int(tokens) for _, _, tokens in parts) == drafted > 0
    found = sum(int(share) * int(tokens) / 100 for _, share, tokens in parts)
    assert found == pytest.approx(accepted, abs=0.005 * drafted + 0.01)
    _, alone = answer(capsys, tiny_path, *line, NGRAM)
    assert "by source" not in alone


def test_a_prompt_from_standard_input(
    tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = answer(capsys, tiny_path, "hello", *SHORT)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert answer(capsys, tiny_path, "-", *SHORT)[0] == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["run", str(tiny_path), "-"]) == 2
    assert "prompt: is empty" in capsys.readouterr().err


def test_a_prompt_longer_than_the_context(tiny_path: Path, capsys: Capture) -> None:
    assert main(["run", str(tiny_path), "z" * 900, "--threads", "1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("wager: error: prompt: ")
    assert err.count("\n") == 1


def chat(
    lines: str, tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, *more: str
) -> tuple[list[str], str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    out, err = answer(capsys, tiny_path, *SHORT, *more)
    return out.split("\n"), err


def test_a_chat_keeps_its_history(
    tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[tuple[str, str]]] = []
    whole = Session._turn

    def spy(self: Session, history: list[dict[str, str]]) -> None:
        asked.append([(m["role"], m["content"]) for m in history])
        whole(self, history)

    monkeypatch.setattr(Session, "_turn", spy)
    chat("hello\n\nagain\n/clear\nhello\n", tiny_path, capsys, monkeypatch, "--system", "sys")
    assert [[role for role, _ in turn] for turn in asked] == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system", "user"],
    ]
    assert asked[0] == asked[2] == [("system", "sys"), ("user", "hello")]
    assert asked[1][2][1] != ""


def test_a_second_turn_reuses_the_first(
    tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = chat("hello there, how are you\nand you\n", tiny_path, capsys, monkeypatch, "--stats")
    cached = [int(n) for n in re.findall(r"\((\d+) prompt tokens from the cache\)", said)]
    assert cached[0] == 0
    assert cached[1] > 0


def test_exit_ends_a_chat(
    tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = chat("hello\n", tiny_path, capsys, monkeypatch)
    assert chat("hello\n/exit\nagain\n", tiny_path, capsys, monkeypatch)[0] == first
    assert chat("", tiny_path, capsys, monkeypatch)[0] == [""]


def test_a_chat_survives_a_turn_that_does_not_fit(
    tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = chat("hello\n", tiny_path, capsys, monkeypatch)
    lines, err = chat(f"{'z' * 900}\nhello\n", tiny_path, capsys, monkeypatch)
    assert lines == first
    assert "/clear starts anew" in err


def test_an_interrupt_ends_the_answer_but_not_the_chat(
    tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wager.cli import chat as module

    real, calls = module.answer, []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "answer", interrupted)
    chat("hello\nagain\n", tiny_path, capsys, monkeypatch)
    assert len(calls) == 2


def test_an_interrupt_of_one_answer_is_status_130(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wager.cli import chat as module

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "answer", interrupted)
    assert main(["run", str(tiny_path), "hello"]) == 130


def oracle(model: Path, prompt: str) -> str:
    """A drafter that knows the greedy answer, as the JSON of --speculative-config."""
    with LLM(str(model), threads=1) as llm:
        ids = llm.chat_ids([{"role": "user", "content": prompt}])
        known = llm.generate([ids], SamplingParams(temperature=0.0, max_tokens=24))[0]
    return json.dumps(recipe("Oracle", 3, texts=[ids + known.outputs[0].token_ids], wrong_every=5))


def test_colours_on_a_terminal_only(tiny_path: Path) -> None:
    pty = pytest.importorskip("pty")
    command = [sys.executable, "-m", "wager", "run", str(tiny_path), "the the the", *SHORT]
    command += ["-sc", oracle(tiny_path, "the the the")]
    root = str(Path(__file__).parents[2])

    def on_terminal(*more: str, **environment: str) -> str:
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [*command, *more],
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": root, **environment},
        )
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError):  # how a closed terminal ends on Linux
            while part := os.read(ours, 4096):
                parts.append(part)
        os.close(ours)
        assert child.wait(timeout=PATIENCE_S) == 0
        return b"".join(parts).decode().replace("\r\n", "\n")

    coloured = on_terminal()
    plain = on_terminal("--no-color")
    assert coloured.count("\x1b[36m") >= 2
    assert coloured.count("\x1b[36m") == coloured.count("\x1b[39m")
    assert "\x1b" not in plain
    assert "\x1b" not in on_terminal(NO_COLOR="1")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    piped = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert b"\x1b[" not in piped.stdout


def test_statistics_of_a_drafter_that_is_always_right(tiny_path: Path, capsys: Capture) -> None:
    always = json.loads(oracle(tiny_path, "the the the"))
    del always["options"]["wrong_every"]
    _, said = answer(capsys, tiny_path, "the the the", *SHORT, "--stats", "-sc", json.dumps(always))
    assert "24 tokens in 7 steps: 3.43 tokens per step" in said
    assert "drafts on 86 % of the steps; 17 tokens drafted, 17 accepted (100 %)" in said
    assert "3.83 tokens per step with a draft" in said
    assert "acceptance by position (unconditional): 100 %, 100 %, 83 %" in said
    assert re.search(r"steps: prompt 1 x [\d.]+ ms, verify 6 x [\d.]+ ms", said)
