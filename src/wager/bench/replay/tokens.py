"""The tokens of recorded requests: a tokenizer without its model, and what its end tokens are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wager.bench.logs.records import Recorded
from wager.errors import ModelError, RequestError
from wager.models import generation, hf_tokenizer
from wager.models.gguf_file import SIZES
from wager.models.gguf_parts import read_whole
from wager.models.gguf_tokenizer import from_gguf
from wager.models.load import resolve
from wager.models.safetensors_file import read_json
from wager.models.tokenizer import Tokenizer

_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")
_FILES: Final = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
    "config.json",
)  # fmt: skip
_MAX_CONFIG: Final = 1 << 24
_PROBES: Final = 32
"""Answers with both text and ids whose ids are decoded again, to find a wrong tokenizer."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One answered request as the engine sees it.

    ``ended``: the last token of the answer ended it; otherwise a limit did. ``room`` is the most
    tokens that the answer might have had, None for no limit. ``ends`` are tokens that would have
    ended it. ``context`` is the part of ``room`` that is the context's and no limit of the request.
    """

    prompt: list[int]
    answer: list[int]
    ended: bool
    room: int | None
    ends: frozenset[int]
    context: int | None = None


@dataclass(slots=True)
class Checks:
    """Where the log states what the tokenizer gave: how often the two agree.

    ``beyond_context``: answers that ended where the context asked for had long been full.
    """

    prompts: int = 0
    prompts_differ: int = 0
    answers: int = 0
    answers_differ: int = 0
    decoded: int = 0
    decoded_differ: int = 0
    beyond_context: int = 0


@dataclass(slots=True)
class Vocabulary:
    """Turns `Recorded` into `Tokens`. ``turn_end`` is the token that ends an answer by itself."""

    tokenizer: Tokenizer
    ends: frozenset[int]
    turn_end: int | None
    max_model_len: int | None = None
    checks: Checks = field(default_factory=Checks)

    def tokens(self, recorded: Recorded) -> Tokens:
        """Raises RequestError where a request cannot be replayed."""
        prompt, text = self._prompt(recorded)
        answer = self._answer(recorded, prompt, text)
        self._check(recorded, prompt, answer)
        ends = frozenset(recorded.stop_token_ids)
        # An end token in the middle of an answer shows that end tokens did not end it.
        if not recorded.ignore_eos and self.ends.isdisjoint(answer[:-1]):
            ends |= self.ends
        if recorded.ending == "end" and not (answer and answer[-1] in ends):
            last = self.turn_end if recorded.end_token is None else recorded.end_token
            answer = answer if last is None else [*answer, last]
        if not prompt:
            raise RequestError("the prompt has no tokens")
        if not answer:
            raise RequestError("the answer is empty")
        for token in (*prompt, *answer):
            if token >= self.tokenizer.vocab_size:
                raise RequestError(
                    f"token {token} is outside the vocabulary of {self.tokenizer.vocab_size}: "
                    "the tokenizer is another model's"
                )
        ended = recorded.ending != "cut" or answer[-1] in ends
        context = self._context(prompt, answer)
        room = self._room(recorded, answer, ended, context)
        return Tokens(prompt, answer, ended, room, ends, context)

    def _prompt(self, recorded: Recorded) -> tuple[list[int], str | None]:
        """Token ids, and the text where they come from one."""
        if recorded.prompt_ids:
            return list(recorded.prompt_ids), None
        messages, text = recorded.messages, recorded.text
        if messages is not None and (text is None or self.tokenizer.has_chat_template):
            chat = [{"role": role, "content": content} for role, content in messages]
            text = self.tokenizer.chat(chat)
            return self.tokenizer.encode(text, add_special=False), text
        if text is None:
            raise RequestError("the prompt is missing")
        ids = self.tokenizer.encode(text, add_special=True)
        # A prompt that a server logged is whole: it begins with the start token already.
        bos = self.tokenizer.bos_id
        if bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return ids, text

    def _answer(self, recorded: Recorded, prompt: list[int], text: str | None) -> list[int]:
        if recorded.answer_ids is not None:
            return list(recorded.answer_ids)
        answer = recorded.answer or ""
        if text is not None and answer and self.tokenizer.strips_first_space:
            # Such a tokenizer puts a space before any text: here it would be the answer's own.
            whole = self.tokenizer.encode(text + answer, add_special=False)
            start = self.tokenizer.encode(text, add_special=False)
            if whole[: len(start)] == start:
                return whole[len(start) :]
        return self.tokenizer.encode(answer, add_special=False)

    def _check(self, recorded: Recorded, prompt: list[int], answer: list[int]) -> None:
        checks = self.checks
        if recorded.prompt_tokens is not None:
            checks.prompts += 1
            checks.prompts_differ += recorded.prompt_tokens != len(prompt)
        if recorded.answer_tokens is not None:
            checks.answers += 1
            # The end token is counted by some servers and not by others.
            checks.answers_differ += not 0 <= recorded.answer_tokens - len(answer) <= 1
        if recorded.answer and recorded.answer_ids and checks.decoded < _PROBES:
            checks.decoded += 1
            decoded = self.tokenizer.decode(recorded.answer_ids)
            checks.decoded_differ += not decoded.startswith(recorded.answer[:64])

    def _context(self, prompt: list[int], answer: list[int]) -> int | None:
        """Tokens of an answer that the server's context had room for; None where it is unknown."""
        if self.max_model_len is None:
            return None
        room = self.max_model_len - len(prompt)
        self.checks.beyond_context += room < len(answer)
        return max(room, len(answer))

    def _room(
        self, recorded: Recorded, answer: list[int], ended: bool, context: int | None
    ) -> int | None:
        if not ended:
            return len(answer)
        limits = [n for n in (recorded.max_tokens, context) if n is not None]
        return max(min(limits), len(answer)) if limits else None


