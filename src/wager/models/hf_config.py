"""config.json as a `ModelConfig`. What it asks for and cannot be run is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from wager.errors import CorruptFile, UnsupportedModel
from wager.models import families
from wager.models.checkpoint import WHAT_WORKS, check_config, check_rope, quoted
from wager.models.facts.layers import layer_caches
from wager.models.families import Family
from wager.models.fields import Fields
from wager.models.rope import llama3_factors, longrope_scale, yarn_factors, yarn_scale
from wager.shape import LayerKind, ModelConfig, Rope

_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


def read_config(path: Path, raw: dict[str, Any]) -> tuple[ModelConfig, Family]:
    """The shape of the model and its family. Raises CorruptFile or UnsupportedModel."""
    family = _family(path, raw)
    for key, allowed in family.must_be.items():
        value = raw.get(key)
        if value is not None and value not in allowed:
            may = " or ".join(repr(item) for item in allowed) or "left out"
            raise UnsupportedModel(f"{path}: {key} is {quoted(value)}; it must be {may}")
    fields = Fields(path, {**family.defaults, **raw})
    heads, hidden = fields.need("num_attention_heads"), fields.need("hidden_size")
    config = ModelConfig(
        architecture=family.name,
        vocab_size=fields.need("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.need("intermediate_size"),
        num_layers=fields.layers("num_hidden_layers", fields.whole("num_hidden_layers")),
        num_heads=heads,
        num_kv_heads=fields.whole("num_key_value_heads") or heads,
        head_dim=fields.whole("head_dim") or hidden // heads,
        max_context=fields.whole("max_position_embeddings") or 2048,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied_head=fields.flag("tie_word_embeddings"),
    )
    check_config(path, config)
    # Only now are the sizes known to be sane enough to make lists of their length.
    config = replace(config, **family.traits, **_constants(family, fields))
    config = replace(config, **_biases(family, fields), **_layers(family, fields, config))
    check_config(path, config)
    return config, family


def _family(path: Path, raw: dict[str, Any]) -> Family:
    stated: Any = raw.get("architectures")
    kind = raw.get("model_type")
    name: Any
    if stated is None and isinstance(kind, str):
        found, name = families.of_model_type(kind), kind
    else:
        name = stated[0] if isinstance(stated, list) and stated else stated
        found = families.of_class(name) if isinstance(name, str) and name is not stated else None
    if found is not None:
        return found
    why = families.RECURRENT_REASON if any(
        isinstance(of, str) and families.recurrent(of) for of in (name, kind)
    ) else WHAT_WORKS  # fmt: skip
    raise UnsupportedModel(f"{path}: architecture {quoted(name)} is not supported; {why}")


def _constants(family: Family, fields: Fields) -> dict[str, Any]:
    """Scales and caps, in the keys of the family that has them."""
    if family.name == "granite":
        scaling = fields.number("logits_scaling")
        if scaling <= 0:
            raise CorruptFile(f"{fields.path}: logits_scaling is {scaling}; it must be positive")
        return {
            "embed_scale": fields.number("embedding_multiplier"),
            "attention_scale": fields.number("attention_multiplier"),
            "residual_scale": fields.number("residual_multiplier"),
            "logit_scale": 1.0 / scaling,
        }
    if family.name not in ("gemma2", "gemma3"):
        return {}
    before = fields.number("query_pre_attn_scalar")
    if before <= 0:
        raise CorruptFile(f"{fields.path}: query_pre_attn_scalar is {before}; it must be positive")
    return {
        "embed_scale": fields.need("hidden_size") ** 0.5,
        "attention_scale": before**-0.5,
        "attention_cap": fields.number("attn_logit_softcapping", 0.0),
        "logit_cap": fields.number("final_logit_softcapping", 0.0),
    }


def _biases(family: Family, fields: Fields) -> dict[str, Any]:
    if family.name == "qwen2" or not fields.flag("attention_bias"):
        return {}
    return {"qkv_bias": True, "out_bias": True}


def _layers(family: Family, fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Windows and rotary tables of the layers."""
    caches = layer_caches(fields, config.num_layers)
    if any(cache.kind not in ("full", "window") for cache in caches):
        raise UnsupportedModel(f"{fields.path}: layer_types: {families.RECURRENT_REASON}")
    windows = [cache.window or 0 for cache in caches]
    if family.model_type in ("llama", "mistral") and len(set(windows)) > 1:
        raise UnsupportedModel(f"{fields.path}: layer_types: layers of two kinds are not supported")
    if family.model_type == "gemma3_text":
        local = tuple(LayerKind(window, 1 if window else 0) for window in windows)
        return {"ropes": _two_ropes(fields, config), "kinds": local}
    rope = _rope(fields, _scaling(fields), fields.number("rope_theta", 10000.0), config)
    turned = _turned(family, fields, config.num_layers)
    kinds = tuple(
        LayerKind(window, 0 if turns else None)
        for window, turns in zip(windows, turned, strict=True)
    )
    return {"ropes": (rope,), "kinds": () if set(kinds) == {LayerKind()} else kinds}


