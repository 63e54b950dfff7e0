"""Draft memory while an engine runs: what a drafter loads at its start, and how new answers get
into the file without a step that waits for the disk."""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wager.drafters.base import DraftHost
from wager.drafters.memory import (
    Answer,
    DraftMemory,
    UnusableMemory,
    merged,
    read,
    save,
    tenant_id,
)
from wager.drafters.memory_options import KEY, MemoryOptions
from wager.errors import ConfigError

SAVE_SECONDS: Final = 300.0
SAVE_ANSWERS: Final = 1000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Told:
    """An answer as it is told, and whose it is."""

    tenant: bytes
    tokens: list[int] = field(default_factory=list)


class LiveMemory:
    """One file, as one drafter uses it.

    New answers are written by a thread, every `SAVE_SECONDS` and as soon as there are
    `SAVE_ANSWERS`, and by `close`; a crash loses what came since. Of several drafters of an engine
    that name one file, the first writes it. Where the file cannot be used a warning says why, it is
    left as it is, and drafting goes on without.
    """

    def __init__(self, options: MemoryOptions, host: DraftHost, vocab_size: int) -> None:
        """Raises ConfigError where the file could not even be made."""
        self._path = _place(options)
        tokenizer = host.target.tokenizer
        self._blank = DraftMemory(tokenizer.hash, tokenizer.vocab_size)
        self._vocab_size = vocab_size
        self._max_bytes = options.max_bytes
        self._writes = not options.draft_memory_read_only and self._path not in host.written
        if self._writes:
            host.written.add(self._path)
        self._told: dict[int, _Told] = {}
        self._learnt: list[Answer] = []
        self._fresh = True
        self._failing = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._door = threading.Lock()  # of _learnt
        self._wake = threading.Event()

    def load(self, most: int | None = None) -> Iterator[tuple[str, Sequence[int]]]:
        """(tenant key, answer) of the file, oldest first; of more than ``most`` the newest."""
        try:
            found = read(self._path, self._blank.tokenizer, self._vocab_size)
        except UnusableMemory as error:
            self._refuse(error)
            return
        if found is not None:
            for tenant, tokens in found.answers(most):
                yield tenant.hex(), tokens

    @property
    def fresh(self) -> bool:
        """Nothing was started since it was made or cleared."""
        return self._fresh

    def start(self, request: int, tenant: str) -> str:
        """A request begins; returns the key of its tenant."""
        self._fresh = False
        told = self._told[request] = _Told(tenant_id(tenant))
        return told.tenant.hex()

    def observe(self, request: int, tokens: Sequence[int]) -> None:
        """Tokens of its answer."""
        self._told[request].tokens.extend(tokens)

    def release(self, request: int) -> tuple[str, list[int]] | None:
        """(tenant key, answer) of a request that ended, for later ones; None if there is none."""
        told = self._told.pop(request, None)
        if told is None or not told.tokens:
            return None
        if self._writes:
            self._keep((told.tenant, array("I", told.tokens)))
        return told.tenant.hex(), told.tokens

    def clear(self) -> None:
        """Forget what the file does not hold yet."""
        self._told.clear()
        with self._door:
            self._learnt.clear()
        self._fresh = True

    def close(self) -> None:
        """Write what was learnt since the last time."""
        if self._thread is not None:
            self._closing = True
            self._wake.set()
            self._thread.join()
            self._thread = None
            self._closing = False
        self._save()

    def _keep(self, answer: Answer) -> None:
        with self._door:
            self._learnt.append(answer)
            many = len(self._learnt) >= SAVE_ANSWERS
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wager-memory", daemon=True)
            self._thread.start()
        if many and not self._failing:
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(SAVE_SECONDS)
            self._wake.clear()
            if self._closing:
                return
            self._save()

    def _save(self) -> None:
        with self._door:
            learnt, self._learnt = self._learnt, []
        if not learnt:
            return
        try:
            save(self._path, self._blank, learnt, self._max_bytes)
            self._failing = False
        except UnusableMemory as error:
            self._refuse(error)
        except OSError as error:
            log.warning(
                "draft_memory: %s cannot be written now, %d answers wait: %s",
                self._path,
                len(learnt),
                error.strerror or error,
            )
            self._failing = True
            with self._door:
                # No more of them than the file would hold.
                self._learnt = list(merged(self._blank, [*learnt, *self._learnt]).answers())

    def _refuse(self, error: UnusableMemory) -> None:
        self._writes = False
        log.warning("%s; drafting goes on without it, and it is left as it is", error)


def _place(options: MemoryOptions) -> Path:
    name = Path(options.draft_memory or "").expanduser()
    # What a link points to is replaced, not the link.
    path = Path(os.path.realpath(name))
    if not path.parent.is_dir():
        raise ConfigError(f"{KEY}: {name}: there is no directory {path.parent}")
    if options.draft_memory_read_only:
        if not path.exists():
            raise ConfigError(f"{KEY}: {name} is not there, and is only to be read")
    elif not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{KEY}: {path.parent} cannot be written to; draft_memory_read_only only reads"
        )
    return path
