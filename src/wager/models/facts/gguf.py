"""Facts of a GGUF file: metadata and the list of tensors.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp's ``llama-arch.cpp``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from wager.errors import CorruptFile
from wager.models.facts.hf import hash_tokens
from wager.models.facts.records import LayerCache, ModelFacts, Source, TensorFact, most_bytes
from wager.models.fields import Fields
from wager.models.gguf_file import ArrayField, GgufFile

_UNUSED: Final = 5
_PADDING: Final = re.compile(r"\[PAD\d+\]")
_PLAIN: Final = ("F32", "F16", "BF16", "F64")
# Every how many layers one sees everything, where the file does not say (set_swa_pattern).
_PATTERNS: Final = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2, "llama4": 4}
_CHUNK: Final = {"llama4": 8192}
_HEADS: Final = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark", "eagle": "eagle"}


def build(
    file: GgufFile, *, name: str, source: Source, location: str, tokenizer: bool
) -> ModelFacts:
    """Facts from the header of a file, or of all its parts. Raises CorruptFile."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CorruptFile(f"{file.path}: general.architecture is missing")
    fields = Metadata(file, architecture)
    tensors = [
        TensorFact(name, info.type, info.shape, info.nbytes) for name, info in file.tensors.items()
    ]
    blocks = fields.layers("block_count", fields.whole("block_count"))
    mtp = fields.whole("nextn_predict_layers") or 0
    layers = max(blocks - mtp, 1)
    heads, hidden = fields.most("attention.head_count"), fields.need("embedding_length")
    head_dim = fields.whole("attention.key_length") or hidden // max(heads, 1)
    stored = {tensor.name: tensor for tensor in tensors}
    table = stored.get("token_embd.weight")
    dtype = most_bytes(tensors)
    experts = fields.whole("expert_count") or None
    kind = _HEADS.get(architecture)
    return ModelFacts(
        name=name,
        source=source,
        location=location,
        architecture=architecture,
        model_type=architecture,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=fields.most("feed_forward_length") or None,
        num_heads=heads,
        num_kv_heads=fields.most("attention.head_count_kv") or heads,
        head_dim=head_dim,
        vocab_size=table.shape[0] if table else fields.whole("vocab_size") or 0,
        max_context=fields.whole("context_length") or 2048,
        tied_head="output.weight" not in stored and table is not None,
        dtype=dtype,
        quantisation=None if dtype in _PLAIN else dtype,
        model_dtype=None,
        parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        kv_layers=tuple(_caches(fields, architecture, layers, head_dim)),
        experts=experts,
        experts_per_token=fields.whole("expert_used_count") if experts else None,
        expert_size=(
            fields.whole("expert_feed_forward_length") or fields.most("feed_forward_length")
            if experts
            else None
        ),
        mtp_layers=mtp if any(f".{layers}." in tensor.name for tensor in tensors) else 0,
        tokenizer_hash=_tokenizer_hash(file) if tokenizer else None,
        tensors=tuple(tensors),
        speculative={"kind": kind} if kind else None,
    )


