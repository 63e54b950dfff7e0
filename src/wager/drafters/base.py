"""The seam of drafting: what a drafter is told, what it returns, what it needs.

A drafter knows token ids; one with a model, or with a memory on disk, meets the engine as a
`DraftHost`. The engine never asks which method it has; what a method needs is data
(`DrafterNeeds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wager.speculation import MethodConfig
from wager.types import Draft, KvKind

if TYPE_CHECKING:
    from wager.models.load import Model
    from wager.runtime.kv import BlockPool, BlockTable
    from wager.sampling.sampler import SequenceState


@dataclass(frozen=True, slots=True)
class DrafterNeeds:
    """What the engine has to supply. Methods without a model need nothing.

    ``host``: `Drafter.attach` is called once, before anything else. ``blocks``: queries carry the
    request's tokens, its block table, which has room for the whole draft, and its sampler.
    ``hidden_layers``: hidden states of the target.
    """

    hidden_layers: tuple[int, ...] = ()
    host: bool = False
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class DraftHost:
    """The engine as a drafter with a model, or with a memory on disk, sees it.

    The drafter may keep keys and values of its own under the block ids of ``pool``: what a block
    holds is a function of its tokens until ``pool.versions[block]`` changes. Before it does, it
    tells ``reserve`` how many bytes per block that takes. ``kv_memory`` bounds the model's and the
    drafters' together, so the pool has fewer blocks then; ConfigError where they are too few.
    ``max_rows`` bounds the rows of one pass. ``written`` are the draft memories that one of
    the engine's drafters writes already.
    """

    target: Model
    pool: BlockPool
    kv: KvKind
    max_rows: int
    verify: str
    reserve: Callable[[int], None]
    written: set[Path] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class DraftQuery:
    """One request that may draft in this step.

    ``length`` is the number of tokens that the drafter has observed for it (prompt + committed);
    ``limit`` the most tokens that a draft may hold (>= 1), already clipped to what the request,
    its context and the step have room for. The rest is there where `DrafterNeeds.blocks` asks for
    it: ``tokens`` are the observed ones, ``table`` has room for ``length + limit`` tokens.
    ``method`` is the only one that the request wants to hear; "": any.
    """

    request: int
    length: int
    limit: int
    tokens: Sequence[int] = ()
    table: BlockTable | None = None
    sampler: SequenceState | None = None
    method: str = ""


class Drafter(Protocol):
    """Life cycle per request: start, then (observe, propose)*, then release. At the very end close.

    A class may declare ``Options``, a frozen dataclass: its fields are the method's keys in the
    speculative config, and an instance of it is ``config.options``. It raises ConfigError, and may
    have ``describe()``, the values in effect in a line.
    """

    needs: DrafterNeeds

    def __init__(self, config: MethodConfig, vocab_size: int) -> None: ...

    def attach(self, host: DraftHost) -> None:
        """Meet the engine; only called, and only needed, where ``needs.host`` says so.

        Raises ConfigError where the method cannot draft for this target.
        """
        ...

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        """A request begins. What is learnt from one tenant's requests must not show in another's.

        It is called behind the request's first token, which follows with the first `observe`.
        """
        ...

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One draft per query, in order; NO_DRAFT where there is nothing to propose."""
        ...

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Tokens that were committed: each once, the last ones too.

        Preemption does not show here: what was committed stays committed.
        """
        ...

    def release(self, request: int) -> None:
        """Forget a request; unknown ones are ignored."""
        ...

    def clear(self) -> None:
        """Forget everything learnt, across requests too (between the arms of a measurement).

        It is as new then: what a draft memory held at the start is there again.
        """
        ...

    def close(self) -> None:
        """The engine ends, or changes the method: write what is to last.

        Used afterwards only where the engine refused the new method.
        """
        ...


class ModelDrafter(Drafter, Protocol):
    """A drafter whose tokens cost passes of a model (``needs.blocks``)."""

    def behind(self, request: int, length: int) -> int:
        """How many of a request's ``length`` tokens it has to compute before its first draft token.

        May be too many: what other requests share is known only when it is asked.
        """
        ...
