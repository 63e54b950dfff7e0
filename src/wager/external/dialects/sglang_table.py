"""SGLang's speculation options.

Source: SGLang's `server_args` of August 2026 and its documentation; not run here.
"""

from __future__ import annotations

from typing import Final

from wager.external.dialects.base import Option

_OLDER: Final = (
    "of older versions, where the lookup had a window; now the depth of the trie is set with "
    "--speculative-ngram-max-trie-depth"
)


def _option(name: str, meaning: str, kind: str = "text") -> Option:
    """An option that SGLang alone has, kept under its own name."""
    return Option((f"--{name}",), meaning, name.replace("-", "_"), kind)  # type: ignore[arg-type]


OPTIONS: Final[tuple[Option, ...]] = (
    Option(("--speculative-algorithm", "--speculative-algo"), "how drafts are made", "method"),
    Option(
        ("--speculative-draft-model-path", "--speculative-draft-model"),
        "the drafter: a head or a draft model", "model",
    ),
    Option(
        ("--speculative-draft-model-revision",), "the drafter's revision on the hub", "revision"
    ),
    Option(
        ("--speculative-draft-model-quantization",), "quantisation of the drafter",
        "quantization",
    ),
    Option(
        ("--speculative-num-steps",), "passes of the drafter per step: the length of a chain",
        "num_speculative_tokens", "whole",
    ),
    _option("speculative-eagle-topk", "branches per pass: 1 is a chain, more a tree", "whole"),
    _option(
        "speculative-num-draft-tokens",
        "rows that are checked per step, the last committed token among them", "whole",
    ),
    _option("speculative-token-map", "the drafter's vocabulary cut to frequent tokens (FR-Spec)"),
    _option("speculative-attention-mode", "whether drafts are checked as prefill or decode"),
    _option("speculative-draft-attention-backend", "attention kernels of the drafter"),
    _option(
        "speculative-use-rejection-sampling",
        "checks samples by rejection; not with --enable-deterministic-inference", "flag",
    ),
    Option(
        ("--speculative-accept-threshold-single",), "accepts tokens above this probability",
        "speculative_accept_threshold_single", "real",
        "below 1.0 the output is no longer the target's", "warning",
    ),
    Option(
        ("--speculative-accept-threshold-acc",), "raises the chance that a token is accepted",
        "speculative_accept_threshold_acc", "real",
        "below 1.0 the output is no longer the target's", "warning",
    ),
    Option(
        ("--speculative-adaptive",), "draft length that follows acceptance",
        "speculative_adaptive", "flag",
        "never looks at time, and never switches off at batch 1; EAGLE and EAGLE3 with topk 1 "
        "only, else a warning and a fixed length",
        "warning",
    ),
    _option("speculative-adaptive-config", "draft lengths by batch size"),
    _option("speculative-dflash-block-size", "DFlash's block: the draft and one more", "whole"),
    _option("speculative-draft-window-size", "context that a DFlash drafter sees", "whole"),
    _option("speculative-dspark-block-size", "DSpark's block: the draft", "whole"),
    _option(
        "speculative-dspark-confidence-threshold", "a draft ends before a token less sure", "real"
    ),
    _option("speculative-ngram-min-bfs-breadth", "fewest branches of the n-gram tree", "whole"),
    _option("speculative-ngram-max-bfs-breadth", "most branches of the n-gram tree", "whole"),
    _option("speculative-ngram-match-type", "BFS: most recent first; PROB: most frequent first"),
    _option("speculative-ngram-max-trie-depth", "longest n-gram kept (18 if absent)", "whole"),
    _option("speculative-ngram-capacity", "tokens kept, over all requests", "whole"),
    _option("speculative-ngram-external-corpus-path", "texts to draft from (JSONL)"),
    _option("speculative-ngram-external-sam-budget", "draft tokens from those texts", "whole"),
    _option(
        "speculative-ngram-external-corpus-max-tokens", "tokens taken from those texts", "whole"
    ),
    Option(
        ("--speculative-ngram-min-match-window-size",), "shortest n-gram looked up",
        None, "whole", _OLDER, "warning",
    ),
    Option(
        ("--speculative-ngram-max-match-window-size",), "longest n-gram looked up",
        None, "whole", _OLDER, "warning",
    ),
    Option(
        ("--speculative-ngram-branch-length",), "longest n-gram kept",
        "speculative_ngram_max_trie_depth", "whole",
        "of older versions; now --speculative-ngram-max-trie-depth", "warning",
    ),
    Option(("--enable-metrics",), "the page /metrics, with acceptance", "kept", "flag"),
    Option(
        ("--max-running-requests",), "requests at once; 48 with speculation where it is left out",
        "kept",
    ),
    Option(
        ("--disable-overlap-schedule",), "the synchronous path, not the overlap scheduler", "kept",
        "flag",
    ),
    Option(
        ("--enable-mixed-chunk",), "prompts and decoding in one batch", "kept", "flag",
        "switched off by speculation", "warning",
    ),
    Option(("--model-path", "--model"), "the target", "target"),
    Option(("--host",), "", "host"),
    Option(("--port",), "", "port"),
)  # fmt: skip

ALGORITHMS: Final = {
    "EAGLE": ("eagle", "an EAGLE head, or the target's own MTP layers where no drafter is named"),
    "EAGLE3": ("eagle3", "an EAGLE-3 head"),
    "NEXTN": ("mtp", "another name of EAGLE: the target's own MTP layers"),
    "FROZEN_KV_MTP": ("mtp", "the MTP assistant of Gemma 4"),
    "STANDALONE": ("draft_model", "a smaller model with the same tokenizer"),
    "NGRAM": ("ngram", "a trie of n-grams shared by all requests, which gives a tree"),
    "DFLASH": ("dflash", "a DFlash head: a whole block in one pass"),
    "DSPARK": ("dspark", "a DSpark head"),
}
"""Name: (canonical method, meaning)."""

VARIABLES: Final[tuple[Option, ...]] = (
    Option(
        ("SGLANG_ENABLE_SPEC_V2",), "the overlap scheduler with speculation", None, "text",
        "gone: that scheduler is the default; --disable-overlap-schedule gives the other one",
        "warning",
    ),
    Option(
        ("SGLANG_SIMULATE_ACC_LEN",), "made-up acceptance length; the text is garbage", None,
        "text", "for benchmarks of the scheduler only", "warning",
    ),
)  # fmt: skip
