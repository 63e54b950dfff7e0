"""What else this machine has: GPUs, which wager's own engine does not use, and other engines."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from wager.errors import ConfigError
from wager.external.program import PROGRAMS

GpuKind: TypeAlias = Literal["cuda", "rocm", "metal"]

_KFD: Final = Path("/dev/kfd")
_PYTHON_ENGINES: Final = ("vllm", "sglang")
_VERSION_SECONDS: Final = 2.0
# llama-server: "version: 6123 (abc)"; ollama: "ollama version is 0.5.1", "client version is 0.5.1".
_VERSION: Final = re.compile(r"\bversion(?: is|:)? v?(\d[\w.+-]*)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """``nbytes`` of memory of one device, None where that is not known."""

    kind: GpuKind
    name: str
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """``program`` is its path, None where PATH has none; ``version`` None where it was not told."""

    name: str
    program: str | None
    version: str | None


def gpus() -> tuple[Gpu, ...]:
    """By what the drivers leave behind; none of these is used by wager's own engine."""
    found = []
    if nvidia := _nvidia():
        found.append(nvidia)
    if _KFD.exists():
        found.append(Gpu("rocm", "AMD GPU", None))
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        found.append(Gpu("metal", "Apple GPU", None))
    return tuple(found)


def _nvidia() -> Gpu | None:
    from wager.bench.fit.machine import gpu_memory

    try:
        memory = gpu_memory()
    except ConfigError:
        # nvidia-smi is there and does not tell sizes, or does not answer.
        return Gpu("cuda", "NVIDIA GPU", None)
    return None if memory is None else Gpu("cuda", memory.what, memory.total)


def other_engines() -> tuple[OtherEngine, ...]:
    """The engines that `wager serve`, `bench` and `tune` can start, by their programs on PATH."""
    found = []
    for name, program in PROGRAMS.items():
        path = shutil.which(program)
        found.append(OtherEngine(name, path, None if path is None else _version(name, path)))
    return tuple(found)


def _version(name: str, program: str) -> str | None:
    """Of an engine in Python from its metadata: it would load torch before it says anything."""
    if name in _PYTHON_ENGINES:
        environment = Path(program).resolve().parent.parent
        pattern = f"lib*/python3*/site-packages/{name}-*.dist-info"
        versions = [path.name.split("-")[1] for path in environment.glob(pattern)]
        return versions[0].removesuffix(".dist") if versions else None
    try:
        run = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _VERSION.findall(run.stdout + run.stderr)
    return said[-1] if said else None
