"""The tokenizer of a directory in Hugging Face layout: ``tokenizer.json`` and what is beside it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from wager.errors import CorruptFile, ModelError, UnsupportedModel
from wager.models.chat import DEFAULT, MAX_TEMPLATE, chat_templates
from wager.models.safetensors_file import read_json, read_limited
from wager.models.tokenizer import Tokenizer

MAX_TOKENIZER: Final = 1 << 27
MAX_SETTINGS: Final = 1 << 24
_ROLES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def from_directory(path: Path) -> Tokenizer:
    """Raises ModelError, CorruptFile or UnsupportedModel."""
    file = path / "tokenizer.json"
    if not file.is_file():
        old = next((n for n in ("tokenizer.model", "vocab.json") if (path / n).is_file()), None)
        if old is not None:
            raise UnsupportedModel(
                f"{path}: has {old} but no tokenizer.json; what works: tokenizer.json (write it "
                "with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...))"
            )
        raise ModelError(f"{path}: has no tokenizer.json")
    raw = read_limited(file, MAX_TOKENIZER)
    backend = parse(raw, file)
    settings_file = path / "tokenizer_config.json"
    settings = read_json(settings_file, MAX_SETTINGS) if settings_file.is_file() else {}
    tokens = _role_tokens(settings)
    templates = _templates(path, settings)
    bos = tokens.get("bos_token")
    return Tokenizer(
        backend,
        name=str(file),
        digest=hashlib.sha256(raw).hexdigest(),
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        bos_id=None if bos is None else backend.token_to_id(bos),
        **chat_templates(templates, tokens, str(path)),
    )


def parse(raw: bytes, file: Path) -> Any:
    """A ``tokenizers.Tokenizer`` from the text of a tokenizer.json."""
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_buffer(raw)
    except BaseException as error:
        # The library's panics derive from BaseException; a keyboard interrupt does too.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise CorruptFile(f"{file}: is no sound tokenizer.json: {reason}") from error
    # Limits for the training of other models are not this program's.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _role_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """The texts of BOS, EOS, ...: stated as text, or as an object with ``content``."""
    tokens = {}
    for role in _ROLES:
        value = settings.get(role)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[role] = value
    return tokens


def _templates(path: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The chat templates by name, from files of their own or from the settings.

    One that has no name, or is alone, is the default one.
    """
    file = path / "chat_template.jinja"
    if file.is_file():
        more = sorted((path / "additional_chat_templates").glob("*.jinja"))
        return {one.stem: _text(one) for one in more} | {DEFAULT: _text(file)}
    given = settings.get("chat_template")
    if isinstance(given, str):
        return {DEFAULT: given}
    found = {
        str(item.get("name")): item["template"]
        for item in (given if isinstance(given, list) else ())
        if isinstance(item, dict) and isinstance(item.get("template"), str)
    }
    if len(found) == 1:
        return {DEFAULT: next(iter(found.values()))}
    return found


def _text(file: Path) -> str:
    try:
        return read_limited(file, 4 * MAX_TEMPLATE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{file}: is not UTF-8") from error
