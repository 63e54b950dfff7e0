"""Keeps the engine safe from its drafter: a drafter can only ever cost speed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

from wager.drafters.base import Drafter, DraftHost, DraftQuery, ModelDrafter
from wager.errors import ConfigError
from wager.registry import drafter_class
from wager.speculation import MethodConfig, SpeculationConfig
from wager.types import NO_DRAFT, Draft

log = logging.getLogger(__name__)


OVERRUN_S: Final = 1.0
"""What one call may take of a drafter that has no model to compute."""


class GuardedDrafter:
    """A drafter whose exceptions and invalid answers switch it off for the requests concerned, and
    so do calls that take longer than OVERRUN_S.

    ``failures`` counts those requests, ``seconds`` the time spent in the drafter. ``clock`` gives
    seconds.
    """

    def __init__(
        self,
        drafter: Drafter,
        vocab_size: int,
        method: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self.drafter = drafter
        self.method = method
        self.needs_blocks = drafter.needs.blocks
        self.vocab_size = vocab_size
        self.failures = 0
        self.seconds = 0.0
        self._off: set[int] = set()

    @classmethod
    def create(
        cls, config: MethodConfig, vocab_size: int, host: DraftHost | None = None
    ) -> GuardedDrafter:
        """The drafter that the config names. Raises ConfigError if its needs cannot be met.

        ``host`` None: there is no engine, token ids are all that there is.
        """
        drafter: Drafter = drafter_class(config.method)(config, vocab_size)
        if drafter.needs.hidden_layers:
            raise ConfigError(
                f"method: {config.method!r} needs hidden states of the target, which this engine "
                "does not supply"
            )
        if drafter.needs.host or drafter.needs.blocks:
            if host is None:
                why = "drafts with a model" if drafter.needs.blocks else "has a memory on disk"
                raise ConfigError(
                    f"method: {config.method!r} {why}, for which there is no engine here"
                )
            drafter.attach(host)
        return cls(drafter, vocab_size, config.method)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One valid draft per query, at most ``limit`` tokens; NO_DRAFT where there is none."""
        asked = [q for q in queries if q.request not in self._off] if self._off else queries
        if not asked:
            return [NO_DRAFT] * len(queries)
        started = self._clock()
        try:
            drafts = self.drafter.propose(asked)
            if len(drafts) != len(asked):
                raise ValueError(f"{len(drafts)} drafts for {len(asked)} requests")
            drafts = [self._checked(q, d) for q, d in zip(asked, drafts, strict=True)]
        except Exception as error:
            self._switch_off([q.request for q in asked], error)
            return [NO_DRAFT] * len(queries)
        finally:
            self._spent(started, [q.request for q in asked])
        if asked is queries:
            return drafts
        answers = {q.request: d for q, d in zip(asked, drafts, strict=True)}
        return [answers.get(q.request, NO_DRAFT) for q in queries]

    def serves(self, request: int) -> bool:
        """Whether the drafter was not switched off for a request."""
        return request not in self._off

    def behind(self, request: int, length: int) -> int:
        """Of a drafter with a model, see `ModelDrafter`; ``length`` where it cannot tell, and then
        it is switched off for the request."""
        if request in self._off:
            return length
        try:
            return max(int(cast(ModelDrafter, self.drafter).behind(request, length)), 1)
        except Exception as error:
            self._switch_off([request], error)
            return length

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        self._tell(request, lambda: self.drafter.start(request, prompt, tenant))

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        self._tell(request, lambda: self.drafter.observe(request, tokens))

    def release(self, request: int) -> None:
        self._off.discard(request)
        started = self._clock()
        try:
            self.drafter.release(request)
        except Exception as error:
            log.warning("the drafter failed to release request %d: %s", request, error)
        finally:
            self._spent(started, [])

    def clear(self) -> None:
        try:
            self.drafter.clear()
        except Exception as error:
            log.warning("the drafter failed to forget: %s: %s", type(error).__name__, error)

    def close(self) -> None:
        try:
            self.drafter.close()
        except Exception as error:
            log.warning("the drafter failed to close: %s: %s", type(error).__name__, error)

    def _tell(self, request: int, tell: Callable[[], None]) -> None:
        if request in self._off:
            return
        started = self._clock()
        try:
            tell()
        except Exception as error:
            self._switch_off([request], error)
        finally:
            self._spent(started, [request])

    def _spent(self, started: float, requests: Sequence[int]) -> None:
        took = self._clock() - started
        self.seconds += took
        # What a drafter with a model takes is in proportion to the text, and is accounted for.
        if took > OVERRUN_S and not self.needs_blocks:
            late = [request for request in requests if request not in self._off]
            if late:
                self._switch_off(late, TimeoutError(f"it took {took:.1f} s"))

    def _checked(self, query: DraftQuery, draft: Draft) -> Draft:
        if not draft.tokens:
            return NO_DRAFT
        problem = _problem(draft, self.vocab_size)
        if problem:
            self._switch_off([query.request], ValueError(problem))
            return NO_DRAFT
        return draft.cut(query.limit)

    def _switch_off(self, requests: Sequence[int], error: Exception) -> None:
        self._off.update(requests)
        self.failures += len(requests)
        log.warning(
            "drafting is off for %d request(s), they go on without: %s: %s",
            len(requests),
            type(error).__name__,
            error,
        )


