"""`wager serve` without `--engine`: the options of wager's own server, and their reading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from wager.arms import Arm, K
from wager.cli import options as shared
from wager.errors import ConfigError
from wager.memory import parse_size
from wager.speculation import SpeculationConfig

if TYPE_CHECKING:
    from wager.config import EngineConfig
    from wager.external.tuned import Tuned
    from wager.server.options import ServerOptions

ENGINE: Final = "Own engine"
SERVER: Final = "Own server"
KEY_VARIABLE: Final = "WAGER_API_KEY"

_SETTINGS: Final = ("weights", "kv", "threads", "ops", "max_model_len")
_BATCH: Final = ("max_num_seqs", "max_batch_tokens")
_SIMPLE: Final = (
    "max_queue", "max_prompts", "max_choices", "request_timeout", "drain_timeout",
    "stall_timeout", "metrics_alias", "metrics_port", "dashboard_show_text", "json_logs",
)  # fmt: skip
_READ: Final = (
    "kv_memory", "draft_memory", "served_model_name", "api_key", "allowed_origins", "max_body",
)  # fmt: skip
OWN: Final = (*_SETTINGS, *_BATCH, *_SIMPLE, *_READ)
"""Options that mean nothing to another engine."""

Weights = Annotated[
    str | None,
    typer.Option("--weights", help="auto, f32, bf16, int8 or int4. Default: auto.",
                 show_default=False, rich_help_panel=ENGINE),
]  # fmt: skip
Kv = Annotated[
    str | None,
    typer.Option("--kv", help="Type of keys and values: auto, f32 or f16. Default: auto.",
                 show_default=False, rich_help_panel=ENGINE),
]  # fmt: skip
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="Default: the physical cores.", show_default=False,
                 rich_help_panel=ENGINE),
]  # fmt: skip
Ops = Annotated[
    str | None,
    typer.Option("--ops", help="Op set: auto, native or reference. Default: auto.",
                 show_default=False, rich_help_panel=ENGINE),
]  # fmt: skip
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", help="Longest context in tokens. Default: the model's.",
                 show_default=False, rich_help_panel=ENGINE),
]  # fmt: skip
MaxNumSeqs = Annotated[
    int | None,
    typer.Option("--max-num-seqs", help="Choices answered at once. Default: 32.",
                 show_default=False, rich_help_panel=ENGINE),
]  # fmt: skip
MaxBatchTokens = Annotated[
    int | None,
    typer.Option("--max-batch-tokens", help="Rows of a step, drafts included. Default: 512.",
                 show_default=False, rich_help_panel=ENGINE),
]  # fmt: skip
KvMemory = Annotated[
    str | None,
    typer.Option("--kv-memory", metavar="SIZE", show_default=False, rich_help_panel=ENGINE,
                 help="Memory for keys and values, e.g. 2GB. Default: what the contexts need, at "
                      "most 512MiB unless one takes more."),
]  # fmt: skip
DraftMemory = Annotated[
    Path | None,
    typer.Option("--draft-memory", metavar="FILE", show_default=False, rich_help_panel=ENGINE,
                 help="Past answers on disk, for suffix and ngram (docs/memory.md)."),
]  # fmt: skip
ServedModelName = Annotated[
    list[str] | None,
    typer.Option("--served-model-name", metavar="NAME", show_default=False,
                 rich_help_panel=SERVER,
                 help="What clients call the model; repeatable. Default: MODEL without its path."),
]  # fmt: skip
ApiKeys = Annotated[
    list[str] | None,
    typer.Option("--api-key", metavar="KEY", show_default=False, rich_help_panel=SERVER,
                 help="Who has one of the keys may ask; repeatable. Default: those of "
                      f"{KEY_VARIABLE}, with commas between them."),
]  # fmt: skip
AllowedOrigins = Annotated[
    list[str] | None,
    typer.Option("--allowed-origins", metavar="ORIGINS", show_default=False,
                 rich_help_panel=SERVER,
                 help="Whose pages a browser may let ask, and by whose name the server goes, e.g. "
                      "http://localhost:3000; repeatable, or with commas; * is everybody's. "
                      "Default: nobody's."),
]  # fmt: skip
MaxQueue = Annotated[
    int | None,
    typer.Option("--max-queue", help="Requests that may wait; then 429. Default: 256.",
                 show_default=False, rich_help_panel=SERVER),
]  # fmt: skip
MaxBody = Annotated[
    str | None,
    typer.Option("--max-body", metavar="SIZE", show_default=False, rich_help_panel=SERVER,
                 help="Largest body of a request. Default: 4MiB."),
]  # fmt: skip
MaxPrompts = Annotated[
    int | None,
    typer.Option("--max-prompts", help="Prompts in one request. Default: 64.",
                 show_default=False, rich_help_panel=SERVER),
]  # fmt: skip
MaxChoices = Annotated[
    int | None,
    typer.Option("--max-choices", help="Largest n of a request. Default: 16.",
                 show_default=False, rich_help_panel=SERVER),
]  # fmt: skip
RequestTimeout = Annotated[
    float | None,
    typer.Option("--request-timeout", metavar="SECONDS", show_default=False,
                 rich_help_panel=SERVER, help="How long one request may take. Default: 600."),
]  # fmt: skip
DrainTimeout = Annotated[
    float | None,
    typer.Option("--drain-timeout", metavar="SECONDS", show_default=False,
                 rich_help_panel=SERVER,
                 help="How long requests may go on after SIGTERM or Ctrl-C. Default: 30."),
]  # fmt: skip
StallTimeout = Annotated[
    float | None,
    typer.Option("--stall-timeout", metavar="SECONDS", show_default=False,
                 rich_help_panel=SERVER,
                 help="How long one step may take until /health says 503. Default: 60."),
]  # fmt: skip
MetricsAlias = Annotated[
    str | None,
    typer.Option("--metrics-alias", metavar="NAME", show_default=False, rich_help_panel=SERVER,
                 help="vllm: also serve the metrics under vLLM's names."),
]  # fmt: skip
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", metavar="PORT", show_default=False, rich_help_panel=SERVER,
                 help="Also serve /metrics and /health there, without a key."),
]  # fmt: skip
DashboardShowText = Annotated[
    bool,
    typer.Option("--dashboard-show-text", rich_help_panel=SERVER,
                 help="/dashboard shows the texts of recent answers."),
]  # fmt: skip
JsonLogs = Annotated[
    bool, typer.Option("--json-logs", rich_help_panel=SERVER, help="Logs as JSON lines.")
]


def given_of(everything: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the own server's options that were given, by name."""
    found = {name: everything[name] for name in OWN}
    return {n: v for n, v in found.items() if v is not None and v is not False and v != []}


