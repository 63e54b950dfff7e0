"""What vLLM's protocol has beyond OpenAI's: token ids, and what speculation did for one request.

The counts need ``--per-request-spec-decode-metrics detailed`` at start. vLLM lists only the steps
that carried a draft; the others follow from the tokens, once it is known how much of the last
draft was cut off by the end of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wager.backend import Prompt
from wager.external import openai
from wager.external.reply import Reply
from wager.types import DraftCounts


def request(prompt: Prompt, model: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a streaming request with token ids, without a seed. Raises ConfigError."""
    path, body = openai.request(prompt, model)
    body["return_token_ids"] = True
    # A seeded request of which the prompt is read in pieces ends vLLM on a CPU ("CPU Generator does
    # not use offset"), and elsewhere it is drawn for by itself, which is slower. Without it nothing
    # is lost: a seed has no part in greedy replies, and drafts change what it leads to.
    body.pop("seed", None)
    if not prompt.params.min_p:
        # Refused, or ignored, by a server that speculates.
        body.pop("min_p", None)
    return path, body


def read(event: Mapping[str, Any], reply: Reply) -> None:
    """Take one event into the reply. Raises ReplyError."""
    openai.read(event, reply)
    metrics = event.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    if isinstance(told, Mapping):
        reply.counts = counts(told, reply)


def counts(told: Mapping[str, Any], reply: Reply) -> DraftCounts | None:
    """What speculation did for a whole reply; None where it cannot be told exactly.

    ``told`` is ``metrics.speculative_decoding``. Accepted tokens behind the end of the reply count
    as accepted, as in the server's own counters, but not as committed. The step that committed the
    first token, right after the prompt, is a step without a draft.
    """
    drafted, accepted = told.get("per_step_drafted"), told.get("per_step_accepted")
    tokens = reply.server_tokens if reply.server_tokens is not None else reply.told()
    if tokens is None or told.get("num_spec_steps") is None:
        return None
    if told["num_spec_steps"] == 0:
        return DraftCounts(steps=tokens, committed=tokens)
    if not _lists(drafted, accepted):
        return None
    assert drafted is not None
    assert accepted is not None
    cut = _cut(tokens, accepted, [n for _, n in reply.chunks])
    if cut is None:
        return None
    return DraftCounts(
        steps=tokens - sum(accepted) + cut,
        drafted_steps=len(drafted),
        committed=tokens,
        committed_drafted=sum(accepted) + len(accepted) - cut,
        drafted=sum(drafted),
        accepted=sum(accepted),
        drafted_at=_reached(drafted),
        accepted_at=_reached(accepted),
    )


def _lists(drafted: Any, accepted: Any) -> bool:
    return (
        isinstance(drafted, list)
        and isinstance(accepted, list)
        and len(drafted) == len(accepted) > 0
        and all(isinstance(n, int) for n in [*drafted, *accepted])
    )


def _cut(tokens: int, accepted: Sequence[int], chunks: Sequence[int | None]) -> int | None:
    """How many tokens of the last step fell behind the reply's end.

    A piece of the stream is a step of the engine, unless several were merged on their way; so a
    possible answer is taken only where the steps that follow from it are as many as the pieces.
    """
    last = chunks[-1] if chunks else None
    if last is None:
        return None
    whole = 1 + accepted[-1]
    # A last piece of one token may be a step without a draft, of which nothing can be cut.
    possible = {whole - last} | ({0} if last == 1 else set())
    fits = [cut for cut in possible if cut >= 0 and tokens - sum(accepted) + cut == len(chunks)]
    return fits[0] if len(fits) == 1 else None


def _reached(lengths: Sequence[int]) -> list[int]:
    """Entry j: how many of the steps reached position j."""
    return [sum(n > j for n in lengths) for j in range(max(lengths, default=0))]
