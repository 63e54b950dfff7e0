"""An agent's sessions at a terminal: it runs tests, opens files and writes them anew with a change.

Each turn is the transcript so far, so that later ones repeat output of tools and code from before.
What the agent wrote in earlier turns is part of the script, whatever the model answered there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from wager.bench.workloads import snippets
from wager.bench.workloads.prompts import Drawn

TURNS: Final = 10
MOST_CHARACTERS: Final = 2700
"""Of the transcript that is kept: 600 to 810 tokens of SmolLM2. What is older is cut off."""

_FILE_TOKENS: Final = 256
_NOTE_TOKENS: Final = 64
_WIDTH: Final = 80
_HEAD: Final = (
    "An agent works at a terminal. It makes the tests of a small repository pass, and writes whole "
    "files.\n\n"
)
_MODULES: Final = (
    "billing", "intake", "planner", "archive", "router", "stock", "dispatch", "ledger", "metrics",
    "catalog", "uploads", "alerts",
)  # fmt: skip
_SIGNATURE: Final = re.compile(r"def (\w+)\((.*), (\w+)=(\d+)\):")


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of a file; ``parameter`` is the one with a default."""

    source: str
    name: str
    arguments: tuple[str, ...]
    parameter: str
    default: int

    @classmethod
    def of(cls, source: str) -> _Function:
        found = _SIGNATURE.search(source)
        assert found is not None, source
        name, arguments, parameter, default = found.groups()
        return cls(source, name, tuple(arguments.split(", ")), parameter, int(default))

    def with_default(self, value: int) -> _Function:
        """The file's one change: another default."""
        old, new = (f"{self.parameter}={n}):" for n in (self.default, value))
        return replace(self, source=self.source.replace(old, new, 1), default=value)


@dataclass(frozen=True, slots=True)
class _Test:
    """A test of a function, and what it finds."""

    name: str
    function: str
    call: str
    wanted: int
    found: int

    @property
    def source(self) -> str:
        return f"def {self.name}():\n    assert {self.call} == {self.wanted}\n"

    @property
    def summary(self) -> str:
        return f"assert {self.found} == {self.wanted}"


@dataclass(slots=True)
class _Module:
    """A file, and the tests of its functions."""

    name: str
    title: str
    functions: list[_Function]
    tests: list[_Test]

    @property
    def source(self) -> str:
        return "\n\n".join([self.title, *(f"\n{f.source.rstrip()}" for f in self.functions)]) + "\n"

    @property
    def test_source(self) -> str:
        names = ", ".join(dict.fromkeys(test.function for test in self.tests))
        start = f"from {self.name} import {names}"
        return "\n\n".join([start, *(f"\n{test.source.rstrip()}" for test in self.tests)]) + "\n"


@dataclass(slots=True)
class _Terminal:
    """The transcript; an entry is a command with its output, or what the agent wrote."""

    entries: list[str] = field(default_factory=list)

    def run(self, command: str, output: str) -> None:
        self.entries.append(f"$ {command}\n{output}\n")

    def turn(self, begun: str, rest: str, most: int) -> Drawn:
        """A turn of the agent: the model goes on behind ``begun``; the script has ``rest``."""
        kept = list(self.entries)
        while sum(map(len, kept)) + len(begun) > MOST_CHARACTERS:
            del kept[0]
        self.entries.append(f"{begun}{rest}\n")
        return Drawn(most, 0.0, _HEAD + "".join(kept) + begun, ignore_eos=True)


def session(rng: Random, _: int) -> list[Drawn]:
    """The turns of one session, in order."""
    terminal = _Terminal()
    first, second = (_module(rng, name) for name in rng.sample(_MODULES, 2))
    names = sorted(f"{prefix}{m.name}.py" for m in (first, second) for prefix in ("", "test_"))
    terminal.run("ls", "\n".join(names) + "\n")
    turns: list[Drawn] = []
    for module in (first, second):
        _run_tests(terminal, module, module.tests)
        _open(terminal, module)
        turns.append(_change(rng, terminal, module, 0))
        _run_tests(terminal, module, module.tests[1:])
        turns.append(_note(terminal, module, module.tests[1:]))
        turns.append(_change(rng, terminal, module, 1))
        _run_tests(terminal, module, [])
    turns.append(_add_test(rng, terminal, first))
    _run_tests(terminal, first, first.tests[-1:])
    turns.append(_note(terminal, first, first.tests[-1:]))
    for module in (first, second):
        _open(terminal, module)
        turns.append(_change(rng, terminal, module, 0))
    return turns


