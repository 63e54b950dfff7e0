"""The wheel in dist/, as users install it: into an empty environment, without any compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.recipes import PATIENCE_S
from wager import __version__

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "scripts" / "check_wheel.py"
# What pip and a shell script need of a system; no compiler is among it.
BASICS = ("sh", "env", "uname", "cat", "ls", "rm", "mkdir")
COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "clang++", "cmake", "ninja", "make", "ld")
LARGEST = 4 << 20
"""Bytes of a wheel: one with the symbols of a debugger in it has more."""


@pytest.fixture(scope="session")
def wheel() -> Path:
    found = sorted((ROOT / "dist").glob("wager-*.whl"))
    assert len(found) == 1, "make wheel builds it"
    return found[0]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """This process's, with the machine's settings of pip, and without a compiler."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in BASICS:
        if path := shutil.which(name):
            (tools / name).symlink_to(path)
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{tools}"
    assert not any(shutil.which(name, path=path) for name in COMPILERS)
    return {**kept, "PATH": path, "CC": "/bin/false", "CXX": "/bin/false"}


def python(tmp_path: Path) -> str:
    """That of an empty virtual environment."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=PATIENCE_S)
    return str(folder / "bin" / "python")


def run(command: list[str], environment: Mapping[str, str], cwd: Path) -> str:
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_wheel_holds_the_extension_and_says_where_it_runs(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST
    # A bare linux_* is refused by registries, and promises what nobody has checked.
    assert "-linux_" not in wheel.name
    assert not wheel.name.endswith("-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name in names if name.startswith("wager/_native.")]
    assert all(name.startswith(("wager/", f"wager-{__version__}.dist-info/")) for name in names)


def test_the_sdist_holds_what_it_is_built_from() -> None:
    import tarfile

    (sdist,) = (ROOT / "dist").glob("wager-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "LICENSE", "src/wager/__init__.py"} <= names
    native = {f"native/{path.name}" for path in (ROOT / "native").iterdir()}
    assert native <= names


def test_the_wheel_needs_no_compiler(
    wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    into = python(tmp_path)
    run([into, "-m", "pip", "install", "-q", str(wheel)], environment, tmp_path)
    said = run([into, str(CHECK)], environment, tmp_path)
    assert "the installed wager works" in said
    # Nothing heavy came along.
    installed = run([into, "-m", "pip", "list", "--format", "freeze"], environment, tmp_path)
    names = {line.partition("==")[0].lower() for line in installed.splitlines()}
    assert "wager" in names
    assert not names & {"torch", "transformers", "cmake", "ninja", "nanobind"}


def test_a_wheelhouse_needs_no_network(
    wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    into, house = python(tmp_path), tmp_path / "wheelhouse"
    download = ["-m", "pip", "download", "-q", "--only-binary=:all:", "-d", str(house), str(wheel)]
    run([into, *download], environment, tmp_path)
    # No index, and none of the machine's settings, which may name other places.
    alone = {name: value for name, value in environment.items() if not name.startswith("PIP_")}
    alone["PIP_CONFIG_FILE"] = os.devnull
    install = ["-m", "pip", "install", "-q", "--no-index", "--find-links", str(house), "wager"]
    run([into, *install], alone, tmp_path)
    assert "the installed wager works" in run([into, str(CHECK)], alone, tmp_path)
