"""Which ways of drafting exist for a target, what each adds in memory, and who runs it.

Nothing is downloaded but headers: see `wager.models.facts.read`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from wager.bench.methods import hub as methods_hub
from wager.bench.methods.engines import (
    SELF,
    SUFFIX_NGRAM,
    Runs,
    Target,
    engines,
    own_refusal,
)
from wager.bench.methods.heads import Head, Match, family_of, matching_heads
from wager.bench.methods.pairs import (
    NOTHING,
    SMALLER,
    Adds,
    Draft,
    Origin,
    mtp_adds,
    pair_notes,
    rounded,
    self_adds,
    speculation_of,
    tokenizers_differ,
)
from wager.errors import ConfigError, WagerError
from wager.models.facts.read import ModelFacts, read_facts

ReadFacts: TypeAlias = Callable[..., ModelFacts]

_TOGETHER: Final = 8
_SNAPSHOT: Final = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")


@dataclass(frozen=True, slots=True)
class Way:
    """One way of drafting. ``method`` is vLLM's name; ``kind`` is more exact where two kinds of
    head share one method. ``drafter`` is None where nothing has to be loaded. ``adds`` is None
    where the drafter's files could not be read; ``unread`` says why. ``source`` is the page on
    which the pair is stated."""

    kind: str
    method: str
    drafter: str | None
    origin: Origin
    source: str | None
    adds: Adds | None
    runs: tuple[Runs, ...]
    notes: tuple[str, ...] = ()
    unread: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that cannot draft for this target, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """Everything for one target. ``notes`` are about the list as a whole; ``hub_asked`` says that
    the hub was searched and answered."""

    target: ModelFacts
    hub_asked: bool
    names: tuple[str, ...]
    ways: tuple[Way, ...]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]


def find(
    model: str,
    candidates: Sequence[str] = (),
    *,
    hub: bool = True,
    api: methods_hub.Api | None = None,
    read: ReadFacts = read_facts,
) -> Found:
    """The ways for ``model``; ``candidates`` are models or directories of models to compare.

    ``hub`` False does not search the hub; whether ``read`` may ask it for the files of a model is
    HF_HUB_OFFLINE's to say. Raises ModelError where the target cannot be read, ConfigError where it
    is a draft head.
    """
    facts = read(model)
    if facts.speculative is not None:
        made_for = facts.speculative.get("target") or "the model that it was made for"
        raise ConfigError(
            f"model: {model} is a draft head ({facts.speculative['kind']}); name {made_for}"
        )
    names = target_names(model, facts)
    hub_id = _hub_id(facts)
    lookup = methods_hub.Lookup(missed="not looked up on the hub: offline", offline=True)
    if hub:
        lookup = methods_hub.look_up(names, hub_id, api)
    names = (*names, *(base for base, _ in lookup.bases))
    target = _target(model, facts)
    drafts, notes = _drafts(facts, target, names, lookup)
    drafts += [Draft("draft_model", name, "candidate") for name in _expand(candidates)]
    # Offline, the cache of this machine still answers; a hub that does not answer is not asked on.
    ask = lookup.missed is None or lookup.offline
    known = _read_all(drafts, read, ask)
    ways: list[Way] = []
    refused: list[Refused] = []
    for draft in drafts:
        way = _way(draft, facts, target, known.get(draft.name or "", _NOT_ASKED))
        if isinstance(way, Refused):
            refused.append(way)
        else:
            ways.append(way)
    if target.refusal is not None:
        notes.append(f"wager's own engine is left out: {target.refusal}")
    if lookup.missed is not None:
        notes.append(lookup.missed)
    return Found(facts, lookup.missed is None, names, tuple(ways), tuple(refused), tuple(notes))


def target_names(model: str, facts: ModelFacts) -> tuple[str, ...]:
    """What the target may be called in the list: as typed, by its files, by its cached id."""
    path = facts.location.rpartition("@")[0] if facts.source == "hub" else facts.location
    names = [path, facts.name, model]
    if facts.source != "hub":
        cached = _SNAPSHOT.search(facts.location)
        names = [f"{cached[1]}/{cached[2]}"] if cached else []
        # A path is no hub id, whatever its last two parts look like.
        names += [Path(facts.location).name, facts.name, Path(model).name]
    return tuple(dict.fromkeys(name for name in names if name))


def _hub_id(facts: ModelFacts) -> str | None:
    if facts.source == "hub":
        return facts.location.rpartition("@")[0]
    cached = _SNAPSHOT.search(facts.location)
    return f"{cached[1]}/{cached[2]}" if cached else None


def _target(model: str, facts: ModelFacts) -> Target:
    if facts.source == "hub":
        return Target(model, model, ".gguf" in facts.name, own_refusal(model), hub=True)
    return Target(model, facts.location, facts.source == "gguf", own_refusal(facts.location))


def _drafts(
    facts: ModelFacts, target: Target, names: Sequence[str], lookup: methods_hub.Lookup
) -> tuple[list[Draft], list[str]]:
    """Every way but the candidates, and what is to be said about the list as a whole."""
    drafts = [Draft(kind, None, "always") for kind in ("ngram", "ngram-mod", "suffix")]
    if target.refusal is None:
        drafts.append(Draft(SUFFIX_NGRAM, None, "always"))
        if rounded(facts) is not None:
            drafts.append(Draft("draft_model", SELF, "always"))
    notes: list[str] = []
    matched = matching_heads(names)
    # Another tuning of a target may have lost or renewed what is part of it.
    inside = {h.kind: h for h, match in matched if h.head is None and match != "tuning"}
    if facts.mtp_layers and "dspark" not in inside:
        drafts.append(Draft("mtp", None, "built in"))
    for kind, head in inside.items():
        if not facts.mtp_layers:
            notes.append(
                f"{head.target} has layers of its own for {kind}, but these files hold none "
                f"({head.source})"
            )
        elif kind != "mtp":
            drafts.append(Draft(kind, None, "built in", head.source))
    for head, match in matched:
        if head.head is not None:
            said = tuple(n for n in (head.note, _made_for(head, match)) if n is not None)
            drafts.append(Draft(head.kind, head.head, "list", head.source, said))
    listed = {draft.name.lower() for draft in drafts if draft.name}
    for head in lookup.heads:
        if head.head is not None and head.head.lower() not in listed:
            note = "found by its name: nobody states here that the pair fits"
            drafts.append(Draft(head.kind, head.head, "hub", head.source, (note,)))
    return drafts + _family(facts, names), notes


def _made_for(head: Head, match: Match) -> str | None:
    if match == "copy":
        return f"made for {head.target}; by its name this target holds the same weights"
    if match == "tuning":
        return (
            f"made for {head.target}, by its name another tuning of this target: expect fewer "
            "accepted tokens"
        )
    return None


def _family(facts: ModelFacts, names: Sequence[str]) -> list[Draft]:
    """Members of the target's family of less than half its size, the smallest first."""
    found = family_of(names)
    if found is None:
        return []
    family, _ = found
    small = [m for m in family.models if m.parameters < SMALLER * facts.parameters]
    return [
        Draft("draft_model", model.id, "family", None, (f"of the family {family.name}",))
        for model in sorted(small, key=lambda model: model.parameters)
    ]