def refuse_own(given: Mapping[str, Any], title: str) -> None:
    """With another engine none of them has a meaning. Raises ConfigError."""
    if given:
        name = next(iter(given)).replace("_", "-")
        raise ConfigError(
            f"{name}: is an option of wager's own engine; leave it out, and give {title} its own "
            "options after a --"
        )


def refuse_other(passed: tuple[str, ...], others: Mapping[str, Any]) -> None:
    """Options of other engines, with the own one. Raises ConfigError."""
    if passed:
        raise ConfigError(
            f"{passed[0]}: wager's own engine takes nothing after its options; what stands after "
            "a -- is for --engine vllm, sglang or llamacpp"
        )
    for name, value in others.items():
        if value is not None:
            raise ConfigError(
                f"{name.replace('_', '-')}: starts another engine; add --engine vllm, sglang or "
                "llamacpp, or leave it out"
            )


def serve_own(
    model: str,
    *,
    host: str,
    port: int,
    arm: Arm,
    config_text: str | None,
    tuned: Tuned | None,
    given: Mapping[str, Any],
) -> int:
    """Serve with the own engine until a signal comes; returns the exit status. Raises ConfigError
    before anything heavy is imported or read."""
    speculation = speculation_for(arm, config_text is None, given.get("draft_memory"))
    engine = engine_config(given, tuned)
    options = server_options(model, host, port, given)
    from wager.server.run import serve

    return serve(model, engine, speculation, options, _say)


