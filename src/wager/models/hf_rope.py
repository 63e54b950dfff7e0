"""Rotary tables of a config.json: ``rope_parameters``, or ``rope_scaling`` and its neighbours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from wager.errors import CorruptFile, UnsupportedModel
from wager.models.checkpoint import check_rope, quoted
from wager.models.families import Family
from wager.models.fields import Fields
from wager.models.rope import llama3_factors, longrope_scale, yarn_factors, yarn_scale
from wager.shape import ModelConfig, Rope

_TYPES: Final = ("default", "linear", "llama3", "yarn", "longrope")
_KEYS: Final = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor",
    "finetuned",
)  # fmt: skip
_WHOLE, _LOCAL = "full_attention", "sliding_attention"


def read_ropes(family: Family, fields: Fields, config: ModelConfig) -> tuple[Rope, ...]:
    """The tables of a model. Raises CorruptFile or UnsupportedModel.

    Gemma 3 has two: that of the layers that see everything, and that of those with a window.
    """
    new, old = fields.table("rope_parameters"), fields.table("rope_scaling")
    if new.raw and old.raw and new.raw != old.raw:
        raise UnsupportedModel(
            f"{fields.path}: rope_parameters and rope_scaling say two things; leave one out"
        )
    theta = fields.number("rope_theta", 10000.0)
    if family.model_type != "gemma3_text":
        outside = fields.whole("original_max_position_embeddings")
        return (_rope(family, fields, old if old.raw else new, theta, config, outside),)
    if new.raw:
        whole, local = new.table(_WHOLE), new.table(_LOCAL)
        _check_keys(new, (_WHOLE, _LOCAL))
    else:
        whole, local = old, Fields(fields.path, {})
    near = fields.number("rope_local_base_freq")
    return (
        _rope(family, fields, whole, theta, config, None),
        _rope(family, fields, local, near, config, None),
    )


def _check_keys(rules: Fields, known: tuple[str, ...]) -> None:
    """A key that is not known may change the computation."""
    for key, value in rules.raw.items():
        if key not in known and value is not None:
            raise UnsupportedModel(
                f"{rules.path}: {quoted(key)} among the keys of the rotary table is not "
                f"supported; what works: {', '.join(known)}"
            )


def _rope(
    family: Family, fields: Fields, rules: Fields, theta: float, config: ModelConfig,
    outside: int | None,
) -> Rope:  # fmt: skip
    """One table. ``outside`` is the original context where the config says it beside ``rules``."""
    _check_keys(rules, _KEYS)
    theta = rules.number("rope_theta", theta)
    part = rules.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if not 0.0 < part <= 1.0:
        raise CorruptFile(f"{fields.path}: partial_rotary_factor is {part}; it must be from 0 to 1")
    if part != 1.0 and "partial_rotary_factor" in family.must_be:
        raise UnsupportedModel(f"{fields.path}: partial_rotary_factor is {part}; it must be 1.0")
    dims = int(config.head_dim * part)
    if dims < 2:
        raise CorruptFile(f"{fields.path}: partial_rotary_factor is {part}: no value is turned")
    rope = Rope(theta, dims=0 if dims == config.head_dim else dims)
    check_rope(Path(fields.path), rope, config.head_dim)
    kind = rules.get("rope_type", "type") or "default"
    if kind in ("su", "yarn") and family.model_type == "phi3":
        kind = "longrope"  # what its older configs call it
    if kind not in _TYPES:
        raise UnsupportedModel(
            f"{fields.path}: rope type {quoted(kind)} is not supported; what works: "
            + ", ".join(_TYPES)
        )
    if kind == "default":
        return rope
    stated = rules.whole("original_max_position_embeddings")
    original = outside or stated or config.max_context
    if kind == "longrope":
        return _longrope(rules, rope, config.max_context, original)
    factor = rules.number("factor")
    if not 1.0 <= factor < 1e30:
        raise CorruptFile(f"{fields.path}: the rope factor is {factor}; it must be at least 1")
    if kind == "linear":
        return replace(rope, factors=(factor,) * (dims // 2))
    if kind == "yarn":
        return _yarn(rules, rope, dims, factor, original)
    low, high = rules.number("low_freq_factor"), rules.number("high_freq_factor")
    if not 0.0 < low < high:
        raise CorruptFile(f"{fields.path}: the llama3 rope factors contradict each other")
    return replace(rope, factors=llama3_factors(theta, dims, factor, low, high, original))


def _yarn(rules: Fields, rope: Rope, dims: int, factor: float, original: int) -> Rope:
    fast, slow = rules.number("beta_fast", 32.0), rules.number("beta_slow", 1.0)
    if not 1e-30 < slow < fast < 1e30 or rope.theta <= 1.0:
        raise CorruptFile(f"{rules.path}: the yarn rope factors contradict each other")
    factors = yarn_factors(
        rope.theta, dims, factor, fast, slow, original, rules.flag("truncate", default=True)
    )
    weight, whole = rules.number("mscale", 0.0), rules.number("mscale_all_dim", 0.0)
    if min(weight, whole) < 0.0:
        raise CorruptFile(f"{rules.path}: mscale and mscale_all_dim must be positive")
    scale = yarn_scale(factor)
    if weight and whole:
        scale = yarn_scale(factor, weight) / yarn_scale(factor, whole)
    return replace(rope, factors=factors, scale=rules.number("attention_factor", scale))


def _longrope(rules: Fields, rope: Rope, context: int, original: int) -> Rope:
    if original < 2:
        raise CorruptFile(f"{rules.path}: original_max_position_embeddings is {original}")
    scale = longrope_scale(rules.number("factor", context / original), original)
    return replace(
        rope,
        factors=rules.numbers("short_factor"),
        long_factors=rules.numbers("long_factor"),
        original_context=original,
        scale=rules.number("attention_factor", scale),
    )
