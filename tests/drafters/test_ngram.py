"""The n-gram drafter against a brute-force search, on both forms of the index."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.drafters import ngram, ngram_index
from wager.drafters.base import DraftQuery
from wager.drafters.ngram import NgramDrafter, NgramOptions
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, Draft

try:
    from wager._native import NgramIndex as NativeIndex
except ImportError:
    NativeIndex = None

FORMS = [ngram_index.NgramIndex] + ([NativeIndex] if NativeIndex else [])


@pytest.fixture(params=FORMS, ids=lambda form: form.__module__)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    monkeypatch.setattr(ngram, "index_class", lambda: request.param)
    return request.param


def drafter(
    shortest: int = 2, longest: int = 5, match: str = "recent", cyclic: bool = True
) -> NgramDrafter:
    options = NgramOptions(shortest, longest, match, cyclic)  # type: ignore[arg-type]
    return NgramDrafter(MethodConfig("ngram", 8, options), vocab_size=1000)


def brute_force(
    text: list[int], shortest: int, longest: int, match: str, cyclic: bool, limit: int
) -> Draft:
    """The definition: longest n first, then the occurrence; nothing incremental about it."""
    size = len(text)
    for n in range(min(longest, size), shortest - 1, -1):
        ends = [e for e in range(n, size) if text[e - n : e] == text[size - n :]]
        if not ends:
            continue
        at = max(ends) if match == "recent" else min(ends)
        longer = list(text)
        while cyclic and len(longer) < at + limit:
            longer.append(longer[at + len(longer) - size])
        return Draft(tuple(longer[at : at + limit]), "ngram", n)
    return NO_DRAFT


def draft_of(subject: NgramDrafter, text: list[int], limit: int, request: int = 0) -> Draft:
    subject.start(request, text, "")
    return subject.propose([DraftQuery(request, len(text), limit)])[0]


PUBLISHED = [
    # text, shortest, longest, match, cyclic, limit, draft; the first three are vLLM's answers.
    ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], 2, 3, "earliest", False, 1, (9,)),
    ([4, 4, 4, 4, 4], 2, 3, "earliest", False, 5, (4, 4)),
    ([1, 2, 3, 9, 1, 2, 3], 5, 5, "earliest", False, 5, ()),
    ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], 2, 3, "recent", False, 1, (8,)),
    ([4, 4, 4, 4, 4], 2, 3, "recent", False, 5, (4,)),
    ([4, 4, 4, 4, 4], 2, 3, "recent", True, 5, (4, 4, 4, 4, 4)),
    ([1, 2, 1, 2], 1, 9, "recent", True, 7, (1, 2, 1, 2, 1, 2, 1)),
    ([1, 2, 3, 1], 1, 4, "recent", False, 16, (2, 3, 1)),
]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("case", PUBLISHED)
def test_known_answers(case: tuple[list[int], int, int, str, bool, int, tuple[int, ...]]) -> None:
    text, shortest, longest, match, cyclic, limit, expected = case
    draft = draft_of(drafter(shortest, longest, match, cyclic), text, limit)
    assert draft.tokens == expected


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("match", ["recent", "earliest"])
@pytest.mark.parametrize("cyclic", [True, False])
def test_ten_thousand_random_texts(match: str, cyclic: bool) -> None:
    """Random texts over three tokens, short ones included, all corners of the range."""
    rng = random.Random(43)
    for _ in range(2500):
        text = [rng.randrange(3) for _ in range(rng.randrange(0, 40))]
        shortest = rng.randrange(1, 6)
        longest = shortest + rng.choice([0, 0, 1, 3, 50])
        limit = rng.randrange(1, 18)
        expected = brute_force(text, shortest, longest, match, cyclic, limit)
        assert draft_of(drafter(shortest, longest, match, cyclic), text, limit) == expected


TEXTS = st.one_of(
    st.lists(st.integers(0, 2), max_size=60),
    st.builds(lambda unit, n: unit * n, st.lists(st.integers(0, 3), min_size=1, max_size=7),
              st.integers(1, 9)),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=3),
    cuts=st.randoms(use_true_random=False),
    shortest=st.integers(1, 6),
    extra=st.integers(0, 12),
    match=st.sampled_from(["recent", "earliest"]),
    cyclic=st.booleans(),
    limit=st.integers(1, 20),
)
def test_every_prefix_of_interleaved_requests(
    texts: list[list[int]],
    cuts: random.Random,
    shortest: int,
    extra: int,
    match: str,
    cyclic: bool,
    limit: int,
) -> None:
    """Requests that grow in random pieces, in random order, each always drafts as if alone."""
    longest = shortest + extra
    for form in FORMS:
        index = form(shortest, longest, match == "recent", cyclic)
        seen = [0] * len(texts)
        open_requests = set(range(len(texts)))
        while open_requests:
            r = cuts.choice(sorted(open_requests))
            piece = cuts.randint(1, 5)
            index.observe(r, texts[r][seen[r] : seen[r] + piece])
            seen[r] = min(seen[r] + piece, len(texts[r]))
            if seen[r] == len(texts[r]):
                open_requests.discard(r)
            found = index.propose(list(range(len(texts))), seen, [limit] * len(texts))
            for text, size, (tokens, n) in zip(texts, seen, found, strict=True):
                expected = brute_force(text[:size], shortest, longest, match, cyclic, limit)
                assert (tuple(tokens), n) == (expected.tokens, expected.match_length)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("shortest", [1, 2, 5])
def test_short_texts_draft_nothing(shortest: int) -> None:
    """Shorter than the range, or with no earlier occurrence: no draft, no dummy token."""
    for size in (0, 1, shortest - 1, shortest, shortest + 1):
        subject = drafter(shortest, shortest + 3)
        assert draft_of(subject, list(range(10, 10 + size)), 8) is NO_DRAFT


@pytest.mark.usefixtures("form")
def test_period_p_drafts_the_full_k() -> None:
    for period, k in product((1, 2, 3, 7), (1, 4, 16)):
        unit = list(range(period))
        draft = draft_of(drafter(1, 4), unit * 3, k)
        assert draft.tokens == tuple((unit * k)[:k])


@pytest.mark.usefixtures("form")
def test_limit_is_kept_to_the_last_place() -> None:
    """With room for one token, one token is drafted although eight would follow."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    for limit in (1, 2, 3):
        assert len(draft_of(drafter(2, 2), text, limit).tokens) == limit


