"""The options of a `Speculation` while an engine's arguments are written from them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError

TITLES: Final = {
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
    "sglang": "SGLang",
    "ollama": "Ollama",
    "own": "wager",
    "transformers": "transformers",
    "mlx": "MLX-LM",
    "tensorrt": "TensorRT-LLM",
}
"""The engines' names for people."""

# How many tokens an n-gram lookup of another engine takes, where it was left at its default.
NGRAM_SIZE: Final = 12
NGRAM_DRAFT: Final = 48
MOD_MATCH: Final = 24
MOD_DRAFT: Final = 64
CACHE_DRAFT: Final = 8
CACHE_MAX: Final = 4

_HUB_ID: Final = re.compile(r"[\w.\-]+/[\w.\-]+(:[\w.\-]+)?")


class Options:
    """Hands out each option once and remembers what nobody asked for: nothing is lost silently."""

    def __init__(self, speculation: Speculation, engine: str) -> None:
        self.method = speculation.method
        self.engine = engine
        self.notes: list[str] = []
        self._left = {key.replace("-", "_"): v for key, v in speculation.options.items()}

    def alone(self) -> None:
        """Raises ConfigError for a list of methods: llama.cpp's (a,b) or wager's own (a+b)."""
        if "," in self.method or "+" in self.method:
            raise ConfigError(
                f"{self.method}: {TITLES[self.engine]} runs one method at a time; lists are for "
                "llama.cpp (a,b) and for wager's own engine (a+b): choose one"
            )

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it is; ``default`` where it is absent or null."""
        value = self._left.pop(key, None)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether the option was given and not handed out yet."""
        return self._left.get(key) is not None

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least ``least``. Raises ConfigError where it is none or missing."""
        value = self.take(key, default)
        if value is None:
            raise ConfigError(f"{self.method}: {key} is missing, e.g. {self.method}:{_short(key)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{self.method}: {key} must be a whole number of at least {least}, got {value!r}"
            )
        return value

    def model(self) -> str:
        """The drafter's name or path. Raises ConfigError where it is missing."""
        value = self.take("model")
        if not isinstance(value, str) or not value:
            raise ConfigError(
                f"{self.method}: model is missing: the drafter's path or name, e.g. "
                f"{self.method}:model=DRAFTER,k=4"
            )
        return value

    def lookup(self) -> tuple[int, int]:
        """The bounds of an n-gram lookup in effect: one given alone counts for both, 5 for none."""
        low, high = self.take("prompt_lookup_min"), self.take("prompt_lookup_max")
        if low is None and high is None:
            low = high = 5
        bounds = (high if low is None else low, low if high is None else high)
        for name, value in zip(("prompt_lookup_min", "prompt_lookup_max"), bounds, strict=True):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{self.method}: {name} must be a whole number of at least 1, got {value!r}"
                )
        if bounds[0] > bounds[1]:
            raise ConfigError(
                f"{self.method}: prompt_lookup_min {bounds[0]} is larger than prompt_lookup_max "
                f"{bounds[1]}"
            )
        return bounds

    def rest(self) -> dict[str, Any]:
        """What is left, taken away; for an engine that takes a set of keys as it is."""
        left, self._left = self._left, {}
        return left

    def finish(self, owner: Callable[[str], str | None]) -> tuple[str, ...]:
        """The notes, with one for each option that has no counterpart in this engine.

        ``owner`` names the engine that knows a key. Raises ConfigError for a key that none knows.
        """
        for key, value in self._left.items():
            theirs = owner(key)
            if theirs is None:
                raise ConfigError(
                    f"{self.method}: {key!r} is not an option of {TITLES[self.engine]} or of any "
                    "other engine"
                )
            self.notes.append(
                f"{key} {value!r} is left out: {TITLES[self.engine]} has no counterpart of this "
                f"option of {TITLES[theirs]}"
                if theirs != self.engine
                else f"{key} {value!r} is left out: it means nothing for {self.method}"
            )
        return tuple(self.notes)


def as_ngram(options: Options) -> tuple[int, int, int]:
    """(k, lookup min, lookup max) of any n-gram method, for an engine that has vLLM's `ngram`.

    The methods of llama.cpp differ in how they find a match; what can be carried over is how long
    a match has to be and how much is drafted. A note says what that leaves out.
    """
    method = options.method
    if method in ("ngram", "ngram_gpu"):
        k = options.whole("num_speculative_tokens")
        return k, *options.lookup()
    if method == "ngram-cache":
        k = options.whole("num_speculative_tokens", CACHE_DRAFT)
        options.notes.append(
            f"ngram-cache is llama.cpp's: ngram with lookup 2 to {CACHE_MAX} is the nearest; it "
            "knows no files, so only the request's own text is searched"
        )
        return k, 2, CACHE_MAX
    if method == "ngram-mod":
        size = options.whole("spec_ngram_mod_n_match", MOD_MATCH)
        k = options.whole("spec_ngram_mod_n_max", options.take("num_speculative_tokens", MOD_DRAFT))
        tail = "and remembers only the request itself, not the others"
    else:
        name = method.replace("-", "_")
        size = options.whole(f"spec_{name}_size_n", NGRAM_SIZE)
        k = options.whole(
            f"spec_{name}_size_m", options.take("num_speculative_tokens", NGRAM_DRAFT)
        )
        tail = "and asks for no number of hits"
    options.notes.append(
        f"{method} is llama.cpp's: ngram with both lookup bounds at {size} is the nearest; it "
        f"looks for a match of exactly {size} tokens {tail}"
    )
    return k, size, size


def strict_json(text: str) -> Any:
    """JSON without the infinities and NaN that Python's reader lets through. Raises ValueError."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value


def is_gguf(name: str) -> bool:
    """Whether a model's name says that it is a GGUF file or a repository of them."""
    return name.lower().endswith(".gguf") or (is_hub_id(name) and "gguf" in name.lower())


def is_hub_id(name: str) -> bool:
    """``org/name`` (and ``:quantisation``), which a path to a file is not."""
    file = name.lower().endswith((".gguf", ".bin", ".safetensors"))
    return bool(_HUB_ID.fullmatch(name)) and not file


def _short(key: str) -> str:
    return {"num_speculative_tokens": "k=4"}.get(key, f"{key}=4")
