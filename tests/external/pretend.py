"""A program that says and serves what was recorded of a real engine, to be started as one.

`program()` writes it; it prints the help text for ``--help`` (or ``--help=all``), else the log, and
serves the pages with the stub's server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.external.stub import DONE, Script, Stub, text, usage
from wager.backend import Prompt
from wager.config import SamplingParams
from wager.external.reply import Reply

RECORDED = Path(__file__).parent / "recorded"
ROOT = Path(__file__).resolve().parent.parent.parent
REPLY = Script([(0.0, text("a", ids=[1], finish="length")), (0.0, usage(1, 2)), (0.0, DONE)])


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def events(name: str) -> list[dict[str, Any]]:
    """The JSON events of a recorded stream."""
    lines = (line.removeprefix("data: ") for line in recorded(name).splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def reply_of(wire: Any, name: str, **params: Any) -> Reply:
    """What a reader (a module or backend with ``read``) makes of a recorded stream."""
    reply = Reply(Prompt("p", SamplingParams(**params), text="x"))
    for number, event in enumerate(events(name)):
        reply.now = 0.1 * (number + 1)
        wire.read(event, reply)
    return reply


def program(folder: Path, name: str, help_text: str, log: str, **gets: Any) -> str:
    """The path of a program of that name. ``gets`` are its pages: ``metrics`` as recorded text,
    others as JSON, ``/`` in a path spelt ``__``."""
    played = folder / f"{name}.json"
    played.write_text(json.dumps({"help": help_text, "log": log, "gets": gets}))
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.external.pretend import main\n"
        f"main({str(played)!r}, sys.argv[1:])\n"
    )
    path.chmod(0o755)
    return str(path)


def main(played: str, arguments: list[str]) -> None:
    told = json.loads(Path(played).read_text())
    if arguments[-1].startswith("--help"):
        print(told["help"])
        return
    print(told["log"], flush=True)
    gets = dict(told["gets"])
    pages = [gets.pop("metrics", None)]
    port = int(arguments[arguments.index("--port") + 1])
    answers = {"/" + path.replace("__", "/"): body for path, body in gets.items()}
    Stub([REPLY], pages=pages, gets=answers, port=port).open().serve_forever()
