"""`wager bench`: what speculation gains and loses here, measured in pairs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wager.cli import bench_engine, files, options
from wager.cli import bench_options as of
from wager.cli.bench_engine import OWN
from wager.cli.signals import termination_interrupts
from wager.cli.status import INTERRUPTED, USER_ERROR
from wager.errors import ConfigError, WagerError

if TYPE_CHECKING:
    from wager.backend import Backend
    from wager.bench.plan import Plan
    from wager.bench.run import Run
    from wager.bench.summary import Target
    from wager.bench.workloads.sources import Wanted

DEMO_PROMPTS = 8
DEMO_TOKENS = 128


def bench(
    model: options.ModelName,
    workload: of.Workload = None,
    clients: of.Clients = None,
    rate: of.Rate = None,
    arms: of.Arms = None,
    speculative_config: of.SpeculativeConfig = None,
    draft_memory: options.DraftMemory = None,
    repeats: of.Repeats = 1,
    prompts: of.Prompts = None,
    warm: of.Warm = None,
    max_tokens: of.MaxTokens = None,
    seed: of.Seed = 0,
    json_file: of.JsonFile = None,
    run_dir: of.RunDir = None,
    resume: of.Resume = False,
    time_limit: of.TimeLimit = None,
    identity: of.Identity = None,
    suite: of.Suite = None,
    demo: of.Demo = False,
    no_color: of.NoColor = False,
    engine: of.Engine = OWN,
    engine_command: of.EngineCommand = None,
    engine_program: of.EngineProgram = None,
    engine_args: of.EngineArgs = None,
    kv_memory: of.KvMemory = None,
    start_timeout: of.StartTimeout = None,
    request_timeout: of.RequestTimeout = None,
    url: of.Url = None,
    url_off: of.UrlOff = None,
    url_on: of.UrlOn = None,
    request_off: of.RequestOff = None,
    request_on: of.RequestOn = None,
    api_key: of.ApiKey = None,
    metrics_url: of.MetricsUrl = None,
    weights: options.Weights = "auto",
    kv: options.Kv = "auto",
    threads: options.Threads = None,
    max_model_len: options.MaxModelLen = None,
    ops: options.Ops = "auto",
) -> None:
    """Measure plain and speculative decoding in turn, on the same prompts."""
    given = dict(locals())
    if engine not in of.ENGINES:
        raise ConfigError(f"engine: must be one of {', '.join(of.ENGINES)}; got {engine!r}")
    bench_engine.refuse_foreign(engine, given)
    if suite is not None:
        from wager.bench.suites.article import settle

        given = settle(given)
    if demo:
        given["prompts"] = DEMO_PROMPTS if prompts is None else prompts
        given["max_tokens"] = DEMO_TOKENS if max_tokens is None else max_tokens
        given["weights"] = "int8" if weights == "auto" and engine == OWN else weights
    job = _job(given)
    with termination_interrupts():
        if engine == OWN:
            _measure_own(job, given)
        else:
            _measure_other(job, given)


@dataclass(frozen=True, slots=True)
class _Job:
    """What is asked for, checked before anything is loaded or started."""

    model: str
    engine: str
    wanted: Wanted
    arms: tuple[Any, ...]
    repeats: int
    identity: int
    json_file: Path | None
    run_dir: Path | None
    resume: bool
    time_limit: float | None
    color: bool
    suite: str | None = None

    def plan(self, vocab_size: Callable[[], int], settings: dict[str, Any], cheap: bool) -> Plan:
        """The plan; ``cheap``: caches are empty at each start, so all loads get one set."""
        from wager.bench.machine import machine, versions
        from wager.bench.plan import Plan
        from wager.bench.suites import article as suites
        from wager.bench.workloads import sources

        draw = sources.draw if self.suite is None else suites.draw
        drawn = draw(self.wanted, vocab_size, same_for_all_loads=cheap, identity=self.identity)
        for note in drawn.notes:
            print(f"wager: warning: {note}", file=sys.stderr)
        place = {"machine": machine(None), "versions": versions()}
        return Plan(
            engine=self.engine,
            model=self.model,
            arms=self.arms,
            cells=drawn.cells,
            repeats=self.repeats,
            warm_up=drawn.warm_up,
            identity=drawn.identity,
            settings={**place, **settings},
        )


def _job(given: dict[str, Any]) -> _Job:
    loads = of.loads(given["clients"], given["rate"])
    limit = of.seconds(given["time_limit"])
    of.check_numbers(given)
    if given["identity"] is not None and given["identity"] < 0:
        raise ConfigError(f"identity: must be at least 0, got {given['identity']}")
    every = of.arms(given["arms"], given["speculative_config"], given["engine"])
    if given["draft_memory"] is not None:
        every = of.remembering(every, given["draft_memory"])
    from wager.bench.workloads import sources
    from wager.bench.workloads.generated import RECIPES

    text, chats_only = given["workload"], given["engine"] in bench_engine.CHATS_ONLY
    every_name = sources.chats() if chats_only else tuple(RECIPES)
    names = every_name if text is None else tuple(w.strip() for w in text.split(","))
    sources.check(names)
    json_file, run_dir = _places(given["json_file"], given["run_dir"])
    if given["resume"] and json_file is None:
        raise ConfigError("resume: needs the --json FILE or --run-dir DIR of the run to go on with")
    default = 0 if given["engine"] == OWN else sources.IDENTITY_PROMPTS
    return _Job(
        model=given["model"],
        engine=given["engine"],
        wanted=sources.Wanted(
            names,
            loads,
            given["prompts"],
            given["max_tokens"],
            given["seed"],
            chats_only,
            given["warm"] or 0,
        ),
        arms=every,
        repeats=given["repeats"],
        identity=default if given["identity"] is None else given["identity"],
        json_file=json_file,
        run_dir=run_dir,
        resume=given["resume"],
        time_limit=limit,
        color=not given["no_color"],
        suite=given["suite"],
    )


def _places(json_file: Path | None, run_dir: Path | None) -> tuple[Path | None, Path | None]:
    """Where the figures go, seen to be writable before a long run."""
    if run_dir is not None:
        files.make_run_dir(run_dir)
        json_file = run_dir / "bench.json" if json_file is None else json_file
    if json_file is not None:
        files.check_writable(json_file, "json")
    return json_file, run_dir


def _measure_own(job: _Job, given: dict[str, Any]) -> None:
    from wager.bench.backend import EngineBackend, check_arm
    from wager.bench.summary import Target

    most = max((load.clients or 0 for load in job.wanted.loads), default=1)
    settings = bench_engine.settings(OWN, given)
    config = options.engine_config(**settings, **({"max_num_seqs": most} if most else {}))
    for arm in job.arms:
        check_arm(arm)
    with options.load(job.model, config) as llm:
        backend = EngineBackend(llm)
        plan = job.plan(lambda: llm.engine.vocab_size, settings, cheap=True)

        def target() -> Target:
            return Target(
                model=llm.model.name,
                weights=llm.model.weights,
                kv=llm.engine.kv,
                threads=llm.model.ops.threads,
                instruction_set=llm.model.ops.instruction_set,
                step_ms=backend.step_times(),
            )

        _measure(job, backend, plan, target)


def _measure_other(job: _Job, given: dict[str, Any]) -> None:
    from wager.bench.summary import Target

    logs = None if job.run_dir is None else job.run_dir / "logs"
    settings = bench_engine.settings(job.engine, given)
    backend = bench_engine.open_engine(job.engine, job.model, job.wanted.loads, logs, given)
    try:
        plan = job.plan(
            lambda: bench_engine.vocab_size(job.model), settings, backend.fresh_start_is_cheap
        )
        _measure(job, backend, plan, lambda: Target(model="" if job.model == "-" else job.model))
    finally:
        backend.close()


def _measure(job: _Job, backend: Backend, plan: Plan, target: Callable[[], Target]) -> None:
    from wager.bench import report
    from wager.bench.journal import Journal, journal_path
    from wager.bench.run import Executor, Run
    from wager.bench.suites import article as suites
    from wager.bench.suites import report as suites_report
    from wager.bench.summary import summarise
    from wager.cli.progress import Progress

    run = Run.of(plan)
    if job.suite is not None and not job.resume:
        backend = suites.Estimating(backend, plan, _tell)
    deadline = None if job.time_limit is None else time.monotonic() + job.time_limit
    path = journal_path(job.json_file, job.run_dir)
    book = nullcontext() if path is None else Journal(path, plan.digest(), resume=job.resume)
    ended: BaseException | None = None
    with book as journal, Progress(sys.stderr) as progress:
        try:
            known = target()
            Executor(backend, run, journal, deadline, progress).execute()
        except (KeyboardInterrupt, WagerError) as error:
            ended = error
    if ended is not None:
        _say_how_to_go_on(path, run)
        if not run.cells():
            raise ended
    interrupted = isinstance(ended, KeyboardInterrupt)
    found = summarise(run, known)
    console = report.console(color=job.color)
    if job.suite is not None:
        suites_report.show(console, run, found, interrupted=interrupted)
    else:
        report.show(console, found, plan, interrupted=interrupted)
    if ended is not None:
        # What is written must be complete, so an interrupted or failed run is only printed.
        raise typer.Exit(INTERRUPTED) if interrupted else ended
    if job.json_file is not None:
        files.write(found.to_json(), job.json_file, "json")
    if run.failed:
        # All else was measured and is written; the journal stays, for another try of these arms.
        _say_how_to_go_on(path, run)
        raise typer.Exit(USER_ERROR)
    if journal is not None and run.complete and job.run_dir is None:
        journal.remove()


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _say_how_to_go_on(path: Path | None, run: Run) -> None:
    if path is not None and path.exists() and any(m.answers for m in run.measurements):
        print(f"finished parts are in {path}; go on with --resume", file=sys.stderr)
