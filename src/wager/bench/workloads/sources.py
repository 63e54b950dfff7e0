"""Where the prompts of a plan come from: generated workloads by name, or files of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from wager.backend import Load, Prompt
from wager.bench.plan import PlannedCell
from wager.bench.workloads.datasets import load_dataset
from wager.bench.workloads.generated import DEFAULT_PROMPTS, RECIPES, chosen, prompts
from wager.errors import ConfigError

IDENTITY_PROMPTS: Final = 12
_IDENTITY_TOKENS: Final = 64
_IDENTITY_WORKLOADS: Final = ("copy", "words")
_IDENTITY_CHATS: Final = ("rename", "json")
_WARM_UP_PROMPTS: Final = 8
# Of warm-up and identity prompts, so that none of them is in a cell.
_OTHER_SEED: Final = 1_000_003


@dataclass(frozen=True, slots=True)
class Wanted:
    """Workloads and loads; ``count`` prompts each: None is 16, of a file as far as it has them.

    ``chats_only``: the engine takes neither raw text nor token ids. ``warm``: each workload once
    more, behind so many other prompts of it.
    """

    names: tuple[str, ...]
    loads: tuple[Load, ...]
    count: int | None = None
    max_tokens: int | None = None
    seed: int = 0
    chats_only: bool = False
    warm: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """The prompts of a plan; ``notes`` are what a reader must know of the files, in lines."""

    cells: tuple[PlannedCell, ...]
    warm_up: tuple[Prompt, ...]
    identity: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()


def check(names: Sequence[str]) -> None:
    """Raise ConfigError for a workload that is neither known nor a file, or is named twice."""
    files = [name for name in names if name not in RECIPES and _is_file(name)]
    if repeated := next((name for name in files if files.count(name) > 1), None):
        raise ConfigError(f"workload: {repeated!r} is named twice")
    known = [name for name in names if name not in files]
    if known or not files:
        chosen(known)


def draw(
    wanted: Wanted,
    vocab_size: Callable[[], int],
    *,
    same_for_all_loads: bool,
    identity: int = 0,
) -> Drawn:
    """The cells in order: workload by workload, load by load.

    ``same_for_all_loads``: every load gets the same prompts, since caches are empty each time; else
    each gets prompts of its own, as far as a file holds enough. ``vocab_size`` is asked only if a
    workload needs it. Raises ConfigError for a workload that the engine cannot be asked.
    """
    check(wanted.names)
    # A warm cell has the prompts of the cold one where nothing was kept of those, else its own.
    shares = 1 if same_for_all_loads else len(wanted.loads) * (2 if wanted.warm else 1)
    cells: list[PlannedCell] = []
    notes: list[str] = []
    for name in wanted.names:
        if wanted.chats_only and name in RECIPES and not RECIPES[name].chat:
            raise _no_chats(name)
        pool = _pool(name, wanted, shares, vocab_size)
        if wanted.chats_only and any(prompt.messages is None for prompt in pool.prompts):
            raise _no_chats(name)
        notes += pool.notes
        cells += _cells(pool, wanted, shares)
    warm_up = _warm_up(wanted, cells, vocab_size, same_for_all_loads)
    told = _identity(identity, wanted.seed, wanted.chats_only)
    return Drawn(tuple(cells), warm_up, told, tuple(notes))


def _cells(pool: _Pool, wanted: Wanted, shares: int) -> list[PlannedCell]:
    """The cells of one workload: load by load, the warm ones behind the cold ones."""
    size = len(pool.prompts) // shares if pool.enough else len(pool.prompts)
    cells: list[PlannedCell] = []
    for before in ((), tuple(pool.warm)) if pool.warm else ((),):
        label = f"{pool.label} after {len(before)}" if before else pool.label
        for load in wanted.loads:
            start = len(cells) * size if pool.enough and shares > 1 else 0
            own = tuple(pool.prompts[start : start + size])
            cells.append(PlannedCell(label, load, own, random_prompts=pool.random, warm=before))
    return cells


def chats() -> tuple[str, ...]:
    """The workloads that are chats, by name."""
    return tuple(name for name, recipe in RECIPES.items() if recipe.chat)


def _no_chats(name: str) -> ConfigError:
    return ConfigError(
        f"workload: {name} is not of chats, and this engine takes nothing else; choose among "
        f"{', '.join(chats())}, or a file of chats"
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    label: str
    prompts: list[Prompt]
    random: bool
    enough: bool
    notes: tuple[str, ...] = ()
    warm: list[Prompt] = field(default_factory=list)


def _pool(name: str, wanted: Wanted, shares: int, vocab_size: Callable[[], int]) -> _Pool:
    """The prompts of a workload for all of its loads; ``enough`` if each can have its own."""
    if name in RECIPES:
        count = shares * (wanted.count or DEFAULT_PROMPTS)
        drawn = _recipe(name, count + wanted.warm, wanted.seed, wanted.max_tokens, vocab_size)
        return _Pool(name, drawn[:count], name == "random", True, warm=drawn[count:])
    count = wanted.count or DEFAULT_PROMPTS
    if wanted.warm:
        return _warm_pool(name, wanted, shares * count)
    dataset = load_dataset(name, shares * count, wanted.seed, wanted.max_tokens)
    found = len(dataset.prompts)
    # Fewer than the default, or than all loads together need, is nothing to remark on.
    few = wanted.count is not None and found < count
    notes = tuple(note for note in dataset.notes if few or "asked for" not in note)
    enough = found >= shares * count
    # Without prompts of its own every load gets the same, which is flagged as repeated prompts.
    chosen = dataset.prompts if enough else dataset.prompts[:count]
    token_ids = all(prompt.token_ids is not None for prompt in chosen)
    return _Pool(dataset.name, chosen, token_ids, enough, notes)


def _warm_pool(name: str, wanted: Wanted, count: int) -> _Pool:
    """``count`` prompts of a file to be timed, and those that come before."""
    needed = count + wanted.warm
    dataset = load_dataset(name, needed, wanted.seed, wanted.max_tokens)
    found = dataset.prompts
    if len(found) < needed:
        raise ConfigError(
            f"warm: {name} holds {len(found)} prompts, and {count} to measure with "
            f"{wanted.warm} others before them are asked for; lower --prompts or --warm"
        )
    token_ids = all(prompt.token_ids is not None for prompt in found)
    return _Pool(dataset.name, found[:count], token_ids, True, dataset.notes, found[count:])


def _recipe(
    name: str, count: int, seed: int, cap: int | None, vocab_size: Callable[[], int]
) -> list[Prompt]:
    vocabulary = vocab_size() if name == "random" else 0
    return prompts(RECIPES[name], count, vocabulary, seed, cap)


def _warm_up(
    wanted: Wanted,
    cells: Sequence[PlannedCell],
    vocab_size: Callable[[], int],
    same_for_all_loads: bool,
) -> tuple[Prompt, ...]:
    """In one process the first prompt, cut short; on a server other prompts than the timed ones."""
    if same_for_all_loads:
        return cells[0].prompts[:1]
    most = max((load.clients or 1 for load in wanted.loads), default=1)
    count = min(_WARM_UP_PROMPTS, max(2, most))
    other = "rename" if wanted.chats_only else "copy"
    name = next((name for name in wanted.names if name in RECIPES), other)
    seed = wanted.seed + _OTHER_SEED
    return tuple(_recipe(name, count, seed, wanted.max_tokens, vocab_size))


def _identity(count: int, seed: int, chats_only: bool) -> tuple[Prompt, ...]:
    """Greedy, half of them easy to draft and half of them not; raw texts unless only chats do."""
    out: list[Prompt] = []
    names = _IDENTITY_CHATS if chats_only else _IDENTITY_WORKLOADS
    for index, name in enumerate(names):
        share = (count + 1 - index) // len(names)
        drawn = prompts(RECIPES[name], share, 0, seed + 2 * _OTHER_SEED, _IDENTITY_TOKENS)
        for prompt in drawn:
            # Servers that speak nothing but OpenAI's protocol know no ignore_eos.
            params = replace(prompt.params, ignore_eos=False)
            out.append(replace(prompt, id=f"identity-{prompt.id}", params=params))
    return tuple(out)


def _is_file(name: str) -> bool:
    """A path, or ``path:format``."""
    return Path(name).is_file() or Path(name.rpartition(":")[0] or name).is_file()
