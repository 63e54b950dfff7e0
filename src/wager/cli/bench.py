"""`wager bench`: what speculation gains and loses here, measured in pairs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wager.cli import options
from wager.cli.status import INTERRUPTED
from wager.config import EngineConfig, SpeculationConfig
from wager.errors import ConfigError

if TYPE_CHECKING:
    from wager.bench.run import Plan

DEMO_PROMPTS = 8
DEMO_TOKENS = 128


Workload = Annotated[
    str | None,
    typer.Option("--workload", metavar="LIST", show_default=False,
                 help="Comma-separated: copy, rename, edit, explain, story, words, random, "
                      "json, summarise, classify. Default: all."),
]  # fmt: skip
Clients = Annotated[
    str, typer.Option("--clients", metavar="LIST", help="Requests in flight, e.g. 1,8.")
]
Speculation = Annotated[
    list[str] | None,
    typer.Option("--speculative-config", "-sc", metavar="JSON", show_default=False,
                 help="The arm to compare with plain decoding; repeatable. "
                      "Default: n-gram, k 8, lookup 2 to 5."),
]  # fmt: skip
Repeats = Annotated[
    int, typer.Option("--repeats", help="Each runs every prompt twice per arm (A B B A).")
]
Prompts = Annotated[
    int | None, typer.Option("--prompts", help="Prompts per workload. Default: 16.")
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="Cap on every answer.", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", help="Of the generated prompts.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", show_default=False,
                 help="Also write the figures (docs/bench.schema.json)."),
]  # fmt: skip
Demo = Annotated[
    bool, typer.Option("--demo", help="Fewer and shorter answers, in about three minutes.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours.")]


def bench(
    model: options.ModelName,
    workload: Workload = None,
    clients: Clients = "1",
    speculative_config: Speculation = None,
    repeats: Repeats = 1,
    prompts: Prompts = None,
    max_tokens: MaxTokens = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
    demo: Demo = False,
    no_color: NoColor = False,
    weights: options.Weights = "auto",
    kv: options.Kv = "auto",
    threads: options.Threads = None,
    max_model_len: options.MaxModelLen = None,
    ops: options.Ops = "auto",
) -> None:
    """Measure plain and speculative decoding in turn, on the same prompts, in one process."""
    if demo:
        prompts = DEMO_PROMPTS if prompts is None else prompts
        max_tokens = DEMO_TOKENS if max_tokens is None else max_tokens
        weights = "int8" if weights == "auto" else weights
    together = _clients(clients)
    for name, value in (("repeats", repeats), ("prompts", prompts), ("max-tokens", max_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}: must be at least 1, got {value}")
    config = options.engine_config(
        weights=weights, kv=kv, threads=threads, max_model_len=max_model_len, ops=ops,
        max_num_seqs=max(together),
    )  # fmt: skip
    configs = [c for text in speculative_config or [] if (c := SpeculationConfig.parse(text))]
    plan = _plan(workload, together, configs, repeats, prompts, max_tokens, seed)
    if json_file is not None:
        from wager.bench.results import check_writable

        check_writable(json_file)
    _measure(model, config, plan, json_file, no_color)


def _clients(text: str) -> list[int]:
    try:
        together = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"clients: must be whole numbers such as 1,8; got {text!r}") from None
    if min(together) < 1 or len(set(together)) < len(together):
        raise ConfigError(f"clients: must be different numbers of at least 1; got {text!r}")
    return together


def _plan(
    workload: str | None,
    together: list[int],
    configs: list[SpeculationConfig],
    repeats: int,
    prompts: int | None,
    max_tokens: int | None,
    seed: int,
) -> Plan:
    from wager.bench.measure import DEFAULT_SPECULATION, arms
    from wager.bench.run import Plan
    from wager.bench.workloads import DEFAULT_PROMPTS, RECIPES, chosen

    names = list(RECIPES) if workload is None else [w.strip() for w in workload.split(",")]
    return Plan(
        recipes=chosen(names),
        clients=together,
        arms=arms(configs or [DEFAULT_SPECULATION]),
        repeats=repeats,
        prompts=DEFAULT_PROMPTS if prompts is None else prompts,
        max_tokens=max_tokens,
        seed=seed,
    )


def _measure(
    model: str,
    config: EngineConfig,
    plan: Plan,
    json_file: Path | None,
    no_color: bool,
) -> None:
    from wager.bench import report
    from wager.bench.backend import EngineBackend
    from wager.bench.results import write
    from wager.bench.run import Run, describe, execute, step_times
    from wager.cli.progress import Progress

    console = report.console(color=not no_color)
    run = Run()
    interrupted = False
    with options.load(model, config) as llm:
        with Progress(sys.stderr) as progress:
            try:
                step_ms = step_times(llm)
                backend = EngineBackend(llm)
                execute(backend, plan, llm.engine.vocab_size, run, progress)
            except KeyboardInterrupt:
                interrupted = True
                if not run.cells:
                    raise
        found = describe(llm, run, step_ms)
    report.show(console, found, plan, run, interrupted=interrupted)
    if interrupted:
        # What is written must be complete, so an interrupted run is only printed.
        raise typer.Exit(INTERRUPTED)
    if json_file is not None:
        write(found, json_file)
