"""n-gram lookup over arrays: both forms against the definition, and against the index."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drafters.test_ngram import TEXTS, brute_force
from wager.drafters import ngram_batch
from wager.drafters.base import DraftQuery
from wager.drafters.ngram import NgramDrafter, index_class
from wager.drafters.ngram_batch import BatchedNgramDrafter, Lookup, TokenRows, lookup, lookup_form
from wager.errors import ConfigError
from wager.speculation import SpeculationConfig
from wager.types import NO_DRAFT

FORMS = [lookup] if lookup_form() is lookup else [lookup, lookup_form()]
IDS = ["numpy", "native"][: len(FORMS)]
forms = pytest.mark.parametrize("form", FORMS, ids=IDS)
PADDING = 77


def matrix(texts: Sequence[Sequence[int]], columns: int | None = None) -> tuple[np.ndarray, ...]:
    """Rows of equal length; what lies behind a text is there to be mistaken for it."""
    width = max(map(len, texts), default=0) if columns is None else columns
    tokens = np.full((len(texts), width), PADDING, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
        tokens[row, len(text) :] = [text[-1]] * (width - len(text)) if text else PADDING
    return tokens, np.array([len(t) for t in texts], np.int32)


def look_up(
    form: Lookup,
    texts: Sequence[Sequence[int]],
    limits: Sequence[int],
    shortest: int,
    longest: int,
    recent: bool = True,
    cyclic: bool = True,
    columns: int | None = None,
) -> list[tuple[tuple[int, ...], int]]:
    """(draft, length of the match) per text, as the index has them; the padding is checked."""
    tokens, lengths = matrix(texts, columns)
    k = max(limits, default=0)
    asked = np.array(limits, np.int32)
    drafts, counts, matches = form(tokens, lengths, asked, shortest, longest, recent, cyclic, k)
    assert drafts.shape == (len(texts), k)
    assert counts.shape == matches.shape == (len(texts),)
    assert {drafts.dtype, counts.dtype, matches.dtype} == {np.dtype(np.int32)}
    assert np.array_equal(drafts == -1, np.arange(k) >= counts[:, None])
    return [
        (tuple(drafts[row, : counts[row]].tolist()), int(matches[row])) for row in range(len(texts))
    ]


@forms
@pytest.mark.parametrize("recent", [True, False])
@pytest.mark.parametrize("cyclic", [True, False])
def test_ten_thousand_random_texts(form: Lookup, recent: bool, cyclic: bool) -> None:
    """In batches: texts over three tokens, short ones included, all corners."""
    rng = random.Random(43)
    match = "recent" if recent else "earliest"
    for _ in range(100):
        texts = [[rng.randrange(3) for _ in range(rng.randrange(0, 40))] for _ in range(25)]
        limits = [rng.randrange(1, 18) for _ in texts]
        shortest = rng.randrange(1, 6)
        longest = shortest + rng.choice([0, 0, 1, 3, 50])
        found = look_up(form, texts, limits, shortest, longest, recent, cyclic)
        for text, limit, answer in zip(texts, limits, found, strict=True):
            expected = brute_force(text, shortest, longest, match, cyclic, limit)
            assert answer == (expected.tokens, expected.match_length)


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(TEXTS, max_size=6),
    limit=st.integers(1, 20),
    shortest=st.integers(1, 6),
    extra=st.integers(0, 40),
    recent=st.booleans(),
    cyclic=st.booleans(),
    room=st.integers(0, 70),
)
def test_the_forms_agree_with_the_index(
    texts: list[list[int]],
    limit: int,
    shortest: int,
    extra: int,
    recent: bool,
    cyclic: bool,
    room: int,
) -> None:
    index = index_class()(shortest, shortest + extra, recent, cyclic)
    for number, text in enumerate(texts):
        index.observe(number, text)
    numbers, lengths = list(range(len(texts))), [len(t) for t in texts]
    limits = [limit] * len(texts)
    expected = index.propose(numbers, lengths, limits)
    columns = max(lengths, default=0) + room
    for form in FORMS:
        found = look_up(form, texts, limits, shortest, shortest + extra, recent, cyclic, columns)
        assert found == [(tuple(tokens), n) for tokens, n in expected]


@forms
@pytest.mark.parametrize("recent", [True, False])
@pytest.mark.parametrize("bounds", [(1, 4), (2, 5), (3, 600)])
def test_long_texts_as_the_index(form: Lookup, recent: bool, bounds: tuple[int, int]) -> None:
    """Long enough for blocks of comparisons, repeats of all lengths and repeats inside of them."""
    rng = random.Random(9)
    unit = [rng.randrange(2) for _ in range(90)]
    texts = [
        rng.choices(range(2), k=3000),
        rng.choices(range(400), k=3001),
        [*unit, 5] * 30 + unit,
        [1] * 2000 + [2] + [1] * 700,
        [*range(2999), 0],
        [0, 1] * 1500,
    ]
    index = index_class()(*bounds, recent, True)
    for number, text in enumerate(texts):
        index.observe(number, text)
    expected = index.propose(list(range(len(texts))), [len(t) for t in texts], [9] * len(texts))
    found = look_up(form, texts, [9] * len(texts), *bounds, recent)
    assert found == [(tuple(tokens), n) for tokens, n in expected]
    assert max(n for _, n in found) == bounds[1]


@forms
def test_a_limit_of_nothing_leaves_a_row_out(form: Lookup) -> None:
    texts = [[1, 2, 1], [1, 2, 1], [], [3]]
    assert look_up(form, texts, [0, 2, 2, 2], 1, 3) == [((), 0), ((2, 1), 1), ((), 0), ((), 0)]
    assert look_up(form, texts, [0, 0, 0, 0], 1, 3) == [((), 0)] * 4
    assert look_up(form, [], [], 1, 3) == []
    assert look_up(form, [[], []], [3, 3], 1, 3) == [((), 0)] * 2


@forms
@pytest.mark.parametrize(
    ("length", "limit", "bounds", "says"),
    [
        (4, 2, (1, 3), "length is out of range"),
        (-1, 2, (1, 3), "length is out of range"),
        (3, 3, (1, 3), "limit is out of range"),
        (3, -1, (1, 3), "limit is out of range"),
        (3, 2, (0, 3), "1 <= min <= max"),
        (3, 2, (3, 2), "1 <= min <= max"),
    ],
)
def test_values_out_of_range_are_refused(
    form: Lookup, length: int, limit: int, bounds: tuple[int, int], says: str
) -> None:
    tokens = np.array([[1, 2, 1]], np.int32)
    lengths, limits = np.array([length], np.int32), np.array([limit], np.int32)
    with pytest.raises(ValueError, match=says):
        form(tokens, lengths, limits, *bounds, True, True, 2)


def drafter(method: str = "ngram_gpu", **options: object) -> BatchedNgramDrafter | NgramDrafter:
    config = SpeculationConfig.of(method, 8, **options)
    made = BatchedNgramDrafter if method == "ngram_gpu" else NgramDrafter
    return made(config.methods[0], 1000)


@pytest.mark.parametrize("match", ["recent", "earliest"])
@pytest.mark.parametrize("cyclic", [True, False])
@forms
def test_same_drafts_as_ngram(
    form: Lookup, cyclic: bool, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that come, grow and go in any order, asked in any order."""
    monkeypatch.setattr(ngram_batch, "lookup_form", lambda: form)
    keys = {"prompt_lookup_min": 1, "prompt_lookup_max": 4, "match": match, "cyclic": cyclic}
    batched, one_by_one = drafter(**keys), drafter("ngram", **keys)
    rng = random.Random(5)
    lengths: dict[int, int] = {}
    drafted = 0
    for step in range(400):
        if len(lengths) < 9 and rng.random() < 0.4:
            prompt = rng.choices(range(4), k=rng.choice([0, 1, 5, 40, 300]))
            for subject in (batched, one_by_one):
                subject.start(step, prompt, "")
            lengths[step] = len(prompt)
        for number in lengths:
            tokens = rng.choices(range(4), k=rng.randint(1, 4))
            for subject in (batched, one_by_one):
                subject.observe(number, tokens)
            lengths[number] += len(tokens)
        asked = rng.sample(sorted(lengths), rng.randint(0, len(lengths)))
        queries = [DraftQuery(number, lengths[number], rng.randint(1, 8)) for number in asked]
        found, expected = (
            [(d.tokens, d.match_length) for d in subject.propose(queries)]
            for subject in (batched, one_by_one)
        )
        assert found == expected
        drafted += sum(bool(tokens) for tokens, _ in found)
        for number in [n for n in lengths if rng.random() < 0.1]:
            for subject in (batched, one_by_one):
                subject.release(number)
            del lengths[number]
    assert drafted > 500


