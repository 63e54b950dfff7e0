"""Latencies of scripted streams, whose right figures are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.scripted import reply, silent
from wager.backend import Answer
from wager.bench.latency import (
    SERVED_AT_ONCE_S,
    Percentiles,
    chunk_gaps,
    count_of,
    decode,
    latencies,
    peak_rate,
    percentiles,
)


def streamed(chunks: Sequence[tuple[float, int | None]], tokens: int | None = None) -> Answer:
    known = sum(n or 0 for _, n in chunks) if tokens is None else tokens
    first = chunks[0][0] if chunks else None
    end = chunks[-1][0] if chunks else 0.5
    return reply("a", range(known), first, end, None, chunks=chunks)


TEN_OF_FIVE = [(0.1 * (i + 1), 5) for i in range(10)]


def test_a_chunk_of_five_tokens_is_not_one_token() -> None:
    """10 pieces of 5 tokens, one every 100 ms: 20 ms per token, 100 ms per chunk."""
    answer = streamed(TEN_OF_FIVE)
    found = decode(answer)
    assert found is not None
    assert found.tokens == 45
    assert found.seconds == pytest.approx(0.9)
    assert found.per_token == pytest.approx(0.020)
    assert chunk_gaps(answer) == pytest.approx([0.1] * 9)
    peak = peak_rate(answer)
    assert peak == pytest.approx(50.0)
    # Never below the mean rate, which counting pieces as tokens would make it.
    assert peak is not None
    assert peak >= 1 / found.per_token - 1e-9


def test_without_tokens_per_piece_the_count_is_the_servers() -> None:
    """The same stream from a server that only gives the usage at its end: 50 tokens."""
    answer = silent(streamed([(time, None) for time, _ in TEN_OF_FIVE], tokens=50))
    found = decode(answer)
    assert found is not None
    assert found.tokens == 49
    assert peak_rate(answer) is None
    assert count_of(replace(answer, tokens=None)) is None


@pytest.mark.parametrize(
    ("chunks", "tokens"),
    [
        ([], 0),  # nothing came
        ([(0.2, 1)], 1),  # one token
        ([(0.2, 2)], 2),  # two tokens in one piece
        ([(0.2, None)], 40),  # all in one piece, size untold
        ([(0.2, 2), (0.2, 3)], 5),  # no time between the pieces
    ],
)
def test_replies_without_a_decode_time_are_left_out_and_counted(
    chunks: list[tuple[float, int | None]], tokens: int
) -> None:
    short = streamed(chunks, tokens)
    assert decode(short) is None
    found = latencies([short, streamed(TEN_OF_FIVE), streamed([(0.1, 1), (0.3, 1)])])
    assert found.excluded == 1
    assert found.tpot.p50 == pytest.approx((0.02 + 0.2) / 2)
    json.dumps([found.tpot.p50, found.request.p50], allow_nan=False)


def test_first_token_is_of_any_kind_and_none_is_not_zero() -> None:
    """A role piece is no token; a reasoning piece at 200 ms is; the answer follows at 1.2 s."""
    thinking = streamed([(0.2, 1), (1.2, 1)])
    nothing = streamed([])
    assert latencies([thinking]).ttft.p50 == 0.2
    assert latencies([nothing]).ttft == Percentiles()
    assert latencies([thinking, nothing]).ttft.p50 == 0.2


def test_failed_replies_take_no_part_and_are_not_excluded_ones() -> None:
    failed = replace(streamed(TEN_OF_FIVE), error="gone", total_s=99.0)
    found = latencies([failed, streamed(TEN_OF_FIVE)])
    assert found.excluded == 0
    assert found.request.p50 == pytest.approx(1.0)
    assert decode(failed) is None


def test_an_implausible_clock_of_the_server_moves_no_figure() -> None:
    """Its own timings may book decode as prompt time; only what the client saw counts."""
    odd = replace(streamed(TEN_OF_FIVE), notes=["the server reports 95000 tokens/s of decode"])
    assert latencies([odd]) == latencies([streamed(TEN_OF_FIVE)])


def test_tails_need_enough_values() -> None:
    assert percentiles([]) == Percentiles()
    assert percentiles([1.0] * 19) == Percentiles(1.0)
    assert percentiles([1.0] * 20) == Percentiles(1.0, 1.0)
    assert percentiles(list(range(101))) == Percentiles(50.0, 95.0, 99.0)


def test_chunks_that_came_at_once_are_one_piece() -> None:
    answer = streamed([(0.1, 1), (0.1, 2), (0.4, 3), (0.4, 3)])
    found = decode(answer)
    assert found is not None
    assert (found.tokens, found.seconds) == (6, pytest.approx(0.3))
    assert chunk_gaps(answer) == pytest.approx([0.3])
    assert peak_rate(answer) == pytest.approx(20.0)


def test_chunks_of_one_network_read_are_one_piece() -> None:
    """A step of three tokens sent as three events; the client needs 0.4 ms to read each."""
    steps = [0.1, 0.2, 0.3]
    answer = streamed([(step + 0.0004 * i, 1) for step in steps for i in range(3)])
    found = decode(answer, SERVED_AT_ONCE_S)
    assert found is not None
    assert (found.tokens, found.seconds) == (6, pytest.approx(0.2))
    assert chunk_gaps(answer, SERVED_AT_ONCE_S) == pytest.approx([0.1, 0.1])
    assert len(chunk_gaps(answer)) == 8
    assert latencies([answer], SERVED_AT_ONCE_S).chunk_gap.p50 == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(1, 20)), max_size=20))
def test_no_stream_gives_a_negative_or_endless_figure(raw: list[tuple[float, int]]) -> None:
    times = sorted(time for time, _ in raw)
    chunks = list(zip(times, [n for _, n in raw], strict=True))
    answer = streamed(chunks)
    found = decode(answer)
    if found is not None:
        assert 0.0 < found.per_token < float("inf")
        peak = peak_rate(answer)
        assert peak is not None
        assert peak >= (1 / found.per_token) * (1 - 1e-9)
    whole = latencies([answer])
    json.dumps([whole.tpot.p50, whole.ttft.p50, whole.chunk_gap.p50], allow_nan=False)
