"""Backends by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wager.errors import ConfigError
from wager.external import program
from wager.external.dialects import ENGINES as DIALECTS
from wager.external.engines import ENGINES, open_backend
from wager.external.server import ServerOptions


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_has_a_backend_of_its_name_and_a_dialect(engine: str) -> None:
    backend = open_backend(engine, "org/model", ServerOptions())
    assert backend.name == engine
    assert engine in DIALECTS
    assert not backend.fresh_start_is_cheap


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="'tgi' cannot be started; there are: vllm, llamacpp"):
        open_backend("tgi", "org/model", ServerOptions())


def test_no_heavy_library_is_loaded() -> None:
    code = (
        "import sys\n"
        "from wager.external.engines import ENGINES, open_backend\n"
        "from wager.external.server import ServerOptions\n"
        "for engine in ENGINES: open_backend(engine, 'org/model', ServerOptions())\n"
        "heavy = ('torch', 'transformers', 'wager._native', 'numpy')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_cores_are_spelt_in_ranges() -> None:
    assert program.ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert program.ranges([]) == ""
    assert len(program.cores(1)) == 1
    assert set(program.cores(1)) <= set(program.cores(None))
