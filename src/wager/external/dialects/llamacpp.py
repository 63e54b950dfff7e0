"""llama.cpp's dialect: the ``--spec-*`` options of llama-server, and what they replaced."""

from __future__ import annotations

from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError
from wager.external.dialects import llamacpp_table as table
from wager.external.dialects import vllm_table
from wager.external.dialects.base import Written
from wager.external.dialects.llamacpp_read import read
from wager.external.dialects.names import owner
from wager.external.dialects.options import (
    CACHE_DRAFT,
    MOD_DRAFT,
    MOD_MATCH,
    NGRAM_DRAFT,
    NGRAM_SIZE,
    Options,
    is_gguf,
    is_hub_id,
)

__all__ = ["ENGINE", "VERSION", "read", "write"]

ENGINE: Final = "llamacpp"
VERSION: Final = "b11434"

_TYPES: Final = {canonical: name for name, canonical in table.TO_CANONICAL.items()}
_MOD_MIN: Final = 48
# llama-server's own default, written out because it has changed before.
_DRAFT_MAX: Final = 3
_WITHOUT_FILE: Final = frozenset({"mtp"})
_FLAG_OF: Final = {
    option.key: option
    for option in reversed(table.OPTIONS)
    if option.key and option.severity != "error"
}


def write(speculation: Speculation | None) -> Written:
    """As arguments of llama-server; none for plain decoding.

    Defaults that have changed between builds are written out. Raises ConfigError for a method that
    llama.cpp does not have, and for missing values.
    """
    if speculation is None:
        return Written()
    options = Options(speculation, ENGINE)
    if "+" in options.method:
        raise ConfigError(
            f"{options.method}: llama.cpp takes a list of its own types, e.g. "
            "ngram-mod,draft-simple in a config, and asks n-grams first"
        )
    arguments = _arguments(options)
    return Written(tuple(arguments), notes=options.finish(owner))


def _arguments(options: Options) -> list[str]:
    names = [_type(name.strip(), options) for name in options.method.split(",")]
    arguments = ["--spec-type", ",".join(names)]
    drafts = [name for name in names if name.startswith("draft-")]
    for name in names:
        if not name.startswith("draft-"):
            arguments += _WRITERS.get(name, _mapped)(name, options, alone=len(names) == 1)
    if drafts:
        arguments += _drafter(drafts, options)
    for key, option in _FLAG_OF.items():
        if key.startswith("spec_synth_") or (drafts and "spec_draft_" in key):
            value = options.take(key)
            if option.kind == "flag":
                arguments += [option.names[0]] if value else []
            elif value is not None:
                arguments += [option.names[0], str(value)]
    return arguments


def _type(name: str, options: Options) -> str:
    if name in ("ngram", "ngram_gpu"):
        return "ngram-simple"
    if name in vllm_table.MTP_ALIASES:
        options.notes.append(f"{name} is an older name of vLLM's mtp")
        return "draft-mtp"
    name = _TYPES.get(name, name)
    if name in table.METHODS:
        return name
    if name == "eagle":
        raise ConfigError("eagle: llama.cpp runs EAGLE-3 heads only, not the older EAGLE")
    if name == "suffix":
        raise ConfigError("suffix: llama.cpp has no suffix trees; the nearest is ngram-mod")
    known = ", ".join(table.METHODS)
    raise ConfigError(f"{name}: not a method of llama.cpp {VERSION}; it has {known}")


def _mapped(name: str, options: Options, alone: bool) -> list[str]:
    """ngram-simple, ngram-map-k and ngram-map-k4v, which share their options."""
    key = f"spec_{name.replace('-', '_')}"
    k = options.take("num_speculative_tokens") if alone else None
    if options.method in ("ngram", "ngram_gpu"):
        low, high = options.lookup()
        if k is None:
            options.whole("num_speculative_tokens")
        size: Any = high if k is None else min(high, k)
        options.notes.append(
            "ngram is llama.cpp's ngram-simple, which looks up one length of n-gram, not a range: "
            f"{size}" + (f"; shorter matches, down to {low}, are missed" if low < size else "")
        )
        if size < high:
            # It drafts where at least size-n tokens follow the match, of which it takes size-m.
            options.notes.append(
                f"prompt_lookup_max {high} became {size}: ngram-simple never drafts fewer tokens "
                "than it looks up"
            )
    else:
        size = options.whole(f"{key}_size_n", NGRAM_SIZE)
    drafted = options.whole(f"{key}_size_m", NGRAM_DRAFT if k is None else k)
    hits = options.whole(f"{key}_min_hits", 1)
    if name == "ngram-simple" and drafted < size:
        # It drafts where at least size-n tokens follow the match, of which it takes size-m.
        options.notes.append(f"ngram-simple never drafts with size-m {drafted} below size-n {size}")
    stem = f"--spec-{name}"
    return [
        f"{stem}-size-n", str(size), f"{stem}-size-m", str(drafted), f"{stem}-min-hits", str(hits),
    ]  # fmt: skip


def _mod(name: str, options: Options, alone: bool) -> list[str]:
    k = options.take("num_speculative_tokens") if alone else None
    match = options.whole("spec_ngram_mod_n_match", MOD_MATCH)
    most = options.whole("spec_ngram_mod_n_max", MOD_DRAFT if k is None else k)
    least = options.whole("spec_ngram_mod_n_min", min(_MOD_MIN, most), least=0)
    if least > most:
        raise ConfigError(
            f"ngram-mod: spec-ngram-mod-n-min {least} is larger than the longest draft, {most}"
        )
    return [
        "--spec-ngram-mod-n-match", str(match),
        "--spec-ngram-mod-n-min", str(least),
        "--spec-ngram-mod-n-max", str(most),
    ]  # fmt: skip


def _cache(name: str, options: Options, alone: bool) -> list[str]:
    k = options.take("num_speculative_tokens") if alone else None
    if k not in (None, CACHE_DRAFT):
        raise ConfigError(
            f"ngram-cache: its drafts are {CACHE_DRAFT} tokens long and cannot be set; leave k out"
        )
    arguments = []
    for key, flag in (("lookup_cache_static", "-lcs"), ("lookup_cache_dynamic", "-lcd")):
        value = options.take(key)
        if value is not None:
            arguments += [flag, str(value)]
    if not arguments:
        options.notes.append("without -lcs FILE, ngram-cache counts the request's own text only")
    return arguments


_WRITERS: Final = {"ngram-mod": _mod, "ngram-cache": _cache}


def _drafter(names: list[str], options: Options) -> list[str]:
    """The drafter's file and how long its drafts are."""
    canonical = table.TO_CANONICAL[names[0]]
    arguments: list[str] = []
    model = options.take("model") if canonical in _WITHOUT_FILE else options.model()
    if model is not None:
        if not (is_gguf(model) or is_hub_id(model)):
            raise ConfigError(
                f"{options.method}: llama.cpp reads GGUF only, and the drafter {model!r} is not a "
                ".gguf file; convert it, or give a repository of GGUF files"
            )
        flag = "--spec-draft-hf" if is_hub_id(model) else "--spec-draft-model"
        arguments += [flag, model]
    k = options.whole("num_speculative_tokens", _DRAFT_MAX)
    arguments += ["--spec-draft-n-max", str(k)]
    arguments += ["--spec-draft-n-min", str(options.whole("spec_draft_n_min", 0, least=0))]
    arguments += ["--spec-draft-p-min", str(options.take("spec_draft_p_min", 0.0))]
    return arguments