class Metadata(Fields):
    """The keys of the architecture, without its prefix; arrays of numbers as lists."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        prefix = f"{architecture}."
        raw: dict[str, Any] = {
            key.removeprefix(prefix): value
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }
        for key, value in raw.items():
            if isinstance(value, ArrayField):
                # Strings would be arrays too; none of these keys holds any.
                raw[key] = file.numbers(prefix + key).tolist() if value.type != 8 else None
        super().__init__(file.path, raw)

    def most(self, key: str) -> int:
        """A number, or the largest of a number per layer; 0 where the key is absent."""
        values = self.items(key)
        if values is None:
            return self.whole(key) or 0
        return max((self.checked(key, value) for value in values), default=0)

    def layer(self, key: str, index: int, default: int) -> int:
        """A number, or that of one layer."""
        values = self.items(key)
        if values is None:
            given = self.whole(key)
            return default if given is None else given
        if index >= len(values):
            raise CorruptFile(f"{self.path}: {key} has {len(values)} entries, layer {index} none")
        return self.checked(key, values[index])


def _caches(
    fields: Metadata, architecture: str, layers: int, head_dim: int
) -> Iterable[LayerCache]:
    heads = fields.most("attention.head_count")
    sliding = sliding_layers(fields, architecture, layers)
    window = fields.whole("attention.sliding_window") or _CHUNK.get(architecture)
    shared = fields.whole("attention.shared_kv_layers") or 0
    recurrent = bool(fields.whole("ssm.inner_size") or fields.whole("wkv.head_size"))
    every = fields.whole("full_attention_interval") or (4 if architecture == "qwen3next" else 0)
    state, state_f32 = _state(fields) if recurrent else (0, 0)
    for index in range(layers):
        count = fields.layer("attention.head_count_kv", index, heads)
        attends = count > 0 and not (every and recurrent and (index + 1) % every)
        cache = _attention(fields, count, head_dim, sliding[index]) if attends else None
        if recurrent and (cache is None or architecture == "falcon-h1"):
            base = cache or LayerCache("none")
            cache = replace(base, state_values=state, state_f32=state_f32)
        cache = cache or LayerCache("none")
        if index >= layers - shared:
            cache = replace(cache, kind="none", values=0)
        elif sliding[index] and window and cache.kind == "full":
            cache = replace(cache, kind="window", window=window)
        yield cache


def _attention(fields: Metadata, count: int, head_dim: int, sliding: bool) -> LayerCache:
    rank = fields.whole("attention.kv_lora_rank")
    if rank and fields.whole("attention.key_length_mla"):
        return LayerCache("full", rank + (fields.whole("rope.dimension_count") or 0), 1, True)
    key, value = head_dim, fields.whole("attention.value_length") or head_dim
    if sliding:
        key = fields.whole("attention.key_length_swa") or key
        value = fields.whole("attention.value_length_swa") or value
    return LayerCache("full", count * (key + value), count)


def sliding_layers(fields: Metadata, architecture: str, layers: int) -> list[bool]:
    """Which layers see only the last tokens."""
    if not fields.whole("attention.sliding_window") and architecture not in _CHUNK:
        return [False] * layers
    flags = fields.items("attention.sliding_window_pattern")
    if flags is not None:
        return [bool(flags[i]) if i < len(flags) else False for i in range(layers)]
    every = fields.whole("attention.sliding_window_pattern") or _PATTERNS.get(architecture)
    return [not every or (i + 1) % every != 0 for i in range(layers)]


def _state(fields: Metadata) -> tuple[int, int]:
    """llama.cpp keeps recurrent state in 32 bits throughout (hparams n_embd_r and n_embd_s)."""
    wkv = fields.whole("wkv.head_size")
    if wkv:
        hidden = fields.need("embedding_length")
        return 0, 2 * hidden + hidden * wkv
    kernel, size = fields.need("ssm.conv_kernel"), fields.need("ssm.state_size")
    inner, groups = fields.need("ssm.inner_size"), fields.whole("ssm.group_count") or 0
    return 0, (kernel - 1) * (inner + 2 * groups * size) + size * inner


def _tokenizer_hash(file: GgufFile) -> str | None:
    if "tokenizer.ggml.tokens" not in file.metadata:
        return None
    tokens = file.strings("tokenizer.ggml.tokens")
    kinds = (
        file.numbers("tokenizer.ggml.token_type").tolist()
        if "tokenizer.ggml.token_type" in file.metadata
        else [1] * len(tokens)
    )
    pairs: Mapping[int, str] = {
        index: token
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        # Rows that only pad the embedding are no tokens of the tokenizer.
        if not (kind == _UNUSED and _PADDING.fullmatch(token))
    }
    return hash_tokens(pairs)
