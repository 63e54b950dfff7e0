"""A tokenizer from GGUF metadata, built for the tokenizers library and kept in parsed form.

Of two kinds: byte-level BPE, with merges and the name of a rule for cutting (`gguf_splits`), and
SentencePiece, with scores (`gguf_pieces`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any, Final

from wager.errors import CorruptFile, UnsupportedModel
from wager.models.chat import DEFAULT, chat_templates
from wager.models.checkpoint import quoted
from wager.models.generation import END_NAMES
from wager.models.gguf_file import GgufFile
from wager.models.gguf_pieces import UNKNOWN, pieces_json
from wager.models.gguf_splits import BYTE_LEVEL, RULES, Rule
from wager.models.hf_tokenizer import parse
from wager.models.paths import replacing, tokenizers_dir
from wager.models.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

# Part of the name of the parsed form: raise it when what is built changes.
_VERSION: Final = 2
_CONTROL, _USER_DEFINED = 3, 4
# After a token of Phi-3's that is marked as special, space is no text, but for these.
_KEEP_SPACE: Final = ("<unk>", "<s>", "<|endoftext|>")
_TEMPLATE: Final = "tokenizer.chat_template"


def from_gguf(file: GgufFile) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises CorruptFile or UnsupportedModel."""
    count = len(file.numbers("tokenizer.ggml.token_type"))
    kept = tokenizers_dir() / f"{file.digest[:32]}-{_VERSION}.json"
    backend = _parsed_form(kept) or _build(file, kept)
    names = {
        role: _token_id(file, key, count)
        for role, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"),
                          ("pad_token", "padding"))
    }  # fmt: skip
    tokens = {role: backend.id_to_token(i) for role, i in names.items() if i is not None}
    texts = {
        name: file.metadata.get(key)
        for name, key in ((DEFAULT, _TEMPLATE), ("tool_use", f"{_TEMPLATE}.tool_use"))
    }
    templates = {name: text for name, text in texts.items() if isinstance(text, str)}
    return Tokenizer(
        backend,
        name=str(file.path),
        digest=hashlib.sha256(f"gguf {file.digest}".encode()).hexdigest(),
        vocab_size=count,
        bos_id=names["bos_token"],
        **chat_templates(templates, tokens, str(file.path)),
    )


def _parsed_form(kept: Path) -> Any | None:
    try:
        return parse(kept.read_bytes(), kept)
    except FileNotFoundError:
        return None
    except (OSError, CorruptFile) as error:
        _log.warning("%s; building the tokenizer again", error)
        return None


def _build(file: GgufFile, kept: Path) -> Any:
    raw = json.dumps(tokenizer_json(file), ensure_ascii=False).encode("utf-8")
    backend = parse(raw, file.path)
    try:
        with replacing(kept) as out:
            out.write(raw)
    except OSError as error:
        _log.warning("%s: cannot keep the parsed tokenizer: %s", kept, error.strerror or error)
    return backend


def tokenizer_json(file: GgufFile) -> dict[str, Any]:
    """The metadata as the content of a ``tokenizer.json``."""
    model = file.metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{file.path}: tokenizer model {quoted(model)} is not supported; what works: 'gpt2' "
            "(byte-level BPE), 'llama' (SentencePiece with scores)"
        )
    rule = _rule(file) if model == "gpt2" else None
    tokens, types = _vocabulary(file)
    parts = _bytes_json(file, tokens, rule) if rule else pieces_json(file, tokens, types)
    adds_bos = rule.adds_bos if rule else True
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(file, tokens, types, strips=rule is None),
        "post_processor": _post_processor(file, tokens, adds_bos),
        **parts,
    }


def _rule(file: GgufFile) -> Rule:
    pre = file.metadata.get("tokenizer.ggml.pre")
    rule = RULES.get(pre) if isinstance(pre, str) else None
    if rule is None:
        raise UnsupportedModel(
            f"{file.path}: pre-tokenizer {quoted(pre)} is not supported; what works: "
            + ", ".join(RULES)
        )
    return rule


def _bytes_json(file: GgufFile, tokens: list[str], rule: Rule) -> dict[str, Any]:
    vocab = {text: i for i, text in enumerate(tokens)}
    return {
        "normalizer": {"type": "NFC"} if rule.nfc else None,
        "pre_tokenizer": rule.pre_tokenizer,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": rule.ignore_merges, "vocab": vocab, "merges": _merges(file, vocab),
        },
    }  # fmt: skip


def _added(
    file: GgufFile, tokens: list[str], types: list[int], strips: bool
) -> list[dict[str, Any]]:
    """Tokens that are found in a text before it is cut.

    Special is what is no text: by its type, or because it ends an answer, whatever its type (as in
    llama.cpp, since files mark such tokens wrongly). ``strips``: in a SentencePiece vocabulary of
    Phi-3, space after a special token goes, which GGUF does not say.
    """
    strips = strips and file.metadata.get("general.architecture") == "phi3"
    added = []
    for i, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        special = kind in (_CONTROL, UNKNOWN) or text in END_NAMES
        if special or kind == _USER_DEFINED:
            added.append(
                {"id": i, "content": text, "single_word": False, "lstrip": False,
                 "rstrip": strips and text not in _KEEP_SPACE, "normalized": False,
                 "special": special}
            )  # fmt: skip
    return added


def _vocabulary(file: GgufFile) -> tuple[list[str], list[int]]:
    tokens = file.strings("tokenizer.ggml.tokens")
    types = file.numbers("tokenizer.ggml.token_type").tolist()
    if len(types) != len(tokens) or not tokens:
        raise CorruptFile(f"{file.path}: {len(tokens)} tokens, but {len(types)} token types")
    if "" in tokens:
        raise CorruptFile(f"{file.path}: the vocabulary holds an empty token")
    if len(set(tokens)) != len(tokens):
        raise CorruptFile(f"{file.path}: the vocabulary holds a token twice")
    return tokens, types


def _merges(file: GgufFile, vocab: dict[str, int]) -> list[list[str]]:
    merges = []
    for text in file.strings("tokenizer.ggml.merges"):
        # Byte-level tokens hold no space; one that did would be cut at its first character.
        left, _, right = text.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise CorruptFile(f"{file.path}: merge {quoted(text)} names tokens that do not exist")
        merges.append([left, right])
    return merges


def _post_processor(file: GgufFile, tokens: list[str], adds_bos: bool) -> dict[str, Any] | None:
    """BOS before a text where the file says so, or ``adds_bos`` and the file says nothing."""
    if file.metadata.get("tokenizer.ggml.add_eos_token", False):
        raise UnsupportedModel(f"{file.path}: a tokenizer that adds EOS is not supported")
    bos = _token_id(file, "bos", len(tokens))
    if not file.metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        return None
    if bos is None:
        raise CorruptFile(f"{file.path}: BOS is to be added, but no bos_token_id is given")
    text, sequence = tokens[bos], {"Sequence": {"id": "A", "type_id": 0}}
    start = {"SpecialToken": {"id": text, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start, sequence],
        "pair": [start, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }


def _token_id(file: GgufFile, role: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{role}_token_id"
    value = file.metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise CorruptFile(f"{file.path}: {key} {quoted(value)} is not in the vocabulary")
    return value