def speculation_for(arm: Arm, named: bool, memory: Path | None) -> SpeculationConfig | None:
    """What is to be drafted; None for plain decoding. Raises ConfigError.

    A length that ``named`` arms have (of --arm and of tuned files) is always drafted, as it was
    measured; in a config it is a bound, unless the config says otherwise.
    """
    if arm.speculation is None:
        if memory is not None:
            raise ConfigError(
                "draft-memory: nothing drafts; add --speculative-config "
                '\'{"method": "suffix", "num_speculative_tokens": 8}\''
            )
        return None
    config = arm.speculation.config()
    if named and K in config:
        config = {"controller": "off", **config}
    if memory is not None:
        config = shared.with_memory(config, memory)
    return SpeculationConfig.parse(config)


def engine_config(given: Mapping[str, Any], tuned: Tuned | None) -> EngineConfig:
    """How the model is run: what was given, and what a tuned file was measured with."""
    found = {name: given[name] for name in (*_SETTINGS, *_BATCH) if name in given}
    if "kv_memory" in given:
        found["kv_memory"] = parse_size(given["kv_memory"], "kv-memory")
    measured = _settings_of(tuned)
    for name, value in measured.items():
        if name in found and found[name] != value:
            raise ConfigError(
                f"{name.replace('_', '-')}: the tuned file was measured with {value}; leave one "
                "of them out, or tune anew"
            )
    return shared.engine_config(**{**measured, **found})


def _settings_of(tuned: Tuned | None) -> dict[str, Any]:
    """The engine's settings among a tuned file's arguments; those of speculation stand there too,
    but are taken from the file's own record of it. Raises ConfigError."""
    words = [] if tuned is None else list(tuned.arguments)
    found: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=False):
        name = option.removeprefix("--").replace("-", "_")
        if option in ("-sc", "--speculative-config"):
            continue
        if name not in _SETTINGS:
            raise ConfigError(f"tuned: {option} is no option of wager's own engine")
        try:
            found[name] = int(value) if name in ("threads", "max_model_len") else value
        except ValueError:
            raise ConfigError(f"tuned: {option} {value} is not a whole number") from None
    return found


def server_options(model: str, host: str, port: int, given: Mapping[str, Any]) -> ServerOptions:
    """Where and for whom it serves. Raises ConfigError."""
    from wager.server.options import ServerOptions

    found = {name: given[name] for name in _SIMPLE if name in given}
    if "max_body" in given:
        found["max_body"] = parse_size(given["max_body"], "max-body")
    return ServerOptions(
        host=host,
        port=port,
        served_names=tuple(given.get("served_model_name") or (name_of(model),)),
        api_keys=_keys(given.get("api_key")),
        allowed_origins=_split(given.get("allowed_origins")),
        **found,
    )


def name_of(model: str) -> str:
    """What clients call a model: its name, not where it lies on this machine."""
    path = Path(model)
    if not path.expanduser().exists():
        from wager.models import hub_names, ollama

        if hub_names.parse(model) is not None or model.startswith(ollama.PREFIX):
            return model
    if path.name in ("", ".."):
        path = path.resolve()
    if path.suffix != ".gguf":
        return path.name or model
    from wager.models.gguf_parts import title

    return title(path)


def _keys(given: list[str] | None) -> tuple[str, ...]:
    if given:
        return tuple(given)
    text = os.environ.get(KEY_VARIABLE)
    # Set and empty is a mistake, and must not open the server to everybody.
    return () if text is None else tuple(key.strip() for key in text.split(","))


def _split(given: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for text in given or () for part in text.split(","))


def _say(line: str) -> None:
    print(f"wager: {line}", flush=True)
