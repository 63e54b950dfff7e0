"""By whose rule recorded answers are replayed: wager's engine, vLLM or llama-server.

vLLM's lookup (V1 runner) is a case of wager's n-gram drafter: it takes the earliest of the longest
matches and ends where the text ends. llama.cpp's ngram-simple has a rule of its own
(`wager.bench.replay.simple`). What differs between the engines' steps is a `Rule`. Suffix decoding
is replayed by wager's own rule alone: vLLM's library counts otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from wager.arms import Arm, Speculation, label
from wager.bench.replay.simple import NgramSimple
from wager.drafters.base import Drafter
from wager.engine.drafting import Drafters, GuardedDrafter
from wager.errors import ConfigError
from wager.external.dialects import dialect, llamacpp_table, vllm_table
from wager.registry import drafter_class, drafter_names
from wager.speculation import AUTO, AUTO_METHODS, SpeculationConfig


@dataclass(frozen=True, slots=True)
class Rule:
    """How an engine steps.

    ``cut_after_end``: nothing is drafted behind an end token. ``within_room``: a draft leaves room
    for the target's own token in what is left of the request's limit, not of the context alone.
    ``counts_end``: an accepted
    end token is counted as accepted.
    """

    name: str
    cut_after_end: bool
    within_room: bool
    counts_end: bool


RULES: Final = {
    "own": Rule("wager's engine", cut_after_end=True, within_room=True, counts_end=True),
    "vllm": Rule("vLLM (V1 runner)", cut_after_end=False, within_room=False, counts_end=True),
    "llamacpp": Rule("llama-server", cut_after_end=False, within_room=True, counts_end=False),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """An arm as it is replayed; ``config`` None is plain decoding. ``notes`` are for people.

    ``drafter`` is set where another one than that of the config is to draft.
    """

    config: SpeculationConfig | None
    notes: tuple[str, ...] = ()
    drafter: Drafter | None = None

    def describe(self) -> str | None:
        """The values in effect, for people; None for plain decoding."""
        if self.config is None:
            return None
        if isinstance(self.drafter, NgramSimple):
            return self.drafter.describe()
        return self.config.describe()

    def drafters(self, vocab_size: int) -> Drafters | None:
        """What drafts, None for plain decoding. Raises ConfigError if its needs cannot be met."""
        if self.config is None:
            return None
        if self.drafter is not None:
            return Drafters([GuardedDrafter(self.drafter, vocab_size)])
        return Drafters.create(self.config, vocab_size)


MODEL_FREE: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods of vLLM that draft without a model."""

DEFAULT_ARMS: Final = {
    "own": "ngram:k=4,min=2,max=5,ngram:k=8,min=2,max=5",
    "vllm": "ngram:k=4,min=2,max=5,ngram:k=8,min=2,max=5",
    "llamacpp": "ngram:k=8,max=3,ngram:k=16,max=5",
}


def rule(engine: str) -> Rule:
    """The rule of an engine. Raises ConfigError for one that is not replayed."""
    if engine not in RULES:
        raise ConfigError(f"engine: must be one of {', '.join(RULES)}; got {engine!r}")
    return RULES[engine]


def settings(arm: Arm, engine: str = "own") -> Settings:
    """What an arm means on an engine. Raises ConfigError where a log cannot tell what it drafts."""
    if arm.speculation is None:
        return Settings(None)
    if engine == "vllm":
        return _vllm(arm.speculation)
    if engine == "llamacpp":
        return _llamacpp(arm.speculation)
    return Settings(_own(arm.speculation))


def _own(speculation: Speculation) -> SpeculationConfig:
    for method in AUTO_METHODS if speculation.methods == (AUTO,) else speculation.methods:
        known = method in drafter_names()
        if not known and _with_a_model(method):
            raise _needs_a_model(method)
        if not known and method in llamacpp_table.METHODS:
            raise ConfigError(f"arms: {method} is llama.cpp's; replay it with --engine llamacpp")
        # Names that nobody knows are refused here, with the list of those that exist.
        needs = getattr(drafter_class(method), "needs", None)
        if needs is not None and needs.blocks:
            raise _needs_a_model(method)
    config = SpeculationConfig.measured(speculation.config())
    if config.controller == "on":
        raise ConfigError(
            f"arms: {label(speculation)}: the controller goes by the times of steps, which "
            "recorded answers do not tell; give a fixed length (num_speculative_tokens), e.g. k=8"
        )
    if config.verify != "match":
        raise ConfigError(
            f"arms: verify {config.verify}: which drafts it accepts does not follow from recorded "
            "answers; leave it out"
        )
    return config


def _vllm(speculation: Speculation) -> Settings:
    # Which match counts depends on vLLM's runner, for which it has no option.
    runner = {"match": "earliest"} | _taken(speculation, "match")
    written = dialect("vllm").write(_without(speculation, "match"))
    config = json.loads(written.arguments[-1])
    if config["method"] != "ngram":
        raise _not_replayed(config["method"], "vLLM")
    fixed = SpeculationConfig.measured({**config, **runner, "cyclic": False})
    return Settings(fixed, written.notes)


def _llamacpp(speculation: Speculation) -> Settings:
    written = dialect("llamacpp").write(speculation)
    given = dict(zip(written.arguments[::2], written.arguments[1::2], strict=True))
    stem = "--spec-ngram-simple"
    if given["--spec-type"] != "ngram-simple":
        raise _not_replayed(given["--spec-type"], "llama.cpp")
    if given[f"{stem}-min-hits"] != "1":
        raise ConfigError("arms: ngram-simple with min-hits above 1 is not replayed; leave it out")
    size, most = int(given[f"{stem}-size-n"]), int(given[f"{stem}-size-m"])
    config = SpeculationConfig.of("ngram", most, prompt_lookup_max=size)
    return Settings(config, written.notes, NgramSimple(size, most))


def _taken(speculation: Speculation, key: str) -> dict[str, object]:
    return {key: speculation.options[key]} if key in speculation.options else {}


def _without(speculation: Speculation, key: str) -> Speculation:
    return replace(speculation, options={k: v for k, v in speculation.options.items() if k != key})


def _with_a_model(method: str) -> bool:
    method = llamacpp_table.TO_CANONICAL.get(method, method)
    known = {*vllm_table.METHODS, *vllm_table.MTP_ALIASES}
    return method in known - MODEL_FREE


def _needs_a_model(method: str) -> ConfigError:
    return ConfigError(
        f"arms: {method} drafts with a model, so what it would propose does not follow from "
        "recorded answers; measure it with wager bench"
    )


def _not_replayed(method: str, engine: str) -> ConfigError:
    if _with_a_model(method):
        return _needs_a_model(method)
    return ConfigError(
        f"arms: the rule of {engine}'s {method} is not replayed; replay ngram, or measure it with "
        "wager bench"
    )


def noted(arms: Sequence[Settings]) -> list[str]:
    """The notes of all arms, each once."""
    return list(dict.fromkeys(note for found in arms for note in found.notes))
