from __future__ import annotations

from collections.abc import Iterator

import pytest

from wager.errors import ConfigError
from wager.ops.base import OpSet, choose


@pytest.fixture(scope="session", params=["reference", "native"])
def ops(request: pytest.FixtureRequest) -> Iterator[OpSet]:
    """Both op sets."""
    try:
        chosen = choose(request.param, threads=1)
    except ConfigError as error:
        pytest.skip(str(error))
    yield chosen
    chosen.close()


@pytest.fixture(scope="session")
def fast_ops() -> Iterator[OpSet]:
    """The faster of them, for what does not depend on it."""
    chosen = choose("auto", threads=1)
    yield chosen
    chosen.close()
