"""What a log tells of one answered request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from wager.backend import Messages
from wager.errors import RequestError

Ending: TypeAlias = Literal["end", "stop", "cut"]
"""``end``: by the model's own end token, which a text does not show. ``stop``: its last token ended
it (a stop string or stop token, kept in the answer). ``cut``: by a limit, or nobody knows."""

EDIT_INSTRUCTION: Final = "Apply the change and return the whole text."


@dataclass(frozen=True, slots=True)
class Recorded:
    """One answered request, as far as a log tells.

    The prompt is ``prompt_ids``, or ``messages``, or ``text`` (the first that is there; ``text``
    also stands in for messages where a tokenizer has no chat template). The answer is
    ``answer_ids``, or ``answer``; both are kept where both are there. ``end_token`` is the one that
    ended it, where the log says which. ``prompt_tokens`` and ``answer_tokens`` are counts that the
    log states. ``notes`` are keys of `NOTES`.
    """

    line: int
    shape: str
    messages: Messages | None = None
    text: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    answer: str | None = None
    answer_ids: tuple[int, ...] | None = None
    ending: Ending = "cut"
    end_token: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    group: str | None = None
    notes: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (or file of a pair) that cannot be replayed, and why."""

    line: int
    reason: str


Entry: TypeAlias = Recorded | BadLine

NOTES: Final[dict[str, str]] = {
    "reasoning": "answers with reasoning: replayed as the reasoning and then the answer, without "
    "the marks that the model writes around it",
    "answer tools": "answers that call tools: the calls are replayed as JSON, without the marks "
    "that the model writes around them",
    "prompt tools": "prompts with earlier tool calls: these are written into the conversation as "
    "JSON",
    "tool list": "requests with a list of tools, which is not part of the replayed prompt",
    "stop unknown": "answers that ended by a stop string or by themselves, the log does not say "
    "which: replayed as if cut after their last recorded token",
    "ending unknown": "answers whose log does not say why they ended: replayed as if cut after "
    "their last recorded token",
}
"""What a reader must know of how some answers were understood; a count goes before each."""


def edit(line: int, before: str, after: str, instruction: str | None = None) -> Recorded:
    """The edit case: a request that holds the old text, and the new one as the answer."""
    if before == after:
        # A model would copy it whole, which says nothing about edits and flatters every drafter.
        raise RequestError("the texts before and after are equal")
    if not after:
        raise RequestError("the text after is empty")
    content = f"{instruction or EDIT_INSTRUCTION}\n\n{before}"
    return Recorded(
        line,
        "old and edited text",
        messages=(("user", content),),
        text=f"{content}\n\n",
        answer=after,
        ending="end",
    )
