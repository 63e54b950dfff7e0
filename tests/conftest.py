"""Models shared by the tests: tiny random ones on disk, and where pulled models are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.tiny import write_tiny_hf
from wager import LLM

# How long an example takes is the machine's matter: no test is timed.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches of tiny models go to a directory of the run; pulled models stay where they are."""
    from wager.models.paths import cache_dir

    pulled = cache_dir() / "models"
    home = tmp_path_factory.mktemp("home")
    (home / "models").symlink_to(pulled) if pulled.is_dir() else None
    before = os.environ.get("WAGER_HOME")
    os.environ["WAGER_HOME"] = str(home)
    yield
    if before is None:
        del os.environ["WAGER_HOME"]
    else:
        os.environ["WAGER_HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """A shell starts what it runs in the background with SIGINT ignored, and every process under it
    inherits that: tests that interrupt a process of their own would wait for nothing."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 288 tokens, tied: the model of the exactness tests."""
    return write_tiny_hf(tmp_path_factory.mktemp("tiny"), seed=1, sharpness=4.0)


@pytest.fixture
def make_llm(tiny_path: Path) -> Iterator[Callable[..., LLM]]:
    """Builds an LLM over the tiny model, checked after every step, and closes it at the end."""
    made: list[LLM] = []

    def make(**options: Any) -> LLM:
        options.setdefault("threads", 1)
        options.setdefault("check_integrity", True)
        options.setdefault("weights", "f32")
        llm = LLM(str(tiny_path), **options)
        made.append(llm)
        return llm

    yield make
    for llm in made:
        assert not llm.engine.has_work() or llm.engine.stats.aborted
        llm.close()
