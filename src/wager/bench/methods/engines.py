"""Which engines run a way of drafting, and with which command.

What an engine can be asked for is the business of its dialect: a method that the dialect refuses is
one that the engine does not have. Here stand only the words around it, and what no dialect knows.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError, WagerError
from wager.external.dialects import ENGINES, dialect
from wager.external.dialects.options import TITLES, is_gguf, is_hub_id
from wager.external.dialects.programs import PROGRAMS, naming

OWN: Final = "own"
TRANSFORMERS: Final = "transformers"
TRANSFORMERS_VERSION: Final = "5.24"
HF_LAYOUT: Final = "Hugging Face layout"
HERE: Final = "files on this machine"
SELF: Final = "self"
"""wager's name for the target's own weights as a drafter."""
SUFFIX_NGRAM: Final = "suffix+ngram"

# P-EAGLE and DFlash2 go by the method of the older kind; no other engine is known to load them.
# ngram-mod is llama.cpp's own; for another engine it would become the ngram that is listed anyway.
_ONLY: Final = {
    "peagle": "vllm", "dflash2": "vllm", "ngram-mod": "llamacpp", SUFFIX_NGRAM: OWN,
}  # fmt: skip
_READS_GGUF: Final = frozenset({"own", "llamacpp", "ollama"})
_READS_GGUF_ONLY: Final = frozenset({"llamacpp", "ollama"})
_GENERATE: Final = {
    "ngram": "model.generate(**inputs, prompt_lookup_num_tokens={k}, max_matching_ngram_size={n})",
    "draft_model": "model.generate(**inputs, num_assistant_tokens={k}, "
    'assistant_model=AutoModelForCausalLM.from_pretrained("{model}"))',
    "mtp": "model.generate(**inputs, use_mtp=True)",
}


@dataclass(frozen=True, slots=True)
class Target:
    """The model as a command names it: a hub id, a directory, a GGUF file or a pulled name.

    ``path`` is what other engines call it: the file of a pulled name. ``refusal`` says why wager's
    own engine does not load it; None where it does.
    """

    name: str
    path: str
    gguf: bool
    refusal: str | None = None
    hub: bool = False


@dataclass(frozen=True, slots=True)
class Runs:
    """An engine that has the method. ``command`` (of Ollama: a Modelfile) is None where the model
    or the drafter is in a format that the engine does not read; ``needs`` says which it does."""

    engine: str
    title: str
    version: str | None
    command: str | None
    notes: tuple[str, ...] = ()
    needs: str | None = None


def known_engine(name: str) -> str:
    """``name`` where it is an engine that can be listed. Raises ConfigError."""
    known = list(dict.fromkeys((OWN, *ENGINES, TRANSFORMERS)))
    if name not in known:
        raise ConfigError(f"engine: {name!r} is not known; there are: {', '.join(known)}")
    return name


def engines(
    kind: str,
    speculation: Speculation,
    target: Target,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Runs, ...]:
    """The engines that run ``speculation``, a method of ``kind``, wager's own first.

    ``extra`` holds options that only one engine needs, by its name.
    """
    names = [OWN, *(name for name in ENGINES if name != OWN), TRANSFORMERS]
    only = OWN if speculation.options.get("model") == SELF else _ONLY.get(kind)
    found = []
    for engine in (name for name in names if only in (None, name)):
        options = {**speculation.options, **(extra or {}).get(engine, {})}
        found.append(_runs(engine, Speculation(speculation.method, options), target))
    return tuple(runs for runs in found if runs is not None)


def _runs(engine: str, speculation: Speculation, target: Target) -> Runs | None:
    if engine == TRANSFORMERS:
        return _transformers(speculation, target)
    if engine == OWN and (OWN not in ENGINES or target.refusal is not None):
        return None
    written_for, notes = speculation, list[str]()
    model = speculation.options.get("model")
    gguf = target.gguf or (isinstance(model, str) and is_gguf(model))
    if engine in _READS_GGUF_ONLY:
        written_for, notes = _converted(speculation)
    elif gguf and engine not in _READS_GGUF and isinstance(model, str):
        # Only whether the method exists is asked: no command comes of it.
        options = {**speculation.options, "model": model.removesuffix(".gguf")}
        written_for = Speculation(speculation.method, options)
    speaker = dialect(engine)
    try:
        written = speaker.write(written_for)
    except ConfigError:
        return None
    if engine == OWN and isinstance(model, str) and model != SELF and own_refusal(model):
        return Runs(OWN, TITLES[OWN], None, None, (), HERE) if is_hub_id(model) else None
    notes = [*written.notes, *notes]
    name, version = target.path, speaker.VERSION or None
    if gguf and engine not in _READS_GGUF:
        return Runs(engine, TITLES[engine], version, None, tuple(notes), HF_LAYOUT)
    if engine in _READS_GGUF_ONLY and not target.gguf:
        name = _gguf_name(name)
        notes.append(f"{name}: the model converted with llama.cpp's convert_hf_to_gguf.py")
    on_hub = target.hub and target.gguf
    if engine != "ollama":
        named = naming(engine, target.name if engine == OWN else name, on_hub=on_hub)
        command = shlex.join((*PROGRAMS[engine], *named, *written.arguments))
    else:
        # A Modelfile is no command: its lines are given as they are.
        command = "\n".join((f"FROM {'hf.co/' if on_hub else ''}{name}", *written.lines))
    return Runs(engine, TITLES[engine], version, command, tuple(notes))


def _converted(speculation: Speculation) -> tuple[Speculation, list[str]]:
    """The drafter by the name of the GGUF file that it must become first."""
    model = speculation.options.get("model")
    if not isinstance(model, str) or is_gguf(model):
        return speculation, []
    name = _gguf_name(model)
    options: dict[str, Any] = {**speculation.options, "model": name}
    note = f"{name}: {model} converted with llama.cpp's convert_hf_to_gguf.py"
    if speculation.method != "draft_model":
        note += " --target-model-dir MODEL"
    return Speculation(speculation.method, options), [note]


def _gguf_name(model: str) -> str:
    return f"{PurePosixPath(model.rstrip('/')).name}.gguf"


def _transformers(speculation: Speculation, target: Target) -> Runs | None:
    call = _GENERATE.get(speculation.method)
    model = speculation.options.get("model")
    if speculation.method == "mtp" and model is not None:
        # An assistant of its own is passed as any draft model is.
        call = _GENERATE["draft_model"]
    if call is None:
        return None
    runs = Runs(TRANSFORMERS, TRANSFORMERS, TRANSFORMERS_VERSION, None, ("one request at a time",))
    if target.gguf or (isinstance(model, str) and is_gguf(model)):
        return replace(runs, needs=HF_LAYOUT)
    options = speculation.options
    return replace(
        runs,
        command=call.format(
            k=options.get("num_speculative_tokens"),
            n=options.get("prompt_lookup_max"),
            model=model,
        ),
    )


def own_refusal(path: str) -> str | None:
    """Why wager's own engine does not load the files at ``path``; None where it does."""
    from wager.models.load import open_checkpoint

    try:
        open_checkpoint(path)
    except WagerError as error:
        return str(error)
    return None
