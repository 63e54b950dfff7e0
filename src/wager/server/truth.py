"""What one reply says of itself: counts, measured times, and what plain decoding would have taken.

What is not known is None, never 0; what is estimated stands under that name. Knows neither routes
nor how a reply is written.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from wager.types import DraftCounts

if TYPE_CHECKING:
    from wager.engine.snapshot import Snapshot
    from wager.models.tokenizer import Tokenizer
    from wager.types import CompletionOutput, RequestOutput

KEPT: Final = 50
"""Requests that the list of recent ones holds."""
TEXT_TOKENS: Final = 1000
"""Tokens of an answer that it shows, where text may be shown."""

Span: TypeAlias = tuple[str, bool]
"""A piece of text, and whether accepted draft tokens wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request that is over. Seconds and milliseconds; None: not known.

    ``queue_s`` is the wait until the first step that computed for it, ``inter_token_s`` the times
    between the pieces that brought tokens: one per step, not one per token. ``completion_tokens``
    and ``counts`` are of all ``choices`` together, ``longest`` is the tokens of the longest one.
    """

    route: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    counts: DraftCounts
    request_id: str = ""
    cached_tokens: int = 0
    queue_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None
    inter_token_s: tuple[float, ...] = ()
    draft_ms: float | None = None
    verify_ms: float | None = None
    choices: int = 1
    longest: int | None = None
    max_tokens: int | None = None

    @classmethod
    def of(
        cls,
        output: RequestOutput,
        *,
        route: str,
        model: str,
        inter_token_s: Sequence[float] = (),
        max_tokens: int | None = None,
    ) -> RequestRecord:
        """From the whole answer, not from a piece of it."""
        reasons = [c.finish_reason for c in output.outputs if c.finish_reason is not None]
        return cls(
            route=route,
            model=model,
            prompt_tokens=len(output.prompt_token_ids),
            completion_tokens=sum(len(c.token_ids) for c in output.outputs),
            finish_reason=reasons[0] if reasons else "abort",
            counts=counts_of(output),
            request_id=output.request_id,
            cached_tokens=output.cached_tokens,
            queue_s=output.queue_s,
            first_token_s=output.first_token_s,
            total_s=output.total_s,
            inter_token_s=tuple(inter_token_s),
            draft_ms=output.draft_ms,
            verify_ms=output.verify_ms,
            choices=len(output.outputs),
            longest=longest(output),
            max_tokens=max_tokens,
        )

    @property
    def decode_s(self) -> float | None:
        """From the first token to the end."""
        return _decode_s(self.first_token_s, self.total_s)


def longest(output: RequestOutput) -> int:
    """The tokens of the longest choice."""
    return max((len(c.token_ids) for c in output.outputs), default=0)


def counts_of(output: RequestOutput) -> DraftCounts:
    """The counts of all choices together."""
    counts = DraftCounts()
    for choice in output.outputs:
        counts.add(choice.counts)
    return counts


def speculation(output: RequestOutput, snapshot: Snapshot | None) -> dict[str, Any]:
    """The ``speculation`` object of a reply; ``output`` is the whole answer.

    ``by_position[j]`` are the drafts whose position j was accepted, so its sum is ``accepted``;
    it is as long as the longest draft. ``draft_ms`` and ``verify_ms`` are measured: this request's
    share of what the drafters took, and of the steps that carried a draft. ``estimated`` is what
    the tokens after the first would have taken without drafts, by what a plain step of the last
    batch takes, and that against the measured time; the speed-up is null where nothing was drafted.
    """
    counts = counts_of(output)
    missing = len(counts.drafted_at) - len(counts.accepted_at)
    return {
        "steps": counts.steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "by_position": counts.accepted_at + [0] * missing,
        "tokens_per_step": rounded(counts.tokens_per_step),
        "draft_ms": rounded(output.draft_ms),
        "verify_ms": rounded(output.verify_ms),
        "estimated": _estimated(output, snapshot, counts.drafted > 0),
    }


def _estimated(
    output: RequestOutput, snapshot: Snapshot | None, drafted: bool
) -> dict[str, float | None]:
    step = snapshot.plain_ms if snapshot is not None else None
    # Choices decode beside each other, so the longest one is what the time is of.
    after_first = longest(output) - 1
    if step is None or after_first < 1:
        return {"plain_ms": None, "speedup": None}
    plain_ms = after_first * step
    seconds = _decode_s(output.first_token_s, output.total_s)
    speedup = plain_ms / (1e3 * seconds) if drafted and seconds else None
    return {"plain_ms": rounded(plain_ms), "speedup": rounded(speedup)}


def tokens_per_second(output: RequestOutput) -> float | None:
    """Decode speed of all choices together: the tokens after the first one of each, by the time
    since the first; None where there are none."""
    seconds = _decode_s(output.first_token_s, output.total_s)
    tokens = sum(max(len(c.token_ids) - 1, 0) for c in output.outputs)
    return rounded(tokens / seconds) if seconds and tokens else None


def timings(output: RequestOutput) -> dict[str, Any]:
    """llama-server's ``timings``, by its definitions: the prompt's time ends with the first token,
    which counts among the predicted ones all the same; rates are null where no time passed.

    ``prompt_n`` leaves out the ``cache_n`` tokens that came from the cache.
    """
    counts = counts_of(output)
    computed = max(len(output.prompt_token_ids) - output.cached_tokens, 0)
    tokens = sum(len(c.token_ids) for c in output.outputs)
    first, queued = output.first_token_s, output.queue_s
    prompt_s = None if first is None else max(first - (queued or 0.0), 0.0)
    told: dict[str, Any] = {"cache_n": output.cached_tokens}
    told |= _times("prompt", computed, prompt_s)
    told |= _times("predicted", tokens, _decode_s(first, output.total_s))
    if counts.drafted:
        told |= {"draft_n": counts.drafted, "draft_n_accepted": counts.accepted}
    return told


def _times(name: str, tokens: int, seconds: float | None) -> dict[str, Any]:
    known = bool(seconds and tokens)
    return {
        f"{name}_n": tokens,
        f"{name}_ms": rounded(None if seconds is None else 1e3 * seconds),
        f"{name}_per_token_ms": rounded(1e3 * seconds / tokens if seconds and known else None),
        f"{name}_per_second": rounded(tokens / seconds if seconds and known else None),
    }


def _decode_s(first: float | None, total: float | None) -> float | None:
    return max(total - first, 0.0) if first is not None and total is not None else None


def rounded(value: float | None) -> float | None:
    """What follows is noise, and makes replies long."""
    return None if value is None else round(value, 4)


# Recent requests


@dataclass(slots=True)
class _Seen:
    record: RequestRecord
    ended: float
    spans: list[Span] | None = None


@dataclass(slots=True)
class RecentRequests:
    """The last requests that are over, the newest first.

    What was written is kept only with ``show_text``, of each answer's first choice the beginning.
    ``clock`` gives seconds since 1970.
    """

    show_text: bool = False
    size: int = KEPT
    clock: Callable[[], float] = time.time
    _seen: deque[_Seen] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._seen = deque(maxlen=self.size)

    def __len__(self) -> int:
        return len(self._seen)

    def add(
        self,
        record: RequestRecord,
        output: RequestOutput | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Note a request; the whole answer and the tokenizer are looked at where text is kept."""
        seen = _Seen(replace(record, inter_token_s=()), self.clock())
        if self.show_text and output is not None and tokenizer is not None and output.outputs:
            seen.spans = spans(tokenizer, output.prompt_token_ids, output.outputs[0])
        self._seen.appendleft(seen)

    def rows(self) -> list[dict[str, Any]]:
        """As JSON; ``spans`` is null where no text was kept."""
        return [_row(seen) for seen in self._seen]


