"""The keys of draft memory, for the methods that have one. Read without numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wager.checks import flag, whole
from wager.errors import ConfigError
from wager.memory import parse_size

KEY: Final = "draft_memory"
READ_ONLY: Final = "draft_memory_read_only"
MIN_BYTES: Final = 1 << 12
MAX_BYTES: Final = 1 << 32


# Without slots, so that a record can have it beside another base.
@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """``draft_memory`` names the file; None: what is learnt ends with the process.

    ``draft_memory_size`` bounds it in bytes (or "256MB"; made, the record holds a number): None
    keeps the file's own bound. With ``draft_memory_read_only`` it is read and never written.
    """

    draft_memory: str | None = None
    draft_memory_size: int | str | None = None
    draft_memory_read_only: bool = False

    def __post_init__(self) -> None:
        name, size = self.draft_memory, self.draft_memory_size
        if name is not None and (not isinstance(name, str) or not name or "\0" in name):
            raise ConfigError(f"{KEY}: must be the name of a file, got {name!r}")
        flag(READ_ONLY, self.draft_memory_read_only)
        if isinstance(size, str):
            size = parse_size(size, "draft_memory_size")
        if size is not None:
            whole("draft_memory_size", size, MIN_BYTES, MAX_BYTES)
            object.__setattr__(self, "draft_memory_size", size)
        if name is not None and size is not None and self.draft_memory_read_only:
            raise ConfigError("draft_memory_size: bounds what is written, and nothing is")
        if name is None and (size is not None or self.draft_memory_read_only):
            key = READ_ONLY if size is None else "draft_memory_size"
            raise ConfigError(f"{key}: is about a {KEY}, and none is named")

    @property
    def max_bytes(self) -> int | None:
        """The bound asked for."""
        return self.draft_memory_size if isinstance(self.draft_memory_size, int) else None

    def described(self) -> str:
        """For people; "" without a memory."""
        if self.draft_memory is None:
            return ""
        how = ", only read" if self.draft_memory_read_only else ""
        return f"memory {self.draft_memory}{how}"
