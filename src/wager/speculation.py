"""What is asked of speculation: which methods, how many tokens, which rule of acceptance.

The keys are vLLM's, and ours. A method owns its keys: its drafter's class has a frozen dataclass
``Options`` whose fields they are, so a new method brings its options with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from wager.checks import choice, flag, real, whole
from wager.errors import ConfigError
from wager.registry import drafter_class

MAX_DRAFT: Final = 1024
DEFAULT_DRAFT: Final = 16
"""Bound of the draft length where none is given; the controller finds the length."""
LOSS_BUDGET: Final = 0.005

Objective: TypeAlias = Literal["throughput", "latency"]

AUTO: Final = "auto"
AUTO_METHODS: Final = ("suffix", "ngram")
"""What the method ``auto`` stands for: those that need no model."""

_K: Final = "num_speculative_tokens"
_AUTO_KEYS: Final = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
_OWN_KEYS: Final = (
    "method",
    _K,
    "controller",
    "loss_budget",
    "objective",
    "verify",
    "block_verification",
)
_EXAMPLE: Final = '{"method": "ngram", "num_speculative_tokens": 8}'


@dataclass(frozen=True, slots=True)
class MethodConfig:
    """One method, as its drafter gets it.

    ``options`` is the record that the method declares, or, for a method that declares none, the
    mapping that was given as ``options``.
    """

    method: str
    num_speculative_tokens: int
    options: Any

    def describe(self) -> str:
        """The method's own values in effect, for people; "" where it tells none."""
        describe = getattr(self.options, "describe", None)
        return "" if describe is None else str(describe())


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """A speculative config that was read and checked; see docs/speculation.md.

    With ``controller`` on each request and step takes the method and the draft length that are
    expected to pay most, or none; ``loss_budget`` is the share of time that it may lose, and
    ``objective`` whose time counts. Off, ``methods`` are asked in this order: a request takes the
    first draft that has tokens, all of it.
    """

    methods: tuple[MethodConfig, ...]
    num_speculative_tokens: int
    controller: Literal["on", "off"] = "on"
    loss_budget: float = LOSS_BUDGET
    objective: Objective = "throughput"
    verify: Literal["match", "rejection"] = "match"
    block_verification: bool = False

    @classmethod
    def parse(
        cls, value: SpeculationConfig | Mapping[str, Any] | str | None
    ) -> SpeculationConfig | None:
        """From a mapping, from JSON text, or None for plain decoding. Raises ConfigError."""
        if value is None or isinstance(value, SpeculationConfig):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ConfigError(f"speculative-config: not valid JSON: {error}") from error
        if not isinstance(value, Mapping):
            raise ConfigError(f"speculative-config: must be a JSON object, e.g. {_EXAMPLE}")
        return cls._from_mapping(_spelled(value))

    @classmethod
    def of(cls, method: str, k: int, **options: Any) -> SpeculationConfig:
        """One method that always drafts k tokens, with its options as keywords. Raises
        ConfigError."""
        return cls._from_mapping({"method": method, _K: k, "controller": "off", **options})

    @classmethod
    def measured(cls, value: Mapping[str, Any]) -> SpeculationConfig:
        """What an arm of a measurement means: one that names a length drafts just that, as on every
        other engine, unless it says otherwise. Raises ConfigError."""
        given = _spelled(value)
        return cls._from_mapping({"controller": "off", **given} if _K in given else given)

    @classmethod
    def _from_mapping(cls, raw: dict[str, Any]) -> SpeculationConfig:
        if raw.get("method") == AUTO:
            # Short matches too: the controller weighs them by what they brought so far.
            raw = {**_AUTO_KEYS, **raw, "method": list(AUTO_METHODS)}
        names = _names(raw.pop("method", None))
        classes = {name: drafter_class(name) for name in names}
        control = _control(raw)
        k = raw.pop(_K, None)
        if k is None and control["controller"] == "off":
            raise ConfigError(
                f'speculative-config: "{_K}" is missing, e.g. 8; with "controller": "on" it is '
                f"found, up to {DEFAULT_DRAFT}"
            )
        k = DEFAULT_DRAFT if k is None else k
        hint = "to decode without speculation leave the speculative config out"
        whole(_K, k, 1, MAX_DRAFT, hint)
        verify = raw.pop("verify", "match")
        choice("verify", verify, ("match", "rejection"))
        block = raw.pop("block_verification", False)
        flag("block_verification", block)
        if block and verify != "rejection":
            raise ConfigError(
                'block_verification: is a form of "verify": "rejection"; set that too, or leave it '
                "out"
            )
        methods = _methods(classes, k, raw)
        return cls(methods, k, verify=verify, block_verification=block, **control)

    def values(self) -> dict[str, Any]:
        """Every key with the value in effect; `parse` makes the same config of it."""
        names = [one.method for one in self.methods]
        found: dict[str, Any] = {
            "method": names[0] if len(names) == 1 else names,
            _K: self.num_speculative_tokens,
        }
        for one in self.methods:
            if is_dataclass(one.options):
                found |= {key: getattr(one.options, key) for key in _keys(one.options)}
            elif one.options:
                found["options"] = dict(one.options)
        found["controller"] = self.controller
        if self.controller == "on":
            found |= {"loss_budget": self.loss_budget, "objective": self.objective}
        return {**found, "verify": self.verify, "block_verification": self.block_verification}

    def describe(self) -> str:
        """The values in effect, in one line for people."""
        most = f"at most {self.num_speculative_tokens} draft tokens"
        if len(self.methods) == 1:
            (one,) = self.methods
            said = [one.method, most, one.describe()]
        else:
            said = [f"{m.method} ({m.describe()})" for m in self.methods] + [most]
        if self.controller == "on":
            said.append(f"only where it pays ({100 * self.loss_budget:g} % may be lost)")
        if self.objective == "latency":
            said.append("for each request by itself")
        if self.verify == "rejection":
            said.append("block verification" if self.block_verification else "rejection sampling")
        return ", ".join(part for part in said if part)


