"""Typed access to the keys of a config that may be spelt in several ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wager.errors import CorruptFile
from wager.models.checkpoint import MAX_LAYERS, finite, quoted

MAX_VALUE: Final = 1 << 40


class Fields:
    """A JSON object or GGUF metadata; ``path`` is named in errors. Null counts as absent."""

    def __init__(self, path: Path | str, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.raw = raw

    def get(self, *keys: str) -> Any:
        """The first of these keys that is there, or None."""
        return next((self.raw[key] for key in keys if self.raw.get(key) is not None), None)

    def whole(self, *keys: str) -> int | None:
        """A whole number from 0 on, or None where no key is there. Raises CorruptFile."""
        for key in keys:
            value = self.raw.get(key)
            if value is not None:
                return self.checked(key, value)
        return None

    def need(self, *keys: str) -> int:
        """As `whole`; raises CorruptFile where no key is there or the number is 0."""
        value = self.whole(*keys)
        if not value:
            raise CorruptFile(f"{self.path}: {keys[0]} is {'0' if value == 0 else 'missing'}")
        return value

    def checked(self, key: str, value: Any) -> int:
        """``value`` as a whole number. Raises CorruptFile."""
        # Some configs write whole numbers as 8192.0.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_VALUE:
            raise CorruptFile(f"{self.path}: {key} is not a whole number: {quoted(value)}")
        return value

    def layers(self, key: str, count: int | None) -> int:
        """``count`` as a number of layers, which ``key`` gave. Raises CorruptFile."""
        if not count:
            raise CorruptFile(f"{self.path}: {key} is {'missing' if count is None else '0'}")
        if count > MAX_LAYERS:
            raise CorruptFile(f"{self.path}: {key} is {count}; at most {MAX_LAYERS} can be")
        return count

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number. Raises CorruptFile."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        number = finite(value)
        if number is None:
            raise CorruptFile(f"{self.path}: {key} is not a number: {quoted(value)}")
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers. Raises CorruptFile."""
        values = self.items(key)
        found = tuple(n for n in map(finite, values or ()) if n is not None)
        if values is None or len(found) != len(values):
            raise CorruptFile(
                f"{self.path}: {key} is not a list of numbers: {quoted(self.get(key))}"
            )
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false. Raises CorruptFile."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise CorruptFile(f"{self.path}: {key} is neither true nor false: {quoted(value)}")
        return value

    def table(self, key: str) -> Fields:
        """A nested object; empty where it is absent. Raises CorruptFile."""
        value = self.get(key)
        if value is None:
            return Fields(self.path, {})
        if not isinstance(value, Mapping):
            raise CorruptFile(f"{self.path}: {key} is not an object: {quoted(value)}")
        return Fields(self.path, value)

    def items(self, *keys: str) -> list[Any] | None:
        """A list, or None where no key is there or it is no list."""
        value = self.get(*keys)
        return list(value) if isinstance(value, list | tuple) else None

    def wholes(self, key: str, count: int) -> list[int] | None:
        """A list of at least ``count`` whole numbers, cut to that; None where it is no list."""
        values = self.items(key)
        if values is None:
            return None
        if len(values) < count:
            raise CorruptFile(f"{self.path}: {key} has {len(values)} entries for {count} layers")
        return [self.checked(key, value) for value in values[:count]]
