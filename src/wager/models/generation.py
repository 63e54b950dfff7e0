"""The model's own defaults: which tokens end its answers, and how it is sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wager.errors import CorruptFile
from wager.models.checkpoint import finite, quoted

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer

# Files name one end token, models use several: the end of a turn, of a message, of a text.
END_NAMES: Final = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>",
    "<end_of_turn>", "<|end|>", "<|eot|>", "<|end_of_turn|>",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """``eos_ids`` ascending. Where the model states no sampling: all tokens, as likely as they are.

    ``do_sample: false``, stated, means temperature 0, as in transformers. Left out it means
    nothing here (there it is false): chat models are published with settings and without the flag.
    """

    eos_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def of_directory(
    path: Path, config: Mapping[str, Any], sampling: Mapping[str, Any], tokenizer: Tokenizer
) -> GenerationConfig:
    """From config.json and generation_config.json, whose end tokens come first. CorruptFile."""
    stated = sampling.get("eos_token_id", config.get("eos_token_id"))
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
        raise CorruptFile(
            f"{path}: eos_token_id is not a token id or a list of them: {quoted(stated)}"
        )
    return build(str(path), ids, sampling, tokenizer)


def of_gguf(path: Path, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> GenerationConfig:
    """From the metadata of a GGUF file. Raises CorruptFile."""
    ids = []
    for key in ("eos", "eot", "eom"):
        value = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(value, int) and not isinstance(value, bool):
            ids.append(value)
    # The penalty of these files is not read: it means the last 64 tokens only.
    names = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    sampling = {
        key: metadata[f"general.sampling.{stored}"]
        for key, stored in names.items()
        if f"general.sampling.{stored}" in metadata
    }
    return build(str(path), ids, sampling, tokenizer)


def build(
    source: str, ids: Sequence[int], sampling: Mapping[str, Any], tokenizer: Tokenizer
) -> GenerationConfig:
    """From stated end tokens and settings (keys of generation_config.json); checked.

    Adds the special tokens of the tokenizer that end a turn, a message or a text by their name.
    Raises CorruptFile.
    """
    ends = set(ids)
    for token in ends:
        if not 0 <= token < tokenizer.vocab_size:
            raise CorruptFile(f"{source}: end token {token} is not in the vocabulary")
    for name in END_NAMES:
        special = tokenizer.special_id(name)
        if special is not None:
            ends.add(special)
    temperature = _number(source, sampling, "temperature", 1.0)
    top_p = _number(source, sampling, "top_p", 1.0)
    min_p = _number(source, sampling, "min_p", 0.0)
    penalty = _number(source, sampling, "repetition_penalty", 1.0)
    top_k = sampling.get("top_k")
    if top_k is None:
        top_k = 0
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not -1 <= top_k < 1 << 31:
        raise CorruptFile(f"{source}: top_k {quoted(top_k)} is not a whole number of at least 0")
    if temperature < 0 or not 0 < top_p <= 1:
        raise CorruptFile(f"{source}: temperature {temperature} or top_p {top_p} is out of range")
    if not 0 <= min_p <= 1 or not 0.01 <= penalty <= 100:
        raise CorruptFile(
            f"{source}: min_p {min_p} or repetition_penalty {penalty} is out of range"
        )
    if sampling.get("do_sample") is False:
        temperature = 0.0
    return GenerationConfig(tuple(sorted(ends)), temperature, max(top_k, 0), top_p, min_p, penalty)


def _number(source: str, sampling: Mapping[str, Any], key: str, default: float) -> float:
    value = sampling.get(key)
    if value is None:
        return default
    number = finite(value)
    if number is None:
        raise CorruptFile(f"{source}: {key} {quoted(value)} is not a number")
    return number
