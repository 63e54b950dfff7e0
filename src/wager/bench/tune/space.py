"""What `wager tune` may choose among: methods, their options and draft lengths. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wager.arms import MOST_REQUESTS, SCHEDULE, Arm, K, Speculation, label, parse_arms
from wager.errors import ConfigError
from wager.external.dialects import dialect

MAX_K: Final = 16

_LENGTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_DEFAULTS: Final = {
    "own": "ngram,suffix",
    "vllm": "ngram,suffix",
    "llamacpp": "ngram-simple,ngram-mod",
    "sglang": "ngram",
}
_BOUNDS: Final = ("prompt_lookup_min", "prompt_lookup_max")
# The first one is what is started for a look; the others cost nothing where answers are replayed.
_LOOKUPS: Final = ((2, 5), (1, 3), (2, 3), (3, 5), (4, 8), (5, 10))
_SIZE: Final = "spec_ngram_simple_size_n"
_SIZES: Final = (4, 2, 3, 6, 8, 12)
_NO_LENGTH: Final = frozenset({"ngram-cache"})
# vLLM 0.32: suffix, medusa and ngram_gpu assert the length of their config, and custom_class is
# never told another one.
_SCHEDULED: Final = frozenset({"ngram", "draft_model", "eagle", "eagle3", "mtp", "dflash"})


@dataclass(frozen=True, slots=True)
class Family:
    """A method with all of its options but the draft length; ``lengths`` is empty if it has none.

    ``lead`` marks the one of a method that is started for a look.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    lead: bool = True

    @property
    def longest(self) -> int | None:
        return max(self.lengths, default=None)

    def arm(self, k: int | None) -> Arm:
        """With that draft length, which a method without any ignores."""
        own = {K: k} if k is not None and self.lengths else {}
        speculation = Speculation(self.method, {**own, **self.options})
        return Arm(label(speculation), speculation)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One arm that might be chosen."""

    family: Family
    k: int | None

    @property
    def arm(self) -> Arm:
        return self.family.arm(self.k)


def families(engine: str, methods: str | None, max_k: int = MAX_K) -> list[Family]:
    """The families of each method asked for, the lead of each first. Raises ConfigError.

    ``methods`` are arms; what an arm sets (its k, its lookup bounds) is not varied.
    """
    if max_k < 1:
        raise ConfigError(f"max-k: must be at least 1, got {max_k}")
    if methods is None and engine not in _DEFAULTS:
        raise ConfigError(f"methods: name some for {engine}, e.g. --methods draft_model:model=D")
    text = _DEFAULTS[engine] if methods is None else methods
    found: list[Family] = []
    for arm in parse_arms(text):
        if arm.speculation is None:
            raise ConfigError("methods: plain decoding is always measured; leave it out")
        found += _family(engine, arm.speculation, max_k)
    for family in found:
        # What an engine cannot be told is said before anything is measured.
        dialect(engine).write(family.arm(family.longest).speculation)
    return found


def _family(engine: str, asked: Speculation, max_k: int) -> list[Family]:
    options = {key.replace("-", "_"): value for key, value in asked.options.items()}
    k = options.pop(K, None)
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise ConfigError(f"methods: {asked.method}: k must be a whole number, got {k!r}")
    method = asked.method
    if method in _NO_LENGTH:
        lengths: tuple[int, ...] = ()
    elif k is not None:
        lengths = (k,)
    else:
        lengths = tuple(sorted({*(n for n in _LENGTHS if n < max_k), max_k}))
    first = Family(method, options, lengths)
    varied = [{**options, **more} for more in _variants(engine, method, options)]
    if not varied:
        return [first]
    return [replace(first, options=more, lead=not at) for at, more in enumerate(varied)]


def _variants(engine: str, method: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    if engine == "llamacpp":
        if method == "ngram-simple" and _SIZE not in options:
            return [{_SIZE: size} for size in _SIZES]
        if method == "ngram" and not set(_BOUNDS) & set(options):
            # It becomes ngram-simple, which looks up one length.
            return [dict.fromkeys(_BOUNDS, size) for size in _SIZES]
    elif "ngram" in Speculation(method).methods and not set(_BOUNDS) & set(options):
        return [dict(zip(_BOUNDS, bounds, strict=True)) for bounds in _LOOKUPS]
    return []


def can_be_scheduled(engine: str, family: Family) -> bool:
    """Whether an engine can be told a draft length for each number of requests in a step."""
    return engine == "vllm" and family.method in _SCHEDULED and bool(family.lengths)


def ranges(lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """vLLM's (lowest number of requests, highest, draft tokens) from (clients, draft tokens).

    Between two loads that were measured the border is at their geometric mean.
    """
    ordered = sorted(lengths)
    out: list[list[int]] = []
    low = 1
    for (clients, k), after in zip(ordered, [*ordered[1:], None], strict=True):
        high = MOST_REQUESTS
        if after is not None:
            high = max(clients, min(int((clients * after[0]) ** 0.5), after[0] - 1))
        if out and out[-1][2] == k:
            out[-1][1] = high
        else:
            out.append([low, high, k])
        low = high + 1
    return out


def scheduled(family: Family, lengths: Sequence[tuple[int, int]]) -> Arm:
    """The arm whose draft length follows from the number of requests; the longest one is its k."""
    found = ranges(lengths)
    options = {K: max(k for _, _, k in found), **family.options, SCHEDULE: found}
    speculation = Speculation(family.method, options)
    return Arm(label(speculation), speculation)
