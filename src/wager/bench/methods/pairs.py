"""A drafter beside its target: the options to start with, what it adds, and whether the two fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from wager.arms import Speculation
from wager.bench.fit.calculate import weight_width
from wager.bench.methods.engines import SELF, SUFFIX_NGRAM
from wager.bench.spelling import percent
from wager.models.facts.read import ModelFacts

Origin: TypeAlias = Literal["always", "built in", "list", "hub", "family", "candidate"]

SMALLER: Final = 0.5
"""A draft model should be less than this share of the target."""

# Draft lengths to start with, where neither the head's config nor the engine says one; `wager tune`
# finds the best. The n-gram bounds are those of `wager bench`.
_LENGTH: Final = {
    "ngram": 8, "suffix": 16, SUFFIX_NGRAM: 8, "draft_model": 4, "eagle": 3, "eagle3": 3,
    "peagle": 5, "mtp": 1, "dflash": 6, "dflash2": 6, "dspark": 5, "medusa": 3,
}  # fmt: skip
_COARSER: Final = {"f32": "int8", "bf16": "int8", "int8": "int4"}
_METHOD: Final = {"peagle": "eagle3", "dflash2": "dflash"}
_SAME_WIDTH: Final = frozenset({"eagle", "eagle3", "peagle", "medusa"})


@dataclass(frozen=True, slots=True)
class Adds:
    """Memory on top of the target: weights as stored in bytes, and bytes of keys and values per
    token of context in 16 bits."""

    weight_bytes: int
    kv_bytes_per_token: float


NOTHING: Final = Adds(0, 0.0)


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafter before its files were looked at."""

    kind: str
    name: str | None
    origin: Origin
    source: str | None = None
    notes: tuple[str, ...] = ()


def speculation_of(draft: Draft, known: ModelFacts | None, target: ModelFacts) -> Speculation:
    options: dict[str, Any] = {}
    if draft.name is not None:
        options["model"] = draft.name
    if draft.kind == "ngram-mod":
        # Its length has a default of its own, longer than others start with.
        return Speculation(draft.kind, options)
    options["num_speculative_tokens"] = _length(draft, known, target)
    if draft.name == SELF:
        options["quantization"] = rounded(target)
    if draft.kind in ("ngram", SUFFIX_NGRAM):
        options |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    if draft.kind == "peagle":
        options["parallel_drafting"] = True
    return Speculation(_METHOD.get(draft.kind, draft.kind), options)


def _length(draft: Draft, known: ModelFacts | None, target: ModelFacts) -> int:
    """The draft length that the head was made for, else one to start with."""
    if draft.kind == "mtp" and draft.name is None:
        return max(1, target.mtp_layers)
    head = (known.speculative if known is not None else None) or {}
    block = head.get("block_size")
    for value in (
        head.get("num_speculative_tokens"),
        head.get("medusa_num_heads"),
        # The first slot of a DFlash block is the last committed token.
        block - 1 if isinstance(block, int) and draft.kind.startswith("dflash") else block,
    ):
        if isinstance(value, int) and value > 0:
            return value
    return _LENGTH.get(draft.kind, _LENGTH["draft_model"])


def rounded(target: ModelFacts) -> str | None:
    """The next coarser weights than those in which wager's own engine runs the target."""
    return _COARSER.get(weight_width("own", "auto", target)[1])


def self_adds(target: ModelFacts) -> Adds | None:
    """The target's weights rounded, and keys and values as its own."""
    width, _ = weight_width("own", rounded(target) or "auto", target)
    if width is None:
        return None
    return Adds(int(target.parameters * width), target.kv_bytes_per_token())


def mtp_adds(facts: ModelFacts) -> Adds | None:
    """The layers' weights, which plain decoding does not need, and what they keep per token."""
    full = [layer for layer in facts.kv_layers if layer.kind == "full"]
    if not facts.mtp_bytes or not full:
        return None
    per_layer = full[-1].values * 2 + full[-1].extra_bytes
    return Adds(facts.mtp_bytes, float(facts.mtp_layers * per_layer))


def tokenizers_differ(target: ModelFacts, known: ModelFacts) -> str | None:
    if target.tokenizer_hash is None or known.tokenizer_hash is None:
        return None
    if target.tokenizer_hash == known.tokenizer_hash:
        return None
    return "its tokenizer differs from the target's: token ids would mean other text"


def pair_notes(draft: Draft, known: ModelFacts | None, target: ModelFacts) -> list[str]:
    """What the files of the pair say about each other."""
    notes: list[str] = []
    if draft.name == SELF:
        return [f"the target's own weights as {rounded(target)}: by --weights auto it is finer"]
    if draft.kind == "draft_model":
        if known is None or known.tokenizer_hash is None or target.tokenizer_hash is None:
            notes.append("its tokenizer was not compared with the target's")
        else:
            notes.append("has the target's tokenizer: compared token by token")
        share = known.weight_bytes / max(target.weight_bytes, 1) if known is not None else 0.0
        if share >= SMALLER:
            # A step with one request takes as long as reading the weights.
            speed = "no faster than it" if share >= 1 else "hardly faster than it"
            notes.append(f"its weights are {percent(share)} of the target's: {speed}")
    elif known is not None:
        width = (known.speculative or {}).get("target_hidden_size", known.hidden_size)
        if draft.kind in _SAME_WIDTH and width != target.hidden_size:
            notes.append(
                f"made for hidden states of {width}; the target's are {target.hidden_size}"
            )
        if known.vocab_size != target.vocab_size:
            notes.append(f"its vocabulary is {known.vocab_size}, the target's {target.vocab_size}")
    notes += known.notes if known is not None else ()
    return notes
