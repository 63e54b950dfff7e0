"""Whether wager's own engine runs here: its packages, its extension, the op set it takes."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Final

from wager.bench.doctor.asking import reason
from wager.errors import ConfigError

if TYPE_CHECKING:
    from wager.ops.base import OpSet
    from wager.ops.native import InstructionSet

_COMPILERS: Final = ("c++", "g++", "clang++")
_REINSTALL: Final = "install wager anew, with its packages (docs/install.md)"
_NAME: Final = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Engine:
    """``problem`` is why `wager run` would fail with its defaults, None where it would not; ``ops``
    is the op set that it takes. The extension's problem alone is none of the engine's: there is the
    reference op set. ``forced``: WAGER_ISA asks for the instruction set.
    """

    problem: str | None
    op_set: str | None = None
    instruction_set: str | None = None
    threads: int | None = None
    forced: bool = False
    ops: OpSet | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Extension:
    """``problem`` says why it does not load and what to do; None where it loads. ``compiler`` is
    one that was found here, None without one."""

    problem: str | None
    compiler: str | None


def engine() -> Engine:
    """What `wager run` would do first, with its defaults."""
    try:
        if missing := missing_packages():
            return Engine(f"packages are missing: {', '.join(missing)}; {_REINSTALL}")
        import_module("wager.engine.llm")
        from wager.ops.base import choose
    except Exception as error:
        return Engine(f"the engine does not load ({reason(error)}); {_REINSTALL}")
    with warnings.catch_warnings():
        # What it warns of, the extension and its instruction sets are asked for themselves.
        warnings.simplefilter("ignore")
        try:
            ops = choose("auto", None)
        except ConfigError as error:
            return Engine(str(error))
        except Exception as error:
            return Engine(f"no op set can be made ({reason(error)}); {_REINSTALL}")
    return Engine(
        problem=None,
        op_set=ops.name,
        instruction_set=ops.instruction_set,
        threads=ops.threads,
        forced=_forced(ops),
        ops=ops,
    )


def missing_packages() -> list[str]:
    """Those of wager's requirements that are not installed, whatever their version."""
    missing = []
    for requirement in metadata.requires("wager") or ():
        found = _NAME.match(requirement)
        # What has a marker may not be wanted here.
        if found is None or ";" in requirement:
            continue
        try:
            metadata.version(found[0])
        except metadata.PackageNotFoundError:
            missing.append(found[0])
    return missing


def _forced(ops: OpSet) -> bool:
    if ops.name != "native":
        return False
    from wager.ops.native import ISA_VARIABLE

    return bool(os.environ.get(ISA_VARIABLE))


def extension() -> Extension:
    """Whether the C++ extension loads."""
    from wager.ops.select import extension_problem

    return Extension(extension_problem(), compiler())


def compiler() -> str | None:
    """A C++ compiler of this machine: $CXX, or one on PATH."""
    for name in (os.environ.get("CXX"), *_COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    return None


def instruction_sets() -> tuple[InstructionSet, ...]:
    """Of the extension. Raises ImportError without one."""
    from wager.ops.native import instruction_sets as find

    return tuple(find())
