"""What a user asks an engine to do: plain decoding, or a method of drafting with its options.

An arm is read before any engine has seen it. Option keys are vLLM's (``num_speculative_tokens``,
``prompt_lookup_max``, ...); a method or key that only one engine knows keeps that engine's name
(``ngram-mod``, ``spec-ngram-mod-n-match``). The engine's dialect says what it makes of it. Several
methods that are asked in turn, which wager's own engine has, are ``suffix+ngram``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wager.errors import ConfigError

PLAIN: Final = "plain"
K: Final = "num_speculative_tokens"
SCHEDULE: Final = "num_speculative_tokens_per_batch_size"
"""vLLM's list of (lowest number of requests in a step, highest, draft tokens)."""
MOST_REQUESTS: Final = 1024
"""Where the last range of a schedule ends."""

_SHORT: Final = {
    "k": K,
    "min": "prompt_lookup_min",
    "max": "prompt_lookup_max",
}
_JOINT: Final = "+"
_STEPS: Final = re.compile(r"(\d+(?:/\d+)*)@(\d+(?:/\d+)*)")
_METHOD: Final = re.compile(r"[A-Za-z][\w.\-]*(\+[A-Za-z][\w.\-]*)*")


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to draft, in vLLM's keys; nothing is checked yet. ``method`` may be a list: ``a+b``."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in the order in which they are asked; most often one."""
        return tuple(self.method.split(_JOINT))

    def config(self) -> dict[str, Any]:
        """As a speculative config: the options with the method, or the list of them, among them."""
        methods = self.methods
        return {"method": methods[0] if len(methods) == 1 else list(methods), **self.options}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of answering the prompts; ``speculation`` None is plain decoding."""

    name: str
    speculation: Speculation | None = None


def parse_arms(text: str) -> list[Arm]:
    """``plain,suffix+ngram:k=4,min=2,max=5,draft_model:model=D`` to arms, in order.

    ``k``, ``min`` and ``max`` are short for num_speculative_tokens and the two lookup bounds;
    ``k=8/4/0@3/9`` are 8 tokens for 1 or 2 requests in a step, 4 from 3 on, and 0 from 9. A
    part whose ``=`` comes before any ``:`` goes on with the options of the arm before it. Raises
    ConfigError.
    """
    arms: list[Arm] = []
    for part in _parts(text):
        arm = _arm(part)
        if any(other.name == arm.name for other in arms):
            raise ConfigError(f"arms: {arm.name!r} is given twice")
        arms.append(arm)
    if not arms:
        raise ConfigError("arms: give at least one, e.g. plain,ngram:k=4")
    return arms


def arm_of(config: Mapping[str, Any], name: str | None = None) -> Arm:
    """The arm of a speculative config in vLLM's form. Raises ConfigError without a method."""
    speculation = speculation_of(config)
    return Arm(name or label(speculation), speculation)


def speculation_of(config: Mapping[str, Any]) -> Speculation:
    """What a speculative config in vLLM's form asks for. Raises ConfigError without a method."""
    options = {str(key).replace("-", "_"): value for key, value in config.items()}
    method = options.pop("method", None)
    names = list(method) if isinstance(method, list | tuple) else [method]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError('speculative-config: "method" is missing, e.g. {"method": "ngram"}')
    return Speculation(_JOINT.join(names), options)


def label(speculation: Speculation) -> str:
    """The short spelling that `parse_arms` reads, e.g. ``ngram:k=4,min=2``."""
    long_to_short = {long: short for short, long in _SHORT.items()}
    given = dict(speculation.options)
    steps = _steps(given)
    if steps:
        del given[SCHEDULE]
        given[K] = steps
    options = ",".join(
        f"{long_to_short.get(key, key)}={_spell(value)}" for key, value in given.items()
    )
    return f"{speculation.method}:{options}" if options else speculation.method


def _parts(text: str) -> list[str]:
    """Split at the commas that start another arm."""
    parts: list[str] = []
    for piece in (p.strip() for p in text.split(",")):
        if not piece:
            continue
        equals, colon = piece.find("="), piece.find(":")
        goes_on = equals >= 0 and (colon < 0 or equals < colon)
        if not goes_on:
            parts.append(piece)
        elif parts:
            parts[-1] += f"{',' if ':' in parts[-1] else ':'}{piece}"
        else:
            raise ConfigError(f"arms: {piece!r} is an option without a method before it")
    return parts


def _arm(text: str) -> Arm:
    method, _, rest = text.partition(":")
    method = method.strip()
    if not _METHOD.fullmatch(method):
        raise ConfigError(f"arms: {method!r} is not the name of a method; e.g. ngram:k=4")
    options: dict[str, Any] = {}
    for piece in _options(rest):
        options |= _option(piece, method)
    speculation = Speculation(method, options)
    if PLAIN in speculation.methods:
        if method != PLAIN:
            raise ConfigError(f"arms: {method!r}: plain decoding is no method; leave it out")
        if options:
            raise ConfigError("arms: plain takes no options")
        return Arm(PLAIN)
    return Arm(label(speculation), speculation)


def _options(text: str) -> Sequence[str]:
    return [piece for piece in text.split(",") if piece.strip()]


def _option(text: str, method: str) -> dict[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key or not value:
        raise ConfigError(f"arms: {method}: {text!r} is not an option; options look like k=4")
    key = _SHORT.get(key, key)
    found = _STEPS.fullmatch(value) if key == K else None
    return {key: _value(value)} if found is None else _schedule(text, *found.groups())


def _schedule(text: str, lengths: str, borders: str) -> dict[str, Any]:
    """The options behind ``k=8/4/0@3/9``."""
    ks, starts = [int(k) for k in lengths.split("/")], [1, *map(int, borders.split("/"))]
    rising = all(a < b for a, b in zip(starts, [*starts[1:], MOST_REQUESTS + 1], strict=True))
    if len(ks) != len(starts) or not rising or max(ks) < 1:
        raise ConfigError(
            f"arms: {text!r} is no schedule; k=8/4/0@3/9 are 8 tokens for 1 or 2 requests in a "
            "step, 4 from 3 on and 0 from 9"
        )
    ends = [start - 1 for start in starts[1:]] + [MOST_REQUESTS]
    ranges = [[start, end, k] for start, end, k in zip(starts, ends, ks, strict=True)]
    return {K: max(ks), SCHEDULE: ranges}


def _steps(options: Mapping[str, Any]) -> str:
    """A schedule as `_schedule` reads it; "" where there is none or it is not of that form."""
    ranges = options.get(SCHEDULE)
    try:
        lows, ks = zip(*((low, k) for low, _, k in ranges or ()), strict=True)
        spelled = f"{'/'.join(map(str, ks))}@{'/'.join(map(str, lows[1:]))}"
        found = _STEPS.fullmatch(spelled)
        same = found is not None and _schedule(spelled, *found.groups())
    except (ConfigError, TypeError, ValueError):
        return ""
    return spelled if same == {K: options.get(K), SCHEDULE: ranges} else ""


def _value(text: str) -> Any:
    """A number, true or false where it reads as one, else the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _spell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