def _turned(family: Family, fields: Fields, layers: int) -> list[int]:
    """Which layers turn their queries and keys; ``no_rope_layers`` has a 1 for those that do."""
    stated = fields.wholes("no_rope_layers", layers)
    if stated is not None or family.name != "smollm3":
        if stated is not None and family.name != "smollm3":
            raise UnsupportedModel(f"{fields.path}: no_rope_layers must be left out")
        return stated or [1] * layers
    every = fields.need("no_rope_layer_interval")
    return [int((index + 1) % every != 0) for index in range(layers)]


def _scaling(fields: Fields) -> Fields:
    """The object that says how positions are turned, whatever it is called."""
    new = fields.table("rope_parameters")
    return new if new.raw else fields.table("rope_scaling")


def _two_ropes(fields: Fields, config: ModelConfig) -> tuple[Rope, Rope]:
    """Gemma 3: the table of layers that see everything, and that of layers with a window."""
    stated = fields.table("rope_parameters")
    if "full_attention" in stated.raw or "sliding_attention" in stated.raw:
        whole, local = stated.table("full_attention"), stated.table("sliding_attention")
    else:
        whole, local = _scaling(fields), Fields(fields.path, {})
    return (
        _rope(fields, whole, fields.number("rope_theta"), config),
        _rope(fields, local, fields.number("rope_local_base_freq"), config),
    )


def _rope(fields: Fields, rules: Fields, theta: float, config: ModelConfig) -> Rope:
    """One rotary table, from ``rope_parameters`` or from the older keys."""
    theta = rules.number("rope_theta", theta)
    part = rules.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    dims = int(config.head_dim * part)
    rope = Rope(theta, dims=0 if dims == config.head_dim else dims)
    if part <= 0.0:
        raise CorruptFile(f"{fields.path}: partial_rotary_factor is {part}; it must be positive")
    check_rope(Path(fields.path), rope, config.head_dim)
    kind = rules.get("rope_type", "type") or "default"
    if kind in ("su", "yarn") and config.architecture == "phi3":
        kind = "longrope"  # what its older configs call it
    if kind not in _ROPE_TYPES:
        raise UnsupportedModel(
            f"{fields.path}: rope type {quoted(kind)} is not supported; what works: "
            + ", ".join(_ROPE_TYPES)
        )
    if kind == "default":
        return rope
    original = rules.whole("original_max_position_embeddings") or fields.whole(
        "original_max_position_embeddings"
    )
    if kind == "longrope":
        return _longrope(fields, rules, rope, config.max_context, original or config.max_context)
    factor = rules.number("factor")
    if factor < 1.0:
        raise CorruptFile(f"{fields.path}: the rope factor is {factor}; it must be at least 1")
    if kind == "linear":
        return replace(rope, factors=(factor,) * (dims // 2))
    if not original:
        raise CorruptFile(f"{fields.path}: original_max_position_embeddings is missing")
    if kind == "yarn":
        return _yarn(fields, rules, rope, dims, factor, original)
    low, high = rules.number("low_freq_factor"), rules.number("high_freq_factor")
    if not 0.0 < low < high:
        raise CorruptFile(f"{fields.path}: the llama3 rope factors contradict each other")
    return replace(rope, factors=llama3_factors(theta, dims, factor, low, high, original))


def _yarn(
    fields: Fields, rules: Fields, rope: Rope, dims: int, factor: float, original: int
) -> Rope:
    fast, slow = rules.number("beta_fast", 32.0), rules.number("beta_slow", 1.0)
    if not 0.0 < slow < fast or rope.theta <= 1.0:
        raise CorruptFile(f"{fields.path}: the yarn rope factors contradict each other")
    factors = yarn_factors(
        rope.theta, dims, factor, fast, slow, original, rules.flag("truncate", default=True)
    )
    weight, whole = rules.number("mscale", 0.0), rules.number("mscale_all_dim", 0.0)
    scale = yarn_scale(factor)
    if weight and whole:
        scale = yarn_scale(factor, weight) / yarn_scale(factor, whole)
    return replace(rope, factors=factors, scale=rules.number("attention_factor", scale))


def _longrope(fields: Fields, rules: Fields, rope: Rope, context: int, original: int) -> Rope:
    if original < 2:
        raise CorruptFile(f"{fields.path}: original_max_position_embeddings is {original}")
    scale = longrope_scale(rules.number("factor", context / original), original)
    return replace(
        rope,
        factors=rules.numbers("short_factor"),
        long_factors=rules.numbers("long_factor"),
        original_context=original,
        scale=rules.number("attention_factor", scale),
    )
