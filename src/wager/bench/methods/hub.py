"""What the model hub knows of a target: what it was made from, and heads that name it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from wager.bench.methods.heads import Head, Kind, Match, words

SECONDS: Final = 20.0
"""After this long the look-up is given up."""

_PROBE_SECONDS: Final = 5.0
_PROBE_ID: Final = "openai-community/gpt2"
_PER_TAG: Final = 10
_TAGS: Final = (
    "eagle3", "eagle", "dflash", "dspark", "medusa", "speculators", "speculative-decoding",
)  # fmt: skip
# Parts of a name or tag, the more special first.
_KINDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("dspark", "dspark"), ("dflash2", "dflash2"), ("dflash", "dflash"), ("peagle", "peagle"),
    ("eagle3", "eagle3"), ("eagle", "eagle"), ("medusa", "medusa"),
)  # fmt: skip
_RELATIONS: Final[Mapping[str, Match]] = {"quantized": "copy"}

Base: TypeAlias = tuple[str, Match]


class Info(Protocol):
    """The part of huggingface_hub's ModelInfo that is read here."""

    id: str
    tags: list[str] | None


class Api(Protocol):
    """The part of huggingface_hub's HfApi that is used here."""

    def model_info(self, repo_id: str, *, timeout: float | None = None) -> Info: ...

    def list_models(
        self,
        *,
        filter: str | Iterable[str] | None = None,
        search: str | None = None,
        sort: Any = None,
        limit: int | None = None,
    ) -> Iterable[Info]: ...


@dataclass(frozen=True, slots=True)
class Lookup:
    """``missed`` says why the hub was not asked, or did not answer; None where it did. ``offline``:
    it must not be asked.

    ``bases`` are the models that the target says it was made from. ``heads`` were found by name
    and tag alone: nobody stated the pair.
    """

    heads: tuple[Head, ...] = ()
    bases: tuple[Base, ...] = ()
    missed: str | None = None
    offline: bool = False


def look_up(
    names: Sequence[str], hub_id: str | None, api: Api | None = None, seconds: float = SECONDS
) -> Lookup:
    """Ask the hub about a target known by ``names``; ``hub_id`` is its own id there.

    Says why instead of raising where there is no answer: a list without the hub is still a list.
    """
    if api is None:
        from huggingface_hub import HfApi, is_offline_mode

        if is_offline_mode():
            return Lookup(missed="not looked up on the hub: HF_HUB_OFFLINE is set", offline=True)
        api = HfApi()
    answer: list[Lookup] = []
    asked = api

    def ask() -> None:
        # The errors of the client and of the HTTP library under it share no base class over the
        # versions that are supported; whatever it was, the hub gave no answer.
        try:
            answer.append(_ask(names, hub_id, asked))
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            answer.append(Lookup(missed=f"the hub gave no answer: {text.splitlines()[0]}"))

    # A daemon, so that a connection that hangs does not keep the command from ending.
    worker = threading.Thread(target=ask, daemon=True)
    worker.start()
    worker.join(seconds)
    if not answer:
        return Lookup(missed=f"the hub gave no answer in {seconds:.0f} s")
    return answer[0]


def _ask(names: Sequence[str], hub_id: str | None, api: Api) -> Lookup:
    from huggingface_hub.errors import RepositoryNotFoundError

    bases: tuple[Base, ...] = ()
    try:
        # Asked first because it takes a time limit, which the search does not.
        info = api.model_info(hub_id or _PROBE_ID, timeout=_PROBE_SECONDS)
        bases = _bases(info) if hub_id else ()
    except RepositoryNotFoundError:
        # An answer too: a mirror need not hold everything.
        pass
    queries = _queries([*([hub_id] if hub_id else names), *(base for base, _ in bases)])
    found: dict[str, Head] = {}
    for query in queries:
        for tag in _TAGS:
            for model in api.list_models(
                filter=tag, search=query, sort="downloads", limit=_PER_TAG
            ):
                head = _head(model, query, hub_id or query)
                if head is not None:
                    found.setdefault(model.id.lower(), head)
    return Lookup(heads=tuple(found.values()), bases=bases)


def _bases(info: Info) -> tuple[Base, ...]:
    """From the tags ``base_model:RELATION:ID`` that the hub gives a model."""
    found: dict[str, Match] = {}
    for tag in info.tags or ():
        parts = tag.split(":")
        if len(parts) == 3 and parts[0] == "base_model" and parts[2] != info.id:
            found[parts[2]] = _RELATIONS.get(parts[1], "tuning")
    return tuple(found.items())


def _queries(names: Iterable[str]) -> list[str]:
    """What to search for: each name without its organisation and without words of the format.

    One without a digit (``model``, ``target``) names no model that could be found.
    """
    found = ["-".join(words(name)) for name in names]
    return [query for query in dict.fromkeys(found) if re.search(r"\d", query)]


def _head(model: Info, query: str, target: str) -> Head | None:
    kind = kind_of(model.id, model.tags or ())
    own = words(model.id)
    if kind is None or not set(query.split("-")) <= set(own):
        return None
    return Head(target, model.id, kind, f"https://huggingface.co/{model.id}")


def kind_of(name: str, tags: Iterable[str]) -> Kind | None:
    """The kind of head that a name, or else a tag, speaks of; None where none is."""
    for text in (name, *tags):
        flat = text.lower().replace("-", "").replace("_", "").replace(".", "")
        for part, kind in _KINDS:
            if part in flat:
                return kind
    return None
