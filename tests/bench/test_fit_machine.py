"""Sizes of memory: as people write them, and as machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.fit_fakes import GB, MIB
from wager.bench.fit.machine import gpu_memory, parse_smi
from wager.bench.fit.report import size
from wager.errors import ConfigError
from wager.memory import Memory, parse_size

# Sizes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8GB", 8 * 10**9), ("8GiB", 8 << 30), ("1.5 GB", 1_500_000_000), ("512MiB", 512 << 20),
     ("100kB", 100_000), ("7B", 7), ("1TB", 10**12)],
)  # fmt: skip
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text, "memory") == nbytes


@pytest.mark.parametrize("text", ["8", "8G", "8gb", "GB", "-8GB", "8 GB of memory", "", "1e9B"])
def test_sizes_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"memory: .* is no size; write a number and a unit"):
        parse_size(text, "memory")


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="at most 1 PiB"):
        parse_size("9999999TB", "memory")
    with pytest.raises(ConfigError, match="at least one byte"):
        parse_size("0GB", "memory")


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 999, 23040, 538_060_032, 24 * GB, -2 * GB)] == [
        "0 B", "999 B", "23.04 kB", "538.06 MB", "24.00 GB", "-2.00 GB",
    ]  # fmt: skip


# The machine


def test_nvidia_smi_lines() -> None:
    assert parse_smi(["NVIDIA H200, 143771, 143000"]) == Memory(
        143771 * MIB, 143000 * MIB, "NVIDIA H200"
    )
    two = parse_smi(["NVIDIA A100-SXM4-80GB, 81920, 81000", "Tesla T4, 15360, 15000"])
    assert two == Memory(15360 * MIB, 15000 * MIB, "Tesla T4, the smallest of 2 GPUs", 2)
    with pytest.raises(ConfigError, match="which holds no size; give --memory"):
        parse_smi(["NVIDIA GB10, [N/A], [N/A]"])


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi, alone on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def test_no_gpu(smi: Path) -> None:
    assert gpu_memory() is None
    smi.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    smi.chmod(0o755)
    assert gpu_memory() is None


def test_a_gpu(smi: Path) -> None:
    smi.write_text('#!/bin/sh\n[ "$1" = "--query-gpu=name,memory.total,memory.free" ] || exit 9\n'
                   "echo 'NVIDIA L4, 23034, 22500'\n")  # fmt: skip
    smi.chmod(0o755)
    assert gpu_memory() == Memory(23034 * MIB, 22500 * MIB, "NVIDIA L4")