@pytest.mark.usefixtures("form")
def test_longer_context_changes_the_answer() -> None:
    """A better match that appears later is found, not the answer given before."""
    subject = drafter(1, 8)
    assert draft_of(subject, [1, 2, 9, 2], 2).tokens == (9, 2)
    more = [3, 4, 7, 7, 1, 2, 3, 4]
    subject.observe(0, more)
    text = [1, 2, 9, 2, *more]
    expected = brute_force(text, 1, 8, "recent", True, 2)
    assert subject.propose([DraftQuery(0, len(text), 2)]) == [expected]
    assert draft_of(subject, text, 2, request=1) == expected


@pytest.mark.usefixtures("form")
def test_history_replaced_by_a_shorter_one() -> None:
    """After a release nothing of the longer history is left; without one it is refused."""
    rng = random.Random(51)
    subject = drafter(1, 3)
    subject.start(7, [rng.randrange(3) for _ in range(100)], "")
    with pytest.raises(ValueError, match="observed 100 tokens, asked at 40"):
        subject.propose([DraftQuery(7, 40, 4)])
    subject.release(7)
    text = [rng.randrange(3) for _ in range(40)]
    assert draft_of(subject, text, 4, request=7) == brute_force(text, 1, 3, "recent", True, 4)


def test_release_and_clear_free_the_texts(form: type) -> None:
    index = form(1, 3, True, True)
    for request in range(5):
        index.observe(request, [1, 2, 3])
    index.release(3)
    index.release(99)
    assert len(index) == 4
    index.clear()
    assert len(index) == 0


@pytest.mark.usefixtures("form")
def test_batch_answers_in_the_order_asked() -> None:
    subject = drafter(1, 2)
    subject.start(1, [5, 6, 5], "")
    subject.start(2, [1, 2, 3], "")
    subject.start(3, [8, 9, 8], "")
    queries = [DraftQuery(3, 3, 1), DraftQuery(2, 3, 4), DraftQuery(1, 3, 1)]
    assert [d.tokens for d in subject.propose(queries)] == [(9,), (), (6,)]
    assert subject.propose([]) == []


@pytest.mark.usefixtures("form")
def test_negative_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="token id -1 is negative"):
        drafter().observe(0, [3, -1])


@pytest.mark.skipif(NativeIndex is None, reason="the extension is not built")
@pytest.mark.parametrize(
    "text",
    [[7] * 100_000, list(range(100_000)), [1, 2, 3, 4, 5, 6, 7] * 14_286,
     random.Random(5).choices(range(3), k=100_000),
     random.Random(6).choices(range(50_000), k=100_000)],
    ids=["one token", "no repeats", "period 7", "alphabet 3", "alphabet 50k"],
)  # fmt: skip
def test_memory_is_linear_for_wide_ranges(text: list[int]) -> None:
    """Lookups from 500 down to 10 at 100k tokens take no more memory than 5 to 5 do, and
    not more per token than a small text does."""
    wide, narrow, small = (NativeIndex(*r, True, True) for r in ((10, 500), (5, 5), (10, 500)))
    wide.observe(0, text)
    narrow.observe(0, text)
    small.observe(0, text[:6_250])
    assert wide.bytes == narrow.bytes
    assert wide.bytes <= 2.5 * 16 * small.bytes
