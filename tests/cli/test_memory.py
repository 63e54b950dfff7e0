"""`wager memory`, and `--draft-memory` of run and bench, on a tiny random model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from wager.bench import corpus
from wager.bench.corpus import documents
from wager.cli.main import main
from wager.drafters.memory import DraftMemory, read, save, tenant_id
from wager.models.hf_tokenizer import from_directory

Capture = pytest.CaptureFixture[str]
SUFFIX = '{"method": "suffix", "num_speculative_tokens": 6}'
SHORT = ["--temperature", "0", "--max-tokens", "24", "--threads", "1"]


def build(file: Path, source: Path, model: Path, *more: str) -> int:
    return main(["memory", "build", str(file), "--from", str(source), "--tokenizer", str(model),
                 *more])  # fmt: skip


def answers(file: Path) -> list[list[int]]:
    found = read(file)
    assert found is not None
    assert set(found.tenants) == {tenant_id("")}
    return [list(tokens) for _, tokens in found.answers()]


def error(capsys: Capture) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("wager: error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_text_is_cut_at_blank_lines(
    tmp_path: Path, tiny_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_DOCUMENT", 40)
    parts = [f"paragraph {n} of the whole text\nand its end {n}\n\n" for n in range(4)]
    source, file = tmp_path / "corpus.txt", tmp_path / "memory"
    source.write_text("".join(parts))
    assert build(file, source, tiny_path) == 0
    tokenizer = from_directory(tiny_path)
    assert answers(file) == [tokenizer.encode(part, add_special=False) for part in parts]
    said = capsys.readouterr()
    assert f"{file}: 4 answers, " in said.out
    assert tokenizer.hash[:12] in said.out
    assert said.err == ""


@pytest.mark.parametrize("text", ["x" * 1000, "a b c\n" * 300, "\n\n\n" * 100 + "end", "\n" * 99])
def test_documents_are_bounded_and_nothing_is_lost(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_DOCUMENT", 40)
    path = tmp_path / "text"
    path.write_text(text)
    found = list(documents(path))
    assert all(len(part) < 3 * 40 for part in found)
    assert "".join(found) == text[: len("".join(found))]
    assert not text[len("".join(found)) :].strip()


LINES: list[Any] = [
    {"prompt": "Q", "completion": "the first answer", "finish_reason": "length"},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho ho"}]},
    "broken",
    {"prompt": "Q", "completion": ""},
    {"prompt": "Q", "completion": "the last answer", "finish_reason": "length"},
]


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.txt"])
def test_a_log_gives_its_answers(
    name: str, tmp_path: Path, tiny_path: Path, capsys: Capture
) -> None:
    source, file = tmp_path / name, tmp_path / "memory"
    data = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    source.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    more = ["--form", "log"] if name.endswith("txt") else []
    assert build(file, source, tiny_path, *more) == 0
    tokenizer = from_directory(tiny_path)
    texts = [tokenizer.decode(tokens) for tokens in answers(file)]
    assert texts == ["the first answer", "ho ho", "the last answer"]
    said = capsys.readouterr()
    assert "left out: 1 of the lines (3): is not a JSON object" in said.err
    assert "left out: 1 of the lines (4): the answer is empty" in said.err
    assert "3 answers" in said.out


def test_the_newest_are_kept(tmp_path: Path, tiny_path: Path, capsys: Capture) -> None:
    source, file = tmp_path / "log.jsonl", tmp_path / "memory"
    lines = [{"prompt": "Q", "completion": f"{n} " * 50} for n in range(100)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert build(file, source, tiny_path, "--max-size", "8kB") == 0
    kept = answers(file)
    assert 5 < len(kept) < 100
    assert from_directory(tiny_path).decode(kept[-1]).startswith("99 99")
    assert file.stat().st_size <= 8000
    assert f"left out: {100 - len(kept)} answers, too old" in capsys.readouterr().err
    found = read(file)
    assert found is not None
    assert found.max_bytes == 8000


def test_sources_follow_each_other(tmp_path: Path, tiny_path: Path) -> None:
    first, second, file = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "memory"
    first.write_text("one")
    second.write_text("two")
    assert build(file, first, tiny_path, "--from", str(second)) == 0
    tokenizer = from_directory(tiny_path)
    assert [tokenizer.decode(tokens) for tokens in answers(file)] == ["one", "two"]


def test_what_build_refuses(tmp_path: Path, tiny_path: Path, capsys: Capture) -> None:
    source, file = tmp_path / "a.txt", tmp_path / "memory"
    source.write_text("text")
    assert build(file, source, tiny_path, "--max-size", "1kB") == 2
    assert "max-size: must be" in error(capsys)
    assert build(file, source, tiny_path, "--max-size", "10") == 2
    assert "max-size: '10' is no size" in error(capsys)
    assert build(file, source, tiny_path, "--form", "pdf") == 2
    assert "form: must be one of auto, text, log" in error(capsys)
    assert build(tmp_path / "no" / "memory", source, tiny_path) == 2
    assert "memory: " in error(capsys)
    assert build(file, source, tmp_path / "nosuch") == 2
    assert "tokenizer: " in error(capsys)
    assert build(file, tmp_path / "nosuch.txt", tiny_path) == 2
    assert "from: " in error(capsys)
    source.write_bytes(b"\xff\xfe\x00")
    assert build(file, source, tiny_path) == 2
    assert "is no text in UTF-8" in error(capsys)
    source.write_text("\n\n \n")
    assert build(file, source, tiny_path) == 2
    assert "nothing is written" in error(capsys)
    assert main(["memory", "build", str(file), "--tokenizer", str(tiny_path)]) == 2
    assert "--from" in error(capsys)
    assert not file.exists()
    file.write_bytes(b"mine")
    source.write_text("text")
    assert build(file, source, tiny_path) == 2
    assert "is there already" in error(capsys)
    assert file.read_bytes() == b"mine"


def test_inspect(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "memory"
    held = [(tenant_id(""), [1, 2, 3])] * 3 + [(tenant_id("alice"), [4, 5])]
    save(file, DraftMemory("ab" * 32, 100, 1_000_000), held)
    assert main(["memory", "inspect", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("written").endswith("+00:00")
    assert found == {
        "file": str(file), "format": 1, "tokenizer": "ab" * 32, "vocab_size": 100,
        "bytes": file.stat().st_size, "max_bytes": 1_000_000, "answers": 4, "tokens": 11,
        "tenants": [
            {"tenant": tenant_id("").hex()[:12], "default": True, "answers": 3, "tokens": 9},
            {"tenant": tenant_id("alice").hex()[:12], "default": False, "answers": 1, "tokens": 2},
        ],
    }  # fmt: skip
    assert main(["memory", "inspect", str(file)]) == 0
    said = capsys.readouterr().out
    for part in ("format 1", "abababababab, vocabulary of 100", "4 answers, 11 tokens",
                 "of at most 1.00 MB", "(default)", tenant_id("alice").hex()[:12]):  # fmt: skip
        assert part in said
    assert "alice" not in said


def test_inspect_names_what_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "memory"
    assert main(["memory", "inspect", str(file)]) == 2
    assert "is not there" in error(capsys)
    save(file, DraftMemory("ab" * 32, 100), [(tenant_id(""), [1, 2, 3])])
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    assert main(["memory", "inspect", str(file)]) == 2
    assert "its checksum is wrong" in error(capsys)


def test_run_remembers(tmp_path: Path, tiny_path: Path, capsys: Capture) -> None:
    file = tmp_path / "memory"
    line = ["run", str(tiny_path), "the cat sat", *SHORT]
    assert main(line) == 0
    plain = capsys.readouterr().out
    for count in (1, 2):
        more = ["-sc", SUFFIX, "--draft-memory", str(file), "--stats"]
        assert main([*line, *more]) == 0
        said = capsys.readouterr()
        assert said.out == plain
        assert f"memory {file}" in said.err
        assert len(answers(file)) == count
    first, second = answers(file)
    assert first == second


def test_the_option_of_run_is_refused_by_name(tmp_path: Path, capsys: Capture) -> None:
    line = ["run", "/nowhere/model", "hello", "--draft-memory", "x"]
    for more, named in (
        ([], "draft-memory: nothing drafts; add --speculative-config"),
        (["-sc", "{"], "speculative-config: not valid JSON"),
        (["-sc", '{"method": "ngram", "num_speculative_tokens": 4, "draft-memory": "y"}'],
         "draft-memory: the config names one too"),
        (["-sc", '{"method": "draft_model", "num_speculative_tokens": 4, "model": "y"}'],
         "unknown key 'draft_memory' for draft_model"),
    ):  # fmt: skip
        assert main([*line, *more]) == 2
        assert named in error(capsys)


QUICK = ["--workload", "random", "--prompts", "2", "--max-tokens", "8", "--threads", "1"]


def test_bench_only_reads(tmp_path: Path, tiny_path: Path, capsys: Capture) -> None:
    source, file, out = tmp_path / "a.txt", tmp_path / "memory", tmp_path / "out.json"
    source.write_text("the cat sat on the mat\n" * 9)
    assert build(file, source, tiny_path) == 0
    before = file.read_bytes()
    arms = ["--arms", "plain,suffix:k=4,ngram:k=4,min=1,max=3,ngram_gpu:k=4"]
    line = ["bench", str(tiny_path), *QUICK, *arms, "--json", str(out)]
    assert main([*line, "--draft-memory", str(file)]) == 0
    assert file.read_bytes() == before
    assert not file.with_name("memory.lock").exists()
    names = [cell["arm"] for cell in json.loads(out.read_text())["cells"]]
    assert names == [
        f"suffix:k=4,draft_memory={file}",
        f"ngram:k=4,min=1,max=3,draft_memory={file}",
        "ngram_gpu:k=4",
    ]
    capsys.readouterr()
    file.write_bytes(before[:-1])
    assert main([*line, "--draft-memory", str(file)]) == 2
    assert "its header tells of" in capsys.readouterr().err
    assert main([*line, "--draft-memory", str(tmp_path / "nosuch")]) == 2
    assert "is not there" in capsys.readouterr().err


def test_the_option_of_bench_is_refused_by_name(capsys: Capture) -> None:
    line = ["bench", "/nowhere/model", *QUICK, "--draft-memory", "x"]
    for more, named in (
        (["--arms", "ngram_gpu:k=4"], "draft-memory: none of the arms drafts with suffix or ngram"),
        (["--arms", "suffix:k=4,draft_memory=y"], "draft-memory: the config names one too"),
        (["--engine", "vllm"], "draft-memory: is for wager's own engine"),
        (["--arms", "suffix:k=4,draft_memory_size=1MB"], "draft_memory_size: bounds what"),
    ):
        assert main([*line, *more]) == 2
        assert named in error(capsys)
    assert main(["bench", "/nowhere/model", "--suite", "article", "--draft-memory", "x"]) == 2
    assert "draft-memory: --suite article has its own" in error(capsys)
