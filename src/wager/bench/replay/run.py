"""What a drafter would have done to recorded answers: neither a model nor a GPU is needed.

Under exact verification a draft token is accepted when it is the token that plain decoding gives.
So for a drafter that depends on token ids alone the recorded answer decides, and the counts are
those of a real run with the same answer (shadow evaluation). The loop follows the engine's step
(`wager.engine.engine`) with one request at a time, so that a drafter that learns across requests
meets them in the order of the log: as on an engine that answers one request after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from wager.arms import Arm
from wager.bench.logs.records import BadLine, Entry, Recorded
from wager.bench.replay.rules import Rule, Settings, rule, settings
from wager.bench.replay.tally import Tally, Trace
from wager.bench.replay.tokens import Tokens, Vocabulary
from wager.drafters.base import DraftQuery
from wager.engine.drafting import Drafters, cut_after_end
from wager.errors import ConfigError, RequestError
from wager.speculation import SpeculationConfig
from wager.types import NO_DRAFT, DraftCounts

MAX_GROUPS: Final = 10_000
MAX_REASONS: Final = 50
OTHER: Final = "other reasons"
_NO_LIMIT: Final = 1 << 62


@dataclass(slots=True)
class ArmReplay:
    """One arm over all requests; ``failures`` counts requests that went on without a drafter."""

    arm: Arm
    settings: Settings
    drafter: Drafters | None
    groups: dict[str | None, Tally] = field(default_factory=dict)

    @property
    def config(self) -> SpeculationConfig | None:
        return self.settings.config

    @property
    def failures(self) -> int:
        return self.drafter.failures if self.drafter is not None else 0

    @property
    def total(self) -> Tally:
        """All groups together."""
        total = Tally()
        for tally in self.groups.values():
            total.merge(tally)
        return total


@dataclass(slots=True)
class Bad:
    """Lines that were left out for one reason."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.lines) < 5:
            self.lines.append(line)


@dataclass(slots=True)
class Replay:
    """A replay as it stands: what was read, and what each arm made of it.

    ``cold``: drafters forget each request before the next one.
    """

    vocabulary: Vocabulary
    arms: list[ArmReplay]
    rule: Rule
    cold: bool = False
    interrupted: bool = False
    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    with_ids: int = 0
    shapes: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    bad: dict[str, Bad] = field(default_factory=dict)

    def run(self, entries: Iterable[Entry], limit: int | None = None) -> None:
        """Replay entries one after the other, at most ``limit`` answers. Raises ConfigError."""
        for entry in entries:
            if isinstance(entry, BadLine):
                self._leave_out(entry)
            else:
                try:
                    self._take(entry, self.vocabulary.tokens(entry))
                except RequestError as error:
                    self._leave_out(BadLine(entry.line, str(error)))
            if limit is not None and self.requests >= limit:
                return

    def check(self, source: str) -> None:
        """Raise ConfigError where there was nothing to replay."""
        if self.requests:
            return
        reason = next(iter(self.bad), None)
        if reason is None:
            raise ConfigError(f"logs: {source}: holds no answered request")
        bad = self.bad[reason]
        raise ConfigError(
            f"logs: {source}: none of {sum(b.count for b in self.bad.values())} entries can be "
            f"replayed; line {bad.lines[0]}: {reason}"
        )

    def _take(self, entry: Recorded, tokens: Tokens) -> None:
        if entry.group not in self.arms[0].groups and len(self.arms[0].groups) >= MAX_GROUPS:
            raise ConfigError(f"group: has more than {MAX_GROUPS} values; choose another field")
        self.requests += 1
        self.prompt_tokens += len(tokens.prompt)
        self.answer_tokens += len(tokens.answer)
        self.with_ids += entry.answer_ids is not None
        self.shapes[entry.shape] = self.shapes.get(entry.shape, 0) + 1
        for note in entry.notes:
            self.notes[note] = self.notes.get(note, 0) + 1
        for arm in self.arms:
            k = 0 if arm.config is None else arm.config.num_speculative_tokens
            trace = replay_one(arm.drafter, self.requests, tokens, k, self.rule)
            arm.groups.setdefault(entry.group, Tally()).add(trace)
            if self.cold and arm.drafter is not None:
                arm.drafter.clear()

    def _leave_out(self, bad: BadLine) -> None:
        known = bad.reason in self.bad or len(self.bad) < MAX_REASONS
        self.bad.setdefault(bad.reason if known else OTHER, Bad()).add(bad.line)


def replay_one(
    drafter: Drafters | None, number: int, tokens: Tokens, k: int, by_rule: Rule
) -> Trace:
    """What happens to one request; ``number`` names it. Without a drafter: plain decoding."""
    answer = tokens.answer
    room = tokens.room if by_rule.within_room else tokens.context
    room = _NO_LIMIT if room is None else room
    trace = Trace(tried_at=[0] * k)
    # The step that reads the prompt gives the first token, and never carries a draft.
    trace.counts.record(0, 0, 1)
    at, fresh = 1, answer[:1]
    if drafter is not None:
        drafter.start(number, tokens.prompt, "")
    while at < len(answer):
        draft = NO_DRAFT
        if drafter is not None:
            drafter.observe(number, fresh)
            limit = min(k, room - at - 1)
            if limit > 0:
                query = DraftQuery(number, len(tokens.prompt) + at, limit)
                draft = drafter.propose([query])[0]
        if by_rule.cut_after_end:
            draft = cut_after_end(draft, tokens.ends.__contains__)
        accepted = 0
        for proposed, token in zip(draft.tokens, answer[at : at + k], strict=False):
            trace.tried_at[accepted] += 1
            if proposed != token:
                break
            accepted += 1
        # An accepted token that ends the answer is the last: nothing follows from its row.
        committed = min(accepted + 1, len(answer) - at)
        if accepted == committed and answer[-1] in tokens.ends and not by_rule.counts_end:
            accepted -= 1
        recorded = (len(draft.tokens), accepted, committed)
        trace.counts.record(*recorded)
        if draft.tokens:
            trace.by_source.setdefault(draft.source, DraftCounts()).record(*recorded)
        fresh = answer[at : at + committed]
        at += committed
    if drafter is not None:
        drafter.observe(number, fresh)
        drafter.release(number)
    return trace


def replayed(
    arms: Sequence[Arm], vocabulary: Vocabulary, engine: str = "own", *, cold: bool = False
) -> Replay:
    """A replay of these arms by an engine's rule, ready to run. Raises ConfigError."""
    by_rule = rule(engine)
    made = []
    for arm, found in ((arm, settings(arm, engine)) for arm in arms):
        drafter = found.drafters(vocabulary.tokenizer.vocab_size)
        made.append(ArmReplay(arm, found, drafter))
    return Replay(vocabulary, made, by_rule, cold)
