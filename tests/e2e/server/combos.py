"""Combinations of everything a request can ask for, drawn from a seed.

Each is one body without `speculation` and `stream`; the twin run asks it of a plain server, and
with a draft length and streamed or not of one that drafts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.recipes import prompts
from tests.tiny import vocabulary

COUNT = 400
LENGTHS = (0, 4, 16)
VOCABULARY = 288
WORDS = [
    "river",
    "stone",
    "lamp",
    "forest",
    "copper",
    "window",
    "the",
    "of",
    "강",
    "물",
    "été",
    "🙂",
]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"enum": ["open", "closed", "none"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "flag": {"type": "boolean"},
    },
    "required": ["status", "count", "flag"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} it",
            "parameters": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["n"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("count", "paint")
]


@dataclass(frozen=True)
class Combination:
    """``number`` is the request's seed too, by which its token ids are found again."""

    number: int
    body: dict[str, Any]
    length: int
    stream: bool
    names: tuple[str, ...] = field(default=())

    @property
    def twin(self) -> dict[str, Any]:
        """The body for the server that drafts."""
        own: dict[str, Any] = {"enabled": False}
        if self.length:
            own = {"num_speculative_tokens": self.length}
        body = {**self.body, "speculation": own}
        if self.stream:
            body.update(stream=True, stream_options={"include_usage": True})
        return body


Maker = Callable[[random.Random], dict[str, Any]]


def one(name: str, *values: Any) -> Maker:
    """A field with one of these values."""
    return lambda rng: {name: rng.choice(values)}


def some_ids(rng: random.Random, count: int) -> list[int]:
    return sorted(rng.sample(range(3, VOCABULARY), count))


# Fields of both routes: (name, share of the requests that have it, how it is made).
COMMON: list[tuple[str, float, Maker]] = [
    ("temperature", 0.8, one("temperature", 0, 0, 0.3, 0.7, 1, 1.5)),
    ("top_k", 0.25, one("top_k", -1, 0, 1, 5, 40)),
    ("top_p", 0.25, one("top_p", 0.5, 0.9, 1)),
    ("min_p", 0.2, one("min_p", 0, 0.05, 0.5)),
    ("presence_penalty", 0.2, one("presence_penalty", -1.5, 0.5, 2)),
    ("frequency_penalty", 0.2, one("frequency_penalty", -1, 0.7, 2)),
    ("repetition_penalty", 0.2, one("repetition_penalty", 0.8, 1.1, 1.5)),
    ("min_tokens", 0.2, one("min_tokens", 1, 3, 6)),
    ("ignore_eos", 0.5, one("ignore_eos", True, True, False)),
    ("stop", 0.25, one("stop", "e", ["a", " t"], ["th", "\n", "é"], ["zz"])),
    ("include_stop_str_in_output", 0.2, one("include_stop_str_in_output", True, False)),
    ("stop_token_ids", 0.15, lambda rng: {"stop_token_ids": some_ids(rng, 4)}),
    ("bad_words", 0.15, one("bad_words", ["e"], ["the", " a", "o"], ["r e"])),
    ("allowed_token_ids", 0.1, lambda rng: {"allowed_token_ids": some_ids(rng, 60)}),
    ("logit_bias", 0.2, lambda rng: {"logit_bias": _bias(rng)}),
    ("n", 0.15, one("n", 1, 2, 3)),
    ("skip_special_tokens", 0.1, one("skip_special_tokens", True, False)),
    ("cache_salt", 0.1, one("cache_salt", "a", "b")),
    ("prompt_logprobs", 0.1, one("prompt_logprobs", 0, 2)),
]
FORKS = 'start: "x" ("y" | "z")* "."'
STRUCTURED: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": "(ab|cd){2,6}[0-9]{1,3}"}},
    {"structured_outputs": {"choice": ["red", "green", "blue whale", "강물"]}},
    {"structured_outputs": {"grammar": FORKS}},
    {"structured_outputs": {"json": SCHEMA}},
]
FORMATS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema",
                         "json_schema": {"name": "ticket", "schema": SCHEMA, "strict": True}}},
]  # fmt: skip
# A grammar leaves few tokens; what may forbid all of them is not asked for beside it.
AGAINST_GRAMMARS = ("allowed_token_ids", "bad_words", "min_tokens")


def _bias(rng: random.Random) -> dict[str, float]:
    return {str(token): rng.choice([-100, -5, 2.5, 8]) for token in some_ids(rng, 5)}


def combinations(count: int = COUNT, seed: int = 2026) -> list[Combination]:
    """The sample. The same seed gives the same one."""
    rng = random.Random(seed)
    ids = prompts(count, VOCABULARY, seed)
    return [_combination(rng, number, ids[number]) for number in range(count)]


