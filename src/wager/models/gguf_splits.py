r"""How byte-level tokenizers of GGUF files cut a text before they merge, by the name in the file.

GGUF stores the name of a rule (``tokenizer.ggml.pre``), not the rule. Which rule a name stands for,
whether BOS is added and whether merges are skipped for words that are tokens follows llama.cpp's
``llama-vocab.cpp`` (``llm_tokenizer_bpe``, ``llama_vocab::impl::load``). The expressions are those
of the models' own ``tokenizer.json``: where llama.cpp has to write ``\p{Lu}`` and the like in
another way (tekken, gpt-4o) it notes the original beside it. So are the normalizers, which
llama.cpp leaves out. Only names that models of the supported families carry are here; one that is
not known is refused, since a wrong cut gives wrong ids without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

BYTE_LEVEL: Final = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
}  # fmt: skip
_TO_BYTES: Final = BYTE_LEVEL | {"use_regex": False}

# The pieces that the expressions are made of.
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE: Final = r"[^\r\n\p{L}\p{N}]?"
_CJK: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2: Final = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35: Final = (
    rf"{_ENDINGS}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_SEED: Final = rf"{_ENDINGS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_CASED: Final = rf"{_BEFORE}{_UPPER}*{_LOWER}+%s|{_BEFORE}{_UPPER}+{_LOWER}*%s"
_PATHS: Final = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN: Final = rf"{_CASED % ('', '')}|\p{{N}}|{_PATHS}"
_GPT4O: Final = rf"{_CASED % (f'{_ENDINGS}?', f'{_ENDINGS}?')}|\p{{N}}{{1,3}}|{_PATHS}"
_DEEPSEEK3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a name stands for, in the terms of a ``tokenizer.json``.

    ``adds_bos`` where the file does not say it; ``ignore_merges``: a word that is a token is not
    merged together.
    """

    pre_tokenizer: Mapping[str, Any]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


def _cut(*patterns: str, digits: bool = False) -> dict[str, Any]:
    """One expression after the other: what one finds is not cut by it any more."""
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    if digits:
        steps.append({"type": "Digits", "individual_digits": True})
    return {"type": "Sequence", "pretokenizers": [*steps, _TO_BYTES]}


_WHOLE_GPT2: Final = Rule(BYTE_LEVEL)
_DIGITS: Final = Rule(
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                           BYTE_LEVEL]}
)  # fmt: skip
_CUT_LLAMA3: Final = Rule(_cut(_LLAMA3))
_OF_LLAMA3: Final = replace(_CUT_LLAMA3, ignore_merges=True, adds_bos=True)

RULES: Final[Mapping[str, Rule]] = {
    "default": Rule(_cut(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _WHOLE_GPT2,
    "mellum": _WHOLE_GPT2,
    "trillion": _WHOLE_GPT2,
    "a.x-4.0": _WHOLE_GPT2,
    "granite-docling": _WHOLE_GPT2,
    "olmo": replace(_WHOLE_GPT2, nfc=True),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "minerva-7b": _DIGITS,
    "llama-bpe": _OF_LLAMA3,
    "llama3": _OF_LLAMA3,
    "llama-v3": _OF_LLAMA3,
    "falcon3": _OF_LLAMA3,
    # SmolLM3 carries the name of another tuning of Llama 3.
    "smaug-bpe": _CUT_LLAMA3,
    # OLMo 2, Phi-4, Granite 4.
    "dbrx": _CUT_LLAMA3,
    "qwen2": Rule(_cut(_QWEN2), nfc=True),
    "deepseek-r1-qwen": Rule(_cut(_QWEN2)),
    "qwen35": Rule(_cut(_QWEN35), nfc=True),
    "seed-coder": Rule(_cut(_SEED)),
    # Mistral Nemo and later.
    "tekken": Rule(_cut(_TEKKEN), ignore_merges=True, adds_bos=True),
    # Phi-4-mini.
    "gpt-4o": Rule(_cut(_GPT4O)),
    "deepseek-coder": Rule(
        _cut(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
             digits=True)
    ),
    "deepseek-v3": Rule(_cut(r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
}  # fmt: skip
