"""Facts of a model in Hugging Face layout: config.json, and what the headers of its files list."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wager.errors import CorruptFile
from wager.models.checkpoint import quoted
from wager.models.facts.heads import speculative
from wager.models.facts.layers import head_dim, layer_caches, num_heads, num_kv_heads
from wager.models.facts.records import (
    LayerCache,
    ModelFacts,
    Source,
    TensorFact,
    is_mtp,
    most_bytes,
)
from wager.models.fields import Fields

# Where a model of text and images keeps the part that writes text.
_INNER: Final = ("text_config", "llm_config", "language_config", "thinker_config",
                 "transformer_layer_config")  # fmt: skip
_MAX_DEPTH: Final = 4
_CONTEXT: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "max_seq_length", "seq_len", "n_ctx",
)  # fmt: skip
_MTP: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers",
               "mtp_num_layers", "num_mtp_modules")  # fmt: skip
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token",
                  "moe_top_k", "top_k_experts")  # fmt: skip
_EXPERT_SIZE: Final = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size",
                       "ffn_dim")  # fmt: skip
_DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
# Scales and zero points of packed weights: stored, but no parameters of the model.
_SCALES: Final = re.compile(
    r"\.(?:\w*scales?(?:_inv|_\d)?|qzeros|g_idx|weight_shape|weight_zero_point|zeros|absmax"
    r"|nested_absmax|nested_quant_map|quant_map|quant_state\.\w+|SCB|weight_format)$"
    r"|_scales$"
)
_PACKED: Final = re.compile(r"\.(?:qweight|weight_packed)$|_(?:blocks|packed)$")


def flatten(raw: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """The text model's config, with what only the outer one says filled in."""
    flat = dict(raw)
    for key in _INNER:
        inner = flat.get(key)
        if isinstance(inner, Mapping) and depth < _MAX_DEPTH:
            outer = {k: v for k, v in flat.items() if not isinstance(v, Mapping) or k in _KEEP}
            flat = outer | flatten({k: v for k, v in inner.items() if v is not None}, depth + 1)
            # What names the whole stays the whole's.
            if raw.get("architectures"):
                flat["architectures"] = raw["architectures"]
            break
    return flat


_KEEP: Final = ("quantization_config", "speculators_config", "eagle_config", "dflash_config",
                "rope_scaling", "rope_parameters", "linear_attn_config")  # fmt: skip


def build(
    *,
    name: str,
    source: Source,
    location: str,
    raw: Mapping[str, Any],
    path: Path | str,
    tensors: Sequence[TensorFact],
    tokenizer_hash: str | None,
    pickled_bytes: int | None = None,
) -> ModelFacts:
    """Facts from a config and a list of tensors.

    ``pickled_bytes`` is the size of weight files that are pickles, which are never opened. Raises
    CorruptFile and UnsupportedModel.
    """
    fields = Fields(path, flatten(raw))
    names = {tensor.name for tensor in tensors}
    head = speculative(fields, names)
    layers = _layers(fields, head)
    heads, vocab = num_heads(fields), fields.whole("vocab_size", "padded_vocab_size") or 0
    tied = _tied(fields, names)
    kept = _without_copy(tensors, tied)
    notes: list[str] = []
    mtp = 0 if head else _mtp_layers(fields, names, layers, notes)
    quantisation, bits = _quantisation(fields)
    model_dtype = _model_dtype(fields)
    if pickled_bytes is not None:
        notes.append(_PICKLES)
    experts = (fields.whole(*_EXPERTS) or 0) > 1
    medusa_like = head is not None and head["kind"] in ("medusa", "mlp_speculator")
    return ModelFacts(
        name=name,
        source=source,
        location=location,
        architecture=_architecture(fields),
        model_type=str(fields.get("model_type") or ""),
        num_layers=layers,
        hidden_size=fields.whole("hidden_size", "n_embd", "d_model", "dim") or 0,
        intermediate_size=fields.whole(*_MLP_WIDTH),
        num_heads=heads,
        num_kv_heads=0 if medusa_like else num_kv_heads(fields),
        head_dim=head_dim(fields) if heads else 0,
        vocab_size=vocab,
        max_context=_context(fields),
        tied_head=tied,
        quantisation=quantisation,
        model_dtype=model_dtype,
        **_sizes(kept, bits, model_dtype, pickled_bytes),
        kv_layers=(LayerCache("none"),) * layers if medusa_like else layer_caches(fields, layers),
        experts=fields.whole(*_EXPERTS) if experts else None,
        experts_per_token=fields.whole(*_CHOSEN) if experts else None,
        expert_size=fields.whole(*_EXPERT_SIZE) if experts else None,
        mtp_layers=mtp,
        tokenizer_hash=tokenizer_hash,
        tensors=tuple(tensors),
        speculative=head,
        notes=tuple(notes),
    )


_MLP_WIDTH: Final = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_PICKLES: Final = "its weights are pickles, which are never opened: sizes are those of the files"


