"""Log-probabilities as OpenAI's two routes write them, and as vLLM writes those of prompts.

A token is shown as its text, in which bytes that form no character alone are U+FFFD (the chat form
has the bytes beside it), or as ``token_id:17``, which tells all tokens apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wager.models.tokenizer import Detokenizer
from wager.types import TokenLogprob

if TYPE_CHECKING:
    from wager.models.tokenizer import Tokenizer

LEAST: Final = -9999.0
"""What JSON has no number for, as OpenAI writes it."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tokens are shown."""

    tokenizer: Tokenizer
    as_ids: bool = False

    def __call__(self, token: int) -> str:
        if self.as_ids:
            return f"token_id:{token}"
        return self.tokenizer.token_bytes(token).decode("utf-8", "replace")


def of_chat(entries: Iterable[TokenLogprob], spelling: Spelling) -> dict[str, Any]:
    """OpenAI's form for chats: one entry per token, with the most likely ones beside it."""
    content = [
        {
            **_chat_entry(entry.token_id, entry.logprob, spelling),
            "top_logprobs": [_chat_entry(token, value, spelling) for token, value in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_entry(token: int, value: float, spelling: Spelling) -> dict[str, Any]:
    return {
        "token": spelling(token),
        "logprob": _number(value),
        "bytes": list(spelling.tokenizer.token_bytes(token)),
    }


def of_prompt(
    entries: Sequence[TokenLogprob | None], count: int, spelling: Spelling
) -> list[dict[str, Any] | None]:
    """vLLM's form: by token id, the ``count`` most likely ones and the prompt's own.

    ``rank`` of the prompt's own token is null where it is not among them.
    """
    return [None if entry is None else _ranked(entry, count, spelling) for entry in entries]


def _ranked(entry: TokenLogprob, count: int, spelling: Spelling) -> dict[str, Any]:
    ranked: dict[int, tuple[float, int | None]] = {entry.token_id: (entry.logprob, None)}
    for rank, (token, value) in enumerate(entry.top[:count], 1):
        ranked[token] = (value, rank)
    return {
        str(token): {"logprob": _number(value), "rank": rank, "decoded_token": spelling(token)}
        for token, (value, rank) in ranked.items()
    }


@dataclass(slots=True)
class TextLogprobs:
    """OpenAI's form for completions, part by part: four lists, one entry per token.

    ``text_offset`` is where a token's text begins, in characters: those of a stop string that was
    cut off have the places that they would have. The lists depend on the tokens alone, not on the
    parts they come in. ``top_logprobs`` has the token itself, too, as OpenAI has it.
    """

    spelling: Spelling
    count: int
    skip_special: bool
    offset: int = 0
    _stream: Detokenizer | None = field(default=None, init=False, repr=False)

    def prompt(
        self, ids: Sequence[int], entries: Sequence[TokenLogprob | None], text: str | None
    ) -> dict[str, Any]:
        """Of the prompt that is repeated: ``text`` where it was given as such, else that of its
        ids. The next part begins behind it."""
        tokenizer = self.spelling.tokenizer
        # In text that was given special tokens are written out; the start token was added to it.
        skip = self.skip_special and text is None
        stream = Detokenizer(tokenizer, skip_special=skip)
        added = text is not None and ids[0] == tokenizer.bos_id
        offsets, at = [], 0
        for number, token in enumerate(ids):
            offsets.append(at)
            if number or not added or self._starts_with(text, token):
                at += len(stream.push(token))
        end = len(text) if text is not None else at + len(stream.flush())
        self.offset = end
        return self._lists(ids, [min(one, end) for one in offsets], entries)

    def output(self, ids: Sequence[int], entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Of the next tokens of the answer."""
        if self._stream is None:
            self._stream = Detokenizer(
                self.spelling.tokenizer, skip_special=self.skip_special, at_start=False
            )
        offsets = []
        for token in ids:
            offsets.append(self.offset)
            self.offset += len(self._stream.push(token))
        return self._lists(ids, offsets, entries)

    def _starts_with(self, text: str | None, token: int) -> bool:
        start = self.spelling.tokenizer.token_bytes(token).decode("utf-8", "replace")
        return (text or "").startswith(start)

    def _lists(
        self,
        ids: Sequence[int],
        offsets: list[int],
        entries: Sequence[TokenLogprob | None],
    ) -> dict[str, Any]:
        return {
            "text_offset": offsets,
            "token_logprobs": [None if e is None else _number(e.logprob) for e in entries],
            "tokens": [self.spelling(token) for token in ids],
            "top_logprobs": [None if e is None else self._top(e) for e in entries],
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, value in (*entry.top[: self.count], (entry.token_id, entry.logprob)):
            # Several tokens may be shown alike; the most likely one stands.
            top.setdefault(self.spelling(token), _number(value))
        return top


def joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Parts of completions put together; None where there are none."""
    whole: dict[str, Any] | None = None
    for part in parts:
        if whole is None:
            whole = {name: list(values) for name, values in part.items()}
            continue
        for name, values in part.items():
            whole[name].extend(values)
    return whole


def _number(value: float) -> float:
    return max(float(value), LEAST)
