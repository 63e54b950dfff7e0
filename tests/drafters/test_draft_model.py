"""A model that drafts: exact like every method, and right whenever it is the target itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import answer, prompts, run_all
from tests.tiny import write_tiny_hf
from wager import LLM, SamplingParams
from wager.errors import ConfigError
from wager.speculation import SpeculationConfig
from wager.types import CompletionOutput

VOCAB = 288


def drafting(model: Path | str, k: int = 4, **options: Any) -> dict[str, Any]:
    return {
        "method": "draft_model", "num_speculative_tokens": k, "controller": "off",
        "model": str(model), **options,
    }  # fmt: skip


def requests(
    count: int, temperature: float = 0.0, tokens: int = 24
) -> list[tuple[list[int], SamplingParams]]:
    return [
        (p, SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True))
        for i, p in enumerate(prompts(count, VOCAB, seed=3))
    ]


def ids(outputs: list[CompletionOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of other weights: it is right by chance only."""
    return write_tiny_hf(tmp_path_factory.mktemp("other"), layers=1, seed=9, sharpness=4.0)


MODES: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "batch": {"max_num_seqs": 8},
    "chunked": {"max_num_seqs": 4, "max_batch_tokens": 24},
    "preempted": {
        "max_num_seqs": 8, "max_model_len": 128, "kv_memory": 18 * 2 * 16 * 2 * 2 * 16 * 4
    },
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_exact_with_a_drafter_that_is_wrong(
    mode: str, temperature: float, make_llm: Callable[..., LLM], other_path: Path
) -> None:
    llm = make_llm(**MODES[mode])
    asked = requests(24, temperature)
    plain = run_all(llm, asked)
    for k in (1, 5):
        llm.set_speculation(drafting(other_path, k))
        assert ids(run_all(llm, asked)) == ids(plain)
    counts = llm.engine.stats.counts
    assert 0 < counts.accepted < counts.drafted
    if mode == "preempted":
        assert llm.engine.scheduler.preemptions > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
def test_the_target_itself_is_always_right(
    mode: str, temperature: float, k: int, make_llm: Callable[..., LLM], tiny_path: Path
) -> None:
    """Keys that are off by one after a refusal or a full acceptance would show here. At
    temperature 1 the two share their noise."""
    llm = make_llm(**MODES[mode], speculation=drafting(tiny_path, k))
    run_all(llm, requests(24, temperature))
    counts = llm.engine.stats.counts
    assert counts.drafted > 24
    assert counts.accepted == counts.drafted


def test_right_again_behind_steps_without_it(
    make_llm: Callable[..., LLM], tiny_path: Path, other_path: Path
) -> None:
    """With refusals mixed in: another method speaks first, and is mostly wrong."""
    mixed = drafting(tiny_path, 4) | {
        "method": ["tests.recipes:Garbage", "draft_model"], "options": {},
    }  # fmt: skip
    llm = make_llm(max_num_seqs=4)
    asked = requests(9, tokens=60)
    plain = run_all(llm, asked)
    llm.set_speculation(mixed)
    assert ids(run_all(llm, asked)) == ids(plain)
    own = llm.engine.stats.by_source["draft_model"]
    assert own.drafted > 50
    assert own.accepted == own.drafted
    garbage = llm.engine.stats.by_source["garbage"]
    assert garbage.accepted < garbage.drafted / 10


def fed(llm: LLM) -> list[int]:
    """Rows of each pass of the drafter, as they come."""
    drafter = llm.engine.drafters
    assert drafter is not None
    target = drafter.members[0].drafter._target  # type: ignore[attr-defined]
    forward, rows = target.forward, []

    def counted(spans: Any) -> Any:
        rows.append(sum(len(span.tokens) for span in spans))
        return forward(spans)

    target.forward = counted
    return rows


def test_a_prefix_from_the_cache_serves_the_drafter_too(
    make_llm: Callable[..., LLM], tiny_path: Path
) -> None:
    """The second of two requests with one prefix is accepted as the first was."""
    llm = make_llm(speculation=drafting(tiny_path, 4))
    prompt = prompts(1, VOCAB, 5, (200, 200))[0]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    rows = fed(llm)
    shares = []
    for _ in range(2):
        rows.clear()
        llm.engine.stats.reset()
        answer(llm, prompt, params)
        shares.append(llm.engine.stats.counts.acceptance_rate)
        most = max(rows)
    assert shares == [1.0, 1.0]
    assert llm.engine.stats.cached_tokens >= 192
    assert most < 20, "the drafter read the whole prompt again"