def _module(rng: Random, name: str) -> _Module:
    functions: list[_Function] = []
    while len(functions) < 2:
        drawn = _Function.of(snippets.function(rng).source)
        if drawn.name not in [function.name for function in functions]:
            functions.append(drawn)
    what = rng.choice(("data", "input", "entries"))
    title = f'"""What the {name} service does with its {what}."""'
    return _Module(name, title, functions, [_test(rng, function) for function in functions])


def _test(rng: Random, function: _Function, more: str = "") -> _Test:
    kinds = {"text": '"a=1\\nb=2"', "send": "lambda item, timeout: item > timeout"}
    values = (sorted(rng.sample(range(100), 3)) for _ in function.arguments)
    arguments = [kinds.get(a, str(v)) for a, v in zip(function.arguments, values, strict=True)]
    arguments.append(f"{function.parameter}={rng.randint(2, 99)}")
    wanted, found = rng.sample(range(40), 2)
    call = f"{function.name}({', '.join(arguments)})"
    return _Test(f"test_{function.name}{more}", function.name, call, wanted, found)


def _open(terminal: _Terminal, module: _Module) -> None:
    terminal.run(f"cat {module.name}.py", module.source)


def _change(rng: Random, terminal: _Terminal, module: _Module, which: int) -> Drawn:
    """The agent writes a file anew, with another default of one function; its first line is given:
    small models often set off on something else."""
    function = module.functions[which]
    changed = function.with_default(rng.choice([n for n in range(2, 99) if n != function.default]))
    module.functions[which] = changed
    why = f"# {changed.name}: {changed.parameter} is {changed.default} from now on\n"
    command = f"{why}$ cat > {module.name}.py <<'EOF'\n{module.title}"
    return terminal.turn(command, module.source.removeprefix(module.title) + "EOF", _FILE_TOKENS)


def _add_test(rng: Random, terminal: _Terminal, module: _Module) -> Drawn:
    """The agent writes the file of tests anew, with one more at the end."""
    terminal.run(f"cat test_{module.name}.py", module.test_source)
    module.tests = [*module.tests, _test(rng, module.functions[0], "_again")]
    start, _, rest = module.test_source.partition("\n")
    command = f"$ cat > test_{module.name}.py <<'EOF'\n{start}"
    return terminal.turn(command, f"\n{rest}EOF", _FILE_TOKENS)


def _note(terminal: _Terminal, module: _Module, failing: Sequence[_Test]) -> Drawn:
    """The agent writes down which tests fail."""
    lines = "".join(f"\n{_failed(module, test)}" for test in failing)
    begun = "$ cat >> notes.txt <<'EOF'\nStill failing, as pytest printed it:"
    return terminal.turn(begun, f"{lines}\nEOF", _NOTE_TOKENS)


def _failed(module: _Module, test: _Test) -> str:
    return f"FAILED test_{module.name}.py::{test.name} - {test.summary}"


def _run_tests(terminal: _Terminal, module: _Module, failing: Sequence[_Test]) -> None:
    """What pytest prints."""
    dots = "".join("F" if test in failing else "." for test in module.tests)
    lines = [f"{dots}{'[100%]'.rjust(_WIDTH - len(dots))}"]
    if failing:
        lines.append(" FAILURES ".center(_WIDTH, "="))
    source = module.test_source.splitlines()
    for test in failing:
        head, check = test.source.splitlines()
        lines += [
            f" {test.name} ".center(_WIDTH, "_"),
            "",
            f"    {head}",
            f">   {check}",
            f"E       {test.summary}",
            f"E        +  where {test.found} = {test.call}",
            "",
            f"test_{module.name}.py:{source.index(check) + 1}: AssertionError",
        ]
    if failing:
        lines.append(" short test summary info ".center(_WIDTH, "="))
        lines += [_failed(module, test) for test in failing]
    passed = len(module.tests) - len(failing)
    counts = [f"{n} {word}" for n, word in ((len(failing), "failed"), (passed, "passed")) if n]
    lines.append(f"{', '.join(counts)} in 0.03s")
    terminal.run(f"python -m pytest -q test_{module.name}.py", "\n".join(lines) + "\n")
