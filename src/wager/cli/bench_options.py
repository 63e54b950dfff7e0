"""The options of `wager bench` and their reading."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from wager.arms import PLAIN, Arm, Speculation, arm_of, parse_arms
from wager.backend import Load
from wager.cli.options import with_memory
from wager.errors import ConfigError
from wager.registry import drafter_class

OTHER: Final = "Other engines"
ENGINES: Final = ("own", "vllm", "llamacpp", "sglang", "ollama", "url")

Workload = Annotated[
    str | None,
    typer.Option("--workload", metavar="LIST", show_default=False,
                 help="Comma-separated: copy, rename, edit, agent, explain, story, flip, words, "
                      "random, json, summarise, classify, or files of prompts (docs/workloads.md). "
                      "Default: all of these."),
]  # fmt: skip
Clients = Annotated[
    str | None,
    typer.Option("--clients", "--max-concurrency", metavar="LIST", show_default=False,
                 help="Requests in flight, e.g. 1,8. Default: 1."),
]  # fmt: skip
Rate = Annotated[
    str | None,
    typer.Option("--rate", "--request-rate", metavar="LIST", show_default=False,
                 help="Instead of --clients: requests per second, arriving at random (Poisson)."),
]  # fmt: skip
Arms = Annotated[
    str | None,
    typer.Option("--arms", metavar="LIST", show_default=False,
                 help="What is compared, e.g. plain,ngram:k=4,suffix+ngram:k=8,min=2,max=5. "
                      "Default: plain and n-gram, k 8, lookup 2 to 5."),
]  # fmt: skip
SpeculativeConfig = Annotated[
    list[str] | None,
    typer.Option("--speculative-config", "-sc", metavar="JSON", show_default=False,
                 help="The same as an arm in vLLM's JSON; repeatable."),
]  # fmt: skip
Repeats = Annotated[
    int, typer.Option("--repeats", help="Each runs every prompt twice per arm (A B B A).")
]
Prompts = Annotated[
    int | None, typer.Option("--prompts", help="Prompts per workload. Default: 16.")
]
Warm = Annotated[
    int | None,
    typer.Option("--warm", metavar="N", show_default=False,
                 help="Also measure each workload after N other prompts of it, untimed: for "
                      "methods that learn from answers."),
]  # fmt: skip
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="Cap on every answer.", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", help="Of the generated prompts.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", show_default=False,
                 help="Also write the figures (docs/bench.schema.json)."),
]  # fmt: skip
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", metavar="DIR", show_default=False,
                 help="Keep figures, journal and the engines' logs there."),
]  # fmt: skip
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with a run that was interrupted or killed."),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", metavar="TIME", show_default=False,
                 help="Stop after the part that runs then, e.g. 30m, 2h, 90s."),
]  # fmt: skip
Identity = Annotated[
    int | None,
    typer.Option("--identity", metavar="N", show_default=False,
                 help="Greedy prompts that are compared with log-probabilities, untimed. "
                      "Default: 12, on the own engine 0 (there every reply is compared)."),
]  # fmt: skip
Suite = Annotated[
    str | None,
    typer.Option("--suite", metavar="NAME", show_default=False,
                 help="A fixed measurement with tables of its own: article (docs/article.md)."),
]  # fmt: skip
Demo = Annotated[
    bool, typer.Option("--demo", help="Fewer and shorter answers, in about three minutes.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours.")]

Engine = Annotated[
    str,
    typer.Option("--engine", help=f"{', '.join(ENGINES)}.", rich_help_panel=OTHER),
]
EngineCommand = Annotated[
    str | None,
    typer.Option("--engine-command", metavar="COMMAND", show_default=False, rich_help_panel=OTHER,
                 help="Starts the engine; {port}, {args}, {host} and {model} are filled in."),
]  # fmt: skip
EngineProgram = Annotated[
    str | None,
    typer.Option("--engine-program", metavar="PATH", show_default=False, rich_help_panel=OTHER,
                 help="The engine's program. Default: by its name, on PATH."),
]  # fmt: skip
EngineArgs = Annotated[
    str | None,
    typer.Option("--engine-args", metavar="ARGS", show_default=False, rich_help_panel=OTHER,
                 help="More arguments for the engine, in every arm."),
]  # fmt: skip
KvMemory = Annotated[
    str | None,
    typer.Option("--kv-memory", metavar="SIZE", show_default=False, rich_help_panel=OTHER,
                 help="Memory for keys and values, e.g. 2GB."),
]  # fmt: skip
StartTimeout = Annotated[
    float | None,
    typer.Option("--start-timeout", metavar="SECONDS", show_default=False, rich_help_panel=OTHER,
                 help="How long an engine may take until it is ready. Default: 900."),
]  # fmt: skip
RequestTimeout = Annotated[
    float | None,
    typer.Option("--request-timeout", metavar="SECONDS", show_default=False,
                 rich_help_panel=OTHER, help="How long one request may take. Default: 900."),
]  # fmt: skip
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", show_default=False, rich_help_panel=OTHER,
                 help="With --engine url: a running server, for both arms."),
]  # fmt: skip
UrlOff = Annotated[
    str | None,
    typer.Option("--url-off", metavar="URL", show_default=False, rich_help_panel=OTHER,
                 help="The server without speculation."),
]  # fmt: skip
UrlOn = Annotated[
    str | None,
    typer.Option("--url-on", metavar="URL", show_default=False, rich_help_panel=OTHER,
                 help="The server with speculation."),
]  # fmt: skip
RequestOff = Annotated[
    str | None,
    typer.Option("--request-off", metavar="JSON", show_default=False, rich_help_panel=OTHER,
                 help="Added to each request that is to be answered without speculation."),
]  # fmt: skip
RequestOn = Annotated[
    str | None,
    typer.Option("--request-on", metavar="JSON", show_default=False, rich_help_panel=OTHER,
                 help="Added to each request that is to be answered with speculation."),
]  # fmt: skip
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="WAGER_API_KEY", metavar="KEY", show_default=False,
                 rich_help_panel=OTHER, help="Of the running server."),
]  # fmt: skip
MetricsUrl = Annotated[
    str | None,
    typer.Option("--metrics-url", metavar="URL", show_default=False, rich_help_panel=OTHER,
                 help="Its metrics page. Default: /metrics of the same address."),
]  # fmt: skip

_TIME: Final = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def loads(clients: str | None, rate: str | None) -> tuple[Load, ...]:
    """The loads asked for. Raises ConfigError."""
    if rate is None:
        return tuple(
            Load(clients=number)
            for number in numbers_of_clients("1" if clients is None else clients)
        )
    if clients is not None:
        raise ConfigError("rate: give either --clients or --rate, not both")
    return tuple(Load(rate=number) for number in _numbers("rate", rate, whole=False))


def check_numbers(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a count below 1 or a time that is none."""
    for name in ("repeats", "prompts", "max_tokens", "warm"):
        value = given.get(name)
        if value is not None and value < 1:
            raise ConfigError(f"{name.replace('_', '-')}: must be at least 1, got {value}")
    for name in ("start_timeout", "request_timeout"):
        if given[name] is not None and not given[name] > 0.0:
            raise ConfigError(f"{name.replace('_', '-')}: must be above 0, got {given[name]:g}")


