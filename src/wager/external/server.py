"""What every engine that runs as a server has in common: started, asked, read, stopped.

An engine is a subclass that says how its command is built and how its replies and its log read.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx2

from wager.arms import Arm
from wager.backend import Answer, Counters, EngineError, Load, Prompt, Started
from wager.errors import ConfigError
from wager.external import client, metrics, openai
from wager.external.process import (
    EngineProcess,
    end_leftovers,
    free_port,
    record_directory,
)
from wager.external.reply import Reply

_PORT_TRIES: Final = 3
_GET_S: Final = 10.0
_IDLE_WITHIN_S: Final = 5.0
_DYING_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How an engine is run; every field is optional and None leaves a value to the engine.

    ``engine_command`` is a whole command with ``{port}`` and ``{args}`` (and, where it needs them,
    ``{host}`` and ``{model}``) to be filled in; ``{args}`` is what an arm and these options ask
    for, without model, host and port. Otherwise ``program`` is the engine's program, or its name
    on PATH. ``arguments`` are added as they are. Logs go to ``log_dir``, which is kept.
    ``kv_memory`` is in bytes. With ``measuring`` an arm gets what a measurement needs beside its
    speculation (no prefix cache, counters); a server for users does without.
    """

    engine_command: str | None = None
    program: str | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    max_model_len: int | None = None
    max_clients: int | None = None
    kv_memory: int | None = None
    threads: int | None = None
    start_timeout_s: float = 900.0
    request_timeout_s: float = 900.0
    stop_timeout_s: float = 20.0
    log_dir: Path | None = None
    measuring: bool = True


