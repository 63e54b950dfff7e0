"""Replayed counts are those of the real engine, exactly: steps, drafted, accepted, by position."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import prompts, run_all
from wager import LLM, SamplingParams
from wager.arms import arm_of
from wager.bench.logs.read import read_log
from wager.bench.replay.run import Replay, replayed
from wager.bench.replay.tokens import Vocabulary, open_vocabulary
from wager.bench.workloads import generated as workloads
from wager.errors import ModelError
from wager.types import CompletionOutput, DraftCounts

MODEL = "smollm2-135m"

SETTINGS: list[dict[str, Any]] = [
    {"method": "ngram", "num_speculative_tokens": k, "controller": "off"}
    | {"prompt_lookup_min": low, "prompt_lookup_max": high, "match": match, "cyclic": cyclic}
    for k, low, high, match, cyclic in [
        (1, 1, 1, "recent", True),
        (2, 2, 5, "recent", True),
        (4, 2, 5, "recent", False),
        (4, 1, 3, "earliest", True),
        (8, 2, 5, "recent", True),
        (8, 3, 3, "earliest", False),
        (16, 1, 8, "recent", True),
    ]
]
# Methods that learn across requests, and lists. They depend on the order of the requests.
LEARNING: list[dict[str, Any]] = [
    {"method": "suffix", "num_speculative_tokens": 8, "controller": "off"},
    {
        "method": "suffix", "num_speculative_tokens": 16, "controller": "off",
        "suffix_decoding_max_tree_depth": 6,
        "suffix_decoding_max_spec_factor": 2.0, "suffix_decoding_max_spec_offset": 1.0,
        "suffix_decoding_min_token_prob": 0.0,
    },
    {
        "method": "suffix", "num_speculative_tokens": 4, "controller": "off",
        "suffix_decoding_max_cached_requests": 3,
    },
    {
        "method": ["suffix", "ngram"], "num_speculative_tokens": 6, "controller": "off",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3, "suffix_decoding_min_token_prob": 0.6,
    },
    {
        "method": ["ngram", "suffix"], "num_speculative_tokens": 6, "controller": "off",
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    },
]  # fmt: skip


def write_log(
    path: Path, requests: Sequence[tuple[list[int], SamplingParams]], answers: Sequence[Any]
) -> None:
    """What a server would record, with token ids."""
    with path.open("w", encoding="utf-8") as file:
        for (prompt, params), answer in zip(requests, answers, strict=True):
            line = {
                "prompt": "",
                "prompt_token_ids": prompt,
                "completion": answer.text,
                "completion_token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
                "max_tokens": params.max_tokens,
                "ignore_eos": params.ignore_eos,
                "stop_token_ids": list(params.stop_token_ids),
            }
            file.write(json.dumps(line) + "\n")


def replay_file(path: Path, setting: dict[str, Any], vocabulary: Vocabulary) -> Replay:
    replay = replayed([arm_of(setting)], vocabulary)
    replay.run(read_log(path))
    assert not replay.bad
    return replay


def compare(
    llm: LLM,
    vocabulary: Vocabulary,
    requests: list[tuple[list[int], SamplingParams]],
    path: Path,
    setting: dict[str, Any],
) -> DraftCounts:
    """Run for real, replay the plain answers of another run, and compare every count."""
    llm.set_speculation(None)
    plain = run_all(llm, requests)
    write_log(path, requests, plain)
    replay = replay_file(path, setting, vocabulary)
    llm.set_speculation(setting)
    llm.engine.stats.reset()
    real: list[CompletionOutput] = run_all(llm, requests)
    assert [r.token_ids for r in real] == [p.token_ids for p in plain]
    pooled = DraftCounts()
    for output in real:
        pooled.add(output.counts)
    total = replay.arms[0].total
    assert total.requests == len(requests)
    assert total.counts == pooled == llm.engine.stats.counts
    assert total.by_source == llm.engine.stats.by_source
    return pooled


def every_kind(vocab: int) -> list[tuple[list[int], SamplingParams]]:
    """Greedy and sampled requests, with and without end tokens."""
    return [
        (prompt, SamplingParams(temperature=t, seed=i, max_tokens=40, **more))
        for i, (prompt, t, more) in enumerate(
            (prompt, temperature, more)
            for prompt in prompts(9, vocab, seed=3)
            for temperature, more in (
                (0.0, {}),
                (0.7, {}),
                (0.7, {"ignore_eos": True}),
                # Common tokens, so that many answers end early and drafts hold them.
                (0.0, {"stop_token_ids": tuple(range(3, 60))}),
            )
        )
    ]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_counts_equal_those_of_the_engine(
    make_llm: Callable[..., LLM], tiny_path: Path, tmp_path: Path, setting: dict[str, Any]
) -> None:
    llm = make_llm(max_num_seqs=4)
    requests = every_kind(llm.engine.vocab_size)
    counts = compare(llm, open_vocabulary(str(tiny_path)), requests, tmp_path / "log", setting)
    assert 0 < counts.accepted < counts.drafted


@pytest.mark.parametrize("setting", LEARNING, ids=lambda s: "-".join(map(str, s.values())))
def test_what_is_learnt_across_requests_is_the_same(
    make_llm: Callable[..., LLM], tiny_path: Path, tmp_path: Path, setting: dict[str, Any]
) -> None:
    """The replay meets the requests one after the other, as an engine with one place does."""
    llm = make_llm(max_num_seqs=1)
    requests = every_kind(llm.engine.vocab_size)
    vocabulary = open_vocabulary(str(tiny_path))
    counts = compare(llm, vocabulary, requests, tmp_path / "log", setting)
    assert 0 < counts.accepted < counts.drafted
    if setting.get("suffix_decoding_max_cached_requests") != 3:
        assert "suffix (past answers)" in llm.engine.stats.by_source


def test_answers_end_in_every_way(
    make_llm: Callable[..., LLM], tiny_path: Path, tmp_path: Path
) -> None:
    """End tokens, stop tokens, stop strings, the limit and the end of the context."""
    llm = make_llm(max_model_len=96)
    vocabulary = open_vocabulary(str(tiny_path), max_model_len=96)
    kinds: list[dict[str, Any]] = [
        {"max_tokens": 1},
        {"max_tokens": 2},
        {"max_tokens": 30},
        {},
        {"stop": ("e",), "max_tokens": 60},
        {"stop_token_ids": tuple(range(100)), "max_tokens": 60},
        {"ignore_eos": True},
    ]
    requests = [
        (prompt, SamplingParams(temperature=0.8, seed=index, **kind))
        for index, prompt in enumerate(prompts(12, llm.engine.vocab_size, seed=11))
        for kind in kinds
    ]
    setting = SETTINGS[4]
    compare(llm, vocabulary, requests, tmp_path / "log", setting)
    reasons = {(a.finish_reason, type(a.stop_reason)) for a in run_all(llm, requests)}
    assert {("length", type(None)), ("stop", str), ("stop", int)} <= reasons


def test_an_end_token_in_a_draft_is_the_last_of_it(
    make_llm: Callable[..., LLM], tiny_path: Path, tmp_path: Path
) -> None:
    llm = make_llm()
    eos = next(iter(llm.model.generation.eos_ids))
    # The tail occurs before, followed by an end token and more.
    prompt = [50, 60, 70, eos, 80, 90, 100, 50, 60]
    requests = [(prompt, SamplingParams(temperature=1.0, seed=s, max_tokens=8)) for s in range(40)]
    llm.set_speculation(None)
    plain = run_all(llm, requests)
    write_log(tmp_path / "log", requests, plain)
    compare(llm, open_vocabulary(str(tiny_path)), requests, tmp_path / "log", SETTINGS[0])
    compare(llm, open_vocabulary(str(tiny_path)), requests, tmp_path / "log", SETTINGS[6])


@pytest.mark.model
def test_counts_equal_on_the_real_model(tmp_path: Path) -> None:
    """Greedy SmolLM2 on workloads from copying to free writing."""
    try:
        vocabulary = open_vocabulary(MODEL)
    except ModelError as error:
        pytest.fail(str(error))
    with LLM(MODEL, weights="int8", max_num_seqs=4) as llm:
        requests = []
        for recipe in workloads.chosen(["copy", "rename", "explain", "json"]):
            for drawn in workloads.prompts(recipe, 2, llm.engine.vocab_size, max_tokens=64):
                if drawn.messages is None:
                    ids = llm.prompt_ids(drawn.text or "")
                else:
                    ids = llm.chat_ids([{"role": r, "content": c} for r, c in drawn.messages])
                params = SamplingParams(
                    temperature=0.0, max_tokens=64, ignore_eos=drawn.params.ignore_eos
                )
                requests.append((ids, params))
        for setting in (SETTINGS[1], SETTINGS[4]):
            counts = compare(llm, vocabulary, requests, tmp_path / "log", setting)
            assert 0 < counts.accepted < counts.drafted
    with LLM(MODEL, weights="int8", max_num_seqs=1) as llm:
        for setting in (LEARNING[0], LEARNING[4]):
            counts = compare(llm, vocabulary, requests, tmp_path / "log", setting)
            assert 0 < counts.accepted < counts.drafted
