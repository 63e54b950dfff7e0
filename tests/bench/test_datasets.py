"""Workload files: every format by its content, nothing ignored silently, errors name the line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from wager.bench.workloads.datasets import (
    FORMATS,
    Dataset,
    load_dataset,
    load_prompts,
    split_format,
)
from wager.errors import ConfigError

DATA = Path(__file__).parents[1] / "data" / "datasets"


def asked(dataset: Dataset) -> list[str]:
    """What is asked last in every prompt."""
    return [p.text if p.text is not None else (p.messages or (("", ""),))[-1][1]
            for p in dataset.prompts]  # fmt: skip


def written(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def refused(path: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_humaneval_is_completed_and_stopped_as_in_the_paper() -> None:
    found = load_dataset(DATA / "humaneval.jsonl.gz")
    assert (found.format, found.name, found.held) == ("humaneval", "humaneval", 3)
    assert [p.id for p in found.prompts] == ["humaneval-0", "humaneval-1", "humaneval-2"]
    first = found.prompts[0]
    assert first.text is not None
    assert first.text.startswith("def double")
    assert first.messages is None
    assert first.params.stop == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    assert (first.params.temperature, first.params.max_tokens) == (0.0, 256)


def test_gsm8k_sends_the_question_alone() -> None:
    found = load_dataset(DATA / "gsm8k.jsonl")
    assert found.format == "gsm8k"
    assert found.prompts[1].messages == (
        ("user", "A ferry carries 20 cars per trip. How many trips do 90 cars need?"),
    )
    assert found.prompts[1].id == "gsm8k-2"


def test_turns_are_told_apart_by_their_categories() -> None:
    kinds = {name: load_dataset(DATA / f"{name}.jsonl").format
             for name in ("mt_bench", "spec_bench", "speed_bench")}  # fmt: skip
    assert kinds == {
        "mt_bench": "mt-bench", "spec_bench": "spec-bench", "speed_bench": "speed-bench",
    }  # fmt: skip


def test_the_first_turn_or_every_turn() -> None:
    first = load_dataset(DATA / "mt_bench.jsonl")
    assert [p.id for p in first.prompts] == ["mt-bench-81", "mt-bench-101"]
    every = load_dataset(f"{DATA / 'mt_bench.jsonl'}:mt-bench-all")
    assert [p.id for p in every.prompts] == [
        "mt-bench-81.1", "mt-bench-81.2", "mt-bench-101.1", "mt-bench-101.2",
    ]  # fmt: skip
    assert asked(every)[1] == "Now make it rhyme."
    assert asked(first) == asked(every)[::2]
    assert len({p.params.seed for p in every.prompts}) == 4


def test_sharegpt_asks_what_a_person_asked_first() -> None:
    found = load_dataset(DATA / "sharegpt.json")
    assert asked(found) == [
        "How do I sharpen a pencil without a sharpener?",
        "List three prime numbers.",
    ]
    assert [p.id for p in found.prompts] == ["sharegpt-conv_0", "sharegpt-conv_2"]
    assert len(found.notes) == 1
    assert "2 entries that do not begin with a question" in found.notes[0]


def test_placeholders_are_no_prompts(tmp_path: Path) -> None:
    said = refused(DATA / "speed_bench_public.jsonl")
    assert "line 2: holds the placeholder of SPEED-Bench" in said
    masked = json.loads((DATA / "speed_bench_public.jsonl").read_text().splitlines()[1])
    chat = [{"messages": [{"role": "user", "content": masked["turns"][0]}]}]
    assert "line 1: holds the placeholder" in refused(written(tmp_path / "p.jsonl", chat))


def test_prompt_lines_are_greedy_unless_they_say_otherwise() -> None:
    found = load_dataset(DATA / "prompts.jsonl")
    assert (found.format, found.name) == ("prompts", "prompts")
    one, two, three, four, five = found.prompts
    assert (one.text, one.params.temperature) == ("The first rule of sailing is", 0.0)
    assert two.messages == (("system", "Answer in one word."), ("user", "Capital of Norway?"))
    assert (two.params.temperature, two.params.seed, two.params.max_tokens) == (0.5, 7, 12)
    assert three.messages == (("user", "Say hello."),)
    assert three.id == "prompts-greeting"
    assert five.token_ids == (5, 6, 7)
    assert found.repeated == 1
    assert four.params.seed != one.params.seed
    notes = "\n".join(found.notes)
    assert "1 of 5 prompts repeat an earlier one" in notes
    assert "1 recorded answers at the end of a chat are not sent" in notes
    assert "fields that are not known, and not sent: mood" in notes
    assert len(found.notes) == 3


def test_requests_keep_their_sampling() -> None:
    found = load_dataset(DATA / "requests.jsonl")
    assert (found.format, found.notes) == ("requests", ())
    first, one, two, last = found.prompts
    assert first.messages == (("user", "Say yes."),)
    assert (first.params.temperature, first.params.top_p) == (1.0, 0.9)
    assert (first.params.max_tokens, first.params.stop) == (40, ("\n\n",))
    assert [one.text, two.text] == ["one", "two"]
    assert [one.id, two.id, last.id] == ["requests-2.1", "requests-2.2", "requests-3"]
    assert (last.params.top_k, last.params.min_p, last.params.min_tokens) == (20, 0.05, 4)
    assert last.params.ignore_eos


def test_batch_files_and_recorded_pairs_are_requests(tmp_path: Path) -> None:
    found = load_dataset(DATA / "batch.jsonl")
    assert found.format == "requests"
    assert [p.id for p in found.prompts] == ["batch-job-1", "batch-job-2"]
    assert [p.params.temperature for p in found.prompts] == [1.0, 0.0]
    row = {"request": {"prompt": "p"}, "response": {"choices": []}}
    assert load_dataset(written(tmp_path / "log.jsonl", [row])).prompts[0].text == "p"


def test_a_cap_lowers_what_the_file_asks_for_and_fills_what_it_leaves_open() -> None:
    def limits(cap: int | None) -> list[int | None]:
        return [p.params.max_tokens
                for p in load_dataset(DATA / "requests.jsonl", max_tokens=cap).prompts]  # fmt: skip

    assert limits(None) == [40, 400, 400, 256]
    assert limits(100) == [40, 100, 100, 100]
    assert limits(1000) == [40, 400, 400, 1000]
    assert load_dataset(DATA / "gsm8k.jsonl", max_tokens=512).prompts[0].params.max_tokens == 512


def test_the_choice_follows_the_seed_and_keeps_the_order(tmp_path: Path) -> None:
    file = written(tmp_path / "many.jsonl", [{"prompt": f"number {i:03d}"} for i in range(200)])
    chosen = asked(load_dataset(file, 10, seed=3))
    assert len(set(chosen)) == 10
    assert chosen == sorted(chosen)
    assert chosen == asked(load_dataset(file, 10, seed=3))
    assert chosen != asked(load_dataset(file, 10, seed=4))
    assert load_dataset(file, 10).held == 200
    assert len(load_dataset(file).prompts) == 200


def test_fewer_prompts_than_asked_for_is_said() -> None:
    found = load_dataset(DATA / "gsm8k.jsonl", 16)
    assert len(found.prompts) == 2
    assert "holds 2 prompts, 16 were asked for" in found.notes[0]


def test_notes_are_warnings_of_load_prompts() -> None:
    with pytest.warns(UserWarning, match="2 prompts, 16 were asked for"):
        assert len(load_prompts(DATA / "gsm8k.jsonl", 16)) == 2


def test_ids_differ_even_where_the_file_repeats_them(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}, {"prompt": "z"}]
    found = load_dataset(written(tmp_path / "f.jsonl", rows))
    assert [p.id for p in found.prompts] == ["f-a", "f-a#2", "f-3"]


def test_an_array_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "array.json"
    file.write_bytes("\ufeff".encode() + json.dumps([{"prompt": "é"}, {"prompt": "b"}]).encode())
    assert asked(load_dataset(file)) == ["é", "b"]
    file.write_text('[{"prompt": "a"}, {"prompt": ""}]')
    assert "array.json: entry 2: prompt: must be a text" in refused(file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 4), ("logprobs", True), ("presence_penalty", 0.5), ("frequency_penalty", 1),
        ("repetition_penalty", 1.1), ("logit_bias", {"5": 1}), ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}), ("echo", True), ("tool_choice", "required"),
        ("prediction", {"type": "content", "content": "x"}), ("best_of", 2), ("n", True),
        ("chat_template_kwargs", {"enable_thinking": False}), ("guided_json", {}),
    ],
)  # fmt: skip
def test_what_is_not_measured_is_refused_by_name(tmp_path: Path, field: str, value: Any) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", field: value}]
    said = refused(written(tmp_path / "f.jsonl", rows))
    assert f"f.jsonl: line 2: {field}: not supported in a workload" in said


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "a", "temperature": "hot"}, "temperature: must be a finite number"),
        ({"prompt": "a", "top_p": 2}, "top_p: must be"),
        ({"prompt": "a", "stop": 5}, "stop: must be a list"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: must be a whole number of at least 1"),
        ({"prompt": "a", "max_tokens": 3, "max_completion_tokens": 4}, "differ"),
        ({"prompt": "a", "messages": []}, "and has both"),
        ({"prompt": "a", "seed": 1.5}, "seed: must be a whole number"),
        ({"prompt": []}, "prompt: must be a text"),
        ({"prompt": ["a", 1]}, "prompt: must be a text"),
        ({"messages": []}, "messages: must be a list"),
        ({"messages": ["a"]}, "number 1 is not an object"),
        ({"messages": [{"role": "user"}]}, "number 1 has no text as content"),
        ({"messages": [{"content": "a"}]}, "number 1 has no role"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "nothing is asked"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "tool_calls"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, says: str) -> None:
    said = refused(written(tmp_path / "f.jsonl", [{"prompt": "fine"}, row]))
    assert said.startswith(f"workload: {tmp_path / 'f.jsonl'}: line 2: ")
    assert says in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"prompt": "a"}\n{"prompt"\n', "line 2: is not JSON"),
        (b'{"prompt": "a"}\n5\n', "line 2: must be an object"),
        (b'[{"prompt": "a"}', "is not JSON"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "line 2: is not UTF-8"),
        (b"PAR1....", "is a Parquet file; save it as JSON lines"),
        (gzip.compress(b'{"prompt": "a"}')[:-6], "cannot be read"),
        (b"\x1f\x8bnonsense", "cannot be read"),
        (b'{"title": "a", "text": "b"}', "no known format has the fields text, title"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "holds no prompt"),
        (b'{"question_id": 1, "turns": [""]}', "line 1: turns: must be a list of texts"),
        (b'{"question": "", "answer": ""}', "line 1: question: must be a text"),
        (b'[{"conversations": []}]', "holds no prompt that can be asked as sharegpt"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "f.jsonl"
    file.write_bytes(content)
    said = refused(file)
    assert str(file) in said
    assert says in said


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    row = {"question": "Why?", "answer": "So.", "prompt": "Text"}
    file = written(tmp_path / "f.jsonl", [row])
    assert load_dataset(file).format == "gsm8k"
    assert asked(load_dataset(f"{file}:prompts")) == ["Text"]
    assert "turns: must be a list" in refused(f"{file}:mt-bench")
    said = refused(f"{file}:csv")
    assert "'csv' is not a format" in said
    assert all(name in said for name in FORMATS)
    assert "cannot be read: No such file" in refused(tmp_path / "absent.jsonl")
    odd = written(tmp_path / "a:prompts", [{"prompt": "x"}])
    assert split_format(odd) == (odd, None)