def test_choices_of_one_prompt_read_it_once(make_llm: Callable[..., LLM], tiny_path: Path) -> None:
    """Several requests share the prompt's blocks, and it is more than one pass may read."""
    llm = make_llm(max_num_seqs=8, max_batch_tokens=64, speculation=drafting(tiny_path, 2))
    rows = fed(llm)
    params = SamplingParams(temperature=1.0, seed=1, n=6, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate(prompts(1, VOCAB, 5, (300, 300)), params)
    assert all(len(choice.token_ids) == 12 for choice in output.outputs)
    counts = llm.engine.stats.counts
    assert 0 < counts.accepted == counts.drafted
    assert max(rows) <= 64
    # The prompt once, and of each choice its own end and what it wrote.
    assert sum(rows) < 300 + 6 * (16 + 3 * 12)


def test_drafting_stops_where_the_drafters_context_ends(
    make_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    """The request goes on, and nothing is read again and again."""
    short = write_tiny_hf(tmp_path / "short", seed=1, sharpness=4.0, max_context=64)
    llm = make_llm(max_num_seqs=2)
    for length in (40, 60, 63, 64, 65, 100):
        prompt = prompts(1, VOCAB, length, (length, length))[0]
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        llm.set_speculation(None)
        plain = answer(llm, prompt, params)
        llm.set_speculation(drafting(short, 6))
        llm.engine.stats.reset()
        assert answer(llm, prompt, params).token_ids == plain.token_ids
        counts = llm.engine.stats.counts
        assert counts.accepted == counts.drafted
        # The last draft that is possible is made behind 64 tokens and reaches one further.
        assert counts.drafted <= max(0, 65 - (length + 1))
        assert (counts.drafted > 0) == (length < 64)


@pytest.mark.parametrize(("rows", "draft_rows"), [(320, 288), (288, 320)])
def test_rows_that_pad_a_vocabulary_are_never_drafted(
    rows: int, draft_rows: int, make_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    """The same tokenizer under embeddings of different size, either way round."""
    target = write_tiny_hf(tmp_path / "target", seed=1, vocab=rows, tokenizer_vocab=280)
    draft = write_tiny_hf(tmp_path / "draft", seed=2, vocab=draft_rows, tokenizer_vocab=280)
    asked = requests(12, 1.0)
    asked = [([t % 280 for t in prompt], params) for prompt, params in asked]
    with LLM(str(target), threads=1, weights="f32") as llm:
        plain = run_all(llm, asked)
        llm.set_speculation(drafting(draft, 4))
        assert ids(run_all(llm, asked)) == ids(plain)
        assert llm.engine.stats.drafter_failures == 0
        assert llm.engine.stats.counts.drafted > 0
        assert max(max(one) for one in ids(plain)) < 280


def test_another_vocabulary_is_refused_with_the_reason(
    make_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    """Equal size, two ids swapped; and a wholly different one."""
    import json

    swapped = write_tiny_hf(tmp_path / "swapped", seed=1)
    path = swapped / "tokenizer.json"
    described = json.loads(path.read_text())
    vocab = described["model"]["vocab"]
    names = {token: name for name, token in vocab.items()}
    vocab[names[40]], vocab[names[41]] = 41, 40
    path.write_text(json.dumps(described))
    llm = make_llm()
    with pytest.raises(ConfigError, match=r"id 40 is .* 100% of its tokens exist"):
        llm.set_speculation(drafting(swapped))


def test_an_unlikely_token_ends_the_draft(make_llm: Callable[..., LLM], other_path: Path) -> None:
    lengths = []
    for least in (0.0, 0.9, 0.99, 1.0):
        llm = make_llm(speculation=drafting(other_path, 6, draft_min_token_prob=least))
        run_all(llm, requests(6))
        counts = llm.engine.stats.counts
        lengths.append(counts.drafted / counts.steps)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] > lengths[3] == 0.0


@pytest.mark.parametrize(("quantization", "least"), [("int8", 0.7), ("int4", 0.1)])
def test_own_weights_rounded(make_llm: Callable[..., LLM], quantization: str, least: float) -> None:
    llm = make_llm(max_num_seqs=4)
    asked = requests(9, 0.7)
    plain = run_all(llm, asked)
    llm.set_speculation(drafting("self", 4, quantization=quantization))
    assert ids(run_all(llm, asked)) == ids(plain)
    assert (llm.engine.stats.counts.acceptance_rate or 0.0) > least


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ""}, "^model: "),
        ({"model": 3}, "^model: "),
        ({"model": "self"}, "^quantization: "),
        ({"model": "x", "quantization": "int3"}, "^quantization: "),
        ({"model": "x", "draft_min_token_prob": 2}, "^draft_min_token_prob: "),
        ({"model": "x", "prompt_lookup_max": 2}, "unknown key 'prompt_lookup_max'"),
    ],
)
def test_bad_keys_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculationConfig.parse(
            {"method": "draft_model", "num_speculative_tokens": 4, "controller": "off", **options}
        )


@pytest.mark.parametrize(
    ("weights", "quantization"), [("int8", "int8"), ("int4", "int4"), ("int4", "int8")]
)
def test_a_drafter_no_faster_than_the_target_is_refused(
    make_llm: Callable[..., LLM], weights: str, quantization: str
) -> None:
    llm = make_llm(weights=weights)
    with pytest.raises(ConfigError, match="as slow as the target"):
        llm.set_speculation(drafting("self", quantization=quantization))
