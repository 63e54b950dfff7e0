"""`wager tune`: the method and draft length that pay here, and the command that uses them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from wager.cli import bench_engine, files, options, tune_simulate
from wager.cli import bench_options as of
from wager.cli import tune_options as asked
from wager.cli.bench_engine import OWN
from wager.cli.signals import termination_interrupts
from wager.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from wager.arms import Arm
    from wager.backend import Backend
    from wager.bench.estimate import StepTable
    from wager.bench.tune.search import Outcome, Replayer, Tuner, Wish
    from wager.external.tuned import Tuned

_T = TypeVar("_T")

_ENGINES: Final = ("own", "vllm", "llamacpp", "sglang")
_OUTSIDE: Final = 1
_NOT_HERE: Final = (
    "url", "url_off", "url_on", "request_off", "request_on", "metrics_url", "api_key",
)  # fmt: skip
_OF_FILE: Final = ("workload", "clients", "methods", "prompts", "max_tokens", "from_replay")


def tune(
    model: asked.Model = None,
    engine: of.Engine = OWN,
    workload: asked.Workload = None,
    clients: asked.Clients = None,
    methods: asked.Methods = None,
    max_k: asked.MaxK = 16,
    from_replay: asked.FromReplay = None,
    time_limit: of.TimeLimit = None,
    prompts: asked.Prompts = None,
    max_tokens: of.MaxTokens = None,
    repeats: of.Repeats = 1,
    seed: of.Seed = 0,
    output: asked.Output = None,
    check: asked.Check = None,
    simulate: asked.Simulate = None,
    acceptance: asked.Acceptance = None,
    coverage: asked.Coverage = None,
    run_dir: of.RunDir = None,
    resume: of.Resume = False,
    no_color: of.NoColor = False,
    engine_command: of.EngineCommand = None,
    engine_program: of.EngineProgram = None,
    engine_args: of.EngineArgs = None,
    kv_memory: of.KvMemory = None,
    start_timeout: of.StartTimeout = None,
    request_timeout: of.RequestTimeout = None,
    weights: options.Weights = "auto",
    kv: options.Kv = "auto",
    threads: options.Threads = None,
    max_model_len: options.MaxModelLen = None,
    ops: options.Ops = "auto",
) -> None:
    """Find out which method and draft length pay here, by a few real runs."""
    given = {**locals(), **dict.fromkeys(_NOT_HERE)}
    if simulate is not None:
        known = {name: one.default for name, one in signature(tune).parameters.items()}
        tune_simulate.simulate(given, known)
        return
    for name in ("acceptance", "coverage"):
        if given[name] is not None:
            raise ConfigError(f"{name}: belongs to --simulate; leave it out")
    if model is None:
        raise ConfigError("model: is missing; name the MODEL to tune for")
    _check_engine(engine)
    tuned = None
    if check is not None:
        tuned = _read(check, given)
        given = _as_tuned(tuned, given)
    bench_engine.refuse_foreign(engine, given)
    if output is not None:
        files.check_writable(output, "output")
    wish = _wish(given, tuned)
    with termination_interrupts(), _opened(wish, given) as opened:
        if tuned is not None and check is not None:
            _check(opened, tuned, check)
        else:
            _tune(opened)


def _check_engine(engine: str) -> None:
    if engine == "ollama":
        raise ConfigError(
            "engine: Ollama cannot be told a draft length or n-gram drafting; tune the same GGUF "
            "file with --engine llamacpp"
        )
    if engine == "url":
        raise ConfigError(
            "engine: a server that runs already cannot be started with another draft length; tune "
            "with the engine that it runs"
        )
    if engine not in _ENGINES:
        raise ConfigError(f"engine: must be one of {', '.join(_ENGINES)}; got {engine!r}")


def _read(path: Path, given: Mapping[str, Any]) -> Tuned:
    from wager.external.serve import check_tuned
    from wager.external.tuned import read_tuned

    for name in (*_OF_FILE, "output"):
        if given[name] is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"{option}: --check measures what {path} says; leave it out")
    tuned = read_tuned(path)
    check_tuned(tuned, path, given["engine"], given["model"])
    if not {"workloads", "clients", "prompts", "options"} <= set(tuned.measured_with):
        raise ConfigError(f"check: {path} does not say what it was measured with; tune again")
    return tuned


def _as_tuned(tuned: Tuned, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a check: those of the tuning, where none is given now."""
    saved = tuned.measured_with
    defaults = {None, "auto"}
    engine = {n: v for n, v in saved["options"].items() if n in given and given[n] in defaults}
    return {
        **given,
        **engine,
        "workload": ",".join(saved["workloads"]),
        "clients": ",".join(map(str, saved["clients"])),
        "prompts": saved["prompts"],
        "max_tokens": saved.get("max_tokens"),
        "repeats": saved.get("repeats", 1),
    }


