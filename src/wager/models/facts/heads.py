"""Draft heads: which kind a checkpoint is, and the keys of its config that matter to memory.

Two layouts exist: each kind's own (a small config with telling keys or an architecture name) and
that of https://github.com/vllm-project/speculators (``speculators_model_type``, with the shape of
the layers under ``transformer_layer_config``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from wager.models.fields import Fields

# Parts of architecture names, the more special first.
_ARCHITECTURES: Final = (
    ("eagle3", "eagle3"), ("eagle", "eagle"), ("dspark", "dspark"), ("dflash", "dflash"),
    ("medusa", "medusa"), ("mlpspeculator", "mlp_speculator"), ("mtpmodel", "mtp"),
    ("assistantfor", "mtp"),
)  # fmt: skip
_KEPT: Final = (
    "draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids",
    "aux_hidden_state_layer_ids", "target_layer_ids", "dflash_config", "eagle_config", "block_size",
    "mask_token_id", "markov_rank", "markov_head_type", "enable_confidence_head",
    "medusa_num_heads", "medusa_num_layers", "n_predict", "num_speculative_tokens",
)  # fmt: skip


def speculative(fields: Fields, names: Collection[str]) -> dict[str, Any] | None:
    """The description of a draft head, or None. ``names`` are those of its tensors."""
    kind = fields.get("speculators_model_type") or _kind(fields, names)
    if kind is None:
        return None
    found: dict[str, Any] = {"kind": str(kind)}
    found.update({key: fields.raw[key] for key in _KEPT if fields.raw.get(key) is not None})
    if fields.get("speculators_model_type"):
        found["format"] = "speculators"
        found.update(_speculators(fields.table("speculators_config")))
    return found


def _kind(fields: Fields, names: Collection[str]) -> str | None:
    architecture = str((fields.items("architectures") or [""])[0]).lower()
    for part, kind in _ARCHITECTURES:
        if part in architecture.replace("_", ""):
            return kind
    if fields.get("markov_rank") is not None:
        return "dspark"
    if fields.get("dflash_config") is not None:
        return "dflash"
    if fields.get("medusa_num_heads") is not None:
        return "medusa"
    if fields.get("model_type") == "mlp_speculator":
        return "mlp_speculator"
    if fields.get("draft_vocab_size") is not None or "d2t" in names:
        return "eagle3"
    if fields.get("eagle_config") is not None:
        return "eagle3"
    # EAGLE's own files call themselves Llama; what gives them away is the layer that joins the
    # token's embedding to the target's hidden state.
    return "eagle" if {"fc.weight", "model.fc.weight"}.intersection(names) else None


def _speculators(config: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {}
    verifier = config.table("verifier").get("name_or_path")
    if isinstance(verifier, str):
        found["target"] = verifier
    proposals = config.items("proposal_methods")
    if proposals and isinstance(proposals[0], Mapping):
        tokens = proposals[0].get("speculative_tokens")
        if isinstance(tokens, int) and not isinstance(tokens, bool) and 1 <= tokens <= 1024:
            found["num_speculative_tokens"] = tokens
    return found
