"""Speculation options of transformers' generate() and of MLX-LM, which are read and never written.

Source: transformers 5.24 and mlx-lm d78bf58 (August 2026), read, not run here. Keywords of a call
are spelled as options: assistant_model=D as --assistant-model D.
"""

from __future__ import annotations

from typing import Final

from wager.external.dialects.base import Option

_K: Final = "num_speculative_tokens"

TRANSFORMERS: Final[tuple[Option, ...]] = (
    Option(("--assistant-model",), "a smaller model that drafts", "model"),
    Option(
        ("--prompt-lookup-num-tokens",), "drafts from n-grams of the prompt: draft tokens per step",
        "prompt_lookup_num_tokens", "whole",
    ),
    Option(
        ("--max-matching-ngram-size",), "longest n-gram looked up (2 if absent)",
        "prompt_lookup_max", "whole",
    ),
    Option(
        ("--num-assistant-tokens",), "draft tokens per step (20 if absent)", _K, "whole"
    ),
    Option(
        ("--num-assistant-tokens-schedule",), "whether the draft length follows acceptance", None
    ),
    Option(
        ("--assistant-confidence-threshold",),
        "a draft ends before a token less likely than this (0.4 if absent, often after one token)",
        "spec_draft_p_min", "real",
    ),
    Option(
        ("--assistant-tokenizer",), "the drafter's own tokenizer, where it differs",
        "use_heterogeneous_vocab", "json",
    ),
    Option(
        ("--assistant-early-exit",), "the target's own first layers draft", None, "whole",
        "no other engine has it", "warning",
    ),
    Option(
        ("--assistant-ensemble-weight",), "mixes target and drafter", None, "real",
        "the output is no longer the target's", "warning",
    ),
    Option(("--use-mtp",), "the target's own MTP layers draft", "use_mtp", "flag"),
)  # fmt: skip

MLX: Final[tuple[Option, ...]] = (
    Option(("--draft-model",), "a smaller model that drafts", "model"),
    Option(("--num-draft-tokens",), "draft tokens per step (3 if absent)", _K, "whole"),
    Option(("--model",), "the target", "target"),
    Option(("--host",), "", "host"),
    Option(("--port",), "", "port"),
)