def _expand(candidates: Iterable[str]) -> list[str]:
    """Candidates by name; a directory that is no model stands for the models in it."""
    found: list[str] = []
    for name in (part for given in candidates for part in _split(given)):
        path = Path(name).expanduser()
        if path.is_dir() and not (path / "config.json").is_file():
            inside = sorted(
                child
                for child in path.iterdir()
                if child.suffix.lower() == ".gguf" or (child / "config.json").is_file()
            )
            if not inside:
                raise ConfigError(f"candidates: {path} holds no model: no config.json, no .gguf")
            found += [str(child) for child in inside]
        else:
            found.append(name)
    return list(dict.fromkeys(found))


def _split(given: str) -> list[str]:
    """At commas, unless the whole is a path."""
    if not given.strip():
        raise ConfigError("candidates: an empty name; give models, or directories that hold some")
    if Path(given).expanduser().exists():
        return [given]
    return [part.strip() for part in given.split(",") if part.strip()]


def _read_all(drafts: Sequence[Draft], read: ReadFacts, ask: bool) -> dict[str, ModelFacts | str]:
    """Facts of every drafter that can be had, or the reason why not."""
    wanted = {
        draft.name: draft.kind == "draft_model"
        for draft in drafts
        if draft.name is not None and draft.name != SELF and (ask or draft.origin == "candidate")
    }
    if not wanted:
        return {}
    import httpx2

    def one(item: tuple[str, bool]) -> tuple[str, ModelFacts | str]:
        name, tokenizer = item
        try:
            return name, read(name, tokenizer=tokenizer)
        except (WagerError, OSError, httpx2.TransportError) as error:
            # One that cannot be read is listed without its size; it does not end the list.
            said = " ".join(str(error).split()) or type(error).__name__
            # The name stands before it wherever it is shown.
            return name, said.removeprefix("model: ").removeprefix(f"{name}: ")

    with ThreadPoolExecutor(_TOGETHER) as pool:
        return dict(pool.map(one, wanted.items()))