def _sizes(
    kept: Sequence[TensorFact], bits: int | None, model_dtype: str | None, pickled: int | None
) -> dict[str, Any]:
    """Size, number and type of the weights: those that headers list, or what files of ``pickled``
    bytes would hold."""
    if pickled is None:
        return {
            "weight_bytes": sum(tensor.nbytes for tensor in kept),
            "parameters": sum(_parameters(tensor, bits) for tensor in kept),
            "dtype": most_bytes(kept),
        }
    width = _DTYPE_BYTES.get(model_dtype or "", 2)
    kind = {4: "F32", 2: "BF16" if model_dtype == "bfloat16" else "F16"}[width]
    return {"weight_bytes": pickled, "parameters": pickled // width, "dtype": kind}


def hash_tokens(pairs: Mapping[int, str]) -> str:
    """sha256 over the (id, token) pairs. Equal hashes: the same text for every id.

    Merges are left out: drafts are exchanged as ids, and GGUF holds none for some vocabularies.
    """
    digest = hashlib.sha256()
    for token_id in sorted(pairs):
        digest.update(json.dumps([token_id, pairs[token_id]]).encode())
    return digest.hexdigest()


def tokenizer_hash(raw: Mapping[str, Any], path: Path | str) -> str:
    """`hash_tokens` of a tokenizer.json. Raises CorruptFile."""
    vocab = Fields(path, raw).table("model").get("vocab")
    pairs: dict[int, str] = {}
    if isinstance(vocab, Mapping):
        pairs.update({_id(path, token_id): str(token) for token, token_id in vocab.items()})
    elif isinstance(vocab, list):  # Unigram: [token, score] in the order of the ids
        pairs.update({i: str(pair[0]) for i, pair in enumerate(vocab) if isinstance(pair, list)
                      and pair})  # fmt: skip
    for added in Fields(path, raw).items("added_tokens") or ():
        if isinstance(added, Mapping):
            pairs[_id(path, added.get("id"))] = str(added.get("content"))
    return hash_tokens(pairs)


def _id(path: Path | str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CorruptFile(f"{path}: a token has the id {quoted(value)}")
    return value


def _layers(fields: Fields, head: Mapping[str, Any] | None) -> int:
    given = fields.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers",
                         "num_decoder_layers")  # fmt: skip
    if given is None and head is not None:
        given = fields.whole("medusa_num_heads") or 1
    return fields.layers("num_hidden_layers", given)


def _architecture(fields: Fields) -> str:
    named = fields.items("architectures")
    return str(named[0]) if named else str(fields.get("model_type") or "")


def _context(fields: Fields) -> int:
    """The longest context of the config. YaRN and longrope are already counted in it; the plain
    factors are not (as vLLM 0.32 reads them)."""
    base = fields.whole(*_CONTEXT) or 2048
    scaling = fields.table("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    kind = scaling.get("rope_type", "type")
    factor = scaling.get("factor")
    scaled = kind in ("linear", "dynamic") and isinstance(factor, int | float)
    if not scaled or "gemma3" in str(fields.get("model_type")) or not 1 <= factor <= 1024:
        return base
    return int(base * factor)


def _tied(fields: Fields, names: set[str]) -> bool:
    stated = fields.get("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    # Left out, it follows the family's default; the tensors know better.
    return bool(names) and not any(name.endswith("lm_head.weight") for name in names)


def _without_copy(tensors: Sequence[TensorFact], tied: bool) -> list[TensorFact]:
    """Leave out a head that some files carry although it is the embedding."""
    tables = {t.shape for t in tensors if t.name.endswith(("embed_tokens.weight", "wte.weight"))}
    copies = {t.name for t in tensors if t.name.endswith("lm_head.weight") and t.shape in tables}
    return [t for t in tensors if not (tied and t.name in copies)]


def _mtp_layers(fields: Fields, names: set[str], layers: int, notes: list[str]) -> int:
    stated = fields.whole(*_MTP) or 0
    if not names:
        return stated
    found = {name for name in names if is_mtp(name, layers)}
    if not found and stated:
        notes.append(
            f"the config names {stated} layer(s) of multi-token prediction, but the files hold no "
            "tensors of them"
        )
        return 0
    numbers = {match.group(1) for name in found if (match := re.search(r"layers\.(\d+)\.", name))}
    return stated or len(numbers) or int(bool(found))


def _model_dtype(fields: Fields) -> str | None:
    stated = fields.get("torch_dtype", "dtype")
    return stated.removeprefix("torch.") if isinstance(stated, str) else None


def _quantisation(fields: Fields) -> tuple[str | None, int | None]:
    """(name and bits for people, bits of a packed weight)."""
    config = fields.table("quantization_config")
    if not config.raw:
        return None, None
    method = str(config.get("quant_method", "quant_algo") or "quantised")
    bits = config.whole("bits", "w_bit", "weight_bits")
    if bits is None and config.get("load_in_4bit") is True:
        bits = 4
    if bits is None and isinstance(config.get("config_groups"), Mapping):
        groups = [g for g in config.raw["config_groups"].values() if isinstance(g, Mapping)]
        widths = [Fields(fields.path, g).table("weights").whole("num_bits") for g in groups]
        bits = max((w for w in widths if w), default=None)
    if bits is None:
        lowered = f"{method} {config.get('fmt') or ''}".lower()
        bits = 8 if "fp8" in lowered else 4 if "fp4" in lowered else None
    return f"{method} {bits}-bit" if bits else method, bits


def _parameters(tensor: TensorFact, bits: int | None) -> int:
    """Weights that a tensor holds: packed ones counted one by one, scales not at all."""
    if _SCALES.search(tensor.name):
        return 0
    elements = 1
    for size in tensor.shape:
        elements *= size
    packed = _PACKED.search(tensor.name) or (bits == 4 and tensor.dtype == "U8")
    if packed and bits:
        return tensor.nbytes * 8 // bits
    return elements
