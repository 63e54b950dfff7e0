"""An engine started in the foreground, for users rather than for a measurement.

The command is built from an arm or from what `wager tune` found; what else the engine can do is
passed through to it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wager.arms import PLAIN, Arm, arm_of
from wager.backend import EngineError, Started
from wager.errors import ConfigError
from wager.external.dialects import dialect
from wager.external.dialects.names import GENERAL, spelled
from wager.external.dialects.options import TITLES
from wager.external.process import EngineProcess
from wager.external.server import ServerBackend
from wager.external.tuned import Tuned

ENGINES: Final = ("vllm", "sglang", "llamacpp")
DEFAULT_PORT: Final = 8000

_POLL_S: Final = 0.2
_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP")
_OPTION: Final = re.compile(r"-{1,2}[A-Za-z]")
_TLS: Final = "--ssl-"

# Other spellings of options that an arm or a tuned file may set; those of speculation are in the
# engines' tables.
_ALIASES: Final = {
    "vllm": {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"},
    "sglang": {
        "--tp": "--tp-size", "--tensor-parallel-size": "--tp-size", "--pp": "--pp-size",
        "--pipeline-parallel-size": "--pp-size", "--dp": "--dp-size",
    },
    "llamacpp": {
        "-t": "--threads", "-tb": "--threads-batch", "-np": "--parallel", "-c": "--ctx-size",
        "-ctk": "--cache-type-k", "-ctv": "--cache-type-v", "-b": "--batch-size",
        "-ub": "--ubatch-size", "-ngl": "--gpu-layers", "--n-gpu-layers": "--gpu-layers",
        "--spec-default": "--spec-type",
    },
}  # fmt: skip


def check_tuned(tuned: Tuned, path: Path, engine: str, model: str, *, force: bool = False) -> None:
    """Refuse a tuned file of another engine, whose options mean nothing here, and, unless
    ``force``, of another model: with what to do. Raises ConfigError."""
    if tuned.engine != engine:
        raise ConfigError(
            f"tuned: {path} was measured on {tuned.engine}; serve with --engine {tuned.engine}, "
            f"or run `wager tune --engine {engine}`"
        )
    if not force and not _same_model(tuned.model, model):
        raise ConfigError(
            f"tuned: {path} was measured with the model {tuned.model}, not {model}; run "
            "`wager tune` with this one, or say --force"
        )


def check_version(tuned: Tuned, path: Path, version: str | None) -> None:
    """Refuse a tuned file of another version of the engine. Raises ConfigError."""
    if tuned.version is not None and version is not None and tuned.version != version:
        raise ConfigError(
            f"tuned: {path} was measured on {TITLES[tuned.engine]} {tuned.version}, and this is "
            f"{version}; run `wager tune` again, or say --force"
        )


def check_arguments(engine: str, ours: Sequence[str], theirs: Sequence[str]) -> None:
    """Refuse what would be given twice, by name; whatever else is passed through is the engine's
    to judge. Raises ConfigError."""
    if theirs and not theirs[0].startswith("-"):
        raise ConfigError(f"serve: {theirs[0]!r} is no option of {TITLES[engine]}")
    settled = {_canonical(engine, word): word for word in ours if _OPTION.match(word)}
    for word in theirs:
        if not _OPTION.match(word):
            continue
        name, canonical = re.split(r"[.=]", word, maxsplit=1)[0], _canonical(engine, word)
        if canonical in GENERAL:
            what = "the model" if canonical == "target" else f"--{canonical}"
            raise ConfigError(f"{name}: give {what} to `wager serve` itself, before the --")
        if canonical in settled:
            other = re.split(r"[.=]", settled[canonical], maxsplit=1)[0]
            also = "" if other == name else f" (as {other})"
            raise ConfigError(
                f"{name}: given twice: --tuned, --arm or another option of `wager serve` sets it "
                f"already{also}; leave one of them out"
            )


def _canonical(engine: str, word: str) -> str:
    """One name for every spelling; ``target``, ``host`` and ``port`` for what wager itself sets."""
    name = re.split(r"[.=]", word, maxsplit=1)[0]
    if engine != "llamacpp" and name.startswith("--"):
        name = "--" + name[2:].replace("_", "-")
    option = spelled(name, engine)
    if option is not None:
        if option.key in GENERAL - {"kept"}:
            return str(option.key)
        if engine == "vllm" and option.key not in GENERAL:
            # The config, its keys one by one and their short names all set the same.
            return "--speculative-config"
        name = option.names[0]
    name = _ALIASES[engine].get(name, name)
    return f"--{name[5:]}" if name.startswith("--no-") else name


def _same_model(one: str, other: str) -> bool:
    paths = Path(one), Path(other)
    if all(path.exists() for path in paths):
        return paths[0].resolve() == paths[1].resolve()
    return one == other


def ready_command(backend: ServerBackend, arm: Arm, port: int = DEFAULT_PORT) -> list[str]:
    """The whole command for an arm, as it can be run: what the engine must find in its environment
    is set by ``env`` before it. For one without what only a measurement needs, the backend's
    options say ``measuring=False``."""
    variables = {**backend.environment(arm), **backend.options.environment}
    setting = [f"{name}={value}" for name, value in variables.items()]
    return [*(["env", *setting] if setting else []), *backend.full_command(arm, port)]


def drafting(engine: str, effective: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Whether an engine that is ready drafts, and what it said of it; None where it said nothing.

    ``effective`` is that of `wager.backend.Started`.
    """
    if engine == "vllm":
        config = effective.get("speculative_config")
        return (None, "") if config is None else (config != "None", f"its log: {config}")
    if engine == "llamacpp":
        speculative = effective.get("speculative")
        return speculative, "" if speculative is None else "its page /slots"
    name = "speculative_algorithm"
    if name not in effective:
        return None, ""
    settings = {k: v for k, v in effective.items() if k.startswith("speculative_") and v}
    said = ", ".join(f"{key} {value}" for key, value in settings.items())
    return effective[name] is not None, f"its settings: {said or 'no speculative_algorithm'}"