class ServerBackend:
    """An engine as a `wager.backend.Backend`; a fresh server for every `start`."""

    name = ""
    fresh_start_is_cheap = False

    def __init__(self, model: str, options: ServerOptions) -> None:
        self.model = str(Path(model).resolve()) if Path(model).exists() else model
        self.options = options
        if options.engine_command is not None:
            check_template(options.engine_command)
        self._process: EngineProcess | None = None
        self._url = ""
        self.port = 0
        self._scratch: Path | None = None
        self._forget: weakref.finalize[..., ServerBackend] | None = None
        self._starts = count(1)
        self._reader = metrics.Reader()
        self.arm: Arm | None = None
        # One for all: a client that is made anew for every look at a starting engine is slow.
        # It keeps no connection, so there is nothing to close.
        alone = httpx2.Limits(max_keepalive_connections=0)
        self._http = httpx2.Client(trust_env=False, verify=False, limits=alone)

    # What an engine says of itself -----------------------------------------------------------

    def check(self, arm: Arm) -> str:
        """See `wager.backend.Backend.check`."""
        raise NotImplementedError

    def command(self, arm: Arm, port: int) -> list[str]:
        """The whole command, where the user gave none: program, model, host, port, arguments."""
        raise NotImplementedError

    def arguments(self, arm: Arm) -> list[str]:
        """What ``{args}`` of a user's command becomes: all but program, model, host and port."""
        raise NotImplementedError

    def environment(self, arm: Arm) -> dict[str, str]:
        """Set for the engine beside the environment of this process."""
        return {}

    def ready_path(self) -> str:
        """Answers with status 200 once requests are served."""
        return "/health"

    def metrics_path(self) -> str:
        """Where the counters are."""
        return "/metrics"

    def counters_of(self, page: str) -> Counters:
        """The counters on a metrics page."""
        return self._reader.read(page)

    def before_start(self, arm: Arm) -> None:
        """Called before the server is started: caches to look at or to empty."""

    def version_in(self, log: str) -> str | None:
        """The engine's version, where its log tells it before it is ready."""
        return None

    def started(self, log: str) -> Started:
        """What the log and the server's own pages tell once it is ready; the rest is filled in
        by `start`."""
        return Started()

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        """Path and body of a streaming request."""
        return openai.request(prompt, self.model)

    def salt(self, body: dict[str, Any], salt: str) -> None:
        """See `wager.external.client.Wire.salt`."""

    def read(self, event: dict[str, Any], reply: Reply) -> None:
        """Take one event of a stream into the reply."""
        openai.read(event, reply)

    # What they all do ------------------------------------------------------------------------

    def start(self, arm: Arm) -> Started:
        """See `wager.backend.Backend.start`."""
        self.stop()
        self.check(arm)
        left = end_leftovers(record_directory())
        self.before_start(arm)
        self.arm = arm
        began = time.perf_counter()
        process = self._launch(arm)
        took = time.perf_counter() - began
        self._reader = metrics.Reader()
        try:
            started = self.started(process.log_text())
        except BaseException:
            self.stop()
            raise
        started.command = process.command
        started.startup_s = took
        started.warnings += [
            f"ended {name}, left over from a measurement that died" for name in left
        ]
        return started

    def _launch(self, arm: Arm) -> EngineProcess:
        """Start and wait until it is ready; again on another port if a stranger took it."""
        for last in (False,) * (_PORT_TRIES - 1) + (True,):
            process = self.launch(arm, free_port(self.options.host))
            try:
                process.wait_ready(self.ready, self.options.start_timeout_s)
            except EngineError:
                self.stop()
                if last or not process.port_taken():
                    self._keep_log()
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return process
        raise AssertionError("the last try either returns or raises")

    def launch(
        self,
        arm: Arm,
        port: int,
        *,
        tls: bool = False,
        echo: Callable[[bytes], object] | None = None,
    ) -> EngineProcess:
        """Start on ``port`` and return at once, for whoever watches it alone; see `ready`.

        ``echo`` is handed the engine's output as it comes.
        """
        self.port = port
        self._url = f"{'https' if tls else 'http'}://{_reachable(self.options.host)}:{port}"
        self._process = self._run(arm, port, echo)
        return self._process

    def _run(self, arm: Arm, port: int, echo: Callable[[bytes], object] | None) -> EngineProcess:
        directory = self._log_dir()
        stem = f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}-{next(self._starts)}-{port}"
        return EngineProcess(
            self.name,
            self.full_command(arm, port),
            log=directory / f"{stem}.log",
            record=record_directory() / f"{stem}.running.json",
            environment={**self.environment(arm), **self.options.environment},
            grace_s=self.options.stop_timeout_s,
            echo=echo,
        )

    def full_command(self, arm: Arm, port: int) -> list[str]:
        """The command that `start` runs: the user's, filled in, or the engine's own."""
        if self.options.engine_command is None:
            return self.command(arm, port)
        filled = {"port": str(port), "host": self.options.host, "model": self.model}
        return fill(self.options.engine_command, filled, self.arguments(arm))

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return self.get(self.ready_path())[0] == 200
        except EngineError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET. Raises EngineError when there is no answer."""
        try:
            response = self._http.get(self._url + path, timeout=_GET_S)
        except (httpx2.HTTPError, OSError) as error:
            raise EngineError(f"{self.name}: {path} gave no answer: {error}") from error
        return response.status_code, response.text

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that comes back for a JSON body. Raises EngineError."""
        url = self._url + path
        try:
            response = self._http.post(url, json=dict(body), timeout=self.options.request_timeout_s)
            found = response.json()
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise EngineError(f"{self.name}: {path} gave no answer: {error}") from error
        if response.status_code != 200:
            raise EngineError(
                f"{self.name}: {path}: HTTP {response.status_code}: {openai.error_text(found)}"
            )
        return found

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        """See `wager.backend.Backend.stream`. Raises EngineError when the engine has died."""
        target = client.Target(self._url, timeout_s=self.options.request_timeout_s)
        for answer in client.stream(self, target, prompts, load):
            if answer.error is not None and not self.ready():
                self._check_alive()
            yield answer

    def _check_alive(self) -> None:
        """Raises EngineError if the engine has ended, or does so now."""
        end = time.monotonic() + _DYING_S
        while self._process is not None and time.monotonic() < end:
            status = self._process.exit_status()
            if status is not None:
                self._keep_log()
                raise self._process.failure(f"ended with exit status {status} while it was asked")
            time.sleep(0.05)

    def counters(self) -> Counters:
        """See `wager.backend.Backend.counters`: those of a server at rest."""
        text = metrics.when_idle(self._page, _IDLE_WITHIN_S)
        return self.counters_of(text) if text is not None else Counters()

    def _page(self) -> str | None:
        status, text = self.get(self.metrics_path())
        return text if status == 200 else None

    @property
    def session(self) -> int | None:
        """The number of the session that the engine's processes run in, while it runs."""
        return self._process.session if self._process is not None else None

    @property
    def log_path(self) -> Path | None:
        """The log of the running engine."""
        return self._process.log if self._process is not None else None

    def log_text(self) -> str:
        """All that the running engine has written so far."""
        return self._process.log_text() if self._process is not None else ""

    def stop(self) -> None:
        """See `wager.backend.Backend.stop`."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def close(self) -> None:
        """Stop, and remove the logs unless the user asked for them or an error quotes them; at
        exit that is done anyway."""
        self.stop()
        if self._forget is not None:
            self._forget()
            self._scratch = self._forget = None

    def _keep_log(self) -> None:
        if self._forget is not None:
            self._forget.detach()
            self._forget = None

    def _log_dir(self) -> Path:
        if self.options.log_dir is not None:
            self.options.log_dir.mkdir(parents=True, exist_ok=True)
            return self.options.log_dir
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix=f"wager-{self.name}-"))
            self._forget = weakref.finalize(self, shutil.rmtree, self._scratch, True)
        return self._scratch


def check_template(template: str) -> None:
    """Raises ConfigError unless a user's command has the places that must be filled in."""
    parts = _split(template)
    for place in ("port", "args"):
        if not any(f"{{{place}}}" in part for part in parts):
            raise ConfigError(
                f"engine-command: {{{place}}} is missing; e.g. "
                "'docker run --rm -p {port}:{port} IMAGE MODEL --port {port} {args}'"
            )


def fill(template: str, values: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """A user's command with its places filled in.

    ``{args}`` alone becomes that many words; within a word (``sh -c 'serve {args}'``) they are
    quoted for a shell.
    """
    words: list[str] = []
    for part in _split(template):
        if part == "{args}":
            words.extend(arguments)
            continue
        for place, value in {**values, "args": shlex.join(arguments)}.items():
            part = part.replace(f"{{{place}}}", value)
        words.append(part)
    return words


def _split(template: str) -> list[str]:
    try:
        return shlex.split(template)
    except ValueError as error:
        raise ConfigError(f"engine-command: {error}") from error


def _reachable(host: str) -> str:
    """The address to ask a server at that listens on ``host``."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
