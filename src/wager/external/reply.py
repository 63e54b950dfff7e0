"""A reply while it arrives: what the pieces of a stream held, and the answer that comes of them.

A piece is not a token: it may hold several, or none (a role, a usage record). Tokens are counted
by the server's own count where it gives one, else by the ids, else not at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wager.backend import Answer, Prompt
from wager.types import DraftCounts, TokenLogprob

_PROMPT_TOLERANCE: Final = 0.02
_TIMES_FASTER: Final = 2.0


class ReplyError(Exception):
    """One reply cannot be used; its text says why. Ends that request, nothing else."""


@dataclass(slots=True)
class Reply:
    """What came in so far. ``now`` is the time of the event being read, in seconds since the
    request was sent; the client sets it.

    ``ids`` stays None for a server that tells none. ``server_tokens`` is the server's count of
    the output; ``predicted_ms`` the time that it says decoding took. ``done`` is set by whatever
    ends a stream of this protocol: without it the reply is cut short.
    """

    prompt: Prompt
    now: float = 0.0
    text: list[str] = field(default_factory=list)
    ids: list[int] | None = None
    chunks: list[tuple[float, int | None]] = field(default_factory=list)
    server_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    predicted_ms: float | None = None
    finish_reason: str | None = None
    done: bool = False
    counts: DraftCounts | None = None
    logprobs: list[TokenLogprob] | None = None
    logprobs_known: bool = True
    malformed: int = 0
    notes: list[str] = field(default_factory=list)
    _told: int = 0
    _untold: int = 0

    def take(
        self, text: str = "", ids: Sequence[int] | None = None, tokens: int | None = None
    ) -> None:
        """Note a piece of output, reasoning included. ``tokens`` says how many it holds where the
        server tells that and not the ids.

        Raises ReplyError once more came than was asked for: a server that does not know the field
        with the length in it would go on for ever.
        """
        if ids is not None:
            self.ids = self.ids or []
            self.ids.extend(ids)
            tokens = len(ids)
        if not text and not tokens:
            return
        self.text.append(text)
        self.chunks.append((self.now, tokens))
        self._told += tokens or 0
        # Text that comes without a count holds one token at least.
        self._untold += tokens is None
        self._check_length(self._told + self._untold)

    def told(self) -> int | None:
        """Tokens seen so far; None where a piece did not tell how many it held."""
        return None if self._untold else self._told

    def answer(self, total_s: float) -> Answer:
        """The answer of a reply that ended as it should. Raises ReplyError if it is too long."""
        tokens = self.server_tokens if self.server_tokens is not None else self.told()
        if tokens is not None:
            self._check_length(tokens)
        answer = self.failed(total_s, None)
        answer.tokens = tokens
        answer.token_ids = self._complete_ids(tokens)
        if self.ids is not None and answer.token_ids is None:
            answer.notes.append(f"the stream told the ids of {len(self.ids)} of {tokens} tokens")
        answer.notes.extend(self._doubts(tokens, total_s))
        return answer

    def failed(self, total_s: float, error: str | None) -> Answer:
        """What there is of a reply that ended in an error."""
        return Answer(
            prompt_id=self.prompt.id,
            text="".join(self.text),
            first_token_s=self.chunks[0][0] if self.chunks else None,
            total_s=total_s,
            tokens=self.told(),
            token_ids=self.ids,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            finish_reason=self.finish_reason,
            chunks=self.chunks,
            counts=self.counts,
            logprobs=self.logprobs,
            error=error,
            notes=list(self.notes),
        )

    def _check_length(self, tokens: int) -> None:
        asked = self.prompt.params.max_tokens
        if asked is not None and tokens > asked:
            raise ReplyError(
                f"{tokens} tokens came where at most {asked} were asked for: the server does not "
                "heed the length in the request, which was ended"
            )

    def _complete_ids(self, tokens: int | None) -> list[int] | None:
        """The ids, unless some are missing, which would put all later ones in wrong places.

        The end token is counted by servers that do not send it.
        """
        if self.ids is None or tokens is None:
            return self.ids
        missing = tokens - len(self.ids)
        if missing == 0 or (missing == 1 and self.finish_reason == "stop"):
            return self.ids
        return None

    def _doubts(self, tokens: int | None, total_s: float) -> list[str]:
        doubts = []
        if self.malformed:
            doubts.append(f"{self.malformed} events of the stream could not be read")
        sent, counted = self.prompt.token_ids, self.prompt_tokens
        if (
            sent
            and counted is not None
            and abs(counted - len(sent)) > _PROMPT_TOLERANCE * len(sent)
        ):
            doubts.append(f"the server counted {counted} prompt tokens where {len(sent)} were sent")
        if tokens and self.predicted_ms is not None:
            told = tokens / self.predicted_ms * 1000 if self.predicted_ms > 0 else math.inf
            seen = self._seen_rate(tokens, total_s)
            if seen is not None and told > _TIMES_FASTER * seen:
                doubts.append(
                    f"the server's decode time of {self.predicted_ms:g} ms is not plausible "
                    f"({seen:.1f} tokens/s arrived); the client's clock is used"
                )
        return doubts

    def _seen_rate(self, tokens: int, total_s: float) -> float | None:
        """Tokens per second from the first piece to the last; of a single piece, over all."""
        if not self.chunks:
            return None
        first, last = self.chunks[0], self.chunks[-1]
        if last[0] <= first[0]:
            return tokens / total_s if total_s > 0 else None
        of_first = first[1] if first[1] is not None else tokens / len(self.chunks)
        return (tokens - of_first) / (last[0] - first[0])
