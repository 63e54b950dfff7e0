"""Drafters in the engine: their memory, their bounds, and what one that breaks costs."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_drafting import Told
from tests.recipes import ngram, prompts, recipe, run_all
from wager import LLM, SamplingParams
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.engine.control.base import StepView
from wager.engine.drafting import Drafters
from wager.engine.memory import block_bytes
from wager.errors import ConfigError, ModelError
from wager.types import NO_DRAFT, Draft

V = 50
BLOCK_BYTES = 2 * 16 * 2 * 2 * 16 * 4
"""Of the tiny model, and of any drafter of its shape."""


def requests(count: int, tokens: int = 20) -> list[tuple[list[int], SamplingParams]]:
    return [
        (p, SamplingParams(temperature=0.7, seed=i, max_tokens=tokens, ignore_eos=True))
        for i, p in enumerate(prompts(count, 288, 5))
    ]


def own(k: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "method": "draft_model", "num_speculative_tokens": k, "controller": "off", "model": "self",
        "quantization": "int8", **more,
    }  # fmt: skip


def test_counts_by_source_add_up(make_llm: Callable[..., LLM]) -> None:
    setting = ngram(4, low=2, high=3) | {"method": ["ngram", "suffix"]}
    llm = make_llm(speculation=setting)
    run_all(llm, requests(12))
    stats = llm.engine.stats
    assert {"suffix", "ngram"} <= set(stats.by_source)
    for name in ("drafted", "accepted", "drafted_steps", "committed_drafted"):
        assert sum(getattr(c, name) for c in stats.by_source.values()) == (
            getattr(stats.counts, name)
        )
    before = stats.snapshot()
    run_all(llm, requests(3))
    assert before.by_source["ngram"].steps < stats.by_source["ngram"].steps
    stats.reset()
    assert stats.by_source == {}


def test_a_member_that_breaks_leaves_the_others(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=4)
    plain = run_all(llm, requests(8))
    setting = {
        **ngram(4, low=1), "method": ["tests.recipes:Raising", "ngram"], "options": {"after": 6},
    }  # fmt: skip
    llm.set_speculation(setting)
    found = run_all(llm, requests(8))
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    stats = llm.engine.stats
    assert stats.drafter_failures > 0
    assert stats.by_source["ngram"].drafted > 0


@pytest.mark.parametrize(
    "bad",
    [
        {
            "method": "draft_model",
            "num_speculative_tokens": 4,
            "controller": "off",
            "model": "no such model",
        },
        {
            "method": "tests.engine.test_drafting:Needy",
            "num_speculative_tokens": 4,
            "controller": "off",
        },
        {**ngram(4), "method": ["ngram", "tests.engine.test_drafting:Needy"]},
        {
            "method": "tests.engine.test_drafting:Huge",
            "num_speculative_tokens": 4,
            "controller": "off",
        },
    ],
    ids=str,
)
def test_a_method_that_is_refused_leaves_the_one_before(
    bad: dict[str, Any], make_llm: Callable[..., LLM]
) -> None:
    llm = make_llm()
    for before in (None, ngram(4, low=1), own()):
        llm.set_speculation(before)
        engine = llm.engine
        kept = (engine.speculation, engine.bets, engine.pool.blocks)
        first = run_all(llm, requests(4))
        with pytest.raises((ConfigError, ModelError)):
            llm.set_speculation(bad)
        assert kept == (engine.speculation, engine.bets, engine.pool.blocks)
        engine.stats.reset()
        again = run_all(llm, requests(4))
        assert [one.token_ids for one in again] == [one.token_ids for one in first]
        assert (engine.stats.counts.drafted > 0) == (before is not None)


class Needy(Told):
    needs = DrafterNeeds(hidden_layers=(1,))

    def __init__(self, config: Any, vocab_size: int) -> None:
        super().__init__({})


class Huge(Needy):
    """Wants more memory than there is."""

    needs = DrafterNeeds(host=True, blocks=True)

    def attach(self, host: DraftHost) -> None:
        host.reserve(1 << 20)
        host.reserve(1 << 50)


# Memory


def test_a_drafters_keys_and_values_are_part_of_kv_memory(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_model_len=128, max_num_seqs=4, kv_memory=30 * BLOCK_BYTES)
    engine = llm.engine
    assert block_bytes(llm.model, llm.config) == BLOCK_BYTES
    assert engine.pool.blocks == 30
    asked = requests(8)
    plain = run_all(llm, asked)
    for setting, blocks in ((own(), 15), (ngram(4, low=1), 30), (own(), 15), (None, 30)):
        llm.set_speculation(setting)
        assert engine.pool.blocks == engine.target.pool.blocks == blocks
        found = run_all(llm, asked)
        assert [one.token_ids for one in found] == [one.token_ids for one in plain]
        if setting is not None and setting["method"] == "draft_model":
            pool = engine.drafters.members[0].drafter._target.pool  # type: ignore[union-attr]
            assert pool.blocks * pool.bytes_per_block + blocks * BLOCK_BYTES <= 30 * BLOCK_BYTES


def test_too_little_for_both_is_refused_by_name(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_model_len=128, kv_memory=12 * BLOCK_BYTES, speculation=ngram(4, low=1))
    with pytest.raises(ConfigError, match=r"^kv_memory: .* hold 96 tokens of the model and its dr"):
        llm.set_speculation(own())
    assert llm.engine.pool.blocks == llm.engine.target.pool.blocks == 12
    run_all(llm, requests(4))
    assert llm.engine.stats.counts.drafted > 0


def test_a_large_context_and_many_requests_with_a_drafter(make_llm: Callable[..., LLM]) -> None:
    """The drafter's memory is that of the blocks there are."""
    llm = make_llm(max_num_seqs=4, speculation=own())
    assert llm.engine.pool.blocks == 4 * 512 // 16
    long = prompts(1, 288, 1, (480, 480))[0]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    (found,) = run_all(llm, [(long, params)])
    assert len(found.token_ids) == 20
    assert llm.engine.stats.counts.accepted > 0


