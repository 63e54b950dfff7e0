"""Drafters and helpers that make rare cases happen every time.

They are used as third parties would use theirs: ``{"method": "tests.recipes:Oracle", ...}``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wager import LLM, SamplingParams
from wager.drafters.base import DrafterNeeds, DraftHost, DraftQuery
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, CompletionOutput, Draft

PATIENCE_S: Final = 300.0
"""Bounds a hang, and measures nothing: a test that waits this long has failed, also where all the
machine is busy with something else."""


class _Remembering:
    """Keeps what it observed per request; what all test drafters share."""

    needs = DrafterNeeds()

    def __init__(self, config: MethodConfig, vocab_size: int) -> None:
        self.config = config
        self.options: Mapping[str, Any] = config.options
        self.vocab_size = vocab_size
        self.seen: dict[int, list[int]] = {}
        self.calls = 0

    def attach(self, host: DraftHost) -> None:
        pass

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        self.seen[request] = list(prompt)

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        self.seen[request].extend(tokens)

    def release(self, request: int) -> None:
        self.seen.pop(request, None)

    def clear(self) -> None:
        pass

    def close(self) -> None:
        pass

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        self.calls += 1
        for query in queries:
            assert len(self.seen[query.request]) == query.length
            assert query.limit >= 1
        return [self.draft(q) for q in queries]

    def draft(self, query: DraftQuery) -> Draft:
        raise NotImplementedError


class Oracle(_Remembering):
    """Proposes the known continuation: ``options["texts"]`` holds whole sequences (prompt and
    answer). With ``options["wrong_every"]`` each n-th draft token is replaced by another one."""

    def draft(self, query: DraftQuery) -> Draft:
        seen = self.seen[query.request]
        for text in self.options["texts"]:
            if text[: len(seen)] == seen:
                tokens = list(text[len(seen) : len(seen) + query.limit])
                every = self.options.get("wrong_every")
                if every:
                    for j in range(len(tokens)):
                        if (len(seen) + j) % every == 0:
                            tokens[j] = (tokens[j] + 1) % self.vocab_size
                return Draft(tuple(tokens), "oracle")
        return NO_DRAFT


class Garbage(_Remembering):
    """Valid ids that are almost never right: constant, or random with lengths 0 to the limit."""

    def draft(self, query: DraftQuery) -> Draft:
        constant = self.options.get("constant")
        if constant is not None:
            return Draft((constant,) * query.limit, "garbage")
        rng = random.Random(query.request * 1000003 + query.length)
        count = rng.randint(0, query.limit)
        return Draft(tuple(rng.randrange(self.vocab_size) for _ in range(count)), "garbage")


class Outside(_Remembering):
    """Ids that do not exist."""

    def draft(self, query: DraftQuery) -> Draft:
        bad = -1 if query.length % 2 else self.vocab_size
        return Draft((1, bad), "outside")


class Raising(_Remembering):
    """Fails at the n-th proposal."""

    def draft(self, query: DraftQuery) -> Draft:
        if self.calls >= self.options["after"]:
            raise RuntimeError("a drafter that breaks")
        return Draft((1,) * query.limit, "raising")


class Greedy(_Remembering):
    """Returns more tokens than it was asked for."""

    def draft(self, query: DraftQuery) -> Draft:
        return Draft((3,) * (query.limit + 5), "greedy")


def recipe(name: str, k: int, **options: Any) -> dict[str, Any]:
    """A speculation setting that uses one of the drafters above."""
    return {
        "method": f"tests.recipes:{name}",
        "num_speculative_tokens": k,
        "controller": "off",
        "options": options,
    }


def ngram(k: int, low: int = 2, high: int = 5) -> dict[str, Any]:
    return {
        "method": "ngram",
        "num_speculative_tokens": k,
        "controller": "off",
        "prompt_lookup_min": low,
        "prompt_lookup_max": high,
    }


def answer(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> CompletionOutput:
    """The only choice of the answer to one prompt."""
    return llm.generate([prompt], params)[0].outputs[0]


def twin(
    llm: LLM, speculation: Any, prompt: Sequence[int], params: SamplingParams
) -> tuple[CompletionOutput, CompletionOutput]:
    """The same request with speculation off and on; every visible part must agree."""
    llm.set_speculation(None)
    plain = answer(llm, prompt, params)
    llm.set_speculation(speculation)
    try:
        speculative = answer(llm, prompt, params)
    finally:
        llm.set_speculation(None)
    assert_same(plain, speculative)
    return plain, speculative


def assert_same(plain: CompletionOutput, other: CompletionOutput) -> None:
    """Ids, text, reasons and log-probabilities are equal, not close."""
    assert other.token_ids == plain.token_ids
    assert other.text == plain.text
    assert other.finish_reason == plain.finish_reason
    assert other.stop_reason == plain.stop_reason
    assert other.logprobs == plain.logprobs


def prompts(
    count: int, vocab: int, seed: int, lengths: tuple[int, int] = (4, 60)
) -> list[list[int]]:
    """Seeded prompts of three kinds in turn: repeated tokens, a passage given twice, random ids."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    for index in range(count):
        length = rng.randint(*lengths)
        if index % 3 == 0:
            word = [rng.randrange(3, vocab) for _ in range(rng.randint(1, 3))]
            made.append((word * length)[:length])
        elif index % 3 == 1:
            half = [rng.randrange(3, vocab) for _ in range(max(length // 2, 1))]
            made.append((half + half)[:length])
        else:
            made.append([rng.randrange(3, vocab) for _ in range(length)])
    return made


def run_all(
    llm: LLM, requests: Iterable[tuple[list[int], SamplingParams]]
) -> list[CompletionOutput]:
    """Answer requests together, in one continuous batch."""
    pairs = list(requests)
    outputs = llm.generate([p for p, _ in pairs], [s for _, s in pairs])
    return [o.outputs[0] for o in outputs]
