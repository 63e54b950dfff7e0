"""Whether an installed wager works, without a download: its op set, an answer, a measurement.

    PYTHON scripts/check_wheel.py

PYTHON is the one that wager was installed for. Ends with a status other than 0 at the first thing
that is wrong. Only `tests/tiny.py` is taken from the sources, to make a model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPECULATION = '{"method": "ngram", "num_speculative_tokens": 4}'


def main() -> None:
    # Behind the installed packages: the sources' own wager lies under src/, which is not on it.
    sys.path.append(str(ROOT))
    from tests.tiny import write_tiny_hf

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        model = write_tiny_hf(home / "tiny", seed=1, sharpness=4.0)
        os.environ["WAGER_HOME"] = str(home / "wager")
        check_install()
        check_doctor()
        check_answers(model)
        check_bench(model, home / "run.json")
    print("the installed wager works")


def check_install() -> None:
    import wager

    place = Path(wager.__file__).resolve()
    expect(place.is_relative_to(Path(sys.prefix).resolve()), f"wager comes from {place}")
    expect(run("--version") == f"wager {wager.__version__}\n", "wager --version")


def check_doctor() -> None:
    found = json.loads(run("doctor", "--json"))
    print(run("doctor"), end="")
    expect(found["engine"]["op_set"] == "native", str(found["extension"]))
    wrong = [each for each in found["instruction_sets"] if each["agrees"] is False]
    expect(not wrong, f"kernels with wrong answers: {wrong}")
    expect(not found["unknown"], f"not found out: {found['unknown']}")


def check_answers(model: Path) -> None:
    """The answer is the same with speculation as without."""
    options = ["run", str(model), "the cat sat on the mat", "--raw", "--max-tokens", "16"]
    plain = run(*options, "--seed", "1")
    expect(bool(plain.strip()), "wager run answered nothing")
    drafted = run(*options, "--seed", "1", "-sc", SPECULATION)
    expect(drafted == plain, f"with speculation {drafted!r}, without {plain!r}")


def check_bench(model: Path, file: Path) -> None:
    run("bench", str(model), "--workload", "random", "--prompts", "2", "--max-tokens", "8",
        "--json", str(file))  # fmt: skip
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    expect([cell["identical"] for cell in cells] == [2], f"{cells}")


def run(*arguments: str) -> str:
    """What the installed program prints."""
    program = Path(sysconfig.get_path("scripts")) / "wager"
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    expect(done.returncode == 0, f"wager {arguments[0]}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def expect(right: bool, said: str) -> None:
    if not right:
        sys.exit(f"check_wheel: {said}")


if __name__ == "__main__":
    main()
