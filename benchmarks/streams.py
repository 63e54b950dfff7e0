"""Texts as a drafter meets them, and the clock beside it.

Standard library only: the Python of the peers runs this module too, so that every arm is played the
same tokens by the same loop.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

K = 8
LOOKUP = (2, 5)
VOCABULARY = 50_000
ANSWERS, ANSWER = 200, 256
"""Past answers, and the tokens of each."""
MOST = 4
"""Tokens of a commit: 1 to this."""

Times = dict[str, list[float]]
Text = Callable[[int, random.Random], list[int]]


def words(size: int, rng: random.Random) -> list[int]:
    """Few ids often, most ids rarely."""
    return [max(1, int(VOCABULARY ** rng.random())) for _ in range(size)]


def prose(size: int, rng: random.Random) -> list[int]:
    """Words, and every 100 of them a passage of 20 that stands elsewhere too."""
    text = words(size, rng)
    for _ in range(size // 100):
        at, to = rng.randrange(size), rng.randrange(size)
        passage = text[at : at + 20]
        text[to : to + len(passage)] = passage
    return text[:size]


def code(size: int, rng: random.Random) -> list[int]:
    """As an agent writes: long passages again, from near and from far, half of them edited."""
    text = words(64, rng)
    while len(text) < size:
        if rng.random() < 0.3:
            text += words(rng.randrange(10, 60), rng)
            continue
        start = len(text) - max(16, int(len(text) ** rng.random()))
        passage = text[start : start + rng.randrange(10, 300)]
        if rng.random() < 0.5:
            passage[rng.randrange(len(passage))] = words(1, rng)[0]
        text += passage
    return text[:size]


KINDS: dict[str, Text] = {
    "one token repeated": lambda size, _: [7] * size,
    "period 7": lambda size, _: [i % 7 for i in range(size)],
    "random, 3 ids": lambda size, rng: rng.choices(range(3), k=size),
    "random, 50k ids": lambda size, rng: rng.choices(range(VOCABULARY), k=size),
    "like prose": prose,
    "like code": code,
}
MIXED = "all kinds"


@dataclass(frozen=True)
class Case:
    """What every arm is played. ``commits[step][request]`` continues ``prompts[request]``; ``past``
    are answers that were given before, to texts of the same kinds."""

    kind: str
    context: int
    prompts: list[list[int]]
    commits: list[list[list[int]]]
    past: list[list[int]]

    @property
    def batch(self) -> int:
        return len(self.prompts)

    @property
    def prompt_tokens(self) -> int:
        return self.context * self.batch

    @property
    def room(self) -> int:
        """Tokens that a text may come to."""
        return self.context + MOST * len(self.commits)


def make_case(kind: str, context: int, batch: int, steps: int) -> Case:
    """Of one kind, or of all kinds in turn. The same arguments give the same case."""
    kinds = list(KINDS) if kind == MIXED else [kind]
    before, size = ANSWERS * ANSWER, context + MOST * steps
    prompts: list[list[int]] = []
    tails, past_of = [], []
    for row in range(batch):
        name = kinds[row % len(kinds)]
        text = KINDS[name](before + size, random.Random(f"{name} {context} {row}"))
        past_of.append(text[:before])
        prompts.append(text[before : before + context])
        tails.append(text[before + context :])
    past = []
    for number in range(ANSWERS):
        of = past_of[number % min(batch, len(kinds))]
        past.append(of[number * ANSWER : (number + 1) * ANSWER])
    rng = random.Random(context)
    ends, commits = [0] * batch, []
    for _ in range(steps):
        starts = list(ends)
        ends = [end + rng.randint(1, MOST) for end in ends]
        commits.append([t[a:b] for t, a, b in zip(tails, starts, ends, strict=True)])
    return Case(kind, context, prompts, commits, past)


class Subject:
    """One drafting method, as its engine uses it. Requests are 0 to batch - 1."""

    def learn(self, answers: list[list[int]]) -> float | None:
        """Take in past answers; the seconds of what that costs beside observing them, None where it
        is a part of observing."""
        raise NotImplementedError

    def start(self, request: int, prompt: list[int]) -> None:
        raise NotImplementedError

    def observe(self, request: int, tokens: list[int]) -> None:
        raise NotImplementedError

    def prepare(self, lengths: list[int]) -> None:
        """What the engine does before it asks; not timed."""

    def propose(self) -> list[int]:
        """At most K tokens for every request; returns how many for each."""
        raise NotImplementedError

    def sizes(self) -> tuple[int | None, int | None]:
        """Bytes of the requests' texts, and of past answers; None where nobody counts them."""
        return None, None


def build(subject: Subject, case: Case, warm: bool) -> dict[str, Any]:
    """Take in past answers and the prompts: microseconds and bytes per token."""
    past_tokens = sum(len(answer) for answer in case.past)
    learnt = subject.learn(case.past) if warm else None
    started = time.perf_counter()
    for request, prompt in enumerate(case.prompts):
        subject.start(request, prompt)
    seconds = time.perf_counter() - started
    texts, past = subject.sizes()
    return {
        "prompt": 1e6 * seconds / case.prompt_tokens,
        "learn": None if learnt is None else 1e6 * learnt / past_tokens,
        "bytes": None if texts is None else texts / case.prompt_tokens,
        "past_bytes": past / past_tokens if warm and past is not None else None,
    }


def play(subject: Subject, case: Case, first: int, last: int) -> Times:
    """Steps first to last: observe a commit per request, propose for all.

    Microseconds of each step: ``propose`` per request, ``observe`` per token, ``token`` both
    together per committed token; ``drafted``: tokens proposed per request.
    """
    times: Times = {"propose": [], "observe": [], "token": [], "drafted": []}
    done = case.commits[:first]
    lengths = [
        case.context + sum(len(step[request]) for step in done) for request in range(case.batch)
    ]
    clock = time.perf_counter_ns
    for commits in case.commits[first:last]:
        started = clock()
        for request, tokens in enumerate(commits):
            subject.observe(request, tokens)
        observed = (clock() - started) / 1e3
        lengths = [n + len(tokens) for n, tokens in zip(lengths, commits, strict=True)]
        subject.prepare(lengths)
        started = clock()
        drafted = subject.propose()
        proposed = (clock() - started) / 1e3
        tokens = sum(map(len, commits))
        times["observe"].append(observed / tokens)
        times["propose"].append(proposed / case.batch)
        times["token"].append((observed + proposed) / tokens)
        times["drafted"].append(sum(drafted) / case.batch)
    return times
