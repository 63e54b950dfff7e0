"""config.json as a `ModelConfig`. What it asks for and cannot be run is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wager.errors import CorruptFile, UnsupportedModel
from wager.models import families
from wager.models.checkpoint import WHAT_WORKS, check_config, quoted
from wager.models.families import Family
from wager.models.fields import Fields
from wager.models.hf_rope import read_ropes
from wager.shape import Experts, LayerKind, ModelConfig


def read_config(path: Path, raw: Mapping[str, Any]) -> tuple[ModelConfig, Family]:
    """The shape of the model and its family. Raises CorruptFile or UnsupportedModel."""
    raw = text_part(path, raw)
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
        intermediate_size=_inner(family, fields),
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
    config = replace(config, experts=_experts(family, fields))
    check_config(path, config)
    return config, family


def text_part(path: Path, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text model within one of text and images; else ``raw`` itself."""
    name, kind = _class(raw), raw.get("model_type")
    for outer, outer_kind, inner_kind in families.TEXT_WITHIN:
        if name == outer or (raw.get("architectures") is None and kind == outer_kind):
            inner = {
                "model_type": inner_kind,
                **Fields(path, raw).table("text_config").raw,
                "architectures": None,
                # The head belongs to the whole.
                "tie_word_embeddings": Fields(path, raw).flag("tie_word_embeddings", default=True),
            }
            if inner["model_type"] != inner_kind or inner.get("quantization_config") is not None:
                raise UnsupportedModel(
                    f"{path}: text_config: model_type must be {inner_kind!r}, and "
                    "quantization_config beside it, not in it"
                )
            return inner
    return raw


def _class(raw: Mapping[str, Any]) -> str | None:
    """The first entry of ``architectures``."""
    stated = raw.get("architectures")
    name = stated[0] if isinstance(stated, list) and stated else None
    return name if isinstance(name, str) else None


def _family(path: Path, raw: Mapping[str, Any]) -> Family:
    stated, kind = raw.get("architectures"), raw.get("model_type")
    by_kind = families.of_model_type(kind) if isinstance(kind, str) else None
    name: Any = kind
    found = by_kind
    if stated is not None:
        name = _class(raw)
        found = families.of_class(name) if name is not None else None
        name = stated if name is None else name
    if found is None:
        why = families.RECURRENT_REASON if any(
            isinstance(of, str) and families.recurrent(of) for of in (name, kind)
        ) else WHAT_WORKS  # fmt: skip
        raise UnsupportedModel(f"{path}: architecture {quoted(name)} is not supported; {why}")
    if kind is not None and found is not by_kind:
        raise UnsupportedModel(
            f"{path}: architectures is {quoted(name)}, but model_type is {quoted(kind)}; it must "
            f"be {found.model_type!r}"
        )
    return found


def _inner(family: Family, fields: Fields) -> int:
    key = "moe_intermediate_size" if family.model_type == "qwen3_moe" else "intermediate_size"
    return fields.need(key)


def _experts(family: Family, fields: Fields) -> Experts | None:
    if family.experts is None:
        return None
    count = fields.need("num_local_experts", "num_experts")
    used = fields.need("num_experts_per_tok")
    if used > count or count > families.MAX_EXPERTS:
        raise CorruptFile(f"{fields.path}: {used} of {count} experts cannot be used")
    return Experts(count, used, fields.flag("norm_topk_prob"))


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
        "attention_cap": _cap(fields, "attn_logit_softcapping"),
        "logit_cap": _cap(fields, "final_logit_softcapping"),
    }


def _cap(fields: Fields, key: str) -> float:
    """A cap; 0 stands for none."""
    if fields.get(key) is None:
        return 0.0
    cap = fields.number(key)
    if cap <= 0:
        raise CorruptFile(f"{fields.path}: {key} is {cap}; it must be positive, or null for no cap")
    return cap


def _biases(family: Family, fields: Fields) -> dict[str, Any]:
    if family.name == "qwen2" or not fields.flag("attention_bias"):
        return {}
    return {"qkv_bias": True, "out_bias": True}


def _layers(family: Family, fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Windows and rotary tables of the layers."""
    window, local = _windows(family, fields, config.num_layers)
    # A window that no text outgrows is none.
    width = window if window < config.max_context else 0
    tables: list[int | None] = [0] * config.num_layers
    if family.model_type == "gemma3_text":
        tables = [int(one) for one in local]
    elif family.name == "smollm3":
        tables = [0 if turned else None for turned in _turned(fields, config.num_layers)]
    kinds = tuple(
        LayerKind(width if one else 0, table) for one, table in zip(local, tables, strict=True)
    )
    return {
        "ropes": read_ropes(family, fields, config),
        "kinds": () if set(kinds) == {LayerKind()} else kinds,
    }


def _windows(family: Family, fields: Fields, layers: int) -> tuple[int, list[bool]]:
    """The window (0: none), and which layers have it."""
    window, rule = fields.whole("sliding_window"), family.windows
    if window == 0:
        raise CorruptFile(f"{fields.path}: sliding_window is 0; a row sees at least itself")
    unused = rule in ("last", "used") and not fields.flag("use_sliding_window")
    if rule == "none" or unused:
        window = None
    local = [window is not None] * layers
    if rule == "last" and window is not None:
        first = fields.whole("max_window_layers") or 0
        local = [index >= first for index in range(layers)]
    elif rule == "pattern":
        every = fields.need("sliding_window_pattern")
        local = [(index + 1) % every != 0 for index in range(layers)]
    stated = _stated_windows(fields, layers)
    if stated is not None and stated != local and not family.names_layers:
        raise UnsupportedModel(
            f"{fields.path}: layer_types: {family.model_type} models do not read it, and it says "
            "something else than their other keys; leave it out"
        )
    local = local if stated is None else stated
    if any(local) and window is None:
        raise CorruptFile(
            f"{fields.path}: has layers with a window, but no sliding_window that is in use"
        )
    return window or 0, local


def _stated_windows(fields: Fields, layers: int) -> list[bool] | None:
    """Which entries of ``layer_types`` are windows."""
    names = fields.get("layer_types")
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != layers:
        raise CorruptFile(
            f"{fields.path}: layer_types is not a list of {layers} entries, one per layer"
        )
    for name in names:
        if name not in ("full_attention", "sliding_attention"):
            why = "what works: full_attention, sliding_attention"
            if name in ("linear_attention", "mamba", "recurrent", "conv", "hybrid"):
                why = families.RECURRENT_REASON
            raise UnsupportedModel(f"{fields.path}: layer_types has {quoted(name)}; {why}")
    return [name == "sliding_attention" for name in names]


def _turned(fields: Fields, layers: int) -> list[int]:
    """Which layers turn their queries and keys; ``no_rope_layers`` has a 1 for those that do."""
    if fields.get("no_rope_layers") is None:
        every = fields.need("no_rope_layer_interval")
        return [int((index + 1) % every != 0) for index in range(layers)]
    stated = fields.wholes("no_rope_layers", layers)
    if stated is None or max(stated) > 1:
        raise CorruptFile(f"{fields.path}: no_rope_layers is not a list of 0 and 1, one per layer")
    return stated
