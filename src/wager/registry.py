"""Names to creators, imported only when asked for. Built-ins and third parties use one door."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from wager.errors import ConfigError

DRAFTER_GROUP: Final = "wager.drafters"

_DRAFTERS: Final[dict[str, str]] = {
    "draft_model": "wager.drafters.draft_model:DraftModelDrafter",
    "ngram": "wager.drafters.ngram:NgramDrafter",
    "ngram_gpu": "wager.drafters.ngram_batch:BatchedNgramDrafter",
    "suffix": "wager.drafters.suffix:SuffixDrafter",
}


def drafter_names() -> list[str]:
    """Every method that can be named, built-in and registered by other packages."""
    return sorted({*_DRAFTERS, *(e.name for e in entry_points(group=DRAFTER_GROUP))})


def drafter_class(method: str) -> Any:
    """The class behind a method name, or behind ``package.module:Class``.

    Raises ConfigError where there is none, with the list of those that exist.
    """
    path = _DRAFTERS.get(method)
    if path is None:
        for entry in entry_points(group=DRAFTER_GROUP):
            if entry.name == method:
                return entry.load()
        if ":" not in method:
            names = ", ".join(drafter_names())
            raise ConfigError(f"method: {method!r} is not a drafting method; there are: {names}")
        path = method
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"method: cannot load {path!r}: {error}") from error
