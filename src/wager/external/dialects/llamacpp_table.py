"""llama.cpp's speculation options, of today and of older builds.

Source: llama.cpp b11434, `llama-server --help` and `common/arg.cpp`.
"""

from __future__ import annotations

from typing import Final

from wager.external.dialects.base import Option

_ENV: Final = "LLAMA_ARG_SPEC_DRAFT_"


def _ngram(name: str) -> tuple[Option, ...]:
    """The three options that ngram-simple and the two maps have in common."""
    stem = f"--spec-{name}"
    key = f"spec_{name.replace('-', '_')}"
    return (
        Option(
            (f"{stem}-size-n",), "length of the n-gram looked up (12 if absent)",
            f"{key}_size_n", "whole",
        ),
        Option(
            (f"{stem}-size-m",), "draft tokens per step (48 if absent)", f"{key}_size_m", "whole"
        ),
        Option(
            (f"{stem}-min-hits",), "matches needed before drafting (1 if absent)",
            f"{key}_min_hits", "whole",
        ),
    )  # fmt: skip


def _placed(letter: str, name: str, meaning: str) -> Option:
    """Where and how urgently the drafter computes: an option in three spellings."""
    short = (f"-{letter}",) if letter else ()
    names = (f"--spec-draft-{name}", *short, f"--{name}-draft")
    return Option(names, meaning, f"spec_draft_{name.replace('-', '_')}")


