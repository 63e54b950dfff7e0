"""The list of published draft heads and of model families that share a tokenizer (heads.json).

Every head names the page on which its pair with the target is stated. A model that goes by another
name than the target in the list (a quantised copy, another tuning) is matched by that name, and
told apart from an exact match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "eagle", "eagle3", "peagle", "dflash", "dflash2", "dspark", "medusa", "mtp"
]
KINDS: Final[tuple[Kind, ...]] = (
    "mtp", "eagle3", "peagle", "eagle", "dflash", "dflash2", "dspark", "medusa"
)  # fmt: skip
Match: TypeAlias = Literal["exact", "copy", "tuning"]
"""``exact``: the hub id in the list; ``copy``: by its name the same weights in another format;
``tuning``: by its name another tuning of the same base."""

_MATCHES: Final[tuple[Match, ...]] = ("exact", "copy", "tuning")
_SHARD: Final = re.compile(r"-\d{5}-of-\d{5}$")
_GGUF_TYPE: Final = re.compile(r"(?<=[-_. ])i?q\d+(?:_[a-z0-9]+)*(?=$|[-_. ])")
# Words of a name that say how the weights are stored or packed, not which weights they are.
_FORMAT: Final = re.compile(
    r"gguf|awq|gptq|(?:nv|mx)?fp[48]|int[2348]|[2-8]bit|bnb|mlx|b?f16|fp16|f(?:p)?32|w\d+a\d+"
    r"|quantized|dynamic|block|static|hf|unsloth|ud|imatrix|i1|autoround|exl[23]|marlin"
)
# Words that name a tuning of a base; so does a date such as 2507.
_TUNING: Final = re.compile(
    r"base|pt|instruct|it|chat|thinking|sft|dpo|rl|preview|qat|abliterated|uncensored|\d{4}"
)


@dataclass(frozen=True, slots=True)
class Head:
    """A published way to draft for ``target``. ``head`` is None where it is part of the target."""

    target: str
    head: str | None
    kind: Kind
    source: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Sibling:
    """A model of a family; ``parameters`` as published, rounded."""

    id: str
    parameters: int


@dataclass(frozen=True, slots=True)
class Family:
    """Models that, by their authors, share one tokenizer."""

    name: str
    models: tuple[Sibling, ...]


@cache
def heads() -> tuple[Head, ...]:
    """The published heads, by target."""
    return tuple(Head(**entry) for entry in _read()["heads"])


@cache
def families() -> tuple[Family, ...]:
    return tuple(
        Family(entry["name"], tuple(Sibling(**model) for model in entry["models"]))
        for entry in _read()["families"]
    )


@cache
def _read() -> dict[str, Any]:
    text = (files("wager.bench.methods") / "heads.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def matching_heads(names: Sequence[str]) -> list[tuple[Head, Match]]:
    """The heads for a model known by ``names``: exact matches first, then by kind."""
    found = [(head, match) for head in heads() if (match := best(names, head.target)) is not None]
    return sorted(found, key=lambda pair: (_MATCHES.index(pair[1]), KINDS.index(pair[0].kind)))


def family_of(names: Sequence[str]) -> tuple[Family, Match] | None:
    """The family of a model known by ``names``, and how its member was matched."""
    found: list[tuple[int, Family]] = []
    for family in families():
        matches = [m for model in family.models if (m := best(names, model.id)) is not None]
        if matches:
            found.append((min(_MATCHES.index(match) for match in matches), family))
    if not found:
        return None
    index, family = min(found, key=lambda pair: pair[0])
    return family, _MATCHES[index]


def best(names: Sequence[str], target: str) -> Match | None:
    """The closest match of any of the names with a hub id."""
    found = [match for name in names if (match := compare(name, target)) is not None]
    return min(found, key=_MATCHES.index) if found else None


def compare(name: str, target: str) -> Match | None:
    """How a model's name relates to a hub id; None where it is another model."""
    if name.lower() == target.lower():
        return "exact"
    mine, theirs = words(name), words(target)
    # Some repositories of copies put the organisation into the name: Qwen_Qwen3-8B.
    owner = words(target.partition("/")[0]) if "/" in target else ()
    if owner and mine[: len(owner)] == owner and theirs[: len(owner)] != owner:
        mine = mine[len(owner) :]
    if mine == theirs:
        return "copy"
    return "tuning" if _untuned(mine) == _untuned(theirs) else None


def words(name: str) -> tuple[str, ...]:
    """The words of a name that say which weights they are, in order; without the organisation.

    ``bartowski/Qwen3-8B-GGUF`` and ``Qwen3-8B-Q4_K_M`` both give qwen3, 8b.
    """
    text = name.rpartition("/")[2].lower().removesuffix(".gguf")
    text = _GGUF_TYPE.sub("", _SHARD.sub("", text))
    # A dot separates words unless it belongs to a number, as in qwen2.5.
    found = [
        word for word in re.split(r"[-_\s]+|\.(?!\d)", text) if word and not _FORMAT.fullmatch(word)
    ]
    if found[:2] == ["meta", "llama"]:
        found = found[1:]
    return tuple(found)


def _untuned(found: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in found if not _TUNING.fullmatch(word))