def test_a_config_of_vllm_is_taken() -> None:
    text = '{"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
    config = SpeculationConfig.parse(text)
    assert config is not None
    assert config.describe() == (
        "ngram_gpu, at most 4 draft tokens, lookup 3 to 3, recent match, cyclic, "
        "only where it pays (0.5 % may be lost)"
    )
    subject = BatchedNgramDrafter(config.methods[0], 1000)
    subject.start(1, [1, 2, 3, 9, 1, 2, 3], "")
    (draft,) = subject.propose([DraftQuery(1, 7, 2)])
    assert (draft.tokens, draft.source, draft.match_length) == ((9, 1), "ngram_gpu", 3)


def test_a_text_that_was_not_observed_is_refused() -> None:
    subject = drafter(prompt_lookup_min=1)
    subject.start(7, [1] * 100, "")
    with pytest.raises(ValueError, match="request 7: observed 100 tokens, asked at 40"):
        subject.propose([DraftQuery(7, 40, 4)])
    with pytest.raises(ValueError, match="request 8: observed 0 tokens"):
        subject.propose([DraftQuery(8, 3, 4)])
    with pytest.raises(ValueError, match="token id -1 is negative"):
        subject.observe(7, [3, -1])
    assert subject.propose([DraftQuery(7, 100, 3)])[0].tokens == (1, 1, 1)
    assert subject.propose([]) == []
    subject.release(7)
    subject.release(7)
    subject.start(7, [4, 5], "")
    assert subject.propose([DraftQuery(7, 2, 3)]) == [NO_DRAFT]