def _problem(draft: Draft, vocab_size: int) -> str:
    """What makes a draft one that cannot be verified; "" if nothing does."""
    for token in draft.tokens:
        if not 0 <= token < vocab_size:
            return f"draft token {token} is outside the vocabulary of {vocab_size}"
    drawn = draft.distributions
    if drawn is None:
        return ""
    if len(drawn) != len(draft.tokens):
        return f"{len(drawn)} distributions for {len(draft.tokens)} draft tokens"
    for token, q in zip(draft.tokens, drawn, strict=True):
        if len(q) > vocab_size or token >= len(q) or not q[token] > 0.0:
            return f"draft token {token} was not drawn from its distribution"
        if q.min() < 0.0 or not abs(q.sum() - 1.0) < 1e-6:
            return "a distribution of a draft does not sum to 1"
    return ""


class Drafters:
    """The methods of a config, asked in order: a request takes the first draft that has tokens."""

    def __init__(self, drafters: Sequence[GuardedDrafter]) -> None:
        self.members = drafters
        self.needs_blocks = any(d.needs_blocks for d in drafters)

    @classmethod
    def create(
        cls, config: SpeculationConfig, vocab_size: int, host: DraftHost | None = None
    ) -> Drafters:
        """The drafters that the config names. Raises ConfigError if their needs cannot be met."""
        return cls([GuardedDrafter.create(m, vocab_size, host) for m in config.methods])

    @property
    def failures(self) -> int:
        """Requests that a drafter was switched off for."""
        return sum(d.failures for d in self.members)

    @property
    def seconds(self) -> float:
        """Time spent in the drafters."""
        return sum(d.seconds for d in self.members)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Draft]:
        """One valid draft per query, at most ``limit`` tokens; NO_DRAFT where there is none."""
        drafts = [NO_DRAFT] * len(queries)
        for drafter in self.members:
            silent = [
                i
                for i, query in enumerate(queries)
                if not drafts[i].tokens and query.method in ("", drafter.method)
            ]
            if not silent:
                continue
            found = drafter.propose([queries[i] for i in silent])
            for i, draft in zip(silent, found, strict=True):
                drafts[i] = draft
        return drafts

    def start(self, request: int, prompt: Sequence[int], tenant: str) -> None:
        for drafter in self.members:
            drafter.start(request, prompt, tenant)

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        for drafter in self.members:
            drafter.observe(request, tokens)

    def release(self, request: int) -> None:
        for drafter in self.members:
            drafter.release(request)

    def clear(self) -> None:
        for drafter in self.members:
            drafter.clear()

    def close(self) -> None:
        for drafter in self.members:
            drafter.close()


def cut_after_end(draft: Draft, ends_with: Callable[[int], bool]) -> Draft:
    """Nothing can be committed after an end token, so nothing is drafted after one."""
    for index, token in enumerate(draft.tokens[:-1]):
        if ends_with(token):
            return draft.cut(index + 1)
    return draft
