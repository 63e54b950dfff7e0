"""Which engine an option belongs to, over the tables of all of them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from wager.external.dialects import (
    llamacpp_table,
    ollama_table,
    read_only_table,
    sglang_table,
    vllm_table,
)
from wager.external.dialects.base import Option

GENERAL: Final = frozenset({"target", "host", "port", "kept"})
"""What sets nothing about speculation: what every server has an option for, and (kept) options
that stay where they are and about which there is something to say while drafting."""

FLAGS: Final[dict[str, tuple[Option, ...]]] = {
    "vllm": vllm_table.FLAGS,
    "llamacpp": llamacpp_table.OPTIONS,
    "sglang": sglang_table.OPTIONS + sglang_table.VARIABLES,
    "transformers": read_only_table.TRANSFORMERS,
    "mlx": read_only_table.MLX,
    "own": (
        Option(("--speculative-config", "-sc"), "", "speculative_config", "json"),
        Option(("--arms", "--arm"), "methods to compare, each with its options", "arms"),
        Option(("--engine",), "", "kept"),
    ),
}
"""The options of each engine's command line, and its environment variables."""

_OWN_KEYS: Final = (
    "match", "cyclic", "verify", "block_verification", "controller", "loss_budget", "objective",
    "suffix_decoding_max_spec_offset", "suffix_decoding_max_bytes", "draft_min_token_prob",
    "draft_memory", "draft_memory_size", "draft_memory_read_only",
)  # fmt: skip
_KEYS: Final[dict[str, set[str | None]]] = {
    "vllm": {o.key for o in vllm_table.KEYS},
    "llamacpp": {o.key for o in llamacpp_table.OPTIONS},
    "sglang": {o.key for o in sglang_table.OPTIONS},
    "ollama": {o.key for o in ollama_table.LINES},
    "own": set(_OWN_KEYS),
}


def owner(key: str) -> str | None:
    """The engine that knows the option ``key`` of a `Speculation`; vLLM first, whose names count.

    None where no engine does.
    """
    for engine, keys in _KEYS.items():
        if key in keys:
            return engine
    return None


def spelled(name: str, engine: str) -> Option | None:
    """The option that ``engine`` spells ``name`` on its command line."""
    return _SPELLINGS[engine].get(name) if engine in _SPELLINGS else None


def elsewhere(name: str, engine: str) -> tuple[str, Option] | None:
    """The other engine, and its option, for a speculation option that ``engine`` does not have."""
    for other, options in _SPELLINGS.items():
        option = options.get(name)
        if other != engine and option is not None and option.key not in GENERAL:
            return other, option
    return None


def meant(name: str, engine: str | None = None) -> str | None:
    """The speculation option of ``engine`` (None: of any) that ``name`` is a slip of, or None.

    Real options that nobody listed here must not be taken for slips: `--override-tensor` is as near
    to `--override-tensor-draft` as 0.85.
    """
    if not name.startswith("--"):
        return None
    tables = _SPELLINGS.values() if engine is None else (_SPELLINGS.get(engine, {}),)
    known = [n for table in tables for n, o in table.items() if o.key not in GENERAL]
    return next(iter(get_close_matches(name, known, 1, 0.88)), None)


def canonical(method: str) -> str:
    """vLLM's name for a method that llama.cpp or SGLang call something else; else as it is."""
    algorithm = sglang_table.ALGORITHMS.get(method)
    return algorithm[0] if algorithm else llamacpp_table.TO_CANONICAL.get(method, method)


def _by_spelling(options: tuple[Option, ...]) -> dict[str, Option]:
    table = {name: option for option in options for name in option.names}
    return table | {o.variable: o for o in options if o.variable is not None}


_SPELLINGS: Final = {engine: _by_spelling(options) for engine, options in FLAGS.items()}
