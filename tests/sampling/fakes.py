"""A scripted model and tokenizer: logits are a function of the history, text of the ids."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from wager.config import SamplingParams
from wager.ops.base import OpSet
from wager.sampling import rejection
from wager.sampling.sampler import SequenceState
from wager.sampling.verify import Verdict, verify
from wager.types import Draft

PROMPT = [1, 2, 3]
EOS = 0
# Token 0 is special and has no text; a face of four bytes and an e with accent come in fragments.
FACE = [30, 31, 32]
PIECES = [
    b"", *(bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz"), b"the ", b" a", b"ab",
    b"\xf0\x9f", b"\x98", b"\x80", b"\xc3", b"\xa9", b"\n\n",
]  # fmt: skip
VOCAB = len(PIECES)


class FakeDetokenizer:
    """Bytes of an unfinished character are held back."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(PIECES[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class FakeTokenizer:
    vocab_size = VOCAB
    special_ids = frozenset({EOS})

    def stream(self, prompt_ids: Sequence[int] = ()) -> FakeDetokenizer:
        return FakeDetokenizer()

    def token_bytes(self, token_id: int) -> bytes:
        return PIECES[token_id] if token_id < VOCAB else b""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """The longest piece first; what no piece begins with is left out."""
        rest, ids = text.encode(), []
        while rest:
            fitting = [i for i in range(1, VOCAB) if rest.startswith(PIECES[i])]
            best = max(fitting, key=lambda i: len(PIECES[i]), default=None)
            ids += [] if best is None else [best]
            rest = rest[1 if best is None else len(PIECES[best]) :]
        return ids


TOKENIZER: Any = FakeTokenizer()


def text_of(ids: Sequence[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")


def logits_after(history: Sequence[int]) -> NDArray[np.float32]:
    """Peaked logits that depend on the whole history."""
    return _logits(tuple(history))


@cache
def _logits(history: tuple[int, ...]) -> NDArray[np.float32]:
    rng = np.random.default_rng(zlib.crc32(repr(history).encode()))
    logits = (3 * rng.standard_normal(VOCAB)).astype(np.float32)
    logits.setflags(write=False)
    return logits


def sequence(params: SamplingParams, **changes: Any) -> SequenceState:
    options: dict[str, Any] = {
        "seed": params.seed or 0, "choice": 0, "prompt_ids": PROMPT, "eos_ids": (EOS,),
        "tokenizer": TOKENIZER, "max_total": 10_000,
    }  # fmt: skip
    return SequenceState(params, **(options | changes))


Drafting = Callable[[SequenceState], Sequence[int]]


def no_draft(state: SequenceState) -> Sequence[int]:
    return ()


def step(state: SequenceState, drafted: Sequence[int], ops: OpSet) -> Verdict:
    """One verified step over the scripted model."""
    history = [*state.prompt_ids, *state.output_ids]
    rows = [logits_after([*history, *drafted[:j]]) for j in range(len(drafted) + 1)]
    return verify(np.stack(rows), Draft(tuple(drafted), "test"), state, ops)


def decode(
    params: SamplingParams, ops: OpSet, drafting: Drafting = no_draft, **changes: Any
) -> tuple[SequenceState, list[tuple[int, Verdict]]]:
    """A whole sequence; with it (number of tokens drafted, verdict) per step."""
    state = sequence(params, **changes)
    steps = []
    while state.finish_reason is None:
        drafted = drafting(state)
        steps.append((len(drafted), step(state, drafted, ops)))
    return state, steps


def oracle(known: Sequence[int], k: int) -> Drafting:
    """Drafts what plain decoding is known to say, past its end too."""

    def drafting(state: SequenceState) -> Sequence[int]:
        at = len(state.output_ids)
        return [*known, *[5] * k][at : at + k]

    return drafting


def assert_same(state: SequenceState, plain: SequenceState) -> None:
    """Everything a user can see is equal."""
    assert state.output_ids == plain.output_ids
    assert state.text == plain.text
    assert (state.finish_reason, state.stop_reason) == (plain.finish_reason, plain.stop_reason)
    assert state.logprobs == plain.logprobs


def remember(
    monkeypatch: pytest.MonkeyPatch, key: Callable[[SequenceState, Sequence[int]], Hashable]
) -> None:
    """`distribution` is worked out once for each row and ``key`` of what is before it."""
    known: dict[Hashable, NDArray[np.float64]] = {}
    real = rejection.distribution

    def look_up(
        row: NDArray[np.float32], state: SequenceState, ahead: Sequence[int] = ()
    ) -> NDArray[np.float64]:
        place = (row.tobytes(), key(state, ahead))
        if place not in known:
            known[place] = real(row, state, ahead)
        return known[place]

    monkeypatch.setattr(rejection, "distribution", look_up)