def check_port(host: str, port: int) -> None:
    """Whether an engine could listen there: a stranger on the port would answer in its place.
    Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port: cannot listen on {host}:{port}: {error.strerror}; give another --port"
            ) from error


@dataclass(slots=True)
class Service:
    """One engine in the foreground.

    ``command_arm`` is what the command is written for, ``arm`` what is in effect: they differ where
    a tuned file's arguments hold the speculation. ``say`` takes lines for people, ``echo`` the
    engine's output. ``check`` is called once its version is known, and may raise ConfigError.
    """

    backend: ServerBackend
    command_arm: Arm
    arm: Arm
    port: int
    say: Callable[[str], None]
    echo: Callable[[bytes], object]
    check: Callable[[str | None], None] = lambda version: None
    _asked: int = 0
    _process: EngineProcess | None = field(default=None)

    def run(self) -> int:
        """Until the engine ends; its exit status.

        SIGINT, SIGTERM and SIGHUP are passed on (SIGTERM to everything that the engine started,
        SIGKILL to what is left after the grace time); a second one ends it at once. Raises
        ConfigError and EngineError, after the engine has been ended.
        """
        with self._signals():
            self.backend.arm = self.arm
            begun = time.monotonic()
            self._process = process = self.backend.launch(
                self.command_arm, self.port, tls=self._tls(), echo=self.echo
            )
            try:
                self._until_ready(process, begun)
                while (status := self._status(process)) is None:
                    time.sleep(_POLL_S)
                return status
            finally:
                # Whatever the engine started is ended, too, when it has ended by itself.
                self.backend.stop()

    def _status(self, process: EngineProcess) -> int | None:
        # A signal may have come before there was anything to pass it on to.
        self._pass_on()
        return process.exit_status()

    def _until_ready(self, process: EngineProcess, begun: float) -> None:
        version = None
        while self._status(process) is None:
            if version is None:
                version = self.backend.version_in(process.log_text())
                self.check(version)
            if not self._asked and self.backend.ready():
                self._ready(process, time.monotonic() - begun)
                return
            time.sleep(_POLL_S)
        if not self._asked:
            status = process.exit_status()
            self.say(f"{self._title()} ended with exit status {status} before it was ready")

    def _ready(self, process: EngineProcess, seconds: float) -> None:
        log = process.log_text()
        try:
            started = self.backend.started(log)
        except EngineError as error:
            self.say(f"ready after {seconds:.1f} s; nothing could be read back: {error}")
            return
        self.check(started.version)
        host = self.backend.options.host
        host = f"[{host}]" if ":" in host else host
        place = f"{'https' if self._tls() else 'http'}://{host}:{self.port}"
        version = f" {started.version}" if started.version else ""
        self.say(f"{self._title()}{version} is ready after {seconds:.1f} s at {place}")
        self.say(self._drafting(started))
        for warning in started.warnings:
            # The engine's own are on the terminal already.
            if warning not in log and not warning.startswith("NOT ACTIVE"):
                self.say(warning)

    def _drafting(self, started: Started) -> str:
        drafts, source = drafting(self.backend.name, started.effective)
        asked = self.arm.speculation is not None
        if drafts is None:
            wanted = f"{self.arm.name} was asked for" if asked else "none was asked for"
            return f"drafting: the engine does not say whether it is in effect; {wanted}"
        said = f" ({source})" if source else ""
        if drafts:
            return f"drafting is in effect{said}"
        if asked:
            return (
                f"NOT ACTIVE: it runs without drafting, though {self.arm.name} is asked for{said}"
            )
        return f"plain decoding, nothing is drafted{said}"

    def _tls(self) -> bool:
        return any(word.startswith(_TLS) for word in self.backend.options.arguments)

    def _title(self) -> str:
        return TITLES[self.backend.name]

    def _signalled(self, *_: object) -> None:
        self._asked += 1
        self._pass_on()

    def _pass_on(self) -> None:
        if self._process is None or not self._asked:
            return
        if self._asked == 1:
            self._process.ask_to_end()
        else:
            self._process.kill()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        # What is ignored on purpose (nohup, a job in the background) stays so.
        heeded = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._signalled) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def tuned_arm(tuned: Tuned) -> Arm:
    """The arm that a tuned file's arguments amount to."""
    return Arm(PLAIN) if tuned.speculation is None else arm_of(tuned.speculation)


def notes(engine: str, arm: Arm) -> tuple[str, ...]:
    """What the engine's dialect has to say about an arm. Raises ConfigError."""
    return dialect(engine).write(arm.speculation).notes


def passed_arm(engine: str, theirs: Sequence[str]) -> Arm:
    """The arm that passed-through options amount to, plain where they ask for no speculation."""
    speculation = dialect(engine).read(list(theirs)).speculation
    return Arm(PLAIN) if speculation is None else arm_of(speculation.config())


def to_terminal(descriptor: int) -> Callable[[bytes], object]:
    """Writes all of an engine's output to a file descriptor as it comes."""

    def write(piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]

    return write