def test_rows_are_used_again_and_memory_follows_what_runs() -> None:
    texts = TokenRows()
    for number in range(40):
        texts.append(number, [number] * 1000)
    assert texts.tokens.shape == (64, 1024)
    for number in range(20):
        texts.release(number)
    for number in range(40, 60):
        texts.append(number, [number] * 1000)
    assert (len(texts), texts.tokens.shape) == (40, (64, 1024))
    texts.append(500, [7] * 10)
    for number in range(20, 60):
        for kept in range(number, 60):
            assert set(texts.tokens[texts.row(kept, 1000), :1000].tolist()) == {kept}
        texts.release(number)
    assert len(texts) == 1
    assert texts.tokens.shape == (1, 16)
    assert texts.bytes == 4 * 16 + 4
    texts.append(500, [8] * 7)
    assert texts.tokens[texts.row(500, 17), :17].tolist() == [7] * 10 + [8] * 7
    texts.release(500)
    assert (len(texts), texts.bytes) == (0, 0)
    texts.append(1, [3])
    texts.clear()
    assert (len(texts), texts.bytes) == (0, 0)


def test_options_are_those_of_ngram() -> None:
    """A config of one lookup is one of the other's; what is kept between runs is ngram's alone."""
    values = {"prompt_lookup_min": 2, "prompt_lookup_max": 3, "match": "earliest", "cyclic": False}
    made = [SpeculationConfig.of(name, 8, **values).methods[0] for name in ("ngram_gpu", "ngram")]
    assert made[0].describe() == made[1].describe() == "lookup 2 to 3, earliest match, not cyclic"
    for key, value in (("match", "any"), ("cyclic", 1), ("prompt_lookup_min", 0)):
        with pytest.raises(ConfigError, match=f"^{key}: "):
            SpeculationConfig.of("ngram_gpu", 8, **{key: value})
