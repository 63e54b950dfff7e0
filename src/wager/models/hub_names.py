"""Names of models on the hub: ``ORG/REPO[@REVISION][:QUANT | :FILE.gguf]``, and what they mean.

A repository in Hugging Face layout is meant whole; of a repository of GGUF files the one whose
quantisation is QUANT (as its file name says), or the only one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from wager.errors import ConfigError, ModelError
from wager.models.gguf_parts import part_names
from wager.models.safetensors_file import pickles

FORM: Final = "ORG/REPO[@REVISION][:QUANT | :FILE.gguf]"
# What the hub allows in a name: https://huggingface.co/docs/hub/repositories
_NAME: Final = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+?))?"
    r"(?:[/:](?P<file>[\w./-]+\.gguf)|:(?P<quant>[\w.-]+))?",
    re.IGNORECASE,
)
_QUANT: Final = re.compile(
    r"(?:^|[./_-])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4|BF16|F16|F32))(?=[./-]|$)",
    re.IGNORECASE,
)
# Parts of a model of another kind (its eyes or ears), and statistics for quantising.
_NO_MODEL: Final = ("mmproj", "imatrix")
# Beside the weights: what a model of this layout is read with, here and by others.
_SETTINGS: Final = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_TEMPLATES: Final = re.compile(r"additional_chat_templates/[^/]+\.jinja")
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class HubName:
    """A name, taken apart. At most one of ``file`` and ``quant`` is given."""

    repo: str
    revision: str | None = None
    file: str | None = None
    quant: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        chosen = self.file or self.quant
        return f"{self.repo}{revision}{f':{chosen}' if chosen else ''}"


def parse(name: str) -> HubName | None:
    """None for what is no name on the hub."""
    found = _NAME.fullmatch(name)
    if found is None or any(part == ".." for part in re.split(r"[/:@]", name)):
        return None
    return HubName(found["repo"], found["revision"], found["file"], found["quant"])


def at_revision(name: HubName, revision: str | None) -> HubName:
    """With the revision of an option. Raises ConfigError where the name has another."""
    if revision is None or revision == name.revision:
        return name
    if name.revision is not None:
        raise ConfigError(f"revision: {name} names one too; leave out one of the two")
    found = replace(name, revision=revision)
    if parse(str(found)) != found:
        raise ConfigError(f"revision: {revision!r} is no branch, tag or commit")
    return found


def is_directory(name: HubName, files: Collection[str]) -> bool:
    """Whether a name means the directory of a repository with these files, and no GGUF file."""
    if name.file is not None or name.quant is not None or "config.json" not in files:
        return False
    return any(n.endswith(".safetensors") and "/" not in n for n in files) or bool(pickles(files))


def settings_of(files: Collection[str]) -> list[str]:
    """The files of a repository that a model is read with, without its weights."""
    return [
        *(name for name in _SETTINGS if name in files),
        *sorted(name for name in files if _TEMPLATES.fullmatch(name)),
    ]


def models_in(names: Collection[str]) -> list[str]:
    """The GGUF files that are models; of one in parts, its first."""
    return sorted(
        name
        for name in names
        if name.lower().endswith(".gguf") and _is_model(name) and name == part_names(name)[0]
    )


def choose_gguf(where: str, names: Sequence[str], file: str | None, quant: str | None) -> str:
    """The GGUF file that is meant; of a model in parts, its first. Raises ModelError."""
    models = models_in(names)
    if file is not None:
        if file not in names:
            raise ModelError(f"{where}: has no file {file}; {_list_of(models)}")
        if not _is_model(file):
            raise ModelError(f"{where}: {file} is not a model of its own; {_list_of(models)}")
        return part_names(file)[0]
    if quant is not None:
        # Not Q4_K_M in UD-Q4_K_M or in Q4_K_M_XL: a name of its own between separators.
        whole = re.compile(rf"(?:^|[./_-])(?<!UD-){re.escape(quant)}(?=[./-]|$)", re.IGNORECASE)
        fitting = [name for name in models if whole.search(name)]
        if len(fitting) != 1:
            reason = "no file" if not fitting else f"{len(fitting)} files"
            raise ModelError(f"{where}: has {reason} of quantisation {quant}; {_list_of(models)}")
        return fitting[0]
    if len(models) == 1:
        return models[0]
    if not models:
        raise ModelError(f"{where}: holds neither safetensors with a config.json nor GGUF files")
    raise ModelError(f"{where}: has {len(models)} GGUF files; name one: {_list_of(models)}")


def quant_of(file: str) -> str | None:
    """The quantisation that the name of a GGUF file states."""
    found = _QUANT.findall(part_names(file)[0].removesuffix(".gguf"))
    return found[-1] if found else None


def _is_model(name: str) -> bool:
    return not any(word in PurePosixPath(name).name.lower() for word in _NO_MODEL)


def _list_of(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = ", ..." if len(names) > _SHOWN else ""
    return f"there are: {shown}{more}" if names else "it has no GGUF"