def _spelled(value: Mapping[Any, Any]) -> dict[str, Any]:
    """With underscores, as the keys are known here."""
    return {str(key).replace("-", "_"): one for key, one in value.items()}


def _names(method: object) -> tuple[str, ...]:
    if method is None:
        raise ConfigError(f'speculative-config: "method" is missing, e.g. {_EXAMPLE}')
    names = method if isinstance(method, list | tuple) else [method]
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError("method: must be the name of a drafting method, or a list of them")
    if not names:
        raise ConfigError("method: the list is empty; name at least one drafting method")
    if len(set(names)) < len(names):
        raise ConfigError("method: a method is named twice in the list")
    return tuple(names)


def _control(raw: dict[str, Any]) -> dict[str, Any]:
    """Take the controller's keys out of the mapping. Raises ConfigError."""
    mode = raw.pop("controller", "on")
    if isinstance(mode, bool):
        mode = "on" if mode else "off"
    choice("controller", mode, ("on", "off"))
    found: dict[str, Any] = {
        key: raw.pop(key) for key in ("loss_budget", "objective") if key in raw
    }
    if found and mode == "off":
        raise ConfigError(
            f'{next(iter(found))}: is for "controller": "on", and it is off; leave one of them out'
        )
    real("loss_budget", found.get("loss_budget", LOSS_BUDGET), 0.0, 1.0)
    choice("objective", found.get("objective", "throughput"), get_args(Objective))
    return {"controller": mode, **found}


def _methods(
    classes: Mapping[str, Any], k: int, raw: Mapping[str, Any]
) -> tuple[MethodConfig, ...]:
    """Give each method the keys that are its own. Raises ConfigError for a key of none."""
    declared = {name: getattr(cls, "Options", None) for name, cls in classes.items()}
    known = {key for record in declared.values() if record for key in _keys(record)}
    if not all(declared.values()):
        known.add("options")
    unknown = sorted(set(raw) - known)
    if unknown:
        every = sorted({*_OWN_KEYS, *known})
        raise ConfigError(
            f"speculative-config: unknown key {unknown[0]!r} for {' and '.join(classes)}; "
            f"known keys: {', '.join(every)}"
        )
    methods = []
    for name, record in declared.items():
        if record is None:
            options = raw.get("options", {})
            if not isinstance(options, Mapping):
                raise ConfigError("options: must be a JSON object")
        else:
            options = record(**{key: raw[key] for key in _keys(record) if key in raw})
        methods.append(MethodConfig(name, k, options))
    return tuple(methods)


def _keys(record: Any) -> list[str]:
    return [f.name for f in fields(record)]
