"""SentencePiece vocabularies of GGUF files (``tokenizer.ggml.model`` = ``llama``).

Such a vocabulary has a score for each piece and no merges: of the neighbours that make a piece
together, those with the highest score are joined, the leftmost first
(https://github.com/google/sentencepiece, ``bpe_model.cc``; llama.cpp's ``llm_tokenizer_spm``). That
is byte pair encoding whose merges stand in the order of the scores of what they make. Characters
that are no piece become byte tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from wager.errors import CorruptFile, UnsupportedModel
from wager.models.checkpoint import quoted
from wager.models.gguf_file import GgufFile

NORMAL, UNKNOWN, UNUSED, BYTE = 1, 2, 5, 6
SPACE: Final = "\u2581"
# Sound vocabularies have runs of some dozens of spaces; every cut of a piece is looked at.
MAX_PIECE: Final = 256
_BYTES: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def pieces_json(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    """Normalizer, decoder and model of a ``tokenizer.json``. CorruptFile or UnsupportedModel."""
    if file.metadata.get("tokenizer.ggml.remove_extra_whitespaces", False):
        raise UnsupportedModel(
            f"{file.path}: tokenizer.ggml.remove_extra_whitespaces is true; it must be false"
        )
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    first = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    last = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    unknown = next(
        (text for text, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None
    )
    of_bytes = {text for text, kind in zip(tokens, types, strict=True) if kind == BYTE}
    if not of_bytes >= _BYTES and (of_bytes or unknown is None):
        raise CorruptFile(
            f"{file.path}: {len(of_bytes & _BYTES)} of the 256 byte tokens are there, and no "
            "other way to write a character that is no token"
        )
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*first, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, *last,
            ],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": unknown,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
            "byte_fallback": bool(of_bytes), "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": merges_by_score(file, tokens, types),
        },
    }  # fmt: skip


def merges_by_score(
    file: GgufFile, tokens: Sequence[str], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Every pair of pieces that make a piece, the best of what they make first.

    Raises CorruptFile, and UnsupportedModel where scores do not say which that is.
    """
    scores = _scores(file, len(tokens))
    plain = {text: scores[i] for i, text in enumerate(tokens) if types[i] in (NORMAL, UNUSED)}
    longest = max(plain, key=len, default="")
    if len(longest) > MAX_PIECE:
        raise CorruptFile(
            f"{file.path}: the vocabulary holds a token of {len(longest)} characters; {MAX_PIECE} "
            "is the limit"
        )
    made: dict[str, list[tuple[str, str]]] = {}
    for text in plain:
        pairs = [(text[:at], text[at:]) for at in range(1, len(text))]
        known = [(left, right) for left, right in pairs if left in plain and right in plain]
        if known:
            made[text] = known
    _refuse_ties(file, made, plain)
    # Runs of spaces all have one score. The leftmost pair goes first, so that a run grows from its
    # left end: the longer its left part, the earlier.
    ranked = [(plain[text], pair) for text, known in made.items() for pair in known]
    ranked.sort(key=lambda item: (-item[0], -len(item[1][0]), -len(item[1][1])))
    return [pair for _, pair in ranked]


def _scores(file: GgufFile, count: int) -> list[float]:
    scores = file.numbers("tokenizer.ggml.scores").astype(np.float64)
    if len(scores) != count or not np.isfinite(scores).all():
        raise CorruptFile(
            f"{file.path}: tokenizer.ggml.scores are not {count} numbers, one for each token"
        )
    values: list[float] = scores.tolist()
    return values


def _refuse_ties(file: GgufFile, made: Collection[str], scores: Mapping[str, float]) -> None:
    """Equal scores are clear only where no two pieces can want the same character."""
    order = sorted(made, key=lambda text: (-scores[text], len(set(text)) == 1))
    for left, right in pairwise(order):
        if scores[left] == scores[right] and len(set(left)) > 1:
            raise UnsupportedModel(
                f"{file.path}: tokens {quoted(left)} and {quoted(right)} have the same score, so "
                "nothing says which is made first; convert the model again from its "
                "tokenizer.model"
            )