_NOT_ASKED: Final = "not looked up"


def _way(
    draft: Draft, target_facts: ModelFacts, target: Target, known: ModelFacts | str
) -> Way | Refused:
    if draft.name is None or draft.name == SELF:
        adds: Adds | None = NOTHING
        if draft.name == SELF:
            adds = self_adds(target_facts)
        elif draft.origin != "always":
            adds = mtp_adds(target_facts)
        return _made(draft, target, adds, None, None, target_facts)
    if isinstance(known, str):
        if draft.origin == "candidate":
            return Refused(draft.name, known)
        return _made(draft, target, None, known, None, target_facts)
    if draft.kind == "draft_model" and known.speculative is None:
        reason = tokenizers_differ(target_facts, known)
    else:
        draft, reason = _as_head(draft, known)
    if reason is not None:
        return Refused(draft.name or "", reason)
    adds = Adds(known.weight_bytes, known.kv_bytes_per_token())
    return _made(draft, target, adds, None, known, target_facts)


def _as_head(draft: Draft, known: ModelFacts) -> tuple[Draft, str | None]:
    """A head as what its files say that it is, where nobody stated it; or why it is none."""
    if draft.origin == "list":
        return draft, None
    if known.speculative is None:
        return draft, "by its name a draft head, by its files none"
    kind = str(known.speculative["kind"])
    # The list's finer kinds share the layout of these, so a name that tells more is kept.
    finer = draft.kind in ("peagle", "dflash2")
    return (draft if finer else replace(draft, kind=kind)), None


def _made(
    draft: Draft,
    target: Target,
    adds: Adds | None,
    unread: str | None,
    known: ModelFacts | None,
    target_facts: ModelFacts,
) -> Way:
    speculation = speculation_of(draft, known, target_facts)
    notes = (*draft.notes, *pair_notes(draft, known, target_facts))
    extra: dict[str, dict[str, Any]] = {}
    padded = known is not None and known.vocab_size != target_facts.vocab_size
    if padded and draft.kind == "draft_model":
        # vLLM compares the sizes in the configs, which count padding rows, and gives up.
        extra["vllm"] = {"use_heterogeneous_vocab": True}
    return Way(
        kind=draft.kind,
        method=speculation.method,
        drafter=draft.name,
        origin=draft.origin,
        source=draft.source,
        adds=adds,
        runs=engines(draft.kind, speculation, target, extra),
        notes=notes,
        unread=unread,
    )
