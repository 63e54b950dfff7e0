"""Suffix decoding against its definition, on both forms of the index."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.drafters import suffix, suffix_index
from wager.drafters.base import DraftQuery
from wager.drafters.suffix import PAST_SOURCE, SOURCE, SuffixDrafter, SuffixOptions
from wager.errors import ConfigError
from wager.speculation import MethodConfig, SpeculationConfig
from wager.types import NO_DRAFT, Draft

try:
    from wager._native import SuffixIndex as NativeIndex
except ImportError:
    NativeIndex = None

FORMS = [suffix_index.SuffixIndex] + ([NativeIndex] if NativeIndex else [])
PLENTY = 1 << 40


@pytest.fixture(params=FORMS, ids=lambda form: form.__module__)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    monkeypatch.setattr(suffix, "index_class", lambda: request.param)
    return request.param


def drafter(**options: Any) -> SuffixDrafter:
    keys = {f"suffix_decoding_{name}": value for name, value in options.items()}
    return SuffixDrafter(MethodConfig("suffix", 8, SuffixOptions(**keys)), 1000)


def followers(texts: Sequence[Sequence[int]], context: Sequence[int]) -> list[int]:
    """Every token that followed the context, in the order of the texts."""
    size, found = len(context), []
    for text in texts:
        for end in range(size, len(text)):
            if list(text[end - size : end]) == list(context):
                found.append(text[end])
    return found


def most_frequent(tokens: Sequence[int]) -> tuple[int, float]:
    """Of several the one that got there last; with its share."""
    counts: Counter[int] = Counter()
    best = -1
    for token in tokens:
        counts[token] += 1
        if best == -1 or counts[token] >= counts[best]:
            best = token
    return best, counts[best] / len(tokens)


def by_definition(
    texts: Sequence[Sequence[int]],
    end: Sequence[int],
    limit: int,
    depth: int,
    factor: float = 1.0,
    offset: float = 0.0,
    least: float = 0.1,
) -> tuple[float, int, tuple[int, ...]]:
    """(score, length of the context, draft): nothing incremental about it."""
    best: tuple[float, int, tuple[int, ...]] = (0.0, 0, ())
    for length in range(min(len(end), depth - 1), 0, -1):
        context, tokens, probability, score = list(end[len(end) - length :]), [], 1.0, 0.0
        while len(tokens) < min(limit, int(factor * length + offset)):
            found = followers(texts, context[-(depth - 1) :])
            if not found:
                break
            token, share = most_frequent(found)
            probability *= share
            if probability < least:
                break
            tokens.append(token)
            context.append(token)
            score += probability
        if score > best[0]:
            best = (score, length, tuple(tokens))
    return best


def expected(
    text: Sequence[int], past: Sequence[Sequence[int]], limit: int, depth: int, **options: float
) -> Draft:
    own = by_definition([text], text, limit, depth, **options)
    old = by_definition(past, text, limit, depth, **options)
    _, length, tokens = own if own[0] >= old[0] else old
    if not tokens:
        return NO_DRAFT
    return Draft(tokens, SOURCE if own[0] >= old[0] else PAST_SOURCE, length)


def ask(subject: SuffixDrafter, text: Sequence[int], limit: int, request: int = 0) -> Draft:
    """Start a request, ask, and leave it there."""
    subject.start(request, text, "")
    return subject.propose([DraftQuery(request, len(text), limit)])[0]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    ("text", "limit", "draft"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 8, (4, 1, 2)),  # three matched: at most three are drafted
        ([1, 2, 3, 4, 1, 2, 3], 2, (4, 1)),
        # Two sevens were followed by two more, three of them by one.
        ([7, 7, 7, 7], 8, (7, 7)),
        ([1, 2, 3], 8, ()),
        ([], 8, ()),
        ([5], 8, ()),
        # 1 was followed by 2, 2 and 3: the most frequent one counts, not the latest.
        ([1, 2, 1, 2, 1, 3, 9, 1], 8, (2,)),
        ([1, 2, 1, 3, 9, 1], 8, (3,)),  # of equally frequent ones the latest
    ],
)
def test_by_hand(text: list[int], limit: int, draft: tuple[int, ...]) -> None:
    assert ask(drafter(), text, limit).tokens == draft


@pytest.mark.usefixtures("form")
def test_a_walk_ends_where_it_is_no_longer_likely() -> None:
    text = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4]
    # 5 or 6 follow the four tokens: one half each; then 1 is certain.
    assert ask(drafter(min_token_prob=0.6), text, 8).tokens == ()
    assert ask(drafter(min_token_prob=0.5), text, 8, request=1).tokens == (6, 1, 2, 3)


@pytest.mark.usefixtures("form")
def test_factor_and_offset_bound_a_draft() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    lengths = {
        (1.0, 0.0): 2, (0.5, 0.0): 1, (2.0, 0.0): 4, (1.0, 2.0): 4, (0.0, 0.0): 0, (9.0, 0.0): 8,
    }  # fmt: skip
    for number, ((factor, offset), length) in enumerate(lengths.items()):
        subject = drafter(max_spec_factor=factor, max_spec_offset=offset)
        assert len(ask(subject, text, 8, number).tokens) == length


TEXT = st.one_of(
    st.lists(st.integers(0, 2), max_size=40),
    st.builds(lambda unit, n: unit * n, st.lists(st.integers(0, 3), min_size=1, max_size=5),
              st.integers(1, 6)),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    past=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=25), max_size=4),
    texts=st.lists(TEXT, min_size=1, max_size=3),
    cuts=st.randoms(use_true_random=False),
    depth=st.integers(1, 9),
    limit=st.integers(1, 9),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    least=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_every_prefix_of_interleaved_requests_is_by_the_definition(
    past: list[list[int]],
    texts: list[list[int]],
    cuts: random.Random,
    depth: int,
    limit: int,
    factor: float,
    least: float,
) -> None:
    for made in FORMS:
        index = made(depth, 100, factor, 0.0, least, PLENTY)
        for answer in past:
            index.learn(answer, "")
        for number in range(len(texts)):
            index.start(number, [], "")
        seen = [0] * len(texts)
        while any(s < len(t) for s, t in zip(seen, texts, strict=True)):
            r = cuts.choice([i for i, t in enumerate(texts) if seen[i] < len(t)])
            piece = cuts.randint(1, 5)
            index.observe(r, texts[r][seen[r] : seen[r] + piece])
            seen[r] = min(seen[r] + piece, len(texts[r]))
            found = index.propose([r], [seen[r]], [limit])[0]
            draft = expected(texts[r][: seen[r]], past, limit, depth, factor=factor, least=least)
            assert (tuple(found[0]), found[1]) == (draft.tokens, draft.match_length)
            assert found[2] == (draft.source == PAST_SOURCE)


@pytest.mark.usefixtures("form")
def test_answers_given_meanwhile_are_found() -> None:
    """A place kept from the last step must not hide what was said since."""
    subject = drafter()
    subject.start(1, [9, 1, 2], "")
    subject.observe(1, [3])
    assert subject.propose([DraftQuery(1, 4, 8)]) == [NO_DRAFT]
    subject.start(2, [50], "")
    subject.observe(2, [1, 2, 3, 4, 5, 6])
    subject.release(2)
    assert subject.propose([DraftQuery(1, 4, 8)]) == [Draft((4, 5, 6), PAST_SOURCE, 3)]
    subject.start(3, [9, 1, 2, 3], "")
    assert subject.propose([DraftQuery(3, 4, 8)]) == [Draft((4, 5, 6), PAST_SOURCE, 3)]


@pytest.mark.usefixtures("form")
def test_prompts_are_not_answers() -> None:
    subject = drafter()
    subject.start(1, [1, 2, 3, 4], "")
    subject.observe(1, [8])
    subject.release(1)
    assert ask(subject, [1, 2], 4, request=2) is NO_DRAFT


@pytest.mark.usefixtures("form")
def test_tenants_share_nothing() -> None:
    subject = drafter()
    subject.start(1, [0], "one")
    subject.observe(1, [1, 2, 3, 4, 5])
    subject.release(1)
    for tenant, tokens in (("one", (4, 5)), ("two", ()), ("", ())):
        subject.start(7, [6, 1, 2, 3], tenant)
        assert subject.propose([DraftQuery(7, 4, 2)])[0].tokens == tokens
        subject.release(7)


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 7, 10])
def test_never_more_past_answers_than_asked_for(form: Callable[..., Any], kept: int) -> None:
    index = form(8, kept, 1.0, 0.0, 0.1, PLENTY)
    most = 0
    for number in range(40):
        index.learn([number, number + 1, number + 2], "")
        most = max(most, index.past_answers)
        assert index.past_answers <= kept
        assert index.past_tokens == 3 * index.past_answers
    assert most >= kept // 2


def test_memory_of_past_answers_is_bounded(form: Callable[..., Any]) -> None:
    bound = 300_000
    index = form(16, 100_000, 1.0, 0.0, 0.1, bound)
    rng = random.Random(7)
    largest = 0
    for number in range(300):
        index.learn([rng.randrange(5000) for _ in range(60)], f"tenant {number % 5}")
        largest = max(largest, index.past_bytes)
        assert index.past_bytes <= bound
    assert largest > bound / 4
    index.clear()
    assert (index.past_bytes, index.past_answers, len(index)) == (0, 0, 0)


@pytest.mark.usefixtures("form")
def test_a_text_that_was_not_observed_is_refused() -> None:
    subject = drafter()
    subject.start(7, [1] * 100, "")
    with pytest.raises(ValueError, match="observed 100 tokens, asked at 40"):
        subject.propose([DraftQuery(7, 40, 4)])
    with pytest.raises(ValueError, match="started already"):
        subject.start(7, [1], "")
    with pytest.raises(ValueError, match="was not started"):
        subject.observe(8, [1])
    with pytest.raises(ValueError, match="token id -1 is negative"):
        subject.start(9, [3, -1], "")
    subject.release(7)
    subject.release(7)
    assert ask(subject, [1] * 5, 3, request=7).tokens == (1, 1)


@pytest.mark.skipif(NativeIndex is None, reason="the extension is not built")
@pytest.mark.parametrize(
    "text",
    [[7] * 100_000, list(range(100_000)), [1, 2, 3, 4, 5, 6, 7] * 14_286,
     random.Random(5).choices(range(3), k=100_000),
     random.Random(6).choices(range(50_000), k=100_000)],
    ids=["one token", "no repeats", "period 7", "alphabet 3", "alphabet 50k"],
)  # fmt: skip
def test_memory_is_linear_in_the_text(text: list[int]) -> None:
    sizes = []
    for part in (text[:6_250], text):
        index = NativeIndex(24, 0, 1.0, 0.0, 0.1, PLENTY)
        index.start(1, part, "")
        sizes.append(index.bytes)
    assert sizes[1] <= 2.5 * 16 * sizes[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("suffix_decoding_max_tree_depth", 0),
        ("suffix_decoding_max_cached_requests", -1),
        ("suffix_decoding_max_spec_factor", -0.5),
        ("suffix_decoding_max_spec_factor", float("inf")),
        ("suffix_decoding_min_token_prob", 1.5),
        ("suffix_decoding_min_token_prob", "high"),
        ("suffix_decoding_max_bytes", 1.5),
    ],
)
def test_bad_keys_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        SpeculationConfig.parse({"method": "suffix", "num_speculative_tokens": 4, key: value})
