"""Checks of single values that users give. Each error names the option and says what is allowed."""

from __future__ import annotations

import contextlib
import math

from wager.errors import ConfigError, WagerError


def choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError unless the value is one of the allowed words."""
    if value not in allowed:
        raise ConfigError(f"{name}: must be one of {', '.join(allowed)}; got {value!r}")


def flag(name: str, value: object) -> None:
    """Raise ConfigError unless the value is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: must be true or false, got {value!r}")


def whole(
    name: str,
    value: object,
    low: int,
    high: int,
    hint: str = "",
    error: type[WagerError] = ConfigError,
) -> None:
    """Raise ``error`` unless the value is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        tail = f"; {hint}" if hint else ""
        raise error(f"{name}: must be a whole number from {low} to {high}, got {value!r}{tail}")


def real(
    name: str,
    value: object,
    low: float,
    high: float,
    open_low: bool = False,
    error: type[WagerError] = ConfigError,
) -> None:
    """Raise ``error`` unless the value is a finite number from ``low`` to ``high``.

    ``open_low`` leaves out ``low`` itself.
    """
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise error(f"{name}: must be a finite number, got {value!r}")
    if number < low or number > high or (open_low and number == low):
        raise error(
            f"{name}: must be {'above' if open_low else 'at least'} {low:g}"
            f"{f' and at most {high:g}' if high < math.inf else ''}, got {value!r}"
        )
