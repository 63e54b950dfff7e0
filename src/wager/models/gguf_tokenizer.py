"""A tokenizer from GGUF metadata, built for the tokenizers library and kept in parsed form.

GGUF stores vocabulary, merges and the name of the pre-tokenizer; the rules behind each name are
here. A name that is not known is refused: a wrong split gives wrong ids without an error.
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
from wager.models.gguf_file import GgufFile
from wager.models.hf_tokenizer import parse
from wager.models.paths import replacing, tokenizers_dir
from wager.models.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

# Part of the name of the parsed form: raise it when what is built changes.
_VERSION: Final = 1
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4

_BYTE_LEVEL: Final = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
}  # fmt: skip
_LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT: Final = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False},
            _BYTE_LEVEL | {"use_regex": False},
        ],
    }  # fmt: skip


_DIGITS: Final = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
}
_PRE_TOKENIZERS: Final[dict[str, dict[str, Any]]] = {
    "default": _BYTE_LEVEL,
    "gpt-2": _BYTE_LEVEL,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _split(_LLAMA3_SPLIT),
    "llama3": _split(_LLAMA3_SPLIT),
    "llama-v3": _split(_LLAMA3_SPLIT),
    "qwen2": _split(_QWEN2_SPLIT),
}
_TEMPLATE: Final = "tokenizer.chat_template"
_LLAMA3: Final = ("llama-bpe", "llama3", "llama-v3")


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
    if model != "gpt2":
        raise UnsupportedModel(
            f"{file.path}: tokenizer model {quoted(model)} is not supported; what works: 'gpt2' "
            "(byte-level BPE)"
        )
    pre = file.metadata.get("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{file.path}: pre-tokenizer {quoted(pre)} is not supported; what works: "
            + ", ".join(_PRE_TOKENIZERS)
        )
    tokens, types = _vocabulary(file)
    vocab = {text: i for i, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CorruptFile(f"{file.path}: the vocabulary holds a token twice")
    special = [
        {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": kind == _CONTROL}
        for i, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)
    ]  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(file, tokens, pre),
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": pre in _LLAMA3, "vocab": vocab, "merges": _merges(file, vocab),
        },
    }  # fmt: skip


def _vocabulary(file: GgufFile) -> tuple[list[str], list[int]]:
    tokens = file.strings("tokenizer.ggml.tokens")
    types = file.numbers("tokenizer.ggml.token_type").tolist()
    if len(types) != len(tokens) or not tokens:
        raise CorruptFile(f"{file.path}: {len(tokens)} tokens, but {len(types)} token types")
    if "" in tokens:
        raise CorruptFile(f"{file.path}: the vocabulary holds an empty token")
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


def _post_processor(file: GgufFile, tokens: list[str], pre: str) -> dict[str, Any] | None:
    """BOS before a text where the file says so; it is the rule of the Llama 3 family."""
    if file.metadata.get("tokenizer.ggml.add_eos_token", False):
        raise UnsupportedModel(f"{file.path}: a tokenizer that adds EOS is not supported")
    bos = _token_id(file, "bos", len(tokens))
    if not file.metadata.get("tokenizer.ggml.add_bos_token", pre in _LLAMA3):
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