def numbers_of_clients(text: str) -> list[int]:
    """``1,8`` as different whole numbers of at least 1. Raises ConfigError."""
    return [int(number) for number in _numbers("clients", text, whole=True)]


def _numbers(option: str, text: str, *, whole: bool) -> list[float]:
    try:
        found = [int(part) if whole else float(part) for part in text.split(",")]
    except ValueError:
        kind = "whole numbers such as 1,8" if whole else "numbers such as 0.5,2"
        raise ConfigError(f"{option}: must be {kind}; got {text!r}") from None
    lowest = 1 if whole else 0.0
    sound = all(0 < number < float("inf") and number >= lowest for number in found)
    if not sound or len(set(found)) < len(found):
        least = "of at least 1" if whole else "above 0"
        raise ConfigError(f"{option}: must be different numbers {least}; got {text!r}")
    return [float(number) for number in found]


def arms(text: str | None, configs: list[str] | None, engine: str = "own") -> tuple[Arm, ...]:
    """Plain decoding first, then what is compared with it. Raises ConfigError.

    A server that runs already is asked as it is, whatever it drafts with.
    """
    if text is not None and configs:
        raise ConfigError("arms: give either --arms or --speculative-config, not both")
    if text is not None:
        found = parse_arms(text)
    elif engine == "url" and not configs:
        found = [Arm("speculative", Speculation("speculative"))]
    else:
        from wager.bench.measure import DEFAULT_ARM

        found = [_from_json(config) for config in configs or ()] or [DEFAULT_ARM]
    speculative = [arm for arm in found if arm.name != PLAIN]
    names = [arm.name for arm in speculative]
    if not names:
        raise ConfigError("arms: name at least one beside plain, e.g. plain,ngram:k=4")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"speculative-config: two arms would both be called {repeated!r}")
    return (Arm(PLAIN), *speculative)


def remembering(arms: tuple[Arm, ...], memory: Path) -> tuple[Arm, ...]:
    """With --draft-memory for every arm that can have one. Raises ConfigError if there is none."""
    found = tuple(
        arm_of(with_memory(arm.speculation.config(), memory))
        if arm.speculation is not None and _remembers(arm.speculation)
        else arm
        for arm in arms
    )
    if found == arms:
        raise ConfigError("draft-memory: none of the arms drafts with suffix or ngram")
    return found


def _remembers(speculation: Speculation) -> bool:
    records = (getattr(drafter_class(name), "Options", None) for name in speculation.methods)
    return any(hasattr(record, "draft_memory") for record in records)


def _from_json(text: str) -> Arm:
    return arm_of(json_object("speculative-config", text, '{"method": "ngram"}'))


def json_object(option: str, text: str, example: str) -> dict[str, Any]:
    """Raises ConfigError for anything but one JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{option}: must be a JSON object, e.g. {example}")
    return found


def seconds(text: str | None) -> float | None:
    """``90s``, ``30m``, ``1h30m`` or plain seconds. Raises ConfigError."""
    if text is None:
        return None
    found = _TIME.fullmatch(text.strip())
    parts = [float(part or 0) for part in found.groups()] if found else [0.0]
    total = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if not total:
        raise ConfigError(f"time-limit: must be a time such as 30m, 2h or 90s; got {text!r}")
    return total
