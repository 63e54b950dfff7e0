"""`wager doctor` on this machine, and on machines that lack something."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import pytest

import wager
import wager.ops.select as select
from tests.ops.sets import NATIVE, usable_sets
from wager.bench.doctor import machine, others
from wager.bench.doctor.find import diagnose
from wager.bench.doctor.report import text
from wager.cli.main import main
from wager.cli.status import CANNOT_RUN
from wager.memory import Memory
from wager.ops.base import OpSet

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "doctor.schema.json").read_text())
MIB = 1 << 20

Capture = pytest.CaptureFixture[str]
native = pytest.mark.skipif(not NATIVE, reason="the extension was not built")


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate itself is no matter of tests."""
    monkeypatch.setattr(machine, "READ_BYTES", MIB)


def examine(capsys: Capture, status: int = 0) -> tuple[Any, str]:
    """(the JSON object, which follows its schema; the text of a wide pipe)."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} in JSON")

    assert main(["doctor", "--json"]) == status
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert main(["doctor"]) == status
    printed = capsys.readouterr()
    assert printed.err == ""
    return found, printed.out


# This machine


@native
def test_here(capsys: Capture) -> None:
    found, printed = examine(capsys)
    assert found["unknown"] == {}
    assert found["runs"]
    assert found["wager"] == wager.__version__
    assert found["extension"]["problem"] is None
    sets = {each["name"]: each for each in found["instruction_sets"]}
    assert [name for name, each in sets.items() if each["agrees"]] == usable_sets()
    assert sets["scalar"]["built"]
    assert found["engine"]["instruction_set"] == usable_sets()[0]
    assert found["engine"]["threads"] == found["cpu"]["threads"] == select.physical_cores()
    assert len(found["cpu"]["usable"]) >= found["cpu"]["threads"]
    for limit in found["limits"]:
        assert limit["tokens_per_second"] * limit["nbytes"] == pytest.approx(found["read_rate"])
    int8, int4 = (
        next(limit for limit in found["limits"] if limit["weights"] == kind)
        for kind in ("int8", "int4")
    )
    assert int8["nbytes"] == int8["parameters"] * 8.5 / 8
    assert int4["nbytes"] == int4["parameters"] * 5 / 8
    assert "runs          yes, on the native op set\n" in printed
    assert "extension     loaded\n" in printed


def test_one_screen() -> None:
    lines = text(diagnose(), 100).splitlines()
    assert len(lines) <= 30
    # A path is not broken, however long.
    assert all(len(line) <= 100 or "/" in line for line in lines)


def test_a_narrow_screen_keeps_the_columns() -> None:
    lines = text(diagnose(), 10).splitlines()
    assert all(len(line) > 14 and line[13] == " " for line in lines[1:])


# The engine


def test_without_the_extension_and_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "wager._native", None)
    monkeypatch.delitem(sys.modules, "wager.ops.native", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found, printed = examine(capsys)
    assert found["runs"]
    assert found["engine"]["op_set"] == "reference"
    assert found["extension"]["compiler"] is None
    assert found["instruction_sets"] is found["read_rate"] is found["limits"] is None
    assert set(found["unknown"]) == {"instruction_sets", "read_rate", "limits"}
    assert "yes, on the reference op set: the same answers, tens of times slower" in printed
    assert "not built; install a wheel of wager" in printed
    assert "no C++ compiler was found here" in printed

    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    found, printed = examine(capsys)
    assert found["extension"]["compiler"] == str(compiler)
    assert f"(here is {compiler})" in printed


def test_an_extension_that_does_not_load(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(name: str) -> NoReturn:
        raise ImportError("GLIBCXX_3.4.99 not found")

    monkeypatch.setattr(select, "find_spec", lambda name: object())
    monkeypatch.setattr(select, "import_module", broken)
    found, printed = examine(capsys)
    assert found["engine"]["op_set"] == "reference"
    assert "GLIBCXX_3.4.99 not found" in found["extension"]["problem"]
    assert "does not load (GLIBCXX_3.4.99 not found); reinstall" in printed


@native
def test_kernels_with_wrong_answers(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    import wager._native as extension

    monkeypatch.delenv("WAGER_ISA", raising=False)
    monkeypatch.setattr(extension, "built_instruction_sets", lambda: ["avx2", "scalar"])
    monkeypatch.setattr(extension, "instruction_sets", lambda: [("avx2", False), ("scalar", True)])
    found, printed = examine(capsys)
    assert found["engine"]["instruction_set"] == "scalar"
    assert [(each["built"], each["agrees"]) for each in found["instruction_sets"]] == [
        (False, None), (True, False), (False, None), (True, True),
    ]  # fmt: skip
    assert (
        "AVX-512: not in this build; AVX2: WRONG ANSWERS, not used; "
        "NEON: not in this build; plain C++: known answers agree, used" in printed
    )


@native
def test_no_kernels_that_work(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    import wager._native as extension

    monkeypatch.delenv("WAGER_ISA", raising=False)
    monkeypatch.setattr(extension, "instruction_sets", lambda: [("scalar", False)])
    found, printed = examine(capsys, CANNOT_RUN)
    assert not found["runs"]
    assert "runs          NO: no kernels work on this machine; use --ops reference\n" in printed


@native
def test_a_forced_instruction_set(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("WAGER_ISA", "scalar")
    found, printed = examine(capsys)
    assert found["engine"]["forced"]
    assert found["engine"]["instruction_set"] == "scalar"
    assert "plain C++: known answers agree, used (WAGER_ISA)" in printed
    monkeypatch.setenv("WAGER_ISA", "sse9")
    found, printed = examine(capsys, CANNOT_RUN)
    assert "NO: WAGER_ISA: must be one of scalar, neon, avx2, avx512; got 'sse9'" in printed


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(
        metadata, "requires",
        lambda name: ["numpy>=1.26", "not-there-at-all>=1,<2", "never; extra == 'x'"],
    )  # fmt: skip
    found, printed = examine(capsys, CANNOT_RUN)
    assert not found["runs"]
    assert "NO: packages are missing: not-there-at-all; install wager anew" in printed


def test_without_numpy(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for name in ("numpy", "wager.engine.llm", "wager.ops.base"):
        monkeypatch.setitem(sys.modules, name, None)
    found, printed = examine(capsys, CANNOT_RUN)
    assert "NO: the engine does not load (" in printed
    assert found["memory"] is not None
    assert found["cache"] is not None


# The machine


def test_a_control_group_and_little_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(select, "cgroup_quota", lambda: 1.5)
    monkeypatch.setattr(os, "getloadavg", lambda: (7.25, 1.0, 1.0))
    little = Memory(600 * MIB, 100 * MIB, "limit of the container")
    monkeypatch.setattr("wager.memory.host_memory", lambda: little)
    found, printed = examine(capsys)
    assert found["cpu"]["quota"] == 1.5
    assert found["cpu"]["threads"] == 1
    assert "1 thread by default" in printed
    assert "its control group grants 1.5 CPUs); load 7.2\n" in printed
    assert "629 MB (limit of the container), free: 105 MB" in printed
    assert "MORE THAN IS FREE" in printed
    if NATIVE:
        assert not any(limit["fits"] for limit in found["limits"])
        assert "8 B " in printed
        assert "(not enough memory free)" in printed


@native
def test_nothing_is_read_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    little = Memory(2 * MIB, MIB, "limit of the container")
    monkeypatch.setattr("wager.memory.host_memory", lambda: little)
    found, printed = examine(capsys)
    assert found["read_rate"] is None
    assert found["unknown"]["read_rate"] == "it takes 1 MiB, and 1 MiB are free"
    assert "reading       not known: it takes 1 MiB, and 1 MiB are free\n" in printed


def test_a_system_that_does_not_tell_its_memory_and_load(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("wager.memory.host_memory", lambda: None)
    monkeypatch.delattr(os, "getloadavg")
    found, printed = examine(capsys)
    assert found["cpu"]["load"] is None
    assert "; load" not in printed
    assert found["memory"] is None
    assert "memory        not known: this system does not say how much there is\n" in printed
    assert all(limit["fits"] is None for limit in found["limits"] or ())


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> None:
    home = tmp_path / "home" / "wager"
    monkeypatch.setenv("WAGER_HOME", str(home))
    found, printed = examine(capsys)
    assert found["cache"] == {"path": str(home), "problem": None, "parts": {}}
    assert f"cache         {home}: nothing yet\n" in printed
    # Looking makes nothing.
    assert not home.parent.exists()

    (home / "packed").mkdir(parents=True)
    (home / "packed" / "weights").write_bytes(b"w" * 2000)
    found, printed = examine(capsys)
    assert found["cache"]["parts"] == {"packed": 2000}
    assert f"cache         {home}: packed 2 kB\n" in printed
    assert [path.name for path in home.rglob("*")] == ["packed", "weights"]


def test_a_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    # A file in its place stops even the superuser.
    place = tmp_path / "file"
    place.touch()
    monkeypatch.setenv("WAGER_HOME", str(place / "wager"))
    found, printed = examine(capsys)
    assert found["cache"]["problem"] == f"{place}: Not a directory"
    assert "CANNOT BE WRITTEN" in printed
    assert "WAGER_HOME names another directory" in printed


# What else is there


def put(directory: Path, name: str, script: str) -> Path:
    program = directory / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(others, "_KFD", tmp_path / "kfd")
    assert examine(capsys)[0]["gpus"] == []
    put(tmp_path, "nvidia-smi", "echo 'NVIDIA L4, 23034, 22500'")
    found, printed = examine(capsys)
    assert found["gpus"] == [{"kind": "cuda", "name": "NVIDIA L4", "nbytes": 23034 * MIB}]
    assert (
        "gpu           NVIDIA L4 (24.2 GB): not used by wager's own engine; on it: "
        "wager serve --engine vllm MODEL" in printed
    )
    put(tmp_path, "nvidia-smi", "echo 'NVIDIA GB10, [N/A], [N/A]'")
    assert examine(capsys)[0]["gpus"] == [{"kind": "cuda", "name": "NVIDIA GPU", "nbytes": None}]
    (tmp_path / "nvidia-smi").unlink()
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    found, printed = examine(capsys)
    assert [gpu["kind"] for gpu in found["gpus"]] == ["rocm", "metal"]
    assert "on it: wager serve --engine llamacpp MODEL.gguf\n" in printed


def test_other_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "venv" / "bin"
    monkeypatch.setenv("PATH", str(folder))
    llama = put(folder, "llama-server", "echo 'version: 6123 (abc)' >&2")
    ollama = put(
        folder, "ollama", "echo 'Warning: no Ollama instance'; echo 'client version is 0.5.1'"
    )
    # Python programs are not run: they would load torch first.
    vllm = put(folder, "vllm", f"touch {tmp_path / 'was-run'}")
    (tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "vllm-0.32.0.dist-info").mkdir(
        parents=True
    )
    found, printed = examine(capsys)
    assert not (tmp_path / "was-run").exists()
    assert found["engines"] == [
        {"name": "vllm", "program": str(vllm), "version": "0.32.0"},
        {"name": "llamacpp", "program": str(llama), "version": "6123"},
        {"name": "sglang", "program": None, "version": None},
        {"name": "ollama", "program": str(ollama), "version": "0.5.1"},
    ]
    assert f"vLLM 0.32.0 at {vllm}; llama.cpp 6123 at {llama}; " in printed
    assert printed.endswith("; not on PATH: SGLang\n")


def test_engines_that_do_not_tell_their_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(others, "_VERSION_SECONDS", 0.2)
    put(tmp_path, "llama-server", "exec /bin/sleep 60")
    put(tmp_path, "ollama", "exit 3")
    found, printed = examine(capsys)
    assert [engine["version"] for engine in found["engines"]] == [None] * 4
    assert "llama.cpp (version not known) at " in printed


def test_whatever_fails_is_said_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*_: object) -> NoReturn:
        raise RuntimeError("out of\norder")

    for name in ("cpu", "memory", "kv_bytes", "read_rate", "cache"):
        monkeypatch.setattr(machine, name, broken)
    for name in ("gpus", "other_engines"):
        monkeypatch.setattr(others, name, broken)
    found, printed = examine(capsys)
    assert set(found["unknown"]) >= {"cpu", "memory", "kv_bytes", "cache", "gpus", "engines"}
    assert found["cpu"] is None
    assert found["runs"]
    for name in ("cpu", "memory", "cache", "gpu", "engines"):
        assert f"{name:<14}not known: RuntimeError: out of order\n" in printed


def test_an_op_set_that_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[OpSet] = []
    closed: list[OpSet] = []
    choose = select.choose_op_set

    def chosen(name: str, threads: int | None) -> OpSet:
        ops = choose(name, threads)
        made.append(ops)
        monkeypatch.setattr(type(ops), "close", lambda self: closed.append(self))
        return ops

    monkeypatch.setattr(select, "choose_op_set", chosen)
    diagnose()
    assert made
    assert closed == made
