"""The machine's memory: with a container's limit, and without /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wager import memory
from wager.memory import Memory, host_memory


def test_a_container_has_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text("MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  600 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", info)
    monkeypatch.setattr(memory, "_CGROUP", (limit,))
    assert host_memory() == Memory(1024_000, 614_400, "memory of the machine")
    limit.write_text("max\n")
    assert host_memory() == Memory(1024_000, 614_400, "memory of the machine")
    limit.write_text("512000\n")
    assert host_memory() == Memory(512_000, 512_000, "limit of the container")


def test_without_proc_the_total_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "_CGROUP", ())
    monkeypatch.setattr(
        os, "sysconf", lambda name: {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}[name]
    )
    assert host_memory() == Memory(20480, None, "memory of the machine")

    def unknown(name: str) -> int:
        raise ValueError(f"unrecognized configuration name: {name}")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert host_memory() is None