def test_the_old_models_memory_is_given_back(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=own())
    drafter = llm.engine.drafters.members[0].drafter  # type: ignore[union-attr]
    models = weakref.ref(drafter), weakref.ref(drafter._target)  # type: ignore[attr-defined]
    keys = weakref.ref(drafter._target.pool.keys)  # type: ignore[attr-defined]
    del drafter
    llm.set_speculation(ngram(4))
    gc.collect()
    assert [one() for one in (*models, keys)] == [None, None, None]


# Bounds


@pytest.mark.parametrize("setting", [ngram(64, low=1), own(64)], ids=["ngram", "draft_model"])
@pytest.mark.parametrize("rows", [8, 9, 24])
def test_a_large_k_keeps_to_the_rows_of_a_step(
    setting: dict[str, Any], rows: int, make_llm: Callable[..., LLM]
) -> None:
    """Drafts are cut to what a step may hold; none is made to be cut."""
    llm = make_llm(max_num_seqs=8, max_batch_tokens=rows)
    plain = run_all(llm, requests(10))
    llm.set_speculation(setting)
    llm.engine.stats.reset()
    steps, wasted = watched(llm)
    found = run_all(llm, requests(10))
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    assert max(steps) <= rows
    assert llm.engine.stats.counts.drafted > 0
    if setting["method"] == "draft_model":
        assert not any(wasted)


