"""The part of a reply in which a model thinks: ``<think>...</think>``, at its beginning only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wager.server.parsing.pieces import WHITE

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer

THINK: Final = "<think>"
THOUGHT: Final = "</think>"


def opened_reasoning(prompt: str, final: str = "") -> bool:
    """Whether the reply begins inside the reasoning, because the prompt ends inside it.

    ``final`` is the content of the message that the reply continues, where it continues one.
    """
    return prompt.rstrip(WHITE).endswith(THINK) or final.rfind(THINK) > final.rfind(THOUGHT)


def reasoning_tokens(tokenizer: Tokenizer, ids: Sequence[int], opened: bool) -> int:
    """How many tokens of a reply are reasoning, its marks included: never more than there are.

    To be asked where the parser found reasoning.
    """
    from wager.models.tokenizer import Detokenizer

    stream = Detokenizer(tokenizer, skip_special=False, at_start=False)
    inside, tail = opened, ""
    for count, token in enumerate(ids, 1):
        tail += stream.push(token)
        if not inside:
            tail = tail.lstrip(WHITE)
            if not tail.startswith(THINK):
                if THINK.startswith(tail):
                    continue
                return 0
            inside = True
        if THOUGHT in tail:
            return count
        tail = tail[1 - len(THOUGHT) :]
    return len(ids) if inside else 0
