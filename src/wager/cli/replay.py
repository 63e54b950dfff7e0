"""`wager replay`: what drafting would have done to recorded answers, without model or GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wager.arms import Arm, parse_arms
from wager.cli import options
from wager.cli.bench_options import numbers_of_clients
from wager.cli.files import check_writable, write
from wager.cli.status import INTERRUPTED
from wager.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress

    from wager.bench.replay.report import Asked
    from wager.bench.replay.run import Replay

MAX_CLIENTS: Final = 4096
_STDIN: Final = Path("/dev/stdin")

Logs = Annotated[
    Path | None,
    typer.Argument(metavar="LOGS.jsonl", show_default=False,
                   help="Recorded requests and answers: JSON lines, or a log of vLLM or "
                        "llama-server; .gz too; - for standard input. docs/replay.md lists the "
                        "shapes."),
]  # fmt: skip
Arms = Annotated[
    str | None,
    typer.Option("--arms", metavar="LIST", show_default=False,
                 help="Methods to replay, e.g. ngram:k=4,min=2,max=5,suffix:k=16. Default: two of "
                      "n-gram."),
]  # fmt: skip
Engine = Annotated[
    str,
    typer.Option("--engine", metavar="ENGINE",
                 help="By whose rule: own, vllm (ngram of the V1 runner) or llamacpp "
                      "(ngram-simple)."),
]  # fmt: skip
Pairs = Annotated[
    tuple[Path, Path] | None,
    typer.Option("--pairs", metavar="OLD NEW", show_default=False,
                 help="Instead of logs: two directories with old and edited texts."),
]  # fmt: skip
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="FIELD", show_default=False,
                 help="Figures for each value of this field too, e.g. user or request.model."),
]  # fmt: skip
Steps = Annotated[
    str | None,
    typer.Option("--steps", metavar="TABLE", show_default=False,
                 help="Milliseconds of a step by its rows, plain=5.7,9=7.8, or a saved table: "
                      "adds the estimated speed-up."),
]  # fmt: skip
Clients = Annotated[
    str | None,
    typer.Option("--clients", metavar="LIST", show_default=False,
                 help="With --steps: requests in flight. Default: 1,8,32."),
]  # fmt: skip
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", show_default=False,
                 help="Context of the server in tokens: drafts never reached beyond it."),
]  # fmt: skip
Limit = Annotated[
    int | None, typer.Option("--limit", show_default=False, help="Stop after so many answers.")
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", show_default=False,
                 help="Also write every figure ('-': to standard output, and nothing else)."),
]  # fmt: skip


def replay(
    tokenizer: options.Tokenizer,
    logs: Logs = None,
    arms: Arms = None,
    engine: Engine = "own",
    pairs: Pairs = None,
    group: Group = None,
    steps: Steps = None,
    clients: Clients = None,
    max_model_len: MaxModelLen = None,
    limit: Limit = None,
    json_file: JsonFile = None,
) -> None:
    """Say from recorded answers what drafting would have done: no model and no GPU is needed."""
    if (logs is None) == (pairs is None):
        raise ConfigError("replay: give either a file of logs or --pairs OLD NEW")
    if group is not None and pairs is not None:
        raise ConfigError("group: pairs of files have no fields; leave it out")
    for name, value in (("max-model-len", max_model_len), ("limit", limit)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}: must be at least 1, got {value}")
    from wager.bench.replay.rules import DEFAULT_ARMS, rule

    rule(engine)
    wanted = parse_arms(DEFAULT_ARMS[engine] if arms is None else arms)
    if clients is not None and steps is None:
        raise ConfigError("clients: only the estimate of --steps depends on them; add --steps")
    together = tuple(numbers_of_clients(clients or "1,8,32"))
    if max(together) > MAX_CLIENTS:
        raise ConfigError(f"clients: must be at most {MAX_CLIENTS}, got {max(together)}")
    if json_file is not None and str(json_file) != "-":
        check_writable(json_file, "json")
        if logs is not None and json_file.exists() and logs.exists() and json_file.samefile(logs):
            raise ConfigError(f"json: {json_file} is the log itself; name another file")
    from wager.bench.estimate import step_table
    from wager.bench.replay.report import Asked

    table = None if steps is None else step_table(steps)
    source = str(logs) if pairs is None else f"{pairs[0]} and {pairs[1]}"
    asked = Asked(source, tokenizer, engine, group, table, together)
    path = _STDIN if str(logs) == "-" else logs or Path()
    done = _replay(asked, wanted, path, pairs, limit, max_model_len)
    _report(asked, done, json_file)
    if done.interrupted:
        raise typer.Exit(INTERRUPTED)


def _replay(
    asked: Asked,
    arms: list[Arm],
    logs: Path,
    pairs: tuple[Path, Path] | None,
    limit: int | None,
    max_model_len: int | None,
) -> Replay:
    from wager.bench.logs.read import read_log, read_pairs
    from wager.bench.replay.run import replayed
    from wager.bench.replay.tokens import open_vocabulary

    done = replayed(arms, open_vocabulary(asked.tokenizer, max_model_len), asked.engine)
    with _bar() as bar:
        task = bar.add_task("reading", total=None)

        def tell(read: int, size: int) -> None:
            bar.update(task, completed=read, total=size, description=f"{done.requests} answers")

        entries = read_pairs(*pairs) if pairs is not None else read_log(logs, asked.group, tell)
        try:
            done.run(entries, limit)
        except KeyboardInterrupt:
            if not done.requests:
                raise
            done.interrupted = True
    done.check(asked.source)
    return done


def _bar() -> Progress:
    """On a terminal only, and gone at the end: what was read is said by the report."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _report(asked: Asked, done: Replay, json_file: Path | None) -> None:
    from rich.console import Console

    from wager.bench.replay.report import show, to_json

    # What is written must be complete, so an interrupted replay is only shown.
    if done.interrupted:
        json_file = None
    if json_file is not None and str(json_file) == "-":
        print(to_json(done, asked), end="")
        return
    # A pipe has no width to fit into: there every table is whole.
    width = None if sys.stdout.isatty() else 1000
    show(Console(highlight=False, width=width), done, asked)
    if json_file is not None:
        write(to_json(done, asked), json_file, "json")
