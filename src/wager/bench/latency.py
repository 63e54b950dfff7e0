"""Latencies of replies, from the times at which their pieces reached the client. Pure.

A piece of a stream (a chunk) may carry several tokens, and with speculation it does. So two figures
are kept apart by name: *per token* (decode time / tokens after the first piece) and *per chunk*
(the gap between two pieces). A reply of no or one token, or one that came in a single piece, has no
decode time; it is left out and counted, never taken for 0.

A server may send the tokens of one step as several chunks at once, which a client then stamps one
after the other as it reads them: chunks no more than ``at_once_s`` apart are one piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from wager.backend import Answer

SERVED_AT_ONCE_S: Final = 1e-3
"""For chunks that came over a connection: below any step of a model that people serve."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds. None where too few values were measured to speak of that percentile."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """Seconds from the first piece to the last, and the tokens that came after the first piece."""

    seconds: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens


def percentiles(values: Sequence[float]) -> Percentiles:
    """The middle, and the tails as far as the number of values carries them.

    A percentile p is given from 1 / (1 - p) values on: 20 for the 95th, 100 for the 99th. With
    fewer it would be the largest value under another name.
    """
    if not values:
        return Percentiles()
    middle, high, highest = (float(x) for x in np.quantile(values, (0.5, 0.95, 0.99)))
    return Percentiles(
        middle, high if len(values) >= 20 else None, highest if len(values) >= 100 else None
    )


def count_of(answer: Answer) -> int | None:
    """Tokens of a reply: the engine's own count, else its ids, else what its pieces say."""
    if answer.tokens is not None:
        return answer.tokens
    if answer.token_ids is not None:
        return len(answer.token_ids)
    told = [tokens for _, tokens in answer.chunks if tokens is not None]
    return sum(told) if told and len(told) == len(answer.chunks) else None


def pieces(answer: Answer, at_once_s: float = 0.0) -> list[tuple[float, int | None]]:
    """(time, tokens) of each arrival, at the time of its first chunk."""
    out: list[tuple[float, int | None]] = []
    last = 0.0
    for when, tokens in answer.chunks:
        if out and when - last <= at_once_s:
            start, before = out.pop()
            both = None if before is None or tokens is None else before + tokens
            out.append((start, both))
        else:
            out.append((when, tokens))
        last = when
    return out


def decode(answer: Answer, at_once_s: float = 0.0) -> Decode | None:
    """None for a failed reply and for one without a token after its first piece.

    Where an engine does not say how many tokens a piece holds, the first one counts as one token.
    """
    tokens = count_of(answer)
    if answer.error is not None or tokens is None or answer.first_token_s is None:
        return None
    first, end = 1, answer.total_s
    if answer.chunks:
        arrived = pieces(answer, at_once_s)
        if len(arrived) == 1:
            return None
        first = arrived[0][1] or 1
        end = arrived[-1][0]
    seconds = end - answer.first_token_s
    if tokens - first < 1 or seconds <= 0.0:
        return None
    return Decode(seconds, tokens - first)


def chunk_gaps(answer: Answer, at_once_s: float = 0.0) -> list[float]:
    """Seconds between neighbouring pieces of one reply; empty for fewer than two."""
    return [b - a for (a, _), (b, _) in pairwise(pieces(answer, at_once_s))]


def peak_rate(answer: Answer, at_once_s: float = 0.0) -> float | None:
    """Tokens per second at the fastest piece: never below the mean over all pieces.

    None where an engine does not say how many tokens a piece holds.
    """
    arrived = pieces(answer, at_once_s)
    rates = [n / (b - a) for (a, _), (b, n) in pairwise(arrived) if n is not None]
    told = all(tokens is not None for _, tokens in arrived)
    return max(rates) if rates and told else None


def drift(prompts: Iterable[Sequence[Answer]]) -> float | None:
    """How much longer a token took in the slowest run of the prompts than in the fastest: 0.1 is
    10 %. None where no prompt was answered twice, or a length is not known.

    ``prompts`` are the answers of one arm, per prompt those of its runs in order.
    """
    whole = [runs for runs in prompts if len(runs) > 1 and all(a.error is None for a in runs)]
    rates = []
    for number in range(min((len(runs) for runs in whole), default=0)):
        seconds = math.fsum(runs[number].total_s for runs in whole)
        tokens = [count_of(runs[number]) for runs in whole]
        if any(count is None for count in tokens) or not any(tokens) or not seconds > 0.0:
            return None
        rates.append(seconds / sum(count or 0 for count in tokens))
    return max(rates) / min(rates) - 1.0 if rates else None


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the replies of one arm. ``excluded`` counts the sound replies without a decode time."""

    ttft: Percentiles
    tpot: Percentiles
    chunk_gap: Percentiles
    request: Percentiles
    excluded: int


def latencies(answers: Iterable[Answer], at_once_s: float = 0.0) -> Latencies:
    """First token, per token, per chunk and whole request; failed replies take no part."""
    sound = [answer for answer in answers if answer.error is None]
    decodes = [decode(answer, at_once_s) for answer in sound]
    return Latencies(
        ttft=percentiles([a.first_token_s for a in sound if a.first_token_s is not None]),
        tpot=percentiles([d.per_token for d in decodes if d is not None]),
        chunk_gap=percentiles([gap for a in sound for gap in chunk_gaps(a, at_once_s)]),
        request=percentiles([a.total_s for a in sound]),
        excluded=decodes.count(None),
    )
