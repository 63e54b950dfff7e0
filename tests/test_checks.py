"""Checks of single values: what passes, and that an error names the option."""

from __future__ import annotations

import math

import pytest

from wager.checks import choice, flag, real, whole
from wager.errors import ConfigError, RequestError


@pytest.mark.parametrize("value", [1, 7, 64])
def test_whole_numbers_in_range(value: int) -> None:
    whole("k", value, 1, 64)


@pytest.mark.parametrize("value", [0, 65, -1, 1.0, 1.5, "3", None, True, [1], math.nan])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^k: must be a whole number from 1 to 64, got .*; try"):
        whole("k", value, 1, 64, "try it")


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.5, 1.0])
def test_numbers_in_range(value: float) -> None:
    real("p", value, 0.0, 1.0)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "1", None, True, [0.5], 10**400, -(10**400)]
)
def test_what_is_no_finite_number(value: object) -> None:
    """A whole number may be larger than any float."""
    with pytest.raises(RequestError, match=r"^p: must be a finite number, got "):
        real("p", value, 0.0, math.inf, error=RequestError)


def test_bounds_of_numbers() -> None:
    real("p", 1e308, 0.0, math.inf)
    with pytest.raises(ConfigError, match=r"^p: must be at least 0, got -1e-09$"):
        real("p", -1e-9, 0.0, math.inf)
    with pytest.raises(ConfigError, match=r"^p: must be at least 0 and at most 1, got 1\.5$"):
        real("p", 1.5, 0.0, 1.0)
    with pytest.raises(ConfigError, match=r"^p: must be above 0 and at most 1, got 0$"):
        real("p", 0, 0.0, 1.0, open_low=True)


def test_choices_and_flags() -> None:
    choice("match", "recent", ("recent", "earliest"))
    for value in ("late", None, ["recent"]):
        with pytest.raises(ConfigError, match=r"^match: must be one of recent, earliest; got "):
            choice("match", value, ("recent", "earliest"))
    flag("cyclic", False)
    for value in (0, 1, "true", None):
        with pytest.raises(ConfigError, match=r"^cyclic: must be true or false, got "):
            flag("cyclic", value)