def _combination(rng: random.Random, number: int, ids: list[int]) -> Combination:
    body: dict[str, Any] = {"seed": number, "max_tokens": rng.randint(6, 28)}
    for _, share, make in COMMON:
        if rng.random() < share:
            body.update(make(rng))
    length, stream = rng.choice(LENGTHS), rng.random() < 0.5
    if rng.random() < 0.5:
        _chat(rng, body)
    else:
        _text(rng, body, ids)
    names = tuple(sorted(body))
    return Combination(number, body, length, stream, names)


def _text(rng: random.Random, body: dict[str, Any], ids: list[int]) -> None:
    kind = rng.randrange(4)
    text = _phrase(rng)
    body["prompt"] = [ids, text, [text, _phrase(rng)], [ids, ids[: len(ids) // 2 + 1]]][kind]
    if rng.random() < 0.3:
        body["logprobs"] = rng.choice([0, 1, 5])
    if rng.random() < 0.2:
        body["echo"] = True
    elif rng.random() < 0.2:
        _structure(rng, body, STRUCTURED)


def _chat(rng: random.Random, body: dict[str, Any]) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": _phrase(rng)}]
    if rng.random() < 0.3:
        messages.insert(0, {"role": "system", "content": "be brief"})
    body["messages"] = messages
    if rng.random() < 0.3:
        body["max_completion_tokens"] = body.pop("max_tokens")
    if rng.random() < 0.35:
        body["logprobs"] = True
        if rng.random() < 0.7:
            body["top_logprobs"] = rng.choice([0, 2, 5])
    kind = rng.randrange(6)
    if kind == 0:
        messages.append({"role": "assistant", "content": "river river"})
        body.update(continue_final_message=True, add_generation_prompt=False)
    elif kind == 1:
        body["chat_template_kwargs"] = {"enable_thinking": rng.choice([True, False])}
    elif kind == 2:
        _structure(rng, body, FORMATS + STRUCTURED)
    elif kind == 3:
        _tools(rng, body)


def _structure(rng: random.Random, body: dict[str, Any], kinds: list[dict[str, Any]]) -> None:
    for name in AGAINST_GRAMMARS:
        body.pop(name, None)
    body.update(rng.choice(kinds))


def _tools(rng: random.Random, body: dict[str, Any]) -> None:
    named = {"type": "function", "function": {"name": "paint"}}
    choice = rng.choice(["auto", "none", "required", named])
    body.update(tools=TOOLS, tool_choice=choice)
    if choice not in ("auto", "none"):
        for name in AGAINST_GRAMMARS:
            body.pop(name, None)


def _phrase(rng: random.Random) -> str:
    """Repeats itself, so that there is something to draft."""
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 4))]
    return " ".join(words * rng.randint(1, 3))


def beside_grammars() -> list[Combination]:
    """Forms beside masks that leave them a way on, which the sample does not have."""
    bodies: list[dict[str, Any]] = [
        {"prompt": "abc bcd abc bcd", "structured_outputs": {"regex": "[a-z]{4,12}[0-9]"},
         "bad_words": ["e", "a"], "min_tokens": 6},
        {"prompt": "xyzzy. xyzzy.", "structured_outputs": {"grammar": FORKS},
         "allowed_token_ids": letters("xyz."), "min_tokens": 3},
        {"prompt": "cz ab cz ab", "structured_outputs": {"choice": ["ab", "cz", "abab"]},
         "bad_words": ["a"]},
        {"prompt": '{"status": "open"} {"status": "open"}', "structured_outputs": {"json": SCHEMA},
         "bad_words": ["7"], "logit_bias": {str(token): 4 for token in letters("on")},
         "presence_penalty": 0.5},
        {"messages": [{"role": "user", "content": "count to 3, count to 3"}], "tools": TOOLS,
         "tool_choice": "required", "parallel_tool_calls": False, "bad_words": ["9", "k"],
         "min_tokens": 12},
    ]  # fmt: skip
    made = []
    for number in range(len(bodies) * len(LENGTHS) * 4):
        body = {**bodies[number % len(bodies)], "seed": 10_000 + number, "max_tokens": 28}
        body["temperature"] = (0, 1)[number // len(bodies) % 2]
        length = LENGTHS[number // (2 * len(bodies)) % len(LENGTHS)]
        stream = number >= len(bodies) * len(LENGTHS) * 2
        made.append(Combination(body["seed"], body, length, stream))
    return made


def letters(text: str) -> list[int]:
    """The tokens that are one of these letters."""
    tokens, _ = vocabulary(VOCABULARY)
    return [tokens.index(letter) for letter in text]


def counted(sample: list[Combination]) -> Counter[str]:
    """How often each field is in a sample."""
    found: Counter[str] = Counter()
    for combination in sample:
        found.update(combination.names)
    return found