def spans(tokenizer: Tokenizer, prompt_ids: Sequence[int], choice: CompletionOutput) -> list[Span]:
    """The beginning of an answer in runs of text that drafts wrote, or the model alone.

    The engine's text may be shorter than that of its tokens (a stop string is cut off); where the
    two differ otherwise nothing is said to be a draft's.
    """
    spell = tokenizer.stream(prompt_ids)
    text, flags = [], []
    for token, accepted in zip(choice.token_ids[:TEXT_TOKENS], choice.accepted_flags, strict=False):
        piece = spell.push(token)
        text.append(piece)
        flags += [accepted] * len(piece)
    spelt = "".join(text)
    shown = choice.text[: len(spelt)]
    if not shown or not spelt.startswith(shown):
        return [(choice.text[: 4 * TEXT_TOKENS], False)] if choice.text else []
    return _runs(shown, flags)


def _runs(text: str, flags: Sequence[bool]) -> list[Span]:
    runs: list[Span] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or flags[end] != flags[start]:
            runs.append((text[start:end], flags[start]))
            start = end
    return runs


def _row(seen: _Seen) -> dict[str, Any]:
    record, counts = seen.record, seen.record.counts
    seconds = record.decode_s
    after_first = record.completion_tokens - record.choices
    return {
        "id": record.request_id,
        "ended": round(seen.ended, 3),
        "route": record.route,
        "model": record.model,
        "finish_reason": record.finish_reason,
        "choices": record.choices,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "first_token_ms": _ms(record.first_token_s),
        "total_ms": _ms(record.total_s),
        "tokens_per_second": rounded(after_first / seconds)
        if seconds and after_first > 0
        else None,
        "tokens_per_step": rounded(counts.tokens_per_step),
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "draft_ms": rounded(record.draft_ms),
        "verify_ms": rounded(record.verify_ms),
        "spans": seen.spans,
    }


def _ms(seconds: float | None) -> float | None:
    return rounded(None if seconds is None else 1e3 * seconds)
