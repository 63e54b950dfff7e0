"""Drafters that make what a server meets rarely happen every time; see `tests.recipes`."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Any, Final

from tests.recipes import Oracle
from wager.drafters.base import DrafterNeeds, DraftQuery
from wager.speculation import MethodConfig
from wager.types import NO_DRAFT, Draft

GATE: Final = threading.Event()
"""`Gate` proposes nothing before this is set."""
ASKED: Final = threading.Event()
"""Set when a `Gate` was asked for a draft."""


class Gate:
    """Waits, when it is asked for a draft, until the test lets it go on."""

    needs = DrafterNeeds()

    def __init__(self, config: MethodConfig, vocab_size: int) -> None:
        self.options: Mapping[str, Any] = config.options

    def attach(self, host: Any) -> None:
        pass

    def start(self, request: int, prompt: Any, tenant: str) -> None:
        pass

    def observe(self, request: int, tokens: Any) -> None:
        pass

    def release(self, request: int) -> None:
        pass

    def clear(self) -> None:
        pass

    def close(self) -> None:
        GATE.set()

    def propose(self, queries: Any) -> list[Draft]:
        ASKED.set()
        GATE.wait(60)
        return [Draft((5,) * query.limit, "gate") for query in queries]


class Stride(Oracle):
    """Knows the texts, as `Oracle`, and proposes a part of random length: so the answer comes in
    steps of random size, 1 to k + 1 tokens."""

    def draft(self, query: DraftQuery) -> Draft:
        whole = super().draft(query)
        length = random.Random(query.request * 7919 + query.length).randint(0, query.limit)
        return whole.cut(length) if length else NO_DRAFT


class Pattern(Oracle):
    """Knows the texts; proposes ``right`` tokens of them and then ``wrong`` wrong ones, each
    time."""

    def draft(self, query: DraftQuery) -> Draft:
        right = self.options["right"]
        known = super().draft(query).tokens[:right]
        wrong = min(self.options["wrong"], query.limit - len(known))
        following = super().draft(query).tokens
        tokens = list(known)
        for j in range(len(known), len(known) + wrong):
            true = following[j] if j < len(following) else 3
            tokens.append((true + 1) % self.vocab_size)
        return Draft(tuple(tokens), "pattern") if tokens else NO_DRAFT