def open_vocabulary(name: str, max_model_len: int | None = None) -> Vocabulary:
    """The tokenizer of a pulled name, a directory, a GGUF file or a name on the hub.

    Of a directory or a hub name only the tokenizer's files are needed, whatever the architecture.
    Raises ModelError (CorruptFile, UnsupportedModel).
    """
    path = _path(name)
    if path.is_dir():
        tokenizer = hf_tokenizer.from_directory(path)
        config, sampling = (_optional(path / f) for f in ("config.json", "generation_config.json"))
        ends = generation.of_directory(path, config, sampling, tokenizer).eos_ids
    else:
        file = read_whole(path, SIZES)
        tokenizer = from_gguf(file)
        ends = generation.of_gguf(file.path, file.metadata, tokenizer).eos_ids
    return Vocabulary(tokenizer, frozenset(ends), _turn_end(tokenizer, ends), max_model_len)


def _path(name: str) -> Path:
    path = Path(name).expanduser()
    if path.name == "tokenizer.json" and path.is_file():
        return path.parent
    try:
        return resolve(name)
    except ModelError as error:
        if path.exists() or not _HUB_NAME.fullmatch(name):
            raise type(error)(f"tokenizer: {str(error).removeprefix('model: ')}") from None
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    """The tokenizer's files of a model on the hub, or in the cache of the hub's library."""
    from huggingface_hub import snapshot_download

    from wager.models.hub_errors import hub_errors

    repo, _, revision = name.partition("@")
    wanted = revision or None
    with hub_errors(repo, wanted):
        found = Path(snapshot_download(repo, revision=wanted, allow_patterns=[*_FILES]))
    if not (found / "tokenizer.json").is_file():
        raise ModelError(
            f"tokenizer: {name} has no tokenizer.json; name the model that it was made from"
        )
    return found


def _optional(path: Path) -> Mapping[str, Any]:
    return read_json(path, _MAX_CONFIG) if path.is_file() else {}


def _turn_end(tokenizer: Tokenizer, ends: tuple[int, ...]) -> int | None:
    """The end token that the chat template writes behind an answer, else the first one."""
    if tokenizer.has_chat_template:
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            ids = tokenizer.encode(tokenizer.chat(chat, add_generation_prompt=False), False)
        except (RequestError, ModelError):
            ids = []
        for token in reversed(ids):
            if token in ends:
                return token
    return ends[0] if ends else None
