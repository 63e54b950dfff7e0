"""Which op set runs, on how many threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import wager.ops.select as select
from tests.ops.sets import NATIVE
from wager.errors import ConfigError
from wager.ops.base import choose


def test_names() -> None:
    assert choose("reference", None).name == "reference"
    assert choose("auto", 1).name == ("native" if NATIVE else "reference")
    with pytest.raises(ConfigError, match=r"ops.*fast"):
        choose("fast", None)
    with pytest.raises(ConfigError, match=r"threads.*0"):
        choose("auto", 0)


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not built.*install"):
        choose("native", None)
    with pytest.warns(RuntimeWarning, match=r"slower.*install"):
        assert choose("auto", None).name == "reference"


def test_with_an_extension_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("GLIBCXX_3.4.99 not found")

    monkeypatch.setattr(select, "find_spec", lambda name: object())
    monkeypatch.setattr(select, "import_module", broken)
    with pytest.raises(ConfigError, match=r"ops: .*does not load .*GLIBCXX_3\.4\.99.*reinstall"):
        choose("native", None)
    with pytest.warns(RuntimeWarning, match=r"slower.*GLIBCXX_3\.4\.99.*reinstall"):
        assert choose("auto", None).name == "reference"


@pytest.mark.skipif(not NATIVE, reason="the extension was not built")
def test_threads() -> None:
    assert choose("native", 3).threads == 3
    assert choose("native", None).threads == select.physical_cores()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_hyperthreads_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "cgroup_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 6})
    monkeypatch.setattr(select, "_core_of", lambda cpu: str(cpu % 4))
    assert select.physical_cores() == 4
    monkeypatch.setattr(select, "cgroup_quota", lambda: 2.5)
    assert select.physical_cores() == 2
    monkeypatch.setattr(select, "cgroup_quota", lambda: 0.5)
    assert select.physical_cores() == 1


def test_quota_of_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/sys/fs/cgroup/cpu.max": "150000 100000\n"}

    def read(path: Path) -> str:
        if str(path) not in texts:
            raise OSError
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert select.cgroup_quota() == 1.5
    texts["/sys/fs/cgroup/cpu.max"] = "max 100000\n"
    assert select.cgroup_quota() is None
    texts.clear()
    texts["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "-1\n"
    texts["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = "100000\n"
    assert select.cgroup_quota() is None
