"""`wager serve`: the own server, or another engine started with what `wager tune` found."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wager.arms import PLAIN, Arm, arm_of, parse_arms
from wager.cli import bench_options as of
from wager.cli import serve_own as own
from wager.cli.options import MODEL_HELP
from wager.errors import ConfigError

if TYPE_CHECKING:
    from wager.external.tuned import Tuned

_OWN: Final = "own"
_DEFAULT_PORT: Final = 8000
_STANDARD_ERROR: Final = 2

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False,
                   help=f"{MODEL_HELP} With --engine as that engine wants it."),
]  # fmt: skip
Passed = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ENGINE OPTIONS...", show_default=False,
                   help="With --engine, after a `--`: passed on to it as they are."),
]  # fmt: skip
Engine = Annotated[
    str, typer.Option("--engine", help="own, or another one: vllm, sglang or llamacpp.")
]
TunedFile = Annotated[
    Path | None,
    typer.Option("--tuned", metavar="FILE", show_default=False,
                 help="What `wager tune -o FILE` found for this engine and model."),
]  # fmt: skip
OneArm = Annotated[
    str | None,
    typer.Option("--arm", metavar="ARM", show_default=False,
                 help="Instead: a method and its options, e.g. ngram:k=4,min=2,max=5."),
]  # fmt: skip
Speculation = Annotated[
    str | None,
    typer.Option("--speculative-config", "-sc", metavar="JSON", show_default=False,
                 help="The same in vLLM's JSON (docs/speculation.md)."),
]  # fmt: skip
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65535)]
Force = Annotated[
    bool,
    typer.Option("--force", help="Take a tuned file of another model or version of the engine."),
]


def serve(
    model: Model,
    passed: Passed = None,
    engine: Engine = _OWN,
    tuned: TunedFile = None,
    arm: OneArm = None,
    speculative_config: Speculation = None,
    host: Host = "127.0.0.1",
    port: Port = _DEFAULT_PORT,
    force: Force = False,
    served_model_name: own.ServedModelName = None,
    api_key: own.ApiKeys = None,
    allowed_origins: own.AllowedOrigins = None,
    max_queue: own.MaxQueue = None,
    max_body: own.MaxBody = None,
    max_prompts: own.MaxPrompts = None,
    max_choices: own.MaxChoices = None,
    request_timeout: own.RequestTimeout = None,
    drain_timeout: own.DrainTimeout = None,
    stall_timeout: own.StallTimeout = None,
    metrics_alias: own.MetricsAlias = None,
    metrics_port: own.MetricsPort = None,
    dashboard_show_text: own.DashboardShowText = False,
    json_logs: own.JsonLogs = False,
    weights: own.Weights = None,
    kv: own.Kv = None,
    threads: own.Threads = None,
    ops: own.Ops = None,
    max_model_len: own.MaxModelLen = None,
    max_num_seqs: own.MaxNumSeqs = None,
    max_batch_tokens: own.MaxBatchTokens = None,
    kv_memory: own.KvMemory = None,
    draft_memory: own.DraftMemory = None,
    engine_program: of.EngineProgram = None,
    engine_command: of.EngineCommand = None,
) -> None:
    """Serve a model to OpenAI's clients until a signal comes; or start another engine with what
    `tune` found, in the foreground, until it ends."""
    options = own.given_of(locals())
    theirs = tuple(passed or ())
    _check_engine(engine)
    if engine == _OWN:
        program = {"engine_program": engine_program, "engine_command": engine_command}
        own.refuse_other(theirs, program)
        given = _tuned(tuned, engine, model, force)
        wanted = _arm(arm, speculative_config, given)
        status = own.serve_own(
            model, host=host, port=port, arm=wanted, config_text=speculative_config, tuned=given,
            given=options,
        )  # fmt: skip
        raise typer.Exit(status)
    from wager.external.dialects.options import TITLES

    own.refuse_own(options, TITLES[engine])
    given = _tuned(tuned, engine, model, force)
    wanted = _arm(arm, speculative_config, given)
    status = _serve_other(
        engine, model, theirs, wanted, given, host=host, port=port, program=engine_program,
        command=engine_command, tuned=tuned, force=force,
    )  # fmt: skip
    raise typer.Exit(status)


def _serve_other(
    engine: str,
    model: str,
    theirs: tuple[str, ...],
    wanted: Arm,
    given: Tuned | None,
    *,
    host: str,
    port: int,
    program: str | None,
    command: str | None,
    tuned: Path | None,
    force: bool,
) -> int:
    """Another engine, until it ends; returns its exit status."""
    if program is not None and command is not None:
        raise ConfigError("engine-command: give either --engine-program or --engine-command")
    from wager.external import serve as serving
    from wager.external.engines import open_backend
    from wager.external.server import ServerOptions

    # A tuned file's arguments hold its speculation, so the command is then written for none.
    ours = () if given is None else tuple(given.arguments)
    options = ServerOptions(
        engine_command=command,
        program=program,
        arguments=(*ours, *theirs),
        host=host,
        measuring=False,
    )
    backend = open_backend(engine, model, options)
    written = Arm(PLAIN) if given is not None else wanted
    try:
        # What is left when the passed options are taken off the end is wager's own.
        settled = backend.arguments(written)
        serving.check_arguments(engine, settled[: len(settled) - len(theirs)], theirs)
        in_effect = wanted if wanted.speculation else serving.passed_arm(engine, theirs)
        ready = serving.ready_command(backend, written, port)
        serving.check_port(host, port)
        # By itself on its line, so that it can be copied.
        print(shlex.join(ready), flush=True)
        for line in _before(given, in_effect, serving.notes(engine, wanted)):
            _say(line)
        service = serving.Service(
            backend=backend,
            command_arm=written,
            arm=in_effect,
            port=port,
            say=_say,
            echo=serving.to_terminal(_STANDARD_ERROR),
            check=lambda version: _check_version(given, tuned, version, force),
        )
        return service.run()
    finally:
        backend.close()


def _check_engine(engine: str) -> None:
    from wager.external.serve import ENGINES

    if engine == "ollama":
        raise ConfigError(
            "engine: Ollama runs as a service of its own and has no n-gram drafting; serve the "
            "same GGUF file with --engine llamacpp"
        )
    known = (_OWN, *ENGINES)
    if engine not in known:
        raise ConfigError(f"engine: must be one of {', '.join(known)}; got {engine!r}")


def _tuned(path: Path | None, engine: str, model: str, force: bool) -> Tuned | None:
    from wager.external.serve import check_tuned
    from wager.external.tuned import read_tuned

    if path is None:
        if force:
            raise ConfigError("force: there is no --tuned FILE to take in spite of anything")
        return None
    found = read_tuned(path)
    check_tuned(found, path, engine, model, force=force)
    return found


def _arm(text: str | None, config: str | None, given: Tuned | None) -> Arm:
    """The one arm asked for; plain decoding if none is."""
    from wager.external.serve import tuned_arm

    if sum(one is not None for one in (text, config, given)) > 1:
        raise ConfigError("arm: give one of --tuned, --arm and --speculative-config")
    if given is not None:
        return tuned_arm(given)
    if config is not None:
        return arm_of(of.json_object("speculative-config", config, '{"method": "ngram"}'))
    if text is None:
        return Arm(PLAIN)
    found = parse_arms(text)
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise ConfigError(f"arm: a server runs one arm, and these are {len(found)}: {names}")
    return found[0]


def _before(given: Tuned | None, arm: Arm, notes: tuple[str, ...]) -> list[str]:
    lines = []
    if given is not None:
        when = f", measured {given.date}" if given.date else ""
        what = arm.name if given.speculation is not None else "plain decoding, which was best"
        lines.append(f"tuned: {what}{when}")
    return [*lines, *(f"note: {note}" for note in notes)]


def _check_version(
    given: Tuned | None, path: Path | None, version: str | None, force: bool
) -> None:
    from wager.external.serve import check_version

    if given is not None and path is not None and not force:
        check_version(given, path, version)


def _say(line: str) -> None:
    """On standard output: the engine's own output goes to standard error."""
    print(f"wager: {line}", flush=True)
