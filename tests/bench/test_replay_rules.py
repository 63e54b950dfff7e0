"""By whose rule: what an arm means on each engine, and which arms no log can tell about."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.arms import Arm, parse_arms
from wager.bench.logs.records import Recorded
from wager.bench.replay.report import Asked, notes
from wager.bench.replay.rules import DEFAULT_ARMS, RULES, settings
from wager.bench.replay.run import replayed
from wager.bench.replay.simple import NgramSimple
from wager.bench.replay.tokens import Vocabulary, open_vocabulary
from wager.drafters.base import DraftQuery
from wager.errors import ConfigError
from wager.speculation import SpeculationConfig


@pytest.fixture
def vocabulary(tiny_path: Path) -> Vocabulary:
    return open_vocabulary(str(tiny_path))


def config(low: int, high: int, match: str, cyclic: bool) -> SpeculationConfig:
    bounds = {"prompt_lookup_min": low, "prompt_lookup_max": high}
    return SpeculationConfig.of("ngram", 4, **bounds, match=match, cyclic=cyclic)


def test_arms_are_settings_of_the_engine() -> None:
    (arm,) = parse_arms("ngram:k=4,min=2,max=5,match=earliest,cyclic=false")
    assert settings(arm).config == config(2, 5, "earliest", False)
    assert settings(Arm("plain")).config is None
    (both,) = parse_arms("suffix+ngram:k=4,min=2,max=3,suffix_decoding_min_token_prob=0.5")
    found = settings(both).config
    assert found is not None
    assert [one.method for one in found.methods] == ["suffix", "ngram"]
    assert "probability at least 0.5" in str(settings(both).describe())


@pytest.mark.parametrize(
    ("engine", "arm", "expected"),
    [
        ("vllm", "ngram:k=4,min=2,max=5", config(2, 5, "earliest", False)),
        ("vllm", "ngram:k=4", config(5, 5, "earliest", False)),
        ("vllm", "ngram:k=4,match=recent", config(5, 5, "recent", False)),
    ],
)
def test_other_engines_have_lookups_of_their_own(
    engine: str, arm: str, expected: SpeculationConfig
) -> None:
    assert settings(parse_arms(arm)[0], engine).config == expected


@pytest.mark.parametrize(
    ("arm", "values"),
    [
        ("ngram:k=8,min=2,max=5", "at most 8 draft tokens, lookup 5"),
        ("ngram-simple:spec-ngram-simple-size-n=3,spec_ngram_simple_size_m=9",
         "at most 9 draft tokens, lookup 3"),
        ("ngram-simple", "at most 48 draft tokens, lookup 12"),
    ],
)  # fmt: skip
def test_llama_server_looks_up_one_length(arm: str, values: str) -> None:
    found = settings(parse_arms(arm)[0], "llamacpp")
    assert found.describe() == f"ngram-simple, {values}"
    assert isinstance(found.drafter, NgramSimple)


def simple(text: list[int], n: int, m: int, limit: int = 100) -> tuple[int, ...]:
    """What is drafted when the text came in two pieces."""
    drafter = NgramSimple(n, m)
    drafter.start(1, text[: len(text) // 2], "")
    drafter.observe(1, text[len(text) // 2 :])
    return drafter.propose([DraftQuery(1, len(text), limit)])[0].tokens


@pytest.mark.parametrize(
    ("text", "n", "m", "draft"),
    [
        ([9, 1, 2, 7, 8, 3, 4, 1, 2], 2, 2, (7, 8)),
        ([9, 1, 2, 7, 8, 1, 2, 5, 6, 1, 2], 2, 2, (5, 6)),  # the most recent place counts
        ([1, 2, 7, 8, 3, 4, 5, 1, 2], 2, 2, ()),  # the first place of a text never does
        ([9, 1, 2, 7, 8, 1, 2], 2, 9, ()),  # too short a text for m
        ([9, 0, 0, 0, 0, 1, 2, 1, 2], 2, 3, ()),  # one token followed, fewer than n
        ([9, 0, 0, 0, 1, 2, 7, 8, 1, 2], 2, 4, (7, 8, 1)),  # up to the newest token
        ([9, 1, 2, 3, 7, 8, 4, 5, 1, 2, 3], 3, 2, ()),  # m below n: never
        ([5, 4, 4, 4, 4, 4, 4, 4, 4, 4], 3, 4, ()),  # a period below n
        ([5, 4, 4, 4, 4, 4, 4, 4, 4, 4], 1, 4, (4,)),
    ],
)
def test_ngram_simple_by_hand(text: list[int], n: int, m: int, draft: tuple[int, ...]) -> None:
    assert simple(text, n, m) == draft
    assert simple(text, n, m, limit=1) == draft[:1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 6))
def test_ngram_simple_is_the_plain_search(text: list[int], n: int, m: int) -> None:
    history = text[:-1]
    expected: tuple[int, ...] = ()
    if len(history) > n + m + 1:
        for start in range(len(history) - n - 1, 0, -1):
            if history[start : start + n] == text[-n:]:
                found = tuple(history[start + n : start + n + m])
                expected = found if len(found) >= n else ()
                break
    assert simple(text, n, m) == expected


def test_what_an_engine_makes_of_an_arm_is_said(vocabulary: Vocabulary) -> None:
    replay = replayed(parse_arms("ngram:k=4,min=2,max=5"), vocabulary, "llamacpp")
    replay.run([Recorded(1, "x", text="abcabc", answer="abcabc")])
    said = "\n".join(notes(replay, Asked("x", "t", "llamacpp")))
    assert "shorter matches, down to 2, are missed" in said
    assert "prompt_lookup_max 5 became 4" in said


@pytest.mark.parametrize("engine", sorted(RULES))
def test_the_arms_taken_by_default_can_draft(vocabulary: Vocabulary, engine: str) -> None:
    replay = replayed(parse_arms(DEFAULT_ARMS[engine]), vocabulary, engine)
    text = "the cat sat on the mat and the rat ran to the hat "
    replay.run([Recorded(1, "x", text=text, answer=text * 2)])
    assert all(arm.total.counts.accepted > 20 for arm in replay.arms)


@pytest.mark.parametrize(
    ("engine", "arms", "says"),
    [
        ("own", "draft_model:k=4", "with a model"),
        ("own", "eagle3:k=4", "with a model"),
        ("own", "draft-simple:k=4", "with a model"),
        ("own", "suffix+draft_model:k=4,model=self,quantization=int8", "with a model"),
        ("own", "suffix+ngram-mod:k=4", "--engine llamacpp"),
        ("own", "suffix:k=4,verify=rejection", "verify rejection: .* leave it out"),
        ("own", "suffix+ngram:k=4,model=D", "unknown key 'model' for suffix and ngram"),
        ("own", "ngram-mod:k=4", "--engine llamacpp"),
        ("own", "guess:k=4", "not a drafting method"),
        ("own", "ngram", "ngram: the controller goes by .*num_speculative_tokens"),
        ("own", "auto", "auto: the controller goes by the times of steps"),
        ("own", "ngram:k=4,controller=on", "controller=on: the controller goes by"),
        ("own", "ngram:controller=off", '"num_speculative_tokens" is missing'),
        ("own", "ngram:k=4,size=3", "size"),
        ("vllm", "eagle3:k=4,model=x", "with a model"),
        ("vllm", "ngram_gpu:k=4", "vLLM's ngram_gpu is not replayed"),
        ("vllm", "suffix:k=4", "vLLM's suffix is not replayed"),
        ("vllm", "suffix+ngram:k=4", "suffix.ngram: vLLM runs one method at a time"),
        ("llamacpp", "suffix:k=4", "no suffix trees"),
        ("llamacpp", "ngram-mod+ngram:k=4", "ngram-mod.ngram: llama.cpp takes a list"),
        ("llamacpp", "draft_model:k=4,model=x.gguf", "with a model"),
        ("llamacpp", "ngram-mod:k=64", "ngram-mod is not replayed"),
        ("llamacpp", "ngram-simple:k=4,spec_ngram_simple_min_hits=2", "min-hits"),
        ("sglang", "ngram:k=4", "own, vllm, llamacpp"),
    ],
)
def test_arms_that_do_not_follow_from_a_log(
    vocabulary: Vocabulary, engine: str, arms: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        replayed(parse_arms(arms), vocabulary, engine)
