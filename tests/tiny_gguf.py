"""Tiny models as GGUF files: the twins of those in Hugging Face layout.

What is written, and in which order of rows, follows llama.cpp's converter
(https://github.com/ggml-org/llama.cpp, ``convert_hf_to_gguf.py`` and ``conversion/``); names of
tensors are the gguf package's. Nothing of it is taken from wager.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from tests.tiny import CHAT_TEMPLATE, SPECIALS, vocabulary, write_tiny_hf

Weights = Mapping[str, NDArray[np.float32]]

# Where the 16-bit scales of a block stand, of the types whose bytes may otherwise be anything.
SCALES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,),
}  # fmt: skip
_NEIGHBOURS = ("llama", "mistral", "mixtral", "smollm3", "granite")
_ARCHITECTURES = {
    "mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe",
}  # fmt: skip


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of valid blocks of a type: any bits, under small scales."""
    items, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // items, width), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = rng.uniform(-2e-4, 2e-4, (len(blocks), 1)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def write_tiny_gguf(
    path: Path,
    *,
    tensor_type: str = "F32",
    types: Mapping[str, str] | None = None,
    pre: str = "gpt-2",
    architecture: str | None = None,
    rope_factors: Sequence[float] | None = None,
    template: str | Sequence[Mapping[str, str]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    per_part: int = 0,
    tokenizer_vocab: int | None = None,
    **options: Any,
) -> Path:
    """The same model as `write_tiny_hf` with these ``options`` as GGUF; returns ``path``.

    Matrices are stored as ``tensor_type`` (F32, F16, BF16, Q8_0, ...), or as the one of ``types``
    by the end of their name; norms and biases as F32. What nobody quantises is random blocks.
    ``metadata`` adds keys, or replaces them (None removes one). With ``per_part`` there is a file
    for every so many tensors, ``path`` being what their names begin with; the first is returned.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        directory = write_tiny_hf(Path(made), **options)
        config = json.loads((directory / "config.json").read_text())
        weights = {}
        for file in sorted(directory.glob("*.safetensors")):
            weights.update(safetensors.numpy.load_file(file))
    kind = config["model_type"]
    name = _ARCHITECTURES.get(kind, kind)
    writer = gguf.GGUFWriter(path, architecture or name, split_max_tensors=per_part)
    _add_config(writer, config)
    _add_rope(writer, config)
    _add_family(writer, config)
    _add_tokenizer(writer, tokenizer_vocab or config["vocab_size"], pre)
    writer.add_chat_template(template or CHAT_TEMPLATE)
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    _add_tensors(writer, name, config, weights, tensor_type, types or {})
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-*.gguf"))[0] if per_part else path


def write_vocabulary(
    path: Path,
    tokens: Sequence[str],
    *,
    pre: str = "default",
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    types: Sequence[int] | None = None,
    architecture: str = "llama",
    **more: Any,
) -> Path:
    """A file that holds a tokenizer and nothing else: SentencePiece, or byte-level with ``merges``.

    ``more`` are keys under ``tokenizer.ggml``.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama" if merges is None else "gpt2")
    writer.add_tokenizer_pre(pre)
    tokens = list(tokens)
    if merges is None:
        writer.add_token_scores(scores or [0.0] * len(tokens))
    else:
        parts = {part for merge in merges for part in (*merge.split(), merge.replace(" ", ""))}
        tokens += sorted(parts - set(tokens))
        writer.add_token_merges(merges)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [1] * len(tokens))
    for key, value in {"bos_token_id": 0, **more}.items():
        writer.add_key_value(f"tokenizer.ggml.{key}", value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    return config.get("rope_scaling") or {}


def _add_config(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    kind = config["model_type"]
    if kind not in ("phi3", "granite"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if kind in _NEIGHBOURS:
        writer.add_rope_dimension_count(config["head_dim"])
        writer.add_vocab_size(config["vocab_size"])
    if kind != "gemma2":
        writer.add_rope_freq_base(config["rope_theta"])


def _add_rope(writer: Any, config: Mapping[str, Any]) -> None:
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (
            ("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
            ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
        ):
            if key in rope:
                add(rope[key])
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _add_family(writer: Any, config: Mapping[str, Any]) -> None:
    kind = config["model_type"]
    if kind == "phi3":
        whole = config["max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(config.get("original_max_position_embeddings", whole))
        part = config.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(
            int(part * config["hidden_size"]) // config["num_attention_heads"]
        )
        writer.add_sliding_window(config.get("sliding_window") or 0)
    elif kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])
    elif kind == "gemma3":
        raise ValueError("the text model is gemma3_text")
    elif kind == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
        # The converter leaves it out: it is 6 in every model.
        if config["sliding_window_pattern"] != 6:
            writer.add_sliding_window_pattern(config["sliding_window_pattern"])
    elif kind == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    elif kind in ("mixtral", "qwen3_moe"):
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if kind == "qwen3_moe":
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    elif kind == "mistral" and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def _add_tokenizer(writer: Any, size: int, pre: str) -> None:
    tokens, merges = vocabulary(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def _add_tensors(
    writer: Any,
    name: str,
    config: Mapping[str, Any],
    weights: Weights,
    tensor_type: str,
    types: Mapping[str, str],
) -> None:
    number = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}[name]
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for index, (key, weight) in enumerate(stacked(weights).items()):
        stored = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert stored is not None, key
        weight = as_stored(key, weight, config)
        kind = next((each for end, each in types.items() if stored.endswith(end)), tensor_type)
        if weight.ndim == 1 or kind == "F32" or stored.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(stored, weight)
        elif kind == "F16":
            writer.add_tensor(stored, weight.astype(np.float16))
        else:
            number = gguf.GGMLQuantizationType[kind]
            try:
                packed = gguf.quants.quantize(weight, number)
            except NotImplementedError:
                packed = random_blocks(kind, *weight.shape, seed=index)
            writer.add_tensor(stored, packed, raw_dtype=number)
    factors = _rope(config)
    if "long_factor" in factors:
        for length in ("long", "short"):
            divisors = np.array(factors[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", divisors)
    if factors.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3(config, factors))


def stacked(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """The matrices of all experts of a layer as one tensor, by the converter's names."""
    found: dict[str, Any] = {}
    for name, weight in weights.items():
        match = re.fullmatch(r"(.*\.experts)\.\d+\.(\w+)\.weight", name)
        if match is None:
            found[name] = weight
        else:
            found.setdefault(f"{match[1]}.{match[2]}.weight", []).append(weight)
    return {
        name: np.stack(weight) if isinstance(weight, list) else weight
        for name, weight in found.items()
    }


def as_stored(name: str, weight: NDArray[np.float32], config: Mapping[str, Any]) -> Any:
    """A tensor of the Hugging Face layout as GGUF has it: q and k permuted, or a norm plus 1."""
    kind = config["model_type"]
    if kind in ("gemma2", "gemma3_text") and name.endswith("norm.weight"):
        return weight + np.float32(1)
    part = name.rpartition(".")[0]
    if kind not in _NEIGHBOURS or not part.endswith(("q_proj", "k_proj")):
        return weight
    heads = config["num_attention_heads" if part.endswith("q_proj") else "num_key_value_heads"]
    halves = weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _llama3(config: Mapping[str, Any], rope: Mapping[str, Any]) -> NDArray[np.float32]:
    dim, original = config["head_dim"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    divisors = []
    for pair in range(dim // 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (2 * pair / dim)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)