def _removed(names: tuple[str, ...], meaning: str, key: str | None, instead: str) -> Option:
    return Option(
        names, meaning, key, "whole",
        f"removed: the server ends at once with an error; now {instead}", "error",
    )  # fmt: skip


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        ("--spec-type",), "how drafts are made", "method", variable="LLAMA_ARG_SPEC_TYPE"
    ),
    Option(
        ("--spec-default",), "ngram-mod with match 24, drafts of 48 to 64", "spec_default", "flag"
    ),
    Option(
        ("--spec-draft-model", "-md", "--model-draft"), "the drafter's GGUF file", "model",
        variable=f"{_ENV}MODEL",
    ),
    Option(
        ("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"),
        "the drafter's GGUF repository on the hub", "model", variable=f"{_ENV}HF_REPO",
    ),
    Option(
        ("--spec-draft-n-max",), "draft tokens per step, at most (3 if absent)",
        "num_speculative_tokens", "whole", variable=f"{_ENV}N_MAX",
    ),
    Option(
        ("--spec-draft-n-min",), "shorter drafts are thrown away (0 if absent)",
        "spec_draft_n_min", "whole", variable=f"{_ENV}N_MIN",
    ),
    Option(
        ("--spec-draft-p-min", "--draft-p-min"),
        "a draft ends before a token less likely than this", "spec_draft_p_min", "real",
        variable=f"{_ENV}P_MIN",
    ),
    Option(
        ("--spec-draft-p-split", "--draft-p-split"), "when a tree of drafts splits",
        "spec_draft_p_split", "real",
        "ignored by the server, which drafts chains; only llama-speculative reads it", "warning",
        variable=f"{_ENV}P_SPLIT",
    ),
    Option(
        ("--spec-draft-sampling",),
        "greedy: the drafter's best token; probabilistic: samples, checked by rejection",
        "spec_draft_sampling", variable=f"{_ENV}SAMPLING",
    ),
    Option(
        ("--spec-draft-backend-sampling",), "samples the draft on the device",
        "spec_draft_backend_sampling", "flag", variable=f"{_ENV}BACKEND_SAMPLING",
    ),
    Option(
        ("--no-spec-draft-backend-sampling",), "samples the draft on the CPU",
        "no_spec_draft_backend_sampling", "flag",
    ),
    Option(
        ("--spec-draft-device", "-devd", "--device-draft"), "devices of the drafter",
        "spec_draft_device",
    ),
    Option(
        ("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
        "layers of the drafter on the GPU", "spec_draft_ngl",
        variable="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    ),
    Option(
        ("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"), "type of the drafter's keys",
        "spec_draft_type_k", variable=f"{_ENV}CACHE_TYPE_K",
    ),
    Option(
        ("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"), "type of the drafter's values",
        "spec_draft_type_v", variable=f"{_ENV}CACHE_TYPE_V",
    ),
    Option(
        ("--spec-draft-threads", "-td", "--threads-draft"), "threads of the drafter",
        "spec_draft_threads", "whole",
    ),
    Option(
        ("--spec-draft-threads-batch", "-tbd", "--threads-batch-draft"),
        "threads of the drafter on prompts", "spec_draft_threads_batch", "whole",
    ),
    Option(
        ("--spec-draft-override-tensor", "-otd", "--override-tensor-draft"),
        "where tensors of the drafter lie", "spec_draft_override_tensor",
    ),
    Option(
        ("--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft"), "experts of the drafter on the CPU",
        "spec_draft_cpu_moe", "flag", variable=f"{_ENV}CPU_MOE",
    ),
    Option(
        ("--spec-draft-n-cpu-moe", "--spec-draft-ncmoe", "-ncmoed", "--n-cpu-moe-draft"),
        "layers of the drafter whose experts are on the CPU", "spec_draft_n_cpu_moe", "whole",
        variable=f"{_ENV}N_CPU_MOE",
    ),
    _placed("Cd", "cpu-mask", "cores of the drafter"),
    _placed("Crd", "cpu-range", "range of cores of the drafter"),
    _placed("", "cpu-strict", "whether the drafter's threads are bound to its cores"),
    _placed("", "prio", "priority of the drafter's threads"),
    _placed("", "poll", "whether the drafter's threads poll for work"),
    _placed("Cbd", "cpu-mask-batch", "cores of the drafter on prompts"),
    _placed("", "cpu-strict-batch", "the same binding on prompts"),
    _placed("", "prio-batch", "the same priority on prompts"),
    _placed("", "poll-batch", "the same polling on prompts"),
    *_ngram("ngram-simple"),
    *_ngram("ngram-map-k"),
    *_ngram("ngram-map-k4v"),
    Option(
        ("--spec-ngram-mod-n-match",), "length of the n-gram looked up (24 if absent)",
        "spec_ngram_mod_n_match", "whole",
    ),
    Option(
        ("--spec-ngram-mod-n-min",), "shorter drafts are thrown away (48 if absent)",
        "spec_ngram_mod_n_min", "whole",
    ),
    Option(
        ("--spec-ngram-mod-n-max",), "draft tokens per step, at most (64 if absent)",
        "spec_ngram_mod_n_max", "whole",
    ),
    Option(
        ("--lookup-cache-static", "-lcs"), "file of n-grams made by llama-lookup-create",
        "lookup_cache_static",
    ),
    Option(
        ("--lookup-cache-dynamic", "-lcd"), "file of n-grams of earlier answers",
        "lookup_cache_dynamic", "text",
        "the server reads it and never saves it, whatever its help says; llama-lookup does",
        "warning",
    ),
    Option(
        ("--spec-synth-len",), "made-up acceptance length, for benchmarks; the text is garbage",
        "spec_synth_len", "real", variable="LLAMA_ARG_SPEC_SYNTH_LEN",
    ),
    Option(
        ("--spec-synth-rates",), "made-up acceptance by position, unconditional; for benchmarks",
        "spec_synth_rates", variable="LLAMA_ARG_SPEC_SYNTH_RATES",
    ),
    Option(
        ("--draft", "--draft-n", "--draft-max"), "draft tokens per step, at most",
        "num_speculative_tokens", "text",
        "removed: the server ends at once with an error; now --spec-draft-n-max (or "
        "--spec-ngram-mod-n-max)",
        "error", variable="LLAMA_ARG_DRAFT_MAX",
    ),
    Option(
        ("--draft-min", "--draft-n-min"), "shorter drafts are thrown away", "spec_draft_n_min",
        "whole",
        "removed: the server ends at once with an error; now --spec-draft-n-min (or "
        "--spec-ngram-mod-n-min)",
        "error", variable="LLAMA_ARG_DRAFT_MIN",
    ),
    _removed(
        ("--spec-ngram-size-n",), "length of the n-gram looked up", "spec_ngram_size_n",
        "--spec-ngram-simple-size-n, -map-k-size-n, -map-k4v-size-n or --spec-ngram-mod-n-match, "
        "after the type",
    ),
    _removed(
        ("--spec-ngram-size-m",), "draft tokens per step", "spec_ngram_size_m",
        "--spec-ngram-simple-size-m, -map-k-size-m or -map-k4v-size-m, after the type",
    ),
    _removed(
        ("--spec-ngram-min-hits",), "matches needed before drafting", "spec_ngram_min_hits",
        "--spec-ngram-simple-min-hits, -map-k-min-hits or -map-k4v-min-hits, after the type",
    ),
    Option(
        ("--spec-draft-conf-min",), "a draft ends before an unlikely token",
        "spec_draft_p_min", "real",
        "only in llama.cpp's documentation, no code reads it: the server refuses it; now "
        "--spec-draft-p-min",
        "error",
    ),
    Option(("--metrics",), "the page /metrics, with the counters of speculation", "kept", "flag"),
    Option(("--model", "-m"), "the target", "target", variable="LLAMA_ARG_MODEL"),
    Option(("--hf-repo", "-hf", "-hfr"), "the target", "target", variable="LLAMA_ARG_HF_REPO"),
    Option(("--host",), "", "host", variable="LLAMA_ARG_HOST"),
    Option(("--port",), "", "port", variable="LLAMA_ARG_PORT"),
)  # fmt: skip

METHODS: Final = {
    "ngram-simple": "copies what followed the last n tokens where they occurred last; no model",
    "ngram-map-k": "as ngram-simple, over a hash table of n-grams",
    "ngram-map-k4v": "as ngram-map-k, with up to four continuations per n-gram",
    "ngram-mod": "a hash of n-grams to next tokens, shared by all slots",
    "ngram-cache": "counts of n-grams of 1 to 4 tokens, from the request and from files; "
    "drafts of 8",
    "draft-simple": "a smaller model with the same vocabulary",
    "draft-eagle3": "an EAGLE-3 head, as GGUF",
    "draft-mtp": "multi-token prediction layers in the target's GGUF",
    "draft-dflash": "a DFlash head, as GGUF",
    "draft-dspark": "a DSpark head, as GGUF",
}

TO_CANONICAL: Final = {
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}
"""Names of llama.cpp whose method has a name in vLLM too."""

MEANT: Final = {"ngram": "ngram-simple", "draft": "draft-simple", "lookup": "ngram-cache"}
"""Types that do not exist, and what is taken for them."""

BODY_FIELDS: Final = (
    "n_max", "n_min", "p_min", "type", "ngram_size_n", "ngram_size_m", "ngram_min_hits",
)  # fmt: skip
"""Fields `speculative.*` of a request: compiled out, so accepted and ignored."""
