"""Tiny random models on disk, for every test that needs a model without a download.

The same arguments give the same weights in both layouts, so that a GGUF file can be compared with
its Hugging Face twin. Token ids: 0 ``<|endoftext|>``, 1 ``<|im_start|>`` (BOS), 2 ``<|im_end|>``
(EOS), then the bytes, then merges.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny_weights import F32, TINY_FAMILIES, Shape, random_weights

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Pairs in the order in which they merge; "Ġ" is how byte-level vocabularies write the space.
_PAIRS = (
    "Ġ+t h+e Ġ+a i+n r+e Ġt+he o+n e+r Ġ+s a+t e+n Ġ+w o+r Ġ+c i+s in+g Ġ+o Ġ+p a+n Ġ+f Ġ+b e+s "
    "Ġa+n Ġan+d e+d Ġ+m a+l Ġ+in a+r Ġt+o Ġo+f l+e Ġ+d Ġ+re s+t Ġ+1 i+c Ġ+h o+u"
)
MERGES = [(left, right) for left, right in (pair.split("+") for pair in _PAIRS.split())]
ADDS_BOS = {
    "type": "TemplateProcessing", "pair": [],
    "single": [{"SpecialToken": {"id": "s", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"s": {"id": "s", "ids": [1], "tokens": [SPECIALS[1]]}},
}  # fmt: skip
"""The post-processor of a tokenizer.json that puts a start token before a text."""


def byte_symbols() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, by byte value."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {byte: chr(byte) for byte in shown}
    for count, byte in enumerate(b for b in range(256) if b not in symbols):
        symbols[byte] = chr(256 + count)
    return [symbols[byte] for byte in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """At most ``size`` tokens and the merges that fit. Under 259 the rarer bytes are left out."""
    common = (
        b" etaoinsrhldcumfpgwybvkxjqz\n.,0123456789()[]{}=:'\"_-+*/<>ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )
    order = [*common, *(byte for byte in range(256) if byte not in common)]
    symbols = byte_symbols()
    tokens = [*SPECIALS, *(symbols[byte] for byte in order)][:size]
    merges = []
    for left, right in MERGES:
        if len(tokens) < size:
            tokens.append(left + right)
            merges.append((left, right))
    return tokens, merges


def tokenizer_json(size: int) -> dict[str, Any]:
    """A byte-level BPE ``tokenizer.json`` of at most ``size`` tokens."""
    tokens, merges = vocabulary(size)
    added = [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, text in enumerate(SPECIALS)
    ]  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [list(pair) for pair in merges]},
    }  # fmt: skip


def _narrow(weight: F32, dtype: str) -> bytes:
    if dtype == "F32":
        return weight.astype("<f4").tobytes()
    if dtype == "F16":
        return weight.astype("<f2").tobytes()
    if dtype == "BF16":
        bits = np.ascontiguousarray(weight, dtype="<f4").view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    raise ValueError(f"dtype {dtype!r}")


def write_safetensors(path: Path, weights: Mapping[str, F32], dtype: str = "F32") -> None:
    """One safetensors file of one type."""
    write_stored(path, {name: (dtype, w.shape, _narrow(w, dtype)) for name, w in weights.items()})


def write_stored(path: Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> None:
    """One safetensors file of (dtype, shape, data) by name: 8 bytes of header length, the JSON
    header, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, offset = [], 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [offset, offset + len(raw)]}  # fmt: skip
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def write_tiny_hf(
    directory: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int = 128,
    vocab: int = 288,
    tied: bool = True,
    shards: int = 1,
    seed: int = 0,
    max_context: int = 512,
    dtype: str = "F32",
    tokenizer_vocab: int | None = None,
    sharpness: float = 1.0,
    family: str = "llama",
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A random model of a family of `TINY_FAMILIES` in Hugging Face layout; returns ``directory``.

    ``vocab`` counts the embedding rows, ``tokenizer_vocab`` (default: the same) limits the
    tokenizer; ``sharpness`` scales the logits, so that sampled text repeats itself as a trained
    model's does; ``config`` overrides keys of config.json (None removes one).
    """
    head_dim = head_dim or hidden // heads
    shape = Shape(layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, tied)
    made = TINY_FAMILIES[family]
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "architectures": [made.architecture], "model_type": made.model_type, "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "vocab_size": vocab, "max_position_embeddings": max_context, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": tied,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype],
    }  # fmt: skip
    settings |= {**made.config, **(config or {})}
    settings = {key: value for key, value in settings.items()
                if value is not None or key == "rope_scaling"}  # fmt: skip
    _write_json(directory / "config.json", settings)
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": [2, 0], "do_sample": True, "temperature": 0.8,
         "top_k": 40, "top_p": 0.95},
    )  # fmt: skip
    _write_json(directory / "tokenizer.json", tokenizer_json(tokenizer_vocab or vocab))
    _write_json(
        directory / "tokenizer_config.json",
        {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2], "add_bos_token": False,
         "chat_template": CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"},
    )  # fmt: skip
    biased = family != "qwen2" and settings.get("attention_bias") is True
    weights = random_weights(shape, seed, family, biased)
    final, offset = weights["model.norm.weight"], np.float32(made.norm_offset)
    weights["model.norm.weight"] = (final + offset) * np.float32(sharpness) - offset
    _write_shards(directory, weights, shards, dtype)
    return directory


def _write_shards(directory: Path, weights: dict[str, F32], shards: int, dtype: str) -> None:
    if shards == 1:
        write_safetensors(directory / "model.safetensors", weights, dtype)
        return
    names = list(weights)
    place: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        write_safetensors(directory / file, {name: weights[name] for name in part}, dtype)
        place.update(dict.fromkeys(part, file))
    total = sum(weight.nbytes for weight in weights.values())
    _write_json(directory / "model.safetensors.index.json",
                {"metadata": {"total_size": total}, "weight_map": place})  # fmt: skip


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