def watched(llm: LLM) -> tuple[list[int], list[int]]:
    """Rows of each step, and draft tokens that were proposed and not verified."""
    steps: list[int] = []
    wasted: list[int] = []
    engine = llm.engine
    bets = engine.bets
    assert bets is not None
    forward, propose, draft = engine.target.forward, bets.drafters.propose, bets.controller.draft
    proposed: list[int] = []

    def counted(spans: Any, *more: Any) -> Any:
        steps.append(sum(len(span.tokens) for span in spans))
        return forward(spans, *more)

    def heard(queries: Sequence[DraftQuery]) -> list[Draft]:
        drafts = propose(queries)
        proposed.append(sum(len(d.tokens) for d in drafts))
        return drafts

    def admitted(step: StepView, drafters: Drafters) -> list[Draft]:
        proposed.clear()
        kept = draft(step, drafters)
        wasted.append(sum(proposed) - sum(len(d.tokens) for d in kept))
        return kept

    engine.target.forward = counted  # type: ignore[method-assign]
    bets.drafters.propose = heard  # type: ignore[method-assign]
    bets.controller.draft = admitted  # type: ignore[method-assign]
    return steps, wasted


def test_what_is_not_verified_is_counted_nowhere(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(speculation=recipe("Garbage", 6))
    bets = llm.engine.bets
    assert bets is not None
    whole, kept = bets.controller.draft, []

    def halved(step: StepView, drafters: Drafters) -> list[Draft]:
        drafts = [d.cut(len(d.tokens) // 2) for d in whole(step, drafters)]
        kept.extend(len(d.tokens) for d in drafts)
        return drafts

    bets.controller.draft = halved  # type: ignore[method-assign]
    _, wasted = watched(llm)
    run_all(llm, requests(6))
    counts = llm.engine.stats.counts
    assert sum(wasted) > 0
    assert counts.drafted == sum(kept) > 0


def test_no_place_is_taken_from_others(make_llm: Callable[..., LLM]) -> None:
    """A pool that is nearly full: drafting with a model waits and preempts no more than needed."""
    kv_memory = 20 * BLOCK_BYTES
    llm = make_llm(max_model_len=128, max_num_seqs=8, kv_memory=kv_memory, speculation=own(16))
    asked = requests(16, tokens=30)
    found = run_all(llm, asked)
    drafting_preempted = llm.engine.stats.preemptions
    assert llm.engine.pool.in_use == 0
    other = make_llm(max_model_len=128, max_num_seqs=8, kv_memory=kv_memory // 2)
    assert other.engine.pool.blocks == llm.engine.pool.blocks
    plain = run_all(other, asked)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    assert other.engine.stats.preemptions > 0
    # Several tokens at once fill blocks in fewer steps: it is no more often for as many blocks.
    assert drafting_preempted <= 2 * other.engine.stats.preemptions


def test_the_guard_builds_what_the_config_names(tiny_path: Path) -> None:
    from wager.speculation import SpeculationConfig

    config = SpeculationConfig.parse(own())
    assert config is not None
    with pytest.raises(ConfigError, match="no engine here"):
        Drafters.create(config, V)
    config = SpeculationConfig.parse(recipe("Garbage", 3, constant=4))
    assert config is not None
    subject = Drafters.create(config, V)
    subject.start(1, [1, 2], "")
    assert subject.propose([DraftQuery(1, 2, 3)])[0].tokens == (4, 4, 4)
    assert not subject.needs_blocks


def test_trimmed_and_skipped_steps_cost_a_draft_model_nothing(
    make_llm: Callable[..., LLM], tiny_path: Path
) -> None:
    """What it fed and nobody verified may be committed later, when its block is another one."""
    setting = {
        "method": "draft_model",
        "num_speculative_tokens": 6,
        "controller": "off",
        "model": str(tiny_path),
    }
    llm = make_llm(max_num_seqs=6, speculation=setting)
    rng = random.Random(3)
    bets = llm.engine.bets
    assert bets is not None
    whole = bets.controller.draft

    def trimmed(step: StepView, drafters: Drafters) -> list[Draft]:
        if rng.randrange(3):
            return [NO_DRAFT] * len(step.candidates)
        return [d.cut(rng.randrange(len(d.tokens) + 1)) for d in whole(step, drafters)]

    bets.controller.draft = trimmed  # type: ignore[method-assign]
    run_all(llm, requests(30, tokens=60))
    counts = llm.engine.stats.counts
    assert counts.drafted > 200
    assert counts.accepted == counts.drafted
