"""What each layer keeps of the tokens it has seen, from a config in Hugging Face form.

The kinds of layers come from ``layer_types`` where a config has it, else from the older keys of
each family; the sizes from the keys of the attention or of the recurrent block. Names follow
https://github.com/huggingface/transformers (configuration files of the families named here).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from wager.errors import CorruptFile, UnsupportedModel
from wager.models.checkpoint import quoted
from wager.models.facts.records import LayerCache
from wager.models.fields import Fields

# Kinds of layers as configs spell them: (attention, recurrent state beside or instead of it).
_FULL, _WINDOW, _CHUNK, _STATE, _BOTH, _NONE = "full", "window", "chunk", "state", "both", "none"
_KINDS: Final = {
    "full_attention": _FULL, "attention": _FULL, "full": _FULL, "global": _FULL, "G": _FULL,
    "sliding_attention": _WINDOW, "sliding_window_attention": _WINDOW, "local_attention": _WINDOW,
    "local": _WINDOW, "L": _WINDOW, "chunked_attention": _CHUNK,
    "linear_attention": _STATE, "linear": _STATE, "mamba": _STATE, "mamba2": _STATE,
    "recurrent": _STATE, "conv": _STATE, "hybrid": _BOTH,
    "mlp": _NONE, "moe": _NONE,
}  # fmt: skip
# nemotron_h spells its layers as one string.
_LETTERS: Final = {"M": _STATE, "*": _FULL, "-": _NONE, "E": _NONE}
_RECURRENT: Final = ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7")
# Every how many layers one sees everything, in families whose older configs do not say.
_PATTERNS: Final = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2,
                    "gemma3n": 5, "gemma3n_text": 5}  # fmt: skip
_CHUNK_EVERY: Final = 4


def layer_caches(fields: Fields, layers: int) -> tuple[LayerCache, ...]:
    """One record per layer. Raises CorruptFile or UnsupportedModel."""
    kinds = _kinds(fields, layers)
    heads = fields.wholes("num_key_value_heads", layers) or fields.wholes(
        "num_key_value_heads_per_layer", layers
    )
    shared = fields.whole("num_kv_shared_layers") or 0
    caches = []
    for index, kind in enumerate(kinds):
        cache = _cache(fields, kind, None if heads is None else heads[index])
        if index >= layers - shared:
            # These layers read the keys and values of an earlier one.
            cache = replace(cache, kind="none", values=0, extra_bytes=0)
        caches.append(cache)
    return tuple(caches)


def head_dim(fields: Fields) -> int:
    """Size of one attention head."""
    given = fields.whole("head_dim", "kv_channels", "attention_head_dim")
    if given:
        return given
    hidden = fields.need("hidden_size", "n_embd", "d_model", "dim")
    return hidden // max(num_heads(fields), 1)


def num_heads(fields: Fields) -> int:
    """Query heads; 0 where no layer attends."""
    return fields.whole("num_attention_heads", "n_head", "n_heads", "num_heads") or 0


def num_kv_heads(fields: Fields) -> int:
    """Key-value heads of a layer (the most, where layers differ)."""
    per_layer = fields.items("num_key_value_heads", "num_key_value_heads_per_layer")
    if per_layer:
        return max(fields.checked("num_key_value_heads", value) for value in per_layer)
    given = fields.whole("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads",
                         "multi_query_group_num")  # fmt: skip
    if given is not None:
        return given
    return 1 if fields.get("multi_query") is True else num_heads(fields)


def _kinds(fields: Fields, layers: int) -> list[str]:
    """The kind of every layer."""
    stated = fields.items("layer_types", "layers_block_type", "attn_layer_types")
    if stated is not None:
        return _named(fields, "layer_types", stated, layers)
    letters = fields.get("hybrid_override_pattern")
    if isinstance(letters, str):
        return _named(fields, "hybrid_override_pattern", list(letters), layers)
    hybrid = _hybrid(fields, layers)
    if hybrid is not None:
        return hybrid
    if fields.get("model_type") == "falcon_h1":
        return [_BOTH] * layers
    if fields.get("model_type") in _RECURRENT:
        return [_STATE] * layers
    return _windows(fields, layers)


def _named(fields: Fields, key: str, names: list[Any], layers: int) -> list[str]:
    if len(names) < layers:
        raise CorruptFile(f"{fields.path}: {key} has {len(names)} entries for {layers} layers")
    known = _LETTERS if key == "hybrid_override_pattern" else _KINDS
    for name in names[:layers]:
        if not isinstance(name, str) or name not in known:
            raise UnsupportedModel(
                f"{fields.path}: {key} names {quoted(name)}, whose memory is not known here; "
                f"known: {', '.join(known)}"
            )
    return [known[name] for name in names[:layers]]


def _hybrid(fields: Fields, layers: int) -> list[str] | None:
    """Layers of which some are recurrent, in the keys of the families that have no list."""
    pattern = fields.items("block_types")  # recurrentgemma: repeated to the number of layers
    if pattern:
        kinds = _named(fields, "block_types", pattern, len(pattern))
        local = [_WINDOW if kind == _FULL else kind for kind in kinds]
        return [local[i % len(local)] for i in range(layers)]
    listed = fields.wholes("attn_type_list", layers)  # minimax: 1 attends, 0 is linear
    if listed is not None:
        return [_FULL if kind else _STATE for kind in listed]
    kimi = fields.table("linear_attn_config").items("full_attn_layers")
    if kimi is not None:  # numbered from 1
        return [_FULL if i + 1 in kimi else _STATE for i in range(layers)]
    chosen = fields.items("attn_layer_indices", "full_attn_idxs")  # bamba; lfm2
    if chosen is not None:
        return [_FULL if i in chosen else _STATE for i in range(layers)]
    period = fields.whole("attn_layer_period")  # jamba
    if period:
        offset = fields.whole("attn_layer_offset") or 0
        return [_FULL if i % period == offset else _STATE for i in range(layers)]
    every = fields.whole("full_attention_interval")  # qwen3_next
    if every:
        return [_FULL if (i + 1) % every == 0 else _STATE for i in range(layers)]
    return None


def _windows(fields: Fields, layers: int) -> list[str]:
    """Layers that all attend: which of them only to the last tokens."""
    model_type = str(fields.get("model_type"))
    if fields.whole("attention_chunk_size"):  # llama4
        flags = fields.wholes("no_rope_layers", layers) or [
            int((i + 1) % _CHUNK_EVERY != 0) for i in range(layers)
        ]
        return [_CHUNK if flag else _FULL for flag in flags]
    flags_of = fields.wholes("hybrid_layer_pattern", layers)  # mimo_v2: 1 is a window
    if flags_of is not None:
        return [_WINDOW if flag else _FULL for flag in flags_of]
    window = _window(fields)
    used = fields.get("use_sliding_window")
    if not window or used is False or (used is None and model_type.startswith("qwen")):
        return [_FULL] * layers
    pattern = fields.get("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # exaone4: letters, repeated; the last layer is full
        kinds = _named(fields, "sliding_window_pattern", list(pattern), len(pattern))
        return [*(kinds[i % len(kinds)] for i in range(layers - 1)), _FULL]
    every = _PATTERNS.get(model_type) if pattern is None else fields.checked("pattern", pattern)
    if every:
        return [_FULL if (i + 1) % every == 0 else _WINDOW for i in range(layers)]
    first = fields.whole("max_window_layers") if used is True else 0
    return [_WINDOW if i >= (first or 0) else _FULL for i in range(layers)]


def _window(fields: Fields) -> int | None:
    return fields.whole("sliding_window", "sliding_window_size", "attention_window_size",
                        "swa_window_size")  # fmt: skip


def _cache(fields: Fields, kind: str, heads: int | None) -> LayerCache:
    if kind == _NONE or heads == 0:
        return LayerCache("none")
    state, state_f32 = _state(fields) if kind in (_STATE, _BOTH) else (0, 0)
    if kind == _STATE:
        return LayerCache("none", state_values=state, state_f32=state_f32)
    base = _attention(fields, kind, heads)
    window = None
    if kind in (_WINDOW, _CHUNK):
        window = _window(fields) if kind == _WINDOW else fields.whole("attention_chunk_size")
        if not window:
            raise CorruptFile(f"{fields.path}: has sliding layers but no sliding_window")
    return replace(base, kind="full" if window is None else "window", window=window,
                   state_values=state, state_f32=state_f32)  # fmt: skip


def _attention(fields: Fields, kind: str, heads: int | None) -> LayerCache:
    """Items per token of a layer that attends."""
    rank = fields.whole("kv_lora_rank")
    if rank and fields.get("use_mla") is not False:
        # One latent vector and one rotary key; sparse attention keeps an index in fp8 with a
        # 4-byte scale (deepseek_v32).
        rotary = fields.whole("qk_rope_head_dim") or 0
        index = fields.whole("index_head_dim")
        return LayerCache("full", rank + rotary, 1, True, extra_bytes=index + 4 if index else 0)
    size, value_size = head_dim(fields), fields.whole("v_head_dim")
    count = num_kv_heads(fields) if heads is None else heads
    if kind == _WINDOW:
        size = fields.whole("swa_head_dim") or size
        value_size = fields.whole("swa_v_head_dim") or value_size
        count = fields.whole("swa_num_key_value_heads") or count
    elif kind == _FULL:  # gemma4: layers that see everything have heads of their own
        size = fields.whole("global_head_dim") or size
        count = fields.whole("num_global_key_value_heads") or count
    return LayerCache("full", count * (size + (value_size or size)), count)


def _state(fields: Fields) -> tuple[int, int]:
    """Items kept per sequence by a recurrent layer: (in the model's type, in 32 bits)."""
    if fields.whole("linear_num_value_heads"):  # qwen3_next: gated delta rule
        key_dim = fields.need("linear_key_head_dim")
        keys = fields.need("linear_num_key_heads") * key_dim
        value_heads, value_dim = fields.need("linear_num_value_heads"), fields.need(
            "linear_value_head_dim"
        )  # fmt: skip
        convolved = 2 * keys + value_heads * value_dim
        kept = (fields.need("linear_conv_kernel_dim") - 1) * convolved
        return kept, value_heads * key_dim * value_dim
    kimi = fields.table("linear_attn_config")
    if kimi.raw:
        heads, size = kimi.need("num_heads"), kimi.need("head_dim")
        return 3 * heads * size * (kimi.need("short_conv_kernel_size") - 1), heads * size * size
    if fields.whole("conv_L_cache"):  # lfm2: a short convolution and nothing else
        return fields.need("hidden_size") * (fields.need("conv_L_cache") - 1), 0
    if fields.whole("lru_width") or fields.get("model_type") == "recurrent_gemma":
        width = fields.whole("lru_width") or fields.need("hidden_size")
        return width * (fields.need("conv1d_width") - 1), width
    if fields.items("attn_type_list") is not None or fields.get("model_type") == "minimax":
        return 0, num_heads(fields) * head_dim(fields) ** 2
    if str(fields.get("model_type")).startswith("rwkv"):
        hidden = fields.need("hidden_size")
        return 2 * hidden, hidden * (fields.whole("head_dim", "head_size") or 64)
    return _mamba(fields)


def _mamba(fields: Fields) -> tuple[int, int]:
    hidden = fields.need("hidden_size")
    size = fields.whole("mamba_d_state", "ssm_state_size", "state_size", "d_state")
    kernel = fields.whole("mamba_d_conv", "conv_kernel", "d_conv")
    if not size or not kernel:
        raise UnsupportedModel(
            f"{fields.path}: has recurrent layers whose sizes are not known here (model_type "
            f"{quoted(fields.get('model_type'))})"
        )
    expand = fields.whole("mamba_expand", "expand") or 2
    mamba2 = fields.get("model_type") == "mamba2"
    heads = fields.whole("num_heads" if mamba2 else "mamba_n_heads", "mamba_num_heads",
                         "n_mamba_heads")  # fmt: skip
    if heads:  # the second form: the state is split into heads
        per_head = fields.whole("mamba_d_head", "mamba_head_dim", "mamba_headdim",
                                *(("head_dim",) if mamba2 else ()))  # fmt: skip
        inner = heads * per_head if per_head else expand * hidden
        groups = fields.whole("mamba_n_groups", "n_groups", "mamba_ngroups") or 1
        return (inner + 2 * groups * size) * (kernel - 1), inner * size
    own = fields.whole("intermediate_size") if fields.get("model_type") in _RECURRENT else None
    inner = own or expand * hidden
    return inner * (kernel - 1), inner * size
