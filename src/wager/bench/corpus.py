"""What a draft memory is built from: texts, and the answers of logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wager.bench.logs.read import read_log
from wager.bench.logs.records import BadLine
from wager.bench.replay.run import MAX_REASONS, OTHER, Bad
from wager.bench.replay.tokens import Vocabulary
from wager.drafters.memory import DraftMemory, merged, tenant_id
from wager.errors import ConfigError, RequestError

FORMS: Final = ("auto", "text", "log")
_LOGS: Final = (".jsonl", ".ndjson", ".json", ".log")
_DOCUMENT: Final = 16_384
"""Characters behind which a text is cut, at the next blank line if one comes before twice that."""
_BATCH: Final = 1 << 18
"""Tokens that are added at once, at least."""


@dataclass(slots=True)
class Corpus:
    """A draft memory while it is built; ``bad`` are the lines that were left out, by reason.

    ``taken`` counts answers and documents, also those that newer ones pushed out.
    """

    vocabulary: Vocabulary
    memory: DraftMemory
    taken: int = 0
    bad: dict[str, Bad] = field(default_factory=dict)
    _waiting: list[list[int]] = field(default_factory=list)
    _tokens: int = 0

    @property
    def dropped(self) -> int:
        """What was taken and had no place."""
        return self.taken - len(self.memory.owners)

    def add(self, path: Path, form: str = "auto") -> None:
        """Everything that a file holds. Raises ConfigError where it cannot be read."""
        is_log = path.name.removesuffix(".gz").endswith(_LOGS) if form == "auto" else form == "log"
        for tokens in self._answers(path) if is_log else self._documents(path):
            if not tokens:
                continue
            self.taken += 1
            self._waiting.append(tokens)
            self._tokens += len(tokens)
            # Adding copies the memory, so a larger one is added to more rarely.
            if self._tokens >= max(_BATCH, len(self.memory.tokens) // 2):
                self._flush()
        self._flush()

    def _flush(self) -> None:
        everyone = tenant_id("")
        self.memory = merged(self.memory, [(everyone, tokens) for tokens in self._waiting])
        self._waiting, self._tokens = [], 0

    def _answers(self, path: Path) -> Iterator[list[int]]:
        for entry in read_log(path):
            if isinstance(entry, BadLine):
                self._leave_out(entry.line, entry.reason)
                continue
            try:
                yield self.vocabulary.tokens(entry).answer
            except RequestError as error:
                self._leave_out(entry.line, str(error))

    def _documents(self, path: Path) -> Iterator[list[int]]:
        for text in documents(path):
            yield self.vocabulary.tokenizer.encode(text, add_special=False)

    def _leave_out(self, line: int, reason: str) -> None:
        known = reason in self.bad or len(self.bad) < MAX_REASONS
        self.bad.setdefault(reason if known else OTHER, Bad()).add(line)


def documents(path: Path) -> Iterator[str]:
    """A text in pieces of bounded length, cut at blank lines where there are any."""
    lines: list[str] = []
    size = 0
    try:
        with path.open(encoding="utf-8") as file:
            while line := file.readline(_DOCUMENT):
                lines.append(line)
                size += len(line)
                if size >= (2 * _DOCUMENT if line.strip() else _DOCUMENT):
                    yield "".join(lines)
                    lines, size = [], 0
    except UnicodeDecodeError as error:
        raise ConfigError(f"from: {path}: is no text in UTF-8") from error
    except OSError as error:
        raise ConfigError(f"from: {path}: cannot be read: {error.strerror}") from error
    if "".join(lines).strip():
        yield "".join(lines)