def _wish(given: Mapping[str, Any], tuned: Tuned | None) -> Wish:
    """What is asked for, checked before anything is loaded or started."""
    from wager.bench.tune.search import PROMPTS, Wish
    from wager.bench.tune.space import families
    from wager.bench.workloads import sources

    of.check_numbers(given)
    logs, run_dir = given["from_replay"], given["run_dir"]
    text = given["workload"] or (asked.WORKLOADS if logs is None else str(logs))
    names = tuple(part.strip() for part in text.split(","))
    sources.check(names)
    limit = of.seconds(given["time_limit"])
    loads = of.loads(given["clients"] or asked.CLIENTS, None)
    if given["resume"] and run_dir is None:
        raise ConfigError("resume: needs the --run-dir DIR of the run to go on with")
    if run_dir is not None:
        files.make_run_dir(run_dir)
    count = PROMPTS if given["prompts"] is None else given["prompts"]
    engine = given["engine"]
    found = families(engine, given["methods"], given["max_k"]) if tuned is None else []
    return Wish(
        engine=engine,
        model=given["model"],
        families=tuple(found),
        wanted=sources.Wanted(names, loads, count, given["max_tokens"], given["seed"]),
        repeats=given["repeats"],
        settings=bench_engine.settings(engine, given),
        deadline=None if limit is None else time.monotonic() + limit,
        run_dir=run_dir,
        resume=given["resume"],
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """An engine that can be measured, and what its command looks like."""

    tuner: Tuner
    given: Mapping[str, Any]
    model: str
    machine: Mapping[str, Any]
    command: Callable[[Arm], tuple[list[str], list[str]]]


@contextmanager
def _opened(wish: Wish, given: Mapping[str, Any]) -> Iterator[_Opened]:
    if wish.engine == OWN:
        with _own(wish, given) as opened:
            yield opened
    else:
        with _other(wish, given) as opened:
            yield opened


@contextmanager
def _own(wish: Wish, given: Mapping[str, Any]) -> Iterator[_Opened]:
    from wager.bench.backend import EngineBackend, check_arm
    from wager.bench.estimate import StepTable
    from wager.bench.machine import machine

    for family in wish.families:
        check_arm(family.arm(family.longest))
    config = options.engine_config(**wish.settings, max_num_seqs=max(wish.loads))
    with options.load(wish.model, config) as llm:
        backend = EngineBackend(llm)

        def steps() -> StepTable | None:
            times = {int(rows): ms for rows, ms in backend.step_times().items() if ms is not None}
            # A short context leaves no room for the table.
            return StepTable(times, "wager") if 1 in times else None

        def command(arm: Arm) -> tuple[list[str], list[str]]:
            found = _own_arguments(arm, given)
            return ["wager", "run", wish.model, *found], found

        tuner = _tuner(wish, given, backend, lambda: llm.engine.vocab_size, steps)
        isa = llm.model.ops.instruction_set
        yield _Opened(tuner, given, wish.model, machine(isa), command)


def _own_arguments(arm: Arm, given: Mapping[str, Any]) -> list[str]:
    from wager.external.dialects import dialect

    found = []
    for name in ("weights", "kv", "threads", "max_model_len", "ops"):
        if given[name] not in (None, "auto"):
            found += [f"--{name.replace('_', '-')}", str(given[name])]
    return [*found, *dialect(OWN).write(arm.speculation).arguments]


@contextmanager
def _other(wish: Wish, given: Mapping[str, Any]) -> Iterator[_Opened]:
    from dataclasses import replace

    from wager.bench.machine import machine
    from wager.external.engines import open_backend
    from wager.external.serve import ready_command
    from wager.external.server import ServerBackend

    logs = None if wish.run_dir is None else wish.run_dir / "logs"
    backend = bench_engine.open_engine(wish.engine, wish.model, wish.wanted.loads, logs, given)
    assert isinstance(backend, ServerBackend)
    # Without what only a measurement needs: it is for users.
    users = open_backend(wish.engine, wish.model, replace(backend.options, measuring=False))

    def command(arm: Arm) -> tuple[list[str], list[str]]:
        return ready_command(users, arm), users.arguments(arm)

    try:
        tuner = _tuner(wish, given, backend, lambda: bench_engine.vocab_size(wish.model))
        yield _Opened(tuner, given, backend.model, machine(None), command)
    finally:
        users.close()
        backend.close()


def _tuner(
    wish: Wish,
    given: Mapping[str, Any],
    backend: Backend,
    vocab_size: Callable[[], int],
    steps: Callable[[], StepTable | None] = lambda: None,
) -> Tuner:
    from wager.bench.tune.search import Tuner

    replay = _replayer(wish, given) if wish.families else None
    return Tuner(backend, wish, vocab_size, say=_say, steps=steps, replay=replay)


def _replayer(wish: Wish, given: Mapping[str, Any]) -> Replayer | None:
    """None where the model's tokenizer cannot be read here: then the engine's counts must do."""
    from wager.bench.replay.tokens import open_vocabulary
    from wager.bench.tune.replay import replayer

    logs = given["from_replay"]
    try:
        vocabulary = open_vocabulary(wish.model, given["max_model_len"])
    except ModelError as error:
        if logs is not None:
            raise
        _say(f"lengths are estimated from the engine's counts alone: {error}")
        return None
    return replayer(wish.engine, vocabulary, logs)


def _tune(opened: _Opened) -> None:
    from wager.bench import report
    from wager.bench.tune import report as tune_report

    found = _with_progress(opened.tuner, opened.tuner.tune)
    command, arguments = opened.command(found.chosen)
    given = opened.given
    tune_report.show(report.console(color=not given["no_color"]), found, command)
    path = given["output"]
    if path is not None:
        record = _record(opened, found, command, arguments)
        files.write(record.to_json(), path, "output")
        print(f"written to {path}; measure it again with --check {path}")


def _record(opened: _Opened, found: Outcome, command: list[str], arguments: list[str]) -> Tuned:
    from dataclasses import asdict
    from datetime import datetime, timezone

    from wager.external.tuned import Tuned

    wish, speculation = found.wish, found.chosen.speculation
    wanted = wish.wanted
    return Tuned(
        engine=wish.engine,
        version=found.version,
        model=opened.model,
        command=command,
        arguments=arguments,
        speculation=None if speculation is None else speculation.config(),
        schedule=found.schedule,
        expected=[asdict(one) for one in found.expected],
        measured_on=dict(opened.machine),
        measured_with={
            "workloads": list(wanted.names),
            "clients": wish.loads,
            "prompts": max(len(cell.prompts) for cell in found.decided.plan.cells),
            "max_tokens": wanted.max_tokens,
            "repeats": wish.repeats,
            "seed": wanted.seed,
            "options": {n: v for n, v in wish.settings.items() if n not in _NOT_HERE},
        },
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _check(opened: _Opened, tuned: Tuned, path: Path) -> None:
    from wager.bench import report
    from wager.bench.tune import check as tune_check
    from wager.bench.tune import report as tune_report
    from wager.bench.tune.search import arm_from

    if tuned.speculation is None:
        print(f"{path} says plain decoding: there is no speed-up to check")
        return
    arm, expected = arm_from(tuned.speculation), tune_check.read_expected(tuned.expected)
    count = opened.tuner.wish.wanted.count or 1
    run = _with_progress(opened.tuner, lambda: opened.tuner.measure("check", [arm], count))
    rows = tune_check.check(run, expected)
    console = report.console(color=not opened.given["no_color"])
    tune_report.show_check(console, rows, str(path))
    if not tune_check.holds(rows):
        raise typer.Exit(_OUTSIDE)


def _with_progress(tuner: Tuner, work: Callable[[], _T]) -> _T:
    from wager.cli.progress import Progress

    try:
        # One for each round, whose time left has nothing to do with that of the others.
        tuner.progress = lambda: Progress(sys.stderr)
        return work()
    except KeyboardInterrupt:
        folder = tuner.wish.run_dir
        finished = any(m.answers for run in tuner.runs.values() for m in run.measurements)
        if folder is not None and finished:
            _say(f"finished parts are in {folder}; go on with --resume")
        raise


def _say(line: str) -> None:
    print(f"wager: {line}", file=sys.stderr, flush=True)
